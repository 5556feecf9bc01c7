//! Implements Envoy's external authorization API: answers each `CheckRequest` with a `CheckResponse`.
//!
//! Depends on `view`, `policy`, `rules`, `decide` and `response`. Invariant: every decision is an `Ok` response with an explicit
//! status. Only transport failures are gRPC errors, because Envoy may be configured to allow requests on gRPC errors.

mod described_request;
mod explain;
mod grpc;
mod mcp;
mod request;
mod token_header;

use crate::{
    decide::{CurrentTime, Decision, VerifiedTokens, decide},
    metrics::{Metrics, Verdict},
    policy::{Policy, PolicyCache},
    response::{DecidedRoute, RequestHeaders, ResponseBuilder, resource_metadata},
    rules::{Rule, RuleSet, Unselectable},
    view::{Resource, View, Views},
};
use arc_swap::ArcSwap;
use countersign_identity::{Reason, ServiceId, protected_resource::METADATA_PATH};
use countersign_process::Clock;
use countersign_proto::envoy::service::auth::v3::CheckResponse;
use request::{CheckedRequest, HttpRequest};
use std::{
    borrow::Cow,
    fmt::Display,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use token_header::TokenHeader;

pub use described_request::DescribedRequest;
pub use explain::{ExplainedQuestion, Explanation};
pub use grpc::AuthorizationServer;
pub use request::CheckRequest;

/// What decides each check.
pub struct Authorizer {
    pub views: Arc<Views>,
    /// The rules for requests without context extensions.
    pub rules: Arc<ArcSwap<RuleSet>>,
    pub policies: PolicyCache,
    pub cache: VerifiedTokens,
    pub responses: ResponseBuilder,
    pub metrics: Arc<Metrics>,
    pub clock: Arc<dyn Clock>,
    /// The second since boot in which a log line about invalid context extensions was written last. There is at most one per second,
    /// because otherwise every request on the route would write one.
    pub rule_error_second: AtomicU64,
}

/// The policy of a request, the rule of the rules file that contains it, and the service that the route or the rule names.
struct Route<'r> {
    policy: Arc<Policy>,
    rule: Option<&'r Rule>,
    service: Option<ServiceId>,
    /// Whether the rule has an entry for the MCP message, if it is about MCP. Otherwise, the policy is that of the rule itself.
    allows_message: bool,
}

/// Why no policy can be selected for a request.
struct NoRoute<'r> {
    reason: Reason,
    /// The rule that refuses the request, if one is selected.
    rule: Option<&'r Rule>,
    /// Whether the request is allowed without an identity, because every rule that could apply is a dry run.
    dry_run: bool,
    /// What is wrong with the context extensions or the MCP message.
    error: Option<Cow<'static, str>>,
}

/// A decision about a check, and the view, the rule and the policy of the route if they are known.
struct CheckOutcome<'r> {
    view: Option<Arc<View>>,
    rule: Option<&'r Rule>,
    policy: Option<Arc<Policy>>,
    /// What is wrong with the context extensions or the MCP message.
    error: Option<Cow<'static, str>>,
    decision: Decision,
}

impl From<Reason> for CheckOutcome<'_> {
    fn from(reason: Reason) -> Self {
        Self { view: None, rule: None, policy: None, error: None, decision: Decision::Denied(reason.into()) }
    }
}

impl From<Unselectable> for NoRoute<'_> {
    fn from(Unselectable { reason, dry_run }: Unselectable) -> Self {
        Self { reason, rule: None, dry_run, error: None }
    }
}

impl<'r> NoRoute<'r> {
    fn of_rule(rule: &'r Rule, problem: &'static str) -> Self {
        let (reason, error) = (Reason::McpRequestInvalid, Some(problem.into()));
        Self { reason, rule: Some(rule), dry_run: rule.dry_run, error }
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
    const fn verdict(&self) -> Verdict {
        match &self.decision {
            Decision::Verified(..) => Verdict::Verified,
            Decision::Anonymous => Verdict::Anonymous,
            Decision::DryRun(denial) => Verdict::DryRun(denial.refusal.reason),
            Decision::Denied(denial) => Verdict::Denied(denial.refusal.reason),
        }
    }

    /// Whether Envoy removes the token. A token that a dry run would refuse is always removed, because the service may
    /// trust the tokens that it receives.
    fn removes_token(&self) -> bool {
        let forwards_token = self.policy.as_ref().is_some_and(|policy| policy.forward_token);
        !forwards_token || self.is_dry_run()
    }

    const fn is_denied(&self) -> bool {
        matches!(self.decision, Decision::Denied(_))
    }

    const fn is_dry_run(&self) -> bool {
        matches!(self.decision, Decision::DryRun(_))
    }
}

impl Authorizer {
    /// Decides a check. A panic is a denial.
    pub fn check(&self, request: &CheckRequest) -> CheckResponse {
        let started_at = self.clock.since_boot();
        let result = catch_unwind(AssertUnwindSafe(|| self.evaluate(request, started_at)));
        let (service, verdict, reply) = result.unwrap_or_else(|_| {
            tracing::error!("a check panicked; the request is denied");
            (None, Verdict::Denied(Reason::Internal), self.responses.internal_error())
        });
        self.metrics.record_check(service, verdict, self.clock.since_boot().saturating_sub(started_at));
        reply
    }

    fn evaluate(&self, request: &CheckRequest, since_boot: Duration) -> (Option<ServiceId>, Verdict, CheckResponse) {
        let Some(request) = request.http() else {
            return self.respond(&Reason::RequestInvalid.into(), None, RequestHeaders::default());
        };
        let http = request.http;
        if let Some(reply) = self.resource_metadata(http) {
            return reply;
        }
        let headers = http.all_headers();
        let token_header = token_header::extract(headers.clone());
        let rules = self.rules.load();
        let outcome = self.judge(request, &token_header, &rules, since_boot);
        let names = headers.clone().map(|header| header.name);
        let checked = token_header.name.filter(|_| outcome.removes_token());
        // The refused token of a dry run may also be in the header that was not checked.
        let unchecked = outcome.is_dry_run().then(|| token_header::extract_from_authorization(headers).name).flatten();
        let resource = outcome.view.as_ref().filter(|_| outcome.is_denied()).and_then(|view| resource_of(view, http));
        self.respond(&outcome, resource, RequestHeaders { names, token_headers: [checked, unchecked] })
    }

    /// The reply to a request for the metadata of a resource. It needs no token, and no rule.
    fn resource_metadata(&self, http: &HttpRequest) -> Option<(Option<ServiceId>, Verdict, CheckResponse)> {
        // Only this comparison is done for each check.
        if !http.path_starts_with(METADATA_PATH) {
            return None;
        }
        let target = http.target().filter(|target| ["GET", "HEAD"].contains(&target.method))?;
        self.views.of_services().into_iter().find_map(|view| {
            let resource = view.settings().resources.of_metadata_request(target.host, target.path)?;
            let reply = resource_metadata(view.service(), resource);
            Some((Some(view.service()), Verdict::Anonymous, reply))
        })
    }

    /// Selects the policy and makes the decision.
    fn judge<'r>(
        &self,
        request: CheckedRequest<'_>,
        token_header: &TokenHeader<'_>,
        rules: &'r RuleSet,
        since_boot: Duration,
    ) -> CheckOutcome<'r> {
        match self.select_route(request, rules, since_boot) {
            Ok(route) => self.decide(route, token_header, since_boot),
            Err(no_route) => no_route.into(),
        }
    }

    /// The policy of the request: from its context extensions if they require anything, otherwise from the rules file. A route whose
    /// only context extension is `service_id` names a service and requires nothing.
    fn select_route<'r>(
        &self,
        request: CheckedRequest<'_>,
        rules: &'r RuleSet,
        since_boot: Duration,
    ) -> Result<Route<'r>, NoRoute<'r>> {
        let CheckedRequest { http, extensions, mcp: _ } = request;
        let invalid = |error: &dyn Display| {
            let second = since_boot.as_secs();
            if self.rule_error_second.swap(second, Ordering::Relaxed) != second {
                tracing::warn!(%error, "invalid context extensions of a route; its requests are denied");
            }
            let error = Some(format!("context extensions: {error}").into());
            NoRoute { reason: Reason::RuleInvalid, rule: None, dry_run: false, error }
        };
        let of_route = self.policies.policy(extensions.iter()).map_err(|error| invalid(&error))?;
        let service = of_route.service;
        if extensions.iter().any(|(name, _)| name != b"service_id") {
            return Ok(Route { policy: of_route, rule: None, service, allows_message: true });
        }
        let invalid_target = NoRoute { reason: Reason::RequestInvalid, rule: None, dry_run: false, error: None };
        let Some(rule) = rules.select(http.target().ok_or(invalid_target)?)? else {
            return Ok(Route { policy: of_route, rule: None, service, allows_message: true });
        };
        let of_rule = rule.policy.service;
        if service.is_some() && of_rule.is_some() && service != of_rule {
            let error = format!(
                "the route and the rule `{}` of the rules file have different values of `service_id`",
                rule.name
            );
            return Err(invalid(&error));
        }
        let entry = rule.mcp.as_ref().map_or(Ok(Some(&rule.policy)), |entries| mcp::select_policy(entries, request));
        let entry = entry.map_err(|problem| NoRoute::of_rule(rule, problem))?;
        let policy = Arc::clone(entry.unwrap_or(&rule.policy));
        Ok(Route { policy, rule: Some(rule), service: service.or(of_rule), allows_message: entry.is_some() })
    }

    fn decide<'r>(&self, route: Route<'r>, token_header: &TokenHeader<'_>, since_boot: Duration) -> CheckOutcome<'r> {
        let Route { policy, rule, service, allows_message } = route;
        let (view, decision) = match self.views.resolve(service) {
            Ok(view) => {
                let time = CurrentTime { now: view.now(since_boot, || self.clock.now()), since_boot };
                let decision = decide(&view, &policy, token_header.token, time, &self.cache);
                // The token decides first, so that nobody without one finds out which tools the rule names.
                let decision = if allows_message { decision } else { decision.or_deny(Reason::McpNotAllowed) };
                (Some(view), decision)
            }
            Err(reason) => (None, Decision::Denied(reason.into())),
        };
        let is_dry_run = rule.is_some_and(|rule| rule.dry_run);
        let decision = if is_dry_run { decision.into_dry_run() } else { decision };
        CheckOutcome { view, rule, policy: Some(policy), error: None, decision }
    }

    fn respond<'a>(
        &self,
        outcome: &CheckOutcome<'_>,
        resource: Option<&Resource>,
        headers: RequestHeaders<'a, impl Iterator<Item = &'a [u8]>>,
    ) -> (Option<ServiceId>, Verdict, CheckResponse) {
        let service = outcome.view.as_ref().map(|view| view.service());
        let is_about_mcp = outcome.rule.is_some_and(|rule| rule.mcp.is_some());
        let route = DecidedRoute { service, rule: outcome.rule.map(|rule| &rule.name), resource, is_about_mcp };
        (service, outcome.verdict(), self.responses.build(route, &outcome.decision, headers))
    }
}

/// The resource of a service that a request is for.
fn resource_of<'v>(view: &'v View, http: &HttpRequest) -> Option<&'v Resource> {
    let target = http.target()?;
    view.settings().resources.of_request(target.host, target.path)
}

#[cfg(test)]
mod tests;
