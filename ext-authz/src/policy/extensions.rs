//! Parses the keys of a policy and their values, from Envoy's context extensions and from the rules file.
//!
//! In the context extensions, a list has the format of the identity headers: its items are separated by commas, and
//! percent-encoded if they contain special characters. In the rules file, a list can also be an array of texts.

use super::Policy;
use countersign_identity::TrustScore;
use percent_encoding::percent_decode_str;
use std::str::from_utf8;

pub const POLICY_KEYS: [&str; 9] = [
    "service_id",
    "require_roles",
    "any_role",
    "require_permissions",
    "any_permission",
    "min_trust_score",
    "allow_unassigned",
    "allow_anonymous",
    "forward_token",
];

/// Why a policy is invalid. The error message is logged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error("a context extension is not UTF-8 text")]
    NotText,
    #[error("unknown key `{}`", .0.escape_debug())]
    Unknown(String),
    #[error("`{name}`: `{}` {problem}", .value.escape_debug())]
    Value { name: String, value: String, problem: &'static str },
    /// The policy allows anonymous requests, which would bypass the other requirements.
    #[error(
        "`allow_anonymous` contradicts `require_roles`, `any_role`, `require_permissions`, `any_permission` and \
         `min_trust_score`: remove one of them"
    )]
    Contradiction,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyValue<'a> {
    /// A text, as in the context extensions.
    Text(&'a str),
    /// The items of an array in the rules file, which are not encoded.
    Items(&'a [&'a str]),
}

impl PolicyValue<'_> {
    fn describe(self) -> String {
        match self {
            Self::Text(text) => text.to_owned(),
            Self::Items(items) => items.join(", "),
        }
    }
}

impl Policy {
    pub fn from_extensions<'a>(extensions: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Result<Self, PolicyError> {
        let mut policy = Self::default();
        for (name, value) in extensions {
            let (Ok(name), Ok(value)) = (from_utf8(name), from_utf8(value)) else { return Err(PolicyError::NotText) };
            policy.set(name, PolicyValue::Text(value))?;
        }
        policy.check_contradiction()?;
        Ok(policy)
    }

    /// Refuses a policy that allows anonymous requests and requires something of the agent.
    pub fn check_contradiction(&self) -> Result<(), PolicyError> {
        let Self { require_roles, any_role, require_permissions, any_permission, min_trust_score, .. } = self;
        let has_requirements = !require_roles.is_empty()
            || !any_role.is_empty()
            || !require_permissions.is_empty()
            || !any_permission.is_empty()
            || min_trust_score.is_some();
        if self.allow_anonymous && has_requirements { Err(PolicyError::Contradiction) } else { Ok(()) }
    }

    /// Sets the key `name`.
    pub fn set(&mut self, name: &str, value: PolicyValue<'_>) -> Result<(), PolicyError> {
        let invalid = |problem| PolicyError::Value { name: name.to_owned(), value: value.describe(), problem };
        let (roles, permissions) = ("is not a list of role names", "is not a list of permissions");
        match name {
            "service_id" => {
                self.service = Some(parse_text(value).ok_or_else(|| invalid("is not a service id"))?);
            }
            "require_roles" => self.require_roles = parse_list(value).ok_or_else(|| invalid(roles))?,
            "any_role" => self.any_role = parse_list(value).ok_or_else(|| invalid(roles))?,
            "require_permissions" => {
                self.require_permissions = parse_list(value).ok_or_else(|| invalid(permissions))?;
            }
            "any_permission" => self.any_permission = parse_list(value).ok_or_else(|| invalid(permissions))?,
            "min_trust_score" => {
                self.min_trust_score = Some(
                    parse_trust_score(value)
                        .ok_or_else(|| invalid("is not a number from 0 to 100 with at most two decimals"))?,
                );
            }
            "allow_unassigned" => self.allow_unassigned = parse_text(value).ok_or_else(|| invalid(NOT_BOOLEAN))?,
            "allow_anonymous" => self.allow_anonymous = parse_text(value).ok_or_else(|| invalid(NOT_BOOLEAN))?,
            "forward_token" => self.forward_token = parse_text(value).ok_or_else(|| invalid(NOT_BOOLEAN))?,
            _ => return Err(PolicyError::Unknown(name.to_owned())),
        }
        Ok(())
    }
}

const NOT_BOOLEAN: &str = "is neither `true` nor `false`";

fn parse_text<T: std::str::FromStr>(value: PolicyValue<'_>) -> Option<T> {
    match value {
        PolicyValue::Text(text) => text.parse().ok(),
        PolicyValue::Items(_) => None,
    }
}

/// Parses a trust score. Refuses more than two decimals, because rounding could lower the required score.
fn parse_trust_score(value: PolicyValue<'_>) -> Option<TrustScore> {
    let points: f64 = parse_text(value)?;
    TrustScore::from_points(points).ok().filter(|score| score.points().total_cmp(&points).is_eq())
}

/// Parses a list. Refuses an empty list, which is probably an unfinished rule.
fn parse_list<T: TryFrom<String>>(value: PolicyValue<'_>) -> Option<Vec<T>> {
    match value {
        PolicyValue::Text(text) => text.split(',').map(|item| T::try_from(percent_decode(item.trim())?).ok()).collect(),
        PolicyValue::Items([]) => None,
        PolicyValue::Items(items) => items.iter().map(|item| T::try_from((*item).to_owned()).ok()).collect(),
    }
}

/// `None` if a `%` is not followed by two hexadecimal digits, or if the decoded bytes are not UTF-8.
fn percent_decode(item: &str) -> Option<String> {
    let escapes = item.split('%').skip(1);
    let is_well_formed = |escape: &str| escape.bytes().take_while(u8::is_ascii_hexdigit).take(2).count() == 2;
    escapes.into_iter().all(is_well_formed).then(|| percent_decode_str(item).decode_utf8().ok().map(Into::into))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_identity::ServiceId;

    fn parse(extensions: &[(&str, &str)]) -> Result<Policy, PolicyError> {
        Policy::from_extensions(extensions.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())))
    }

    #[test]
    fn from_extensions_parses_every_key() {
        let service = ServiceId::from_bits(5);
        let policy = parse(&[
            ("service_id", &service.to_string()),
            ("require_roles", "reader, billing%2C eu"),
            ("require_permissions", "read:a,write:a"),
            ("any_role", "a,b"),
            ("any_permission", "c,d,e"),
            ("min_trust_score", "62.5"),
            ("allow_unassigned", "true"),
            ("allow_anonymous", "false"),
            ("forward_token", "true"),
        ])
        .unwrap();
        assert_eq!(policy.service, Some(service));
        assert_eq!(policy.require_roles.iter().map(ToString::to_string).collect::<Vec<_>>(), ["reader", "billing, eu"]);
        assert_eq!((policy.require_permissions.len(), policy.any_role.len(), policy.any_permission.len()), (2, 2, 3));
        assert_eq!(policy.min_trust_score, TrustScore::from_points(62.5).ok());
        assert!(policy.allow_unassigned && !policy.allow_anonymous && policy.forward_token);
        assert_eq!(parse(&[]), Ok(Policy::default()));
    }

    #[test]
    fn from_extensions_refuses_unknown_keys_and_invalid_values() {
        for (name, value) in [
            ("require_role", "reader"),
            ("Require_roles", "reader"),
            ("service_id", "billing"),
            ("service_id", ""),
            ("require_roles", ""),
            ("require_roles", "reader,"),
            ("require_roles", "100%"),
            ("require_roles", "%zz"),
            ("require_permissions", "read, "),
            ("require_permissions", "re ad"),
            ("min_trust_score", "NaN"),
            ("min_trust_score", "101"),
            ("min_trust_score", "50.004"),
            ("min_trust_score", "-0"),
            ("min_trust_score", ""),
            ("allow_unassigned", "yes"),
            ("allow_anonymous", "True"),
            ("forward_token", "1"),
        ] {
            assert!(parse(&[(name, value)]).is_err(), "{name}={value}");
        }
    }

    #[test]
    fn items_of_a_list_need_no_encoding() {
        let mut policy = Policy::default();
        policy.set("any_role", PolicyValue::Items(&["billing, eu", "100%"])).unwrap();
        assert_eq!(policy.any_role.iter().map(ToString::to_string).collect::<Vec<_>>(), ["billing, eu", "100%"]);
        for (name, items) in [("any_role", [].as_slice()), ("any_permission", &["re ad"]), ("service_id", &["x"])] {
            assert!(policy.set(name, PolicyValue::Items(items)).is_err(), "{name}");
        }
    }

    #[test]
    fn every_listed_key_is_known() {
        for key in POLICY_KEYS {
            let error = Policy::default().set(key, PolicyValue::Items(&[])).unwrap_err();
            assert!(matches!(error, PolicyError::Value { .. }), "{key}");
        }
    }

    #[test]
    fn min_trust_score_accepts_every_valid_score() {
        for hundredths in 0..=10_000 {
            let score = TrustScore::from_hundredths(hundredths).unwrap();
            assert_eq!(parse(&[("min_trust_score", &score.to_string())]).unwrap().min_trust_score, Some(score));
        }
    }

    #[test]
    fn from_extensions_refuses_allow_anonymous_with_requirements() {
        let rules = [("allow_anonymous", "true"), ("require_roles", "reader")];
        assert_eq!(parse(&rules), Err(PolicyError::Contradiction));
        assert_eq!(parse(&[("allow_anonymous", "true"), ("any_role", "reader")]), Err(PolicyError::Contradiction));
        assert_eq!(parse(&[("allow_anonymous", "true"), ("any_permission", "read")]), Err(PolicyError::Contradiction));
    }
}
