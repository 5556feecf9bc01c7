//! The scope of tokens (RFC 6749, section 3.3): a set of permissions.
//!
//! Invariant: each word of a scope is a valid [`Permission`], and no word occurs twice.

use countersign_identity::{Permission, names::InvalidName};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::{collections::BTreeSet, fmt, str::FromStr};

/// A set of permissions, written as words that are separated by spaces. The order has no meaning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope(BTreeSet<Permission>);

impl Scope {
    /// Whether the scope contains no permission.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `other` contains every permission of this scope.
    pub fn is_within(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }

    /// The permissions of this scope that `other` does not contain.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).cloned().collect())
    }

    /// The permissions, sorted.
    pub fn permissions(&self) -> impl Iterator<Item = &Permission> {
        self.0.iter()
    }
}

impl FromStr for Scope {
    type Err = InvalidName;

    /// Parses words that are separated by one or more spaces. A text without words is the empty scope.
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let words = text.split(' ').filter(|word| !word.is_empty());
        words.map(Permission::try_from).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> = self.0.iter().map(Permission::as_str).collect();
        f.write_str(&words.join(" "))
    }
}

impl Serialize for Scope {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Scope {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(text: &str) -> Scope {
        text.parse().unwrap()
    }

    #[test]
    fn scopes_are_sets() {
        assert_eq!(scope("write read  read "), scope("read write"));
        assert_eq!(scope("write read").to_string(), "read write");
        assert!(scope("").is_empty() && scope(" ").is_empty() && !scope("read").is_empty());
        for (narrow, wide, is_within) in
            [("read", "read write", true), ("", "", true), ("read write", "read", false), ("reader", "read", false)]
        {
            assert_eq!(scope(narrow).is_within(&scope(wide)), is_within, "{narrow} {wide}");
        }
        assert_eq!(scope("read write").without(&scope("read list")), scope("write"));
    }

    #[test]
    fn words_that_are_no_permissions_are_refused() {
        for invalid in ["read,write", "read\twrite", "é", &"x".repeat(129)] {
            assert!(invalid.parse::<Scope>().is_err(), "{invalid}");
        }
        assert!(serde_json::from_str::<Scope>("\"a,b\"").is_err());
        assert_eq!(serde_json::to_string(&scope("b a")).unwrap(), "\"a b\"");
    }
}
