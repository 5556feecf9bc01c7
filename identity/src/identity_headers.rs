//! The headers that tell a service who the agent is. The sidecar sets them on requests, and `verify` on its responses.

use crate::{Permission, RoleName, ServiceId, VerifiedIdentity};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

/// The names of the identity headers after their prefix, in the order of [`values`].
pub const SUFFIXES: [&str; 7] = ["id", "name", "trust-score", "roles", "permissions", "service", "token-id"];

/// The name of the header with the reason of a refusal, after its prefix.
pub const REASON_SUFFIX: &str = "reason";

/// The prefix of the names, unless a setting replaces it.
pub const DEFAULT_PREFIX: &str = "x-agent-";

/// Characters that are percent-encoded: control characters, the escape character `%` and the list separator `,`.
const ENCODED_CHARACTERS: &AsciiSet = &CONTROLS.add(b'%').add(b',');

/// The values of all identity headers. Some values may be empty.
pub fn values(identity: &VerifiedIdentity, service: Option<ServiceId>) -> [String; 7] {
    let VerifiedIdentity { agent, name, roles, permissions, trust_score, token, valid_until: _ } = identity;
    [
        agent.to_string(),
        join_encoded([name.as_str()]),
        trust_score.to_string(),
        join_encoded(roles.iter().map(RoleName::as_str)),
        join_encoded(permissions.iter().map(Permission::as_str)),
        service.map(|service| service.to_string()).unwrap_or_default(),
        token.to_string(),
    ]
}

/// A list as an identity header contains it: joins the items with commas, and percent-encodes `%`, commas, control characters and
/// non-ASCII characters. The limits of names count the bytes of this text.
pub fn join_encoded<'a>(items: impl IntoIterator<Item = &'a str>) -> String {
    let mut value = String::new();
    for (position, item) in items.into_iter().enumerate() {
        if position > 0 {
            value.push(',');
        }
        value.extend(utf8_percent_encode(item, ENCODED_CHARACTERS));
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_joined_and_encoded() {
        for (items, expected) in [
            (&["a b", "c"][..], "a b,c"),
            (&[], ""),
            (&["50%", "a, b"], "50%25,a%2C b"),
            (&["é", "🤖"], "%C3%A9,%F0%9F%A4%96"),
            (&["a\u{7f}\n"], "a%7F%0A"),
        ] {
            assert_eq!(join_encoded(items.iter().copied()), expected);
        }
    }
}
