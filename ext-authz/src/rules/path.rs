//! The normal form of paths.
//!
//! A rule that depends on the path protects a resource only if the sidecar and the service read the path in the same way.
//! Services differ: some decode `%2f`, merge `//`, resolve `..` or remove `;` parameters. Invariant: all of them read a path in normal
//! form alike, and every other path is refused. The only exception is an encoded slash inside a segment, if the caller allows it:
//! [`NormalPath::decoded_readings`] then returns how else services may read the path.

use std::borrow::Cow;

/// An encoded slash in a path in normal form, which contains no other `%`.
pub const ENCODED_SLASH: &str = "%2F";

/// The maximum number of segments with encoded slashes. With each of them, the number of readings doubles.
const MAX_ENCODED_SEGMENTS: usize = 4;

/// Whether a path may contain encoded slashes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EncodedSlash {
    #[default]
    Refused,
    /// An encoded slash inside a segment is a character of the segment.
    Kept,
}

impl EncodedSlash {
    pub const fn kept_if(is_allowed: bool) -> Self {
        if is_allowed { Self::Kept } else { Self::Refused }
    }
}

/// A path in normal form: percent-encoding is decoded once, except that an encoded slash, where it is allowed, is `%2F`; there is no
/// query, and no slash at the end.
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
    #[error("an encoded slash (`%2f`) is at the start or end of a segment, or beside another one, `.` or `..`")]
    EncodedSlashAtEdge,
    #[error("more than {max} segments of the path contain an encoded slash (`%2f`)", max = MAX_ENCODED_SEGMENTS)]
    ManyEncodedSlashes,
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
    pub fn parse(path_and_query: &'a str, encoded_slash: EncodedSlash) -> Result<Self, AmbiguousPath> {
        let path = path_and_query.split('?').next().unwrap_or_default();
        if !path.starts_with('/') {
            return Err(AmbiguousPath::NotAbsolute);
        }
        path.bytes().try_for_each(check_unencoded_byte)?;
        let decoded = if path.contains('%') { Cow::Owned(decode(path, encoded_slash)?) } else { Cow::Borrowed(path) };
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
        if encoded_slash == EncodedSlash::Kept {
            normal.check_encoded_slashes()?;
        }
        Ok(normal)
    }

    /// The path with these segments, which are in normal form.
    pub fn of_segments<'s>(segments: impl IntoIterator<Item = &'s str>) -> NormalPath<'static> {
        let mut path = String::new();
        for segment in segments {
            path.push('/');
            path.push_str(segment);
        }
        NormalPath(Cow::Owned(path))
    }

    /// Refuses encoded slashes that would make an empty segment, `.` or `..` if they were decoded, and paths with too many readings.
    fn check_encoded_slashes(&self) -> Result<(), AmbiguousPath> {
        let encoded = self.segments().filter(|segment| segment.contains(ENCODED_SLASH));
        let mut parts = encoded.clone().flat_map(|segment| segment.split(ENCODED_SLASH));
        if parts.any(|part| ["", ".", ".."].contains(&part)) {
            Err(AmbiguousPath::EncodedSlashAtEdge)
        } else if encoded.count() > MAX_ENCODED_SEGMENTS {
            Err(AmbiguousPath::ManyEncodedSlashes)
        } else {
            Ok(())
        }
    }

    /// The further readings of the path: a service may decode the encoded slashes of each segment, or keep them. There are none if
    /// no segment contains any.
    pub fn decoded_readings(&self) -> impl Iterator<Item = NormalPath<'static>> {
        let encoded = self.segments().filter(|segment| segment.contains(ENCODED_SLASH)).count();
        (1..1_u32 << encoded).map(|choice| self.decoded_reading(choice))
    }

    /// `choice` has a bit for each segment with encoded slashes, from the first one: whether they are decoded.
    fn decoded_reading(&self, mut choice: u32) -> NormalPath<'static> {
        let mut path = String::with_capacity(self.0.len());
        for segment in self.segments() {
            path.push('/');
            let is_encoded = segment.contains(ENCODED_SLASH);
            if is_encoded && choice & 1 == 1 {
                path.push_str(&segment.replace(ENCODED_SLASH, "/"));
            } else {
                path.push_str(segment);
            }
            choice >>= u32::from(is_encoded);
        }
        NormalPath(path.into())
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

fn decode(path: &str, encoded_slash: EncodedSlash) -> Result<String, AmbiguousPath> {
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
        if byte == b'/' && encoded_slash == EncodedSlash::Kept {
            decoded.extend_from_slice(ENCODED_SLASH.as_bytes());
            continue;
        }
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
        NormalPath::parse(path, EncodedSlash::Refused).map(|path| path.as_str().to_owned())
    }

    fn parse_kept(path: &str) -> Result<String, AmbiguousPath> {
        NormalPath::parse(path, EncodedSlash::Kept).map(|path| path.as_str().to_owned())
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

    #[test]
    fn encoded_slashes_inside_segments_are_kept_where_they_are_allowed() {
        for (path, normal) in [
            ("/@scope%2fname", "/@scope%2Fname"),
            ("/@scope%2Fname/?q=%2F..%2F", "/@scope%2Fname"),
            ("/%40scope%2fn%61me/", "/@scope%2Fname"),
            ("/a/b", "/a/b"),
            ("/", "/"),
            ("/a%2Fb/c/d%2fe%2ff", "/a%2Fb/c/d%2Fe%2Ff"),
            ("/a%2F.b%2F...%2Fc.", "/a%2F.b%2F...%2Fc."),
            ("/1%2F1/2%2F2/3%2F3/4%2F4", "/1%2F1/2%2F2/3%2F3/4%2F4"),
        ] {
            assert_eq!(parse_kept(path).as_deref(), Ok(normal), "{path}");
        }
    }

    #[test]
    fn encoded_slashes_that_make_other_paths_are_always_refused() {
        for (path, error) in [
            // The decoded path has an empty segment, or a slash at the end.
            ("/%2F", A::EncodedSlashAtEdge),
            ("/%2Fadmin", A::EncodedSlashAtEdge),
            ("/a%2F", A::EncodedSlashAtEdge),
            ("/a%2F/", A::EncodedSlashAtEdge),
            ("/a%2F?b", A::EncodedSlashAtEdge),
            ("/a/%2Fb", A::EncodedSlashAtEdge),
            ("/a%2F/b", A::EncodedSlashAtEdge),
            ("/a%2F%2Fb", A::EncodedSlashAtEdge),
            ("/a%2f%2Fb", A::EncodedSlashAtEdge),
            ("/a%2F//b", A::EmptySegment),
            // The decoded path has a segment `.` or `..`.
            ("/a%2F..%2Fadmin", A::EncodedSlashAtEdge),
            ("/a%2f%2e%2e%2fadmin", A::EncodedSlashAtEdge),
            ("/a%2F.%2E/admin", A::EncodedSlashAtEdge),
            ("/..%2Fadmin", A::EncodedSlashAtEdge),
            ("/%2e%2e%2Fadmin", A::EncodedSlashAtEdge),
            ("/a/..%2F..%2Fadmin", A::EncodedSlashAtEdge),
            ("/a%2F..", A::EncodedSlashAtEdge),
            ("/a%2F../", A::EncodedSlashAtEdge),
            ("/a%2F.%2Fb", A::EncodedSlashAtEdge),
            ("/.%2Fadmin", A::EncodedSlashAtEdge),
            ("/a%2Fb/../admin", A::DotSegment),
            ("/a%2Fb/%2e%2e/admin", A::DotSegment),
            // Another character of the path has several readings.
            ("/a%252Fb", A::EncodedTwice),
            ("/a%252F..%252Fadmin", A::EncodedTwice),
            ("/a%2Fb%252Fc", A::EncodedTwice),
            ("/a%2F%252e%252e%2Fadmin", A::EncodedTwice),
            ("/a%25%32%46b", A::EncodedTwice),
            ("/a%2Fb%5Cc", A::Backslash),
            ("/a%2F..%5Cadmin", A::Backslash),
            ("/a%2Fb\\c", A::Backslash),
            ("/a%2F..;%2Fadmin", A::Parameter),
            ("/a%2F..%3B%2Fadmin", A::Parameter),
            ("/a%2Fb%23", A::EncodedEnd),
            ("/a%2Fb%3Fc", A::EncodedEnd),
            ("/a%2Fb%00", A::Control),
            ("/a%2F%0A", A::Control),
            ("/a%2Fb//c", A::EmptySegment),
            ("/a%2Fb%", A::InvalidEncoding),
            ("/a%2Fb%u002f", A::InvalidEncoding),
            ("/a%2Fb%c0%af", A::NotUtf8),
            ("%2Fadmin", A::NotAbsolute),
            ("a%2Fb", A::NotAbsolute),
            ("/1%2F1/2%2F2/3%2F3/4%2F4/5%2F5", A::ManyEncodedSlashes),
        ] {
            assert_eq!(parse_kept(path), Err(error), "{path}");
        }
    }

    #[test]
    fn service_may_decode_the_slashes_of_each_segment() {
        let readings = |path| -> Vec<_> {
            let path = NormalPath::parse(path, EncodedSlash::Kept).unwrap();
            path.decoded_readings().map(|reading| reading.as_str().to_owned()).collect()
        };
        assert_eq!(readings("/"), [] as [&str; 0]);
        assert_eq!(readings("/a/b"), [] as [&str; 0]);
        assert_eq!(readings("/a%2Fb%2fc/d/"), ["/a/b/c/d"]);
        assert_eq!(
            readings("/a/b%2Fc/d/e%2Ff"),
            ["/a/b/c/d/e%2Ff", "/a/b%2Fc/d/e/f", "/a/b/c/d/e/f"],
            "a service may route by the first segments before it decodes the rest"
        );
        assert_eq!(readings("/1%2F1/2%2F2/3%2F3/4%2F4").len(), 15);
    }

    fn encode(path: &str, all: bool) -> String {
        let encode = |byte: u8| match byte {
            b'/' => "/".to_owned(),
            byte if all || !byte.is_ascii_alphanumeric() => format!("%{byte:02X}"),
            byte => char::from(byte).to_string(),
        };
        path.bytes().map(encode).collect()
    }

    fn check_segments(path: &NormalPath<'_>) -> Result<(), TestCaseError> {
        for segment in path.segments() {
            prop_assert!(!segment.is_empty() && segment != "." && segment != "..");
            prop_assert!(!segment.contains(['/', '\\', ';', '?', '#', '%', '\0']), "{}", segment);
        }
        Ok(())
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
            if let Ok(normal) = NormalPath::parse(&path, EncodedSlash::Refused) {
                check_segments(&normal)?;
            }
        }

        /// With encoded slashes, the last reading is the normal form of the path in which all of them are decoded.
        #[test]
        fn decoded_readings_have_no_other_reading(path in r"/([a-c./;%\\]|%2[eEfF5]|%5[cC]|%6[1-3]){0,12}") {
            let Ok(normal) = NormalPath::parse(&path, EncodedSlash::Kept) else { return Ok(()) };
            let readings: Vec<_> = normal.decoded_readings().collect();
            for reading in readings.iter().chain([&normal]) {
                check_segments(&NormalPath(reading.0.replace(ENCODED_SLASH, "-").into()))?;
            }
            let decoded = path.replace("%2f", "/").replace("%2F", "/");
            let last = readings.last().unwrap_or(&normal);
            prop_assert_eq!(parse(&decoded), Ok(last.as_str().to_owned()));
        }
    }
}
