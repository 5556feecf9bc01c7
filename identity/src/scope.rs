//! Scopes of OAuth (RFC 6749, section 3.3): the permissions that a client asks for. Scopes only narrow what a token grants.

use crate::Permission;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The text is not a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidScope {
    /// A part of the text is not a permission that can be in a scope.
    #[error(
        "must be permissions of at most 128 characters that are separated by single spaces, without commas, quotation marks and backslashes"
    )]
    Character,
    /// The text is too long.
    #[error("must not be longer than 2048 bytes")]
    Length,
}

/// The permissions that a client asked for, sorted and each once. The empty scope grants no permission.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Scope(Vec<Permission>);

impl Scope {
    /// The maximum length of the text, in bytes.
    pub const MAX_BYTES: usize = 2048;

    /// Whether the scope contains a permission.
    pub fn contains(&self, permission: &Permission) -> bool {
        self.0.binary_search(permission).is_ok()
    }

    /// The permissions that both scopes contain.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(self.0.iter().filter(|permission| other.contains(permission)).cloned().collect())
    }

    /// The permissions.
    pub fn permissions(&self) -> &[Permission] {
        &self.0
    }
}

impl TryFrom<&str> for Scope {
    type Error = InvalidScope;

    fn try_from(text: &str) -> Result<Self, InvalidScope> {
        if text.len() > Self::MAX_BYTES {
            return Err(InvalidScope::Length);
        }
        if text.is_empty() {
            return Ok(Self::default());
        }
        let names = text.split(' ');
        if names.clone().any(|name| !is_scope_token(name)) {
            return Err(InvalidScope::Character);
        }
        let permissions: Result<Vec<_>, _> = names.map(Permission::try_from).collect();
        let mut permissions = permissions.map_err(|_| InvalidScope::Character)?;
        permissions.sort_unstable();
        permissions.dedup();
        Ok(Self(permissions))
    }
}

impl TryFrom<String> for Scope {
    type Error = InvalidScope;

    fn try_from(text: String) -> Result<Self, InvalidScope> {
        Self::try_from(text.as_str())
    }
}

impl From<Scope> for String {
    fn from(scope: Scope) -> Self {
        scope.to_string()
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&scope_text(&self.0))
    }
}

/// Permissions as a scope. Permissions that cannot be in a scope are left out: no client can ask for them.
pub fn scope_text(permissions: &[Permission]) -> String {
    let names = permissions.iter().map(Permission::as_str).filter(|name| is_scope_token(name));
    names.collect::<Vec<_>>().join(" ")
}

/// Whether a text can be a part of a scope (`scope-token` of RFC 6749): without `"` and `\`, because `WWW-Authenticate` quotes scopes.
fn is_scope_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(text: &str) -> Result<Scope, InvalidScope> {
        Scope::try_from(text)
    }

    #[test]
    fn scope_is_parsed_sorted_and_each_permission_once() {
        for (text, normalized) in [("b a", "a b"), ("a a", "a"), ("", ""), ("read:all", "read:all")] {
            assert_eq!(scope(text).unwrap().to_string(), normalized, "{text}");
        }
        for invalid in
            [" ", "a ", " a", "a  b", "a\tb", "\"a\"", "a\\b", "é", "a\nb", "a,b", "read a,b", &"a".repeat(129)]
        {
            assert_eq!(scope(invalid), Err(InvalidScope::Character), "{invalid:?}");
        }
        let longest = "a ".repeat(Scope::MAX_BYTES / 2 - 1) + "ab";
        assert!(longest.len() == Scope::MAX_BYTES && scope(&longest).is_ok());
        assert_eq!(scope(&format!("{longest}c")), Err(InvalidScope::Length));
    }

    #[test]
    fn intersection_never_has_more_than_either_scope() {
        let [one, other] = ["a b c", "b c d"].map(|text| scope(text).unwrap());
        assert_eq!(one.intersection(&other).to_string(), "b c");
        assert_eq!(other.intersection(&one).to_string(), "b c");
        assert_eq!(one.intersection(&Scope::default()), Scope::default());
    }

    #[test]
    fn permissions_that_cannot_be_in_a_scope_are_left_out() {
        let permissions = ["a", "a\"b", "a\\b", "c"].map(|name| Permission::try_from(name).unwrap());
        assert_eq!(scope_text(&permissions), "a c");
    }
}
