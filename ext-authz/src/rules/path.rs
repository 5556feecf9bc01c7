//! The normal form of paths.
//!
//! A rule that depends on the path protects a resource only if the sidecar and the service read the path in the same way.
//! Services differ: some decode `%2f`, merge `//`, resolve `..` or remove `;` parameters. Invariant: all of them read a path in normal
//! form alike, and every other path is refused.

use std::borrow::Cow;

/// A path in normal form: percent-encoding is decoded once; there is no query, and no slash at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NormalPath<'a>(Cow<'a, str>);

/// Why a path has no normal form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AmbiguousPath {
    #[error("the path does not begin with `/`")]
    NotAbsolute,
    #[error("the path contains a space that is not encoded, or a control character")]
    Control,
    #[error("the path contains a character outside of ASCII that is not encoded")]
    NotAscii,
    #[error("the path contains `%` without two hexadecimal digits")]
    InvalidEncoding,
    #[error("the decoded path is not UTF-8")]
    NotUtf8,
    #[error("the path contains `%25`, so a second decoding would change it")]
    EncodedTwice,
    #[error("the path contains an encoded slash (`%2f`)")]
    EncodedSlash,
    #[error("the path contains a backslash, which some services treat as a slash")]
    Backslash,
    #[error("the path contains `;`, which begins a path parameter in some services")]
    Parameter,
    #[error("the path contains an encoded `?`, or `#`, at which some services end the path")]
    EncodedEnd,
    #[error("the path contains `//`, which some services merge")]
    EmptySegment,
    #[error("the path contains the segment `.` or `..`")]
    DotSegment,
}

impl<'a> NormalPath<'a> {
    /// Converts a path, with or without a query, to its normal form. Allocates only if the path contains an encoding.
    pub fn parse(path_and_query: &'a str) -> Result<Self, AmbiguousPath> {
        let path = path_and_query.split('?').next().unwrap_or_default();
        if !path.starts_with('/') {
            return Err(AmbiguousPath::NotAbsolute);
        }
        path.bytes().try_for_each(check_unencoded_byte)?;
        let decoded = if path.contains('%') { Cow::Owned(decode(path)?) } else { Cow::Borrowed(path) };
        if decoded.contains("//") {
            return Err(AmbiguousPath::EmptySegment);
        }
        let normal = Self(match decoded {
            Cow::Borrowed(path) => Cow::Borrowed(path.strip_suffix('/').unwrap_or(path)),
            Cow::Owned(mut path) => {
                path.truncate(path.strip_suffix('/').map_or(path.len(), str::len));
                Cow::Owned(path)
            }
        });
        if normal.segments().any(|segment| segment == "." || segment == "..") {
            return Err(AmbiguousPath::DotSegment);
        }
        Ok(normal)
    }

    /// The segments of the path. The path `/` has none.
    pub fn segments(&self) -> std::str::Split<'_, char> {
        let mut segments = self.0.split('/');
        // The text before the first slash is empty.
        let _empty = segments.next();
        segments
    }

    /// The path as text, which begins with a slash.
    pub fn as_str(&self) -> &str {
        if self.0.is_empty() { "/" } else { &self.0 }
    }
}

const fn check_unencoded_byte(byte: u8) -> Result<(), AmbiguousPath> {
    match byte {
        0..=b' ' | 0x7f => Err(AmbiguousPath::Control),
        0x80.. => Err(AmbiguousPath::NotAscii),
        b'\\' => Err(AmbiguousPath::Backslash),
        b';' => Err(AmbiguousPath::Parameter),
        b'#' => Err(AmbiguousPath::EncodedEnd),
        _ => Ok(()),
    }
}

const fn check_encoded_byte(byte: u8) -> Result<(), AmbiguousPath> {
    match byte {
        0..b' ' | 0x7f => Err(AmbiguousPath::Control),
        b'\\' => Err(AmbiguousPath::Backslash),
        b';' => Err(AmbiguousPath::Parameter),
        b'/' => Err(AmbiguousPath::EncodedSlash),
        b'%' => Err(AmbiguousPath::EncodedTwice),
        b'?' | b'#' => Err(AmbiguousPath::EncodedEnd),
        _ => Ok(()),
    }
}

fn decode(path: &str) -> Result<String, AmbiguousPath> {
    let mut decoded = Vec::with_capacity(path.len());
    let mut bytes = path.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let (Some(high), Some(low)) = (hex_digit(bytes.next()), hex_digit(bytes.next())) else {
            return Err(AmbiguousPath::InvalidEncoding);
        };
        let byte = high << 4 | low;
        check_encoded_byte(byte)?;
        decoded.push(byte);
    }
    let decoded = String::from_utf8(decoded).map_err(|_| AmbiguousPath::NotUtf8)?;
    // UTF-8 encodes the control characters U+0080 to U+009F in two bytes.
    if decoded.chars().any(char::is_control) { Err(AmbiguousPath::Control) } else { Ok(decoded) }
}

fn hex_digit(byte: Option<u8>) -> Option<u8> {
    let digit = char::from(byte?).to_digit(16)?;
    u8::try_from(digit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use AmbiguousPath as A;
    use proptest::prelude::*;

    fn parse(path: &str) -> Result<String, AmbiguousPath> {
        NormalPath::parse(path).map(|path| path.as_str().to_owned())
    }

    #[test]
    fn equal_paths_have_one_normal_form() {
        for (path, normal) in [
            ("/", "/"),
            ("/?a=//..;%2f", "/"),
            ("/admin", "/admin"),
            ("/admin/", "/admin"),
            ("/%61dmin", "/admin"),
            ("/%61%44min/?q", "/aDmin"),
            ("/a%20b", "/a b"),
            ("/a%24b", "/a$b"),
            ("/a$b", "/a$b"),
            ("/caf%C3%A9", "/café"),
            ("/%2a", "/*"),
            ("/.well-known/a..b/...", "/.well-known/a..b/..."),
        ] {
            assert_eq!(parse(path).as_deref(), Ok(normal), "{path}");
        }
    }

    #[test]
    fn paths_with_several_readings_are_refused() {
        for (path, error) in [
            ("", A::NotAbsolute),
            ("admin", A::NotAbsolute),
            ("*", A::NotAbsolute),
            ("http://a/admin", A::NotAbsolute),
            ("?/admin", A::NotAbsolute),
            ("/a\0", A::Control),
            ("/a b", A::Control),
            ("/a\t", A::Control),
            ("/a%00", A::Control),
            ("/a%0d%0a", A::Control),
            ("/a%7f", A::Control),
            ("/a%C2%85", A::Control),
            ("/é", A::NotAscii),
            ("/%", A::InvalidEncoding),
            ("/%2", A::InvalidEncoding),
            ("/%zz", A::InvalidEncoding),
            ("/%u002f", A::InvalidEncoding),
            ("/%+1", A::InvalidEncoding),
            ("/%C0%AE%C0%AE/admin", A::NotUtf8),
            ("/%ff", A::NotUtf8),
            ("/%252e%252e/admin", A::EncodedTwice),
            ("/a%2Fb", A::EncodedSlash),
            ("/a%2fb", A::EncodedSlash),
            ("/a\\b", A::Backslash),
            ("/a%5Cb", A::Backslash),
            ("/admin;x=1", A::Parameter),
            ("/admin%3bx", A::Parameter),
            ("/admin#a", A::EncodedEnd),
            ("/admin%23a", A::EncodedEnd),
            ("/admin%3fa", A::EncodedEnd),
            ("//", A::EmptySegment),
            ("//admin", A::EmptySegment),
            ("/admin//", A::EmptySegment),
            ("/.", A::DotSegment),
            ("/a/../admin", A::DotSegment),
            ("/a/..", A::DotSegment),
            ("/a/../", A::DotSegment),
            ("/%2e%2E/admin", A::DotSegment),
            ("/.%2e/admin", A::DotSegment),
        ] {
            assert_eq!(parse(path), Err(error), "{path}");
        }
    }

    fn encode(path: &str, all: bool) -> String {
        let encode = |byte: u8| match byte {
            b'/' => "/".to_owned(),
            byte if all || !byte.is_ascii_alphanumeric() => format!("%{byte:02X}"),
            byte => char::from(byte).to_string(),
        };
        path.bytes().map(encode).collect()
    }

    proptest! {
        #[test]
        fn encoding_does_not_change_the_normal_form(path in "(/[a-zA-Z0-9é$&'()*+,=:@!~_-]{1,8}){1,5}") {
            prop_assert_eq!(parse(&encode(&path, false)), Ok(path.clone()));
            prop_assert_eq!(parse(&encode(&path, true)), Ok(path.clone()));
            if path.is_ascii() {
                prop_assert_eq!(parse(&path), Ok(path));
            }
        }

        #[test]
        fn normal_form_has_one_reading(path in r"/([a-c./;%\\?#é ]|%2[eEfF5]|%5[cC]|%00|%6[1-3]){0,12}") {
            if let Ok(normal) = NormalPath::parse(&path) {
                for segment in normal.segments() {
                    prop_assert!(!segment.is_empty() && segment != "." && segment != "..");
                    prop_assert!(!segment.contains(['/', '\\', ';', '?', '#', '%', '\0']), "{}", segment);
                }
            }
        }
    }
}
