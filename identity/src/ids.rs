//! Typed identifiers: a prefix and 26 characters of lower-case Crockford base32 of 128 bits.
//!
//! Each kind of id has its own type, so that an agent id cannot be passed where a service id is expected. Invariant: an id has one
//! spelling, and every other spelling is refused.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{fmt, str::FromStr};

/// Crockford base32 in lower case, without `i`, `l`, `o` and `u`.
const BASE32_ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// The number of base32 digits that encode 128 bits: a first digit of 3 bits, and 25 digits of 5 bits each.
const DIGIT_COUNT: usize = 26;

/// The text is not an identifier of the expected kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an identifier of this kind: expected `{prefix}` and 26 characters of lower-case base32")]
pub struct InvalidId {
    /// The prefix of the expected kind.
    pub prefix: &'static str,
}

fn encode(bits: u128) -> [u8; DIGIT_COUNT] {
    let mut text = [0; DIGIT_COUNT];
    for (position, digit) in text.iter_mut().rev().enumerate() {
        *digit = BASE32_ALPHABET[(bits >> (5 * position) & 31) as usize];
    }
    text
}

fn decode(text: &[u8]) -> Option<u128> {
    if text.len() != DIGIT_COUNT || text[0] > b'7' {
        return None;
    }
    text.iter().try_fold(0_u128, |bits, character| {
        let digit = BASE32_ALPHABET.iter().position(|digit| digit == character)?;
        Some(bits << 5 | digit as u128)
    })
}

macro_rules! identifiers {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl $name {
            /// The prefix of every identifier of this kind.
            pub const PREFIX: &'static str = $prefix;

            /// Wraps 128 bits, usually of a `UUIDv7`.
            pub const fn from_bits(bits: u128) -> Self {
                Self(bits)
            }

            /// The 128 bits of the identifier.
            pub const fn bits(self) -> u128 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($prefix)?;
                f.write_str(str::from_utf8(&encode(self.0)).map_err(|_| fmt::Error)?)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                text.strip_prefix($prefix)
                    .and_then(|digits| decode(digits.as_bytes()))
                    .map(Self)
                    .ok_or(InvalidId { prefix: $prefix })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )+};
}

identifiers! {
    /// An agent, which holds the private key of a registered public key.
    AgentId = "agent_";
    /// A service, which defines roles and verifies agents.
    ServiceId = "svc_";
    /// A role, defined by one service.
    RoleId = "role_";
    /// A service API key, without its secret.
    ApiKeyId = "key_";
    /// An access token, as in its claim `jti`.
    TokenId = "tok_";
    /// A session (`sid`): the tokens of one login and of all its refreshes.
    SessionId = "ses_";
    /// A rating of an agent by a service.
    FeedbackId = "feedback_";
    /// A webhook target.
    WebhookId = "wh_";
    /// An event, delivered to webhooks.
    EventId = "evt_";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_wrong_prefix_case_length_and_overflow() {
        let id = AgentId::from_bits(7).to_string();
        assert!(id.parse::<ServiceId>().is_err());
        assert!(id.to_uppercase().parse::<AgentId>().is_err());
        assert!(id[..id.len() - 1].parse::<AgentId>().is_err());
        assert!(format!("{id}0").parse::<AgentId>().is_err());
        assert!(format!("agent_8{}", "0".repeat(25)).parse::<AgentId>().is_err());
        assert_eq!(format!("agent_7{}", "z".repeat(25)).parse::<AgentId>().unwrap().bits(), u128::MAX);
    }
}
