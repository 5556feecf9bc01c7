//! Names of roles and permissions, validated when they are parsed, and the rules for labels and printable texts.

use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc};

/// The text is not a valid name. The error message states the rule for valid names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// The text is not a valid role name.
    #[error("must be 1 to 64 printable characters without spaces at the ends")]
    Role,
    /// The text is not a valid permission.
    #[error("must be 1 to 128 visible ASCII characters without a comma")]
    Permission,
}

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident up to $max_len:literal, $error:expr, $valid:expr;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// The maximum length of a name in characters.
            pub const MAX_LEN: usize = $max_len;

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<&str> for $name {
            type Error = InvalidName;

            fn try_from(text: &str) -> Result<Self, InvalidName> {
                let valid: fn(&str) -> bool = $valid;
                if valid(text) { Ok(Self(text.into())) } else { Err($error) }
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidName;

            fn try_from(text: String) -> Result<Self, InvalidName> {
                Self::try_from(text.as_str())
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.as_ref().to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    )+};
}

names! {
    /// The name of a role: 1–64 printable characters, unique per service, never renamed.
    RoleName up to 64, InvalidName::Role, |text| {
        (1..=RoleName::MAX_LEN).contains(&text.chars().count()) && is_printable(text)
    };
    /// A permission: 1–128 visible ASCII characters without a comma, because headers join permissions with commas.
    Permission up to 128, InvalidName::Permission, |text| {
        (1..=Permission::MAX_LEN).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',')
    };
}

/// Maximum length of a label, in characters.
pub const MAX_LABEL_LEN: usize = 63;

/// What [`is_label`] requires, for error messages.
pub const LABEL_REQUIREMENT: &str =
    "must be 1 to 63 ASCII letters, digits, `-`, `_` and `.`, with a letter or digit at both ends";

/// True if the text has the format of the value of a Kubernetes label, and is not empty.
pub fn is_label(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= MAX_LABEL_LEN && bytes.iter().copied().all(is_inner) && is_end(bytes.first()) && is_end(bytes.last())
}

/// True if the text has no control or invisible formatting characters, and no white space at either end. It may be empty.
pub fn is_printable(text: &str) -> bool {
    text.trim() == text && !text.chars().any(|character| character.is_control() || is_invisible(character))
}

/// True for invisible characters that change how a line is displayed: zero-width characters, bidirectional overrides,
/// line and paragraph separators, the byte-order mark, tag characters and private-use characters.
fn is_invisible(character: char) -> bool {
    matches!(character,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e000}'..='\u{f8ff}'
        | '\u{e0000}'..='\u{e007f}' | '\u{f0000}'..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enforces_length_and_character_rules() {
        assert!(RoleName::try_from("é".repeat(64)).is_ok());
        assert!(RoleName::try_from("e".repeat(65)).is_err());
        assert!(RoleName::try_from("").is_err());
        assert!(RoleName::try_from("billing, reader").is_ok());
        for invalid in [" a", "a ", "a\nb", "a\u{202e}b", "a\0b"] {
            assert!(RoleName::try_from(invalid).is_err(), "{invalid:?}");
        }
        assert!(Permission::try_from("p".repeat(128)).is_ok());
        for invalid in ["p".repeat(129), String::new(), "a,b".into(), "a b".into(), "é".into()] {
            assert!(Permission::try_from(invalid.as_str()).is_err(), "{invalid:?}");
        }
    }
}
