//! Parses a policy from Envoy's context extensions, a map from strings to strings.
//!
//! A list has the format of the identity headers: its items are separated by commas, and percent-encoded if they
//! contain special characters.

use super::Policy;
use countersign_identity::TrustScore;
use percent_encoding::percent_decode_str;
use std::collections::HashMap;

/// Why a rule is invalid. The error message is logged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The name of the rule is unknown.
    #[error("unknown context extension `{0}`")]
    Unknown(String),
    /// The value of the rule is invalid.
    #[error("context extension `{name}`: `{value}` {problem}")]
    Value {
        /// The name of the rule.
        name: String,
        /// The value of the rule.
        value: String,
        /// Why the value is invalid.
        problem: &'static str,
    },
    /// The rules allow anonymous requests, which would bypass the requirements of the other rules.
    #[error("`allow_anonymous` contradicts `require_roles`, `require_permissions` and `min_trust_score`")]
    Contradiction,
}

impl Policy {
    /// Parses the rules of a route.
    pub fn from_extensions(extensions: &HashMap<String, String>) -> Result<Self, RuleError> {
        let mut policy = Self::default();
        for (name, value) in extensions {
            policy.set(name, value)?;
        }
        let Self { require_roles, require_permissions, min_trust_score, allow_anonymous, .. } = &policy;
        let has_requirements =
            !require_roles.is_empty() || !require_permissions.is_empty() || min_trust_score.is_some();
        if *allow_anonymous && has_requirements { Err(RuleError::Contradiction) } else { Ok(policy) }
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), RuleError> {
        let invalid = |problem| RuleError::Value { name: name.to_owned(), value: value.to_owned(), problem };
        match name {
            "service_id" => self.service = Some(value.parse().map_err(|_| invalid("is not a service id"))?),
            "require_roles" => {
                self.require_roles = parse_list(value).ok_or_else(|| invalid("is not a list of role names"))?;
            }
            "require_permissions" => {
                self.require_permissions = parse_list(value).ok_or_else(|| invalid("is not a list of permissions"))?;
            }
            "min_trust_score" => {
                self.min_trust_score = Some(
                    parse_trust_score(value)
                        .ok_or_else(|| invalid("is not a number from 0 to 100 with at most two decimals"))?,
                );
            }
            "allow_unassigned" => self.allow_unassigned = parse_boolean(value).ok_or_else(|| invalid(NOT_BOOLEAN))?,
            "allow_anonymous" => self.allow_anonymous = parse_boolean(value).ok_or_else(|| invalid(NOT_BOOLEAN))?,
            "forward_token" => self.forward_token = parse_boolean(value).ok_or_else(|| invalid(NOT_BOOLEAN))?,
            _ => return Err(RuleError::Unknown(name.to_owned())),
        }
        Ok(())
    }
}

const NOT_BOOLEAN: &str = "is neither `true` nor `false`";

fn parse_boolean(value: &str) -> Option<bool> {
    match value {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

/// Parses a trust score. Refuses more than two decimals, because rounding could lower the required score.
fn parse_trust_score(value: &str) -> Option<TrustScore> {
    let points: f64 = value.parse().ok()?;
    TrustScore::from_points(points).ok().filter(|score| score.points().total_cmp(&points).is_eq())
}

/// Parses a comma-separated list. Refuses an empty list, which is probably an unfinished rule.
fn parse_list<T: TryFrom<String>>(value: &str) -> Option<Vec<T>> {
    value.split(',').map(|item| T::try_from(percent_decode(item.trim())?).ok()).collect()
}

fn percent_decode(item: &str) -> Option<String> {
    let escapes = item.split('%').skip(1);
    let is_well_formed = |escape: &str| escape.bytes().take_while(u8::is_ascii_hexdigit).take(2).count() == 2;
    escapes.into_iter().all(is_well_formed).then(|| percent_decode_str(item).decode_utf8().ok().map(Into::into))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_identity::ServiceId;

    fn parse(extensions: &[(&str, &str)]) -> Result<Policy, RuleError> {
        Policy::from_extensions(&extensions.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect())
    }

    #[test]
    fn from_extensions_parses_every_rule() {
        let service = ServiceId::from_bits(5);
        let policy = parse(&[
            ("service_id", &service.to_string()),
            ("require_roles", "reader, billing%2C eu"),
            ("require_permissions", "read:a,write:a"),
            ("min_trust_score", "62.5"),
            ("allow_unassigned", "true"),
            ("allow_anonymous", "false"),
            ("forward_token", "true"),
        ])
        .unwrap();
        assert_eq!(policy.service, Some(service));
        assert_eq!(policy.require_roles.iter().map(ToString::to_string).collect::<Vec<_>>(), ["reader", "billing, eu"]);
        assert_eq!(policy.require_permissions.len(), 2);
        assert_eq!(policy.min_trust_score, TrustScore::from_points(62.5).ok());
        assert!(policy.allow_unassigned && !policy.allow_anonymous && policy.forward_token);
        assert_eq!(parse(&[]), Ok(Policy::default()));
    }

    #[test]
    fn from_extensions_refuses_unknown_rules_and_invalid_values() {
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
    fn min_trust_score_accepts_every_valid_score() {
        for hundredths in 0..=10_000 {
            let score = TrustScore::from_hundredths(hundredths).unwrap();
            assert_eq!(parse(&[("min_trust_score", &score.to_string())]).unwrap().min_trust_score, Some(score));
        }
    }

    #[test]
    fn from_extensions_refuses_allow_anonymous_with_requirements() {
        let rules = [("allow_anonymous", "true"), ("require_roles", "reader")];
        assert_eq!(parse(&rules), Err(RuleError::Contradiction));
    }
}
