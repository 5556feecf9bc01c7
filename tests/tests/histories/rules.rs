//! The rule sets between which a history changes the rules file of all sidecars, and what they mean for an agent.

use crate::{model::Scope, operation::RULE_SETS, sidecars::request};
use countersign_proto::envoy::service::auth::v3::CheckRequest;
use countersign_tests::{VerifyOutcome, sidecar::CheckResult};
use std::{fmt::Write, fs, path::Path};

/// What all rules of a set require. Each set has one rule for each service.
pub struct RuleSet {
    /// A role that the agent must have.
    pub role: Option<&'static str>,
    /// A permission that the agent must have.
    pub permission: Option<&'static str>,
    /// Whether an agent without a role is allowed.
    pub allow_unassigned: bool,
    /// Whether the rule refuses nothing.
    pub dry_run: bool,
}

/// What a sidecar does with a request to which a rule applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleOutcome {
    /// The sidecar verifies the token, as on a route with context extensions.
    Verified(VerifyOutcome),
    /// The request is allowed without an identity.
    WithoutIdentity,
}

impl RuleOutcome {
    pub fn from_check_result(result: &CheckResult) -> Self {
        if result.status == 200 && !result.headers.contains_key("x-agent-id") {
            Self::WithoutIdentity
        } else {
            Self::Verified(VerifyOutcome::from_check_result(result))
        }
    }
}

impl RuleSet {
    /// Whether a request may have `outcome` under this rule set, given its outcome on a route without requirements and the scope of
    /// its token.
    pub fn may_have_outcome(&self, without_requirements: &VerifyOutcome, scope: &Scope, outcome: &RuleOutcome) -> bool {
        let expected = self.outcome(without_requirements);
        // Do the roles grant what the scope excludes? The outcome without requirements does not tell, so both reasons are possible.
        let is_excluded = self.permission.is_some_and(|permission| !scope.contains(permission));
        let [missing, excluded] = ["permission_missing", "token_scope_insufficient"]
            .map(|reason| RuleOutcome::Verified(VerifyOutcome::refused(403, reason)));
        expected == *outcome || (is_excluded && expected == missing && *outcome == excluded)
    }

    /// The outcome under this rule set, given the outcome on a route without requirements.
    fn outcome(&self, without_requirements: &VerifyOutcome) -> RuleOutcome {
        let outcome = match without_requirements {
            VerifyOutcome::Accepted { roles, permissions, .. } => {
                let lacks =
                    |name: Option<&str>, names: &[String]| name.is_some_and(|name| !names.iter().any(|it| it == name));
                let reason = if roles.is_empty() && !self.allow_unassigned {
                    Some("no_role")
                } else if lacks(self.role, roles) {
                    Some("role_missing")
                } else if lacks(self.permission, permissions) {
                    Some("permission_missing")
                } else {
                    None
                };
                reason.map_or_else(|| without_requirements.clone(), |reason| VerifyOutcome::refused(403, reason))
            }
            VerifyOutcome::Refused(..) => without_requirements.clone(),
        };
        match outcome {
            VerifyOutcome::Refused(..) if self.dry_run => RuleOutcome::WithoutIdentity,
            outcome => RuleOutcome::Verified(outcome),
        }
    }

    /// The rules file.
    fn file(&self, services: &[&str]) -> String {
        let mut file = String::new();
        for (number, service) in services.iter().enumerate() {
            write!(
                file,
                "[[rules]]\nname = \"rule-{number}\"\npath_prefix = \"/{number}\"\nservice_id = \"{service}\"\n\
                 allow_unassigned = {}\ndry_run = {}\n",
                self.allow_unassigned, self.dry_run
            )
            .unwrap();
            for (key, name) in [("require_roles", self.role), ("require_permissions", self.permission)] {
                if let Some(name) = name {
                    writeln!(file, "{key} = [\"{name}\"]").unwrap();
                }
            }
        }
        file
    }
}

/// Replaces the rules file by a rule set.
pub fn write(path: &Path, set: usize, services: &[&str]) {
    replace(path, &RULE_SETS[set].file(services));
}

/// Replaces the rules file by one that is refused as a whole. Its first rules are those of another rule set.
pub fn write_invalid(path: &Path, set: usize, services: &[&str]) {
    replace(path, &format!("{}[[rules]]\nname = \"rule-0\"\n", RULE_SETS[set].file(services)));
}

fn replace(path: &Path, content: &str) {
    let temporary = path.with_extension("new");
    fs::write(&temporary, content).unwrap();
    fs::rename(&temporary, path).unwrap();
}

/// A request to which the rule for a service applies.
pub fn ruled_request(service: usize, token: &str) -> CheckRequest {
    let mut request = request(Some(token), &[]);
    let http = request.attributes.as_mut().and_then(|attributes| attributes.request.as_mut()?.http.as_mut());
    http.unwrap().path = format!("/{service}/x");
    request
}
