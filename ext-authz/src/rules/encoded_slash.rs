//! Selects the rule for a path with encoded slashes.
//!
//! A service may read `/a%2Fb` as one segment or as two, whatever the operator expects. Invariant: such a path gets a rule only if the
//! rule allows encoded slashes, and if no other reading of the path is for a rule that could refuse what this rule allows. So a
//! service that decodes slashes never serves more than the rules for the decoded path allow.

use super::{DEFAULT_NAME, EncodedSlash, NormalPath, Rule, RuleSet};
use crate::policy::Policy;
use std::fmt;

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
        if !is_as_strict(rule, other) {
            return Err(Refusal::OtherReading { rule, reading, other });
        }
    }
    Ok(rule)
}

/// Whether the other rule, or else the default of the sidecar, certainly allows every request that the rule allows.
fn is_as_strict(rule: &Rule, other: Option<&Rule>) -> bool {
    match other {
        Some(other) if std::ptr::eq(rule, other) => true,
        Some(other) => {
            let is_enforced = !rule.dry_run || other.dry_run;
            is_enforced && other.mcp.is_none() && requires_as_much(&rule.policy, &other.policy)
        }
        None => !rule.dry_run && requires_as_much(&rule.policy, &Policy::default()),
    }
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
    /// A warning for each rule that allows encoded slashes, but gets none of the requests with them that it is written for.
    pub(super) fn encoded_slash_warnings(&self) -> impl Iterator<Item = String> {
        let allowing = self.rules.iter().filter(|rule| rule.encoded_slash == EncodedSlash::Kept);
        allowing.filter_map(move |rule| {
            let (host, path) = (rule.host.example(), rule.path.example_with_encoded_slash());
            let candidates = self.index.candidates(host.as_deref());
            let find = |path: &NormalPath<'_>| self.find(candidates.clone(), Some(path), rule.methods.example());
            let refusal = select(&path, find).err()?;
            let is_of_rule = matches!(refusal, Refusal::OtherReading { rule: found, .. } if std::ptr::eq(found, rule));
            let text = || format!("line {}: a path such as `{}` is refused: {refusal}", rule.line, path.as_str());
            is_of_rule.then(text)
        })
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
