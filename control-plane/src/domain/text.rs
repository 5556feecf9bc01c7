//! Validated text fields: display names, labels, e-mail addresses, descriptions and metadata.

use countersign_identity::names::{LABEL_REQUIREMENT, MAX_LABEL_LEN, is_label, is_printable};
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt;

/// Error for an invalid text field. The message states the requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidText(pub &'static str);

macro_rules! text_types {
    ($($(#[$doc:meta])* $name:ident up to $max_len:expr; $valid:expr, $message:expr;)+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Serialize)]
        pub struct $name(String);

        impl $name {
            /// Maximum length, in characters.
            pub const MAX_LEN: usize = $max_len;

            /// The text as received.
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

text_types! {
    /// Display name of an agent, a service or an API key.
    DisplayName up to 128; |text| (1..=DisplayName::MAX_LEN).contains(&text.chars().count()) && is_printable(text),
        "must be 1 to 128 printable characters without spaces at the ends";
    /// The token issuer of another human user, as a user types it.
    IssuerText up to 512; |text| (1..=IssuerText::MAX_LEN).contains(&text.chars().count()) && is_printable(text),
        "must be 1 to 512 printable characters without spaces at the ends";
    /// The token subject of another human user, as a user types it.
    SubjectText up to 255; |text| (1..=SubjectText::MAX_LEN).contains(&text.chars().count()) && is_printable(text),
        "must be 1 to 255 printable characters without spaces at the ends";
    /// The label of a set of files that declares services, roles and so on. It has the format of a Kubernetes label.
    ManagedBy up to MAX_LABEL_LEN; is_label, LABEL_REQUIREMENT;
    /// E-mail address of a registrant.
    EmailAddress up to 254; is_email, "must be an e-mail address of at most 254 characters";
    /// Free-text description. May be empty.
    #[derive(Default)]
    Description up to 1024; |text| text.chars().count() <= Description::MAX_LEN && !text.chars().any(|c| c.is_control() && c != '\n'),
        "must be at most 1024 characters without control characters";
}

/// Accepts the common forms of RFC 5321 and RFC 6531 (Unicode): words with dots in between, an `@` and a host name.
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
    text.len() <= EmailAddress::MAX_LEN
        && (1..=64).contains(&local.len())
        && local.split('.').all(atom)
        && host.split('.').all(label)
}

/// Free-form JSON object of at most 8 KiB.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Metadata(Map<String, Value>);

impl Metadata {
    /// Maximum size of the JSON text, in bytes.
    pub const MAX_BYTES: usize = 8 * 1024;

    /// The JSON object as text.
    pub fn to_json(&self) -> String {
        Value::Object(self.0.clone()).to_string()
    }
}

impl TryFrom<Map<String, Value>> for Metadata {
    type Error = InvalidText;

    fn try_from(map: Map<String, Value>) -> Result<Self, InvalidText> {
        let size = serde_json::to_vec(&map).map_or(usize::MAX, |text| text.len());
        if size <= Self::MAX_BYTES {
            Ok(Self(map))
        } else {
            Err(InvalidText("must be an object of at most 8 KiB of JSON"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_common_email_addresses_only() {
        for good in ["a@b.example", "first.last+tag@sub.example.org", "müller@exämple.de", "root@localhost"] {
            assert!(EmailAddress::try_from(good.to_owned()).is_ok(), "{good}");
        }
        for bad in ["", "a", "@b", "a@", "a b@c.d", "a..b@c.d", "a@-b.c", "a@b..c", "a\0@b.c", "a@b.c\n", "<a@b.c>"] {
            assert!(EmailAddress::try_from(bad.to_owned()).is_err(), "{bad}");
        }
        assert!(EmailAddress::try_from(format!("{}@b.c", "a".repeat(65))).is_err());
    }
}
