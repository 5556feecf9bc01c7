//! Text that people type: display names, e-mail addresses, descriptions, metadata.

use countersign_identity::names::is_printable;
use serde_json::{Map, Value};
use std::fmt;

/// Why a text is not accepted; the message says how to mend it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidText(pub &'static str);

macro_rules! texts {
    ($($(#[$doc:meta])* $name:ident up to $longest:literal: $valid:expr, $message:literal;)+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name(String);

        impl $name {
            /// The most characters it may have.
            pub const LONGEST: usize = $longest;

            /// The text as given.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidText;

            fn try_from(text: String) -> Result<Self, InvalidText> {
                let valid: fn(&str) -> bool = $valid;
                if valid(&text) { Ok(Self(text)) } else { Err(InvalidText($message)) }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )+};
}

texts! {
    /// What people call an agent, a service or a key.
    DisplayName up to 128: |text| (1..=DisplayName::LONGEST).contains(&text.chars().count()) && is_printable(text),
        "must be 1 to 128 printable characters without spaces at the ends";
    /// Where the registrant can be written to.
    EmailAddress up to 254: is_email, "must be an e-mail address of at most 254 characters";
    /// What a role is for; may be empty.
    #[derive(Default)]
    Description up to 1024: |text| text.chars().count() <= Description::LONGEST && !text.chars().any(|c| c.is_control() && c != '\n'),
        "must be at most 1024 characters without control characters";
}

/// The form of RFC 5321 that people use: a dot-atom, an `@`, a host name with letters and digits.
fn is_email(text: &str) -> bool {
    let Some((local, host)) = text.rsplit_once('@') else { return false };
    let atom =
        |part: &str| !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c));
    let label = |part: &str| {
        (1..=63).contains(&part.len())
            && part.chars().all(|c| c.is_alphanumeric() || c == '-')
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    text.len() <= EmailAddress::LONGEST
        && (1..=64).contains(&local.len())
        && local.split('.').all(atom)
        && host.split('.').all(label)
}

/// Free-form JSON that its owner attaches: an object of at most 8 KiB.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata(Map<String, Value>);

impl Metadata {
    /// The largest JSON text that is kept, in bytes.
    pub const MAX: usize = 8 * 1024;

    /// The object.
    pub fn as_map(&self) -> &Map<String, Value> {
        &self.0
    }

    /// The object as JSON text.
    pub fn to_json(&self) -> String {
        Value::Object(self.0.clone()).to_string()
    }
}

impl TryFrom<Map<String, Value>> for Metadata {
    type Error = InvalidText;

    fn try_from(map: Map<String, Value>) -> Result<Self, InvalidText> {
        let size = serde_json::to_vec(&map).map_or(usize::MAX, |text| text.len());
        if size <= Self::MAX { Ok(Self(map)) } else { Err(InvalidText("must be an object of at most 8 KiB of JSON")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_people_have_are_accepted_and_others_are_not() {
        for good in ["a@b.example", "first.last+tag@sub.example.org", "müller@exämple.de", "root@localhost"] {
            assert!(EmailAddress::try_from(good.to_owned()).is_ok(), "{good}");
        }
        for bad in ["", "a", "@b", "a@", "a b@c.d", "a..b@c.d", "a@-b.c", "a@b..c", "a\0@b.c", "a@b.c\n", "<a@b.c>"] {
            assert!(EmailAddress::try_from(bad.to_owned()).is_err(), "{bad}");
        }
        assert!(EmailAddress::try_from(format!("{}@b.c", "a".repeat(65))).is_err());
    }
}
