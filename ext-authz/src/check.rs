//! Implements Envoy's external authorization API: answers each `CheckRequest` with a `CheckResponse`.
//!
//! Depends on `view`, `policy`, `rules`, `decide` and `response`. Invariant: every decision is an `Ok` response with an explicit
//! status. Only transport failures are gRPC errors, because Envoy may be configured to allow requests on gRPC errors.

mod described_request;
mod explain;
mod grpc;
mod mcp;
mod outcome;
mod request;
mod token_header;

use crate::{
    decide::{CurrentTime, Decision, VerifiedTokens, decide},
    metrics::{Metrics, Verdict},
    policy::PolicyCache,
    response::{DecidedRoute, RequestHeaders, ResponseBuilder, resource_metadata},
    rules::RuleSet,
    view::{Resource, View, Views},
};
use arc_swap::ArcSwap;
use countersign_identity::{Reason, ServiceId, protected_resource::METADATA_PATH};
use countersign_process::Clock;
use countersign_proto::envoy::service::auth::v3::CheckResponse;
use outcome::{CheckOutcome, NoRoute, Route};
use request::{CheckInput, HttpRequest};
use std::{
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

pub struct Authorizer {
    pub views: Arc<Views>,
    /// The rules for requests whose route has no context extension, or only `service_id`.
    pub rules: Arc<ArcSwap<RuleSet>>,
    pub policies: PolicyCache,
    pub cache: VerifiedTokens,
    pub responses: ResponseBuilder,
    pub metrics: Arc<Metrics>,
    pub clock: Arc<dyn Clock>,
    /// When the last warning about invalid context extensions was logged, in seconds since boot. The limit is one warning per
    /// second, because every request of such a route would log one.
    pub last_extension_warning: AtomicU64,
}

impl Authorizer {
    /// Answers a check, and counts it. If deciding panics, the answer is a denial.
    pub fn check(&self, request: &CheckRequest) -> CheckResponse {
        let started_at = self.clock.since_boot();
        let result = catch_unwind(AssertUnwindSafe(|| self.answer(request, started_at)));
        let (service, verdict, reply) = result.unwrap_or_else(|_| {
            tracing::error!("a check panicked; the request is denied");
            (None, Verdict::Denied(Reason::Internal), self.responses.internal_error())
        });
        self.metrics.record_check(service, verdict, self.clock.since_boot().saturating_sub(started_at));
        reply
    }

    fn answer(&self, request: &CheckRequest, since_boot: Duration) -> (Option<ServiceId>, Verdict, CheckResponse) {
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
        let outcome = self.decide(request, &token_header, &rules, since_boot);
        let names = headers.clone().map(|header| header.name);
        let checked = token_header.name.filter(|_| outcome.removes_token());
        // A dry run allows a request whose token was refused. If only `X-Agent-Token` was checked, `Authorization` is removed, too.
        let unchecked = outcome.is_dry_run().then(|| token_header::extract_from_authorization(headers).name).flatten();
        let resource = outcome.view.as_ref().filter(|_| outcome.is_denied()).and_then(|view| resource_of(view, http));
        self.respond(&outcome, resource, RequestHeaders { names, token_headers: [checked, unchecked] })
    }

    /// The reply to a request for the metadata of a protected resource (RFC 9728), which needs no token. `None` for other requests.
    fn resource_metadata(&self, http: &HttpRequest) -> Option<(Option<ServiceId>, Verdict, CheckResponse)> {
        // Most requests are for another path, so they cost only this cheap comparison.
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

    /// Selects the route of a request, and decides by its policy.
    fn decide<'r>(
        &self,
        request: CheckInput<'_>,
        token_header: &TokenHeader<'_>,
        rules: &'r RuleSet,
        since_boot: Duration,
    ) -> CheckOutcome<'r> {
        let Route { policy, rule, service, allows_message } = match self.select_route(request, rules, since_boot) {
            Ok(route) => route,
            Err(no_route) => return no_route.into(),
        };
        let (view, decision) = match self.views.resolve(service) {
            Ok(view) => {
                let time = CurrentTime { now: view.now(since_boot, || self.clock.now()), since_boot };
                let decision = decide(&view, &policy, token_header.token, time, &self.cache);
                let decision = self.explain_staleness(decision, &view);
                // A refusal of the token comes first, so that nobody without a valid token finds out which tools the rule names.
                let decision = if allows_message { decision } else { decision.or_deny(Reason::McpNotAllowed) };
                (Some(view), decision)
            }
            Err(reason) => (None, Decision::Denied(reason.into())),
        };
        let is_dry_run = rule.is_some_and(|rule| rule.dry_run);
        let decision = if is_dry_run { decision.into_dry_run() } else { decision };
        let service = service.or_else(|| self.views.default_service());
        CheckOutcome { view, rule, policy: Some(policy), service, error: None, decision }
    }

    /// If a view is stale because the control plane refuses its API keys, the refusal says so: waiting for contact would not help.
    fn explain_staleness(&self, decision: Decision, view: &View) -> Decision {
        if decision.is_denied_because(Reason::ViewStale) && self.views.is_unknown(view.service()) {
            Decision::Denied(Reason::SyncKeyRefused.into())
        } else {
            decision
        }
    }

    /// Selects the policy of a request. If its route has any context extension besides `service_id`, the extensions alone are the
    /// policy. If not, the rule for the request decides, if there is one, and `service_id` only names the service.
    fn select_route<'r>(
        &self,
        request: CheckInput<'_>,
        rules: &'r RuleSet,
        since_boot: Duration,
    ) -> Result<Route<'r>, NoRoute<'r>> {
        let CheckInput { http, extensions } = request;
        let policy = self.policies.policy(extensions.iter());
        let policy = policy.map_err(|error| self.invalid_extensions(&error, since_boot))?;
        let service = policy.service;
        let without_rule = Route { policy, rule: None, service, allows_message: true };
        if extensions.iter().any(|(name, _)| name != b"service_id") {
            return Ok(without_rule);
        }
        let target = http.target().ok_or(Reason::RequestInvalid)?;
        let Some(rule) = rules.select(target)? else { return Ok(without_rule) };
        let rule_service = rule.policy.service;
        if service.is_some() && rule_service.is_some() && service != rule_service {
            let name = &rule.name;
            let error =
                format!("the route and the rule `{name}` of the rules file have different values of `service_id`");
            return Err(self.invalid_extensions(&error, since_boot));
        }
        // `None` if the rule is about MCP, and none of its entries allows the message.
        let allowed = rule.mcp.as_ref().map_or(Ok(Some(&rule.policy)), |entries| mcp::select_policy(entries, http));
        let allowed = allowed.map_err(|problem| NoRoute::invalid_mcp_request(rule, problem))?;
        let policy = Arc::clone(allowed.unwrap_or(&rule.policy));
        Ok(Route { policy, rule: Some(rule), service: service.or(rule_service), allows_message: allowed.is_some() })
    }

    /// Refuses the request, and logs what is wrong with its context extensions (at most one such warning per second).
    fn invalid_extensions<'r>(&self, error: &dyn Display, since_boot: Duration) -> NoRoute<'r> {
        let second = since_boot.as_secs();
        if self.last_extension_warning.swap(second, Ordering::Relaxed) != second {
            tracing::warn!(%error, "invalid context extensions of a route; its requests are denied");
        }
        NoRoute::invalid_extensions(format!("context extensions: {error}"))
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
