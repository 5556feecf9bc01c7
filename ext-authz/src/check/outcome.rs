//! The route of a request, or why it has none, and what the check decided.

use crate::{
    decide::Decision,
    metrics::Verdict,
    policy::Policy,
    rules::{Rule, Unselectable},
    view::View,
};
use countersign_identity::{Reason, ServiceId};
use std::{borrow::Cow, sync::Arc};

/// What a request must meet, and where that is configured.
pub struct Route<'r> {
    pub policy: Arc<Policy>,
    /// The rule of the rules file; `None` if context extensions or the defaults of the sidecar apply.
    pub rule: Option<&'r Rule>,
    /// The service that the context extensions or the rule name.
    pub service: Option<ServiceId>,
    /// False if the rule is about MCP and has no entry for this message. `policy` is then the policy of the rule itself, and the
    /// request is denied after its token was checked.
    pub allows_message: bool,
}

/// Why a request is refused before a policy was selected for it.
pub struct NoRoute<'r> {
    reason: Reason,
    /// The rule that refuses the request; `None` if no rule was selected.
    rule: Option<&'r Rule>,
    /// Whether the request is allowed nevertheless, without an identity, because every rule that could apply is a dry run.
    dry_run: bool,
    /// What is wrong with the context extensions or the MCP message.
    error: Option<Cow<'static, str>>,
}

impl From<Reason> for NoRoute<'_> {
    fn from(reason: Reason) -> Self {
        Self { reason, rule: None, dry_run: false, error: None }
    }
}

impl From<Unselectable> for NoRoute<'_> {
    fn from(Unselectable { reason, dry_run }: Unselectable) -> Self {
        Self { dry_run, ..reason.into() }
    }
}

impl<'r> NoRoute<'r> {
    pub fn invalid_extensions(error: String) -> Self {
        Self { error: Some(error.into()), ..Reason::RuleInvalid.into() }
    }

    pub fn invalid_mcp_request(rule: &'r Rule, problem: &'static str) -> Self {
        let (reason, error) = (Reason::McpRequestInvalid, Some(problem.into()));
        Self { reason, rule: Some(rule), dry_run: rule.dry_run, error }
    }
}

/// The decision about a request, and what is known about its route.
pub struct CheckOutcome<'r> {
    pub view: Option<Arc<View>>,
    pub rule: Option<&'r Rule>,
    pub policy: Option<Arc<Policy>>,
    /// The service that the route names, or else the default service; `None` if it is not known.
    pub service: Option<ServiceId>,
    /// What is wrong with the context extensions or the MCP message.
    pub error: Option<Cow<'static, str>>,
    pub decision: Decision,
}

impl From<Reason> for CheckOutcome<'_> {
    fn from(reason: Reason) -> Self {
        Self {
            view: None,
            rule: None,
            policy: None,
            service: None,
            error: None,
            decision: Decision::Denied(reason.into()),
        }
    }
}

impl<'r> From<NoRoute<'r>> for CheckOutcome<'r> {
    fn from(NoRoute { reason, rule, dry_run, error }: NoRoute<'r>) -> Self {
        let policy = rule.map(|rule| Arc::clone(&rule.policy));
        let denied = Self { rule, policy, error, ..Self::from(reason) };
        if dry_run { Self { decision: denied.decision.into_dry_run(), ..denied } } else { denied }
    }
}

impl CheckOutcome<'_> {
    pub const fn verdict(&self) -> Verdict {
        match &self.decision {
            Decision::Verified(..) => Verdict::Verified,
            Decision::Anonymous => Verdict::Anonymous,
            Decision::DryRun(denial) => Verdict::DryRun(denial.refusal.reason),
            Decision::Denied(denial) => Verdict::Denied(denial.refusal.reason),
        }
    }

    /// Whether Envoy removes the token. A token that a dry run would refuse is always removed, because the service may
    /// trust the tokens that it receives.
    pub fn removes_token(&self) -> bool {
        let forwards_token = self.policy.as_ref().is_some_and(|policy| policy.forward_token);
        !forwards_token || self.is_dry_run()
    }

    pub const fn is_denied(&self) -> bool {
        matches!(self.decision, Decision::Denied(_))
    }

    pub const fn is_dry_run(&self) -> bool {
        matches!(self.decision, Decision::DryRun(_))
    }
}
