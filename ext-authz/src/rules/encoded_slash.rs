//! Selects the rule for a path with encoded slashes.
//!
//! A service may read `/a%2Fb` as one segment or as two, whatever the operator expects. Invariant: such a path gets a rule only if the
//! rule allows encoded slashes, and if no other reading of the path is for a rule that could refuse what this rule allows. So a
//! service that decodes slashes never serves more than the rules for the decoded path allow.

use super::{DEFAULT_NAME, EncodedSlash, NormalPath, Rule, RuleSet};
use crate::policy::Policy;
use std::{collections::BTreeSet, fmt};

/// A method that no rule names, as far as we know.
const UNNAMED_METHOD: &str = "OTHER";

/// Why a path with encoded slashes gets no rule.
#[derive(Debug)]
pub enum Refusal<'r> {
    /// The rule for the path lacks `allow_encoded_slash`. `None` stands for the default of the sidecar.
    NotAllowed(Option<&'r Rule>),
    /// A service that decodes slashes reads the path like this, and the rule for that could refuse what `rule` allows.
    OtherReading { rule: &'r Rule, reading: NormalPath<'static>, other: Option<&'r Rule> },
}

/// Returns the rule for a path with encoded slashes. `find` returns the rule for a reading of the path.
pub fn select<'r>(
    path: &NormalPath<'_>,
    find: impl Fn(&NormalPath<'_>) -> Option<&'r Rule>,
) -> Result<&'r Rule, Refusal<'r>> {
    let found = find(path);
    let allowing = found.filter(|rule| rule.encoded_slash == EncodedSlash::Kept);
    let rule = allowing.ok_or(Refusal::NotAllowed(found))?;
    for reading in path.decoded_readings() {
        let other = find(&reading);
        if !is_as_strict(Some(rule), other) {
            return Err(Refusal::OtherReading { rule, reading, other });
        }
    }
    Ok(rule)
}

/// Whether `other` certainly allows every request that `rule` allows. `None` stands for the default of the sidecar.
fn is_as_strict(rule: Option<&Rule>, other: Option<&Rule>) -> bool {
    if is_same(rule, other) {
        return true;
    }
    let default = Policy::default();
    let policy = rule.map_or(&default, |rule| &rule.policy);
    let other_policy = other.map_or(&default, |other| &other.policy);
    let is_dry_run = |rule: Option<&Rule>| rule.is_some_and(|rule| rule.dry_run);
    let is_enforced = !is_dry_run(rule) || is_dry_run(other);
    is_enforced && other.is_none_or(|other| other.mcp.is_none()) && requires_as_much(policy, other_policy)
}

fn is_same(rule: Option<&Rule>, other: Option<&Rule>) -> bool {
    rule.map(std::ptr::from_ref) == other.map(std::ptr::from_ref)
}

/// Whether everyone who meets the policy certainly meets the other one, too.
fn requires_as_much(policy: &Policy, other: &Policy) -> bool {
    let Policy {
        service,
        require_roles,
        any_role,
        require_permissions,
        any_permission,
        min_trust_score,
        allow_unassigned,
        allow_anonymous,
        // What the service receives does not decide who may ask.
        forward_token: _,
    } = other;
    policy.service == *service
        && require_roles.iter().all(|role| policy.require_roles.contains(role))
        && ensures_one_of(any_role, &policy.require_roles, &policy.any_role)
        && require_permissions.iter().all(|permission| policy.require_permissions.contains(permission))
        && ensures_one_of(any_permission, &policy.require_permissions, &policy.any_permission)
        && policy.min_trust_score >= *min_trust_score
        && (*allow_unassigned || !policy.allow_unassigned)
        && (*allow_anonymous || !policy.allow_anonymous)
}

/// Whether everyone with all of `all` and one of `any` has one of `wanted`. An empty list requires nothing.
fn ensures_one_of<T: PartialEq>(wanted: &[T], all: &[T], any: &[T]) -> bool {
    wanted.is_empty()
        || all.iter().any(|name| wanted.contains(name))
        || (!any.is_empty() && any.iter().all(|name| wanted.contains(name)))
}

impl RuleSet {
    /// A warning for each rule with `allow_encoded_slash` that gets none of the requests that it is written for, or that a client
    /// bypasses if the service decodes slashes.
    pub(super) fn encoded_slash_warnings(&self) -> impl Iterator<Item = String> {
        let named: BTreeSet<_> = self.rules.iter().flat_map(|rule| rule.methods.names()).collect();
        let methods: Vec<_> = named.into_iter().chain([UNNAMED_METHOD]).collect();
        let allowing = self.rules.iter().filter(|rule| rule.encoded_slash == EncodedSlash::Kept);
        allowing.filter_map(move |rule| {
            let mut methods = methods.iter().filter(|method| rule.methods.matches(method));
            methods.find_map(|method| self.encoded_slash_warning(rule, method))
        })
    }

    fn encoded_slash_warning(&self, rule: &Rule, method: &str) -> Option<String> {
        let (host, path) = (rule.host.example(), rule.path.example_with_encoded_slash());
        let candidates = self.index.candidates(host.as_deref());
        let find = |path: &NormalPath<'_>| self.find(candidates.clone(), Some(path), method);
        match select(&path, find) {
            Ok(found) if is_same(Some(found), Some(rule)) => {
                let bypass = path.decoded_readings().find(|reading| !is_as_strict(find(reading), Some(rule)))?;
                Some(format!(
                    "line {}: if the service decodes `%2f`, it serves `{}` also as `{}`, and {} could allow what {} \
                     refuses: write a rule for the decoded paths, too",
                    rule.line,
                    path.as_str().escape_debug(),
                    bypass.as_str().escape_debug(),
                    Name(find(&bypass)),
                    Name(Some(rule))
                ))
            }
            Err(refusal @ Refusal::OtherReading { rule: found, .. }) if is_same(Some(found), Some(rule)) => {
                Some(format!("line {}: a path such as `{}` is refused: {refusal}", rule.line, path.as_str()))
            }
            Ok(_) | Err(Refusal::OtherReading { .. } | Refusal::NotAllowed(_)) => None,
        }
    }
}

impl fmt::Display for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NotAllowed(rule) => write!(f, "{} does not have `allow_encoded_slash`", Name(rule)),
            Self::OtherReading { rule, ref reading, other } => write!(
                f,
                "if the service decodes `%2f`, it reads `{}`, and {} could refuse what {} allows",
                reading.as_str().escape_debug(),
                Name(other),
                Name(Some(rule))
            ),
        }
    }
}

/// Names a rule, or else the default of the sidecar.
struct Name<'a>(Option<&'a Rule>);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("the default of the sidecar"),
            Some(rule) if *rule.name == *DEFAULT_NAME => f.write_str("`[default]`"),
            Some(rule) => write!(f, "the rule `{}` at line {}", rule.name, rule.line),
        }
    }
}

#[cfg(test)]
mod tests;
