//! Implements Envoy's external authorization API: answers each `CheckRequest` with a `CheckResponse`.
//!
//! Depends on `view`, `policy`, `decide` and `response`. Invariant: every decision is an `Ok` response with an explicit
//! status. Only transport failures are gRPC errors, because Envoy may be configured to allow requests on gRPC errors.

mod token_header;

use crate::{
    decide::{CurrentTime, Decision, TokenCache, decide},
    metrics::{Metrics, Verdict},
    policy::Policy,
    response::{RequestHeaders, ResponseBuilder},
    view::{View, Views},
};
use countersign_identity::{Reason, ServiceId};
use countersign_process::Clock;
use envoy_types::{
    ext_authz::v3::pb::{Authorization, CheckRequest, CheckResponse},
    pb::envoy::service::auth::v3::{AttributeContext, attribute_context::HttpRequest},
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use token_header::TokenHeader;
use tonic::{Request, Response, Status};

/// The gRPC service that Envoy calls for each request.
pub struct Authorizer {
    /// The latest view (local copy) of each service's data.
    pub views: Arc<Views>,
    /// The cache of tokens whose signature was verified.
    pub cache: TokenCache,
    /// The builder of responses.
    pub responses: ResponseBuilder,
    /// The metrics, which count verdicts.
    pub metrics: Arc<Metrics>,
    /// The source of the current time.
    pub clock: Arc<dyn Clock>,
    /// The rate limit of log lines about invalid rules.
    pub invalid_rule_log_limit: LogRateLimit,
}

/// A decision about a check, and the service of the route if the service is known.
struct CheckOutcome {
    service: Option<ServiceId>,
    decision: Decision,
}

impl From<Reason> for CheckOutcome {
    fn from(reason: Reason) -> Self {
        Self { service: None, decision: Decision::Denied(reason.into()) }
    }
}

impl CheckOutcome {
    const fn verdict(&self) -> Verdict {
        match &self.decision {
            Decision::Verified(_) => Verdict::Verified,
            Decision::Anonymous => Verdict::Anonymous,
            Decision::Denied(denial) => Verdict::Denied(denial.refusal.reason),
        }
    }
}

#[tonic::async_trait]
impl Authorization for Authorizer {
    async fn check(&self, request: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        let started_at = self.clock.since_boot();
        let result = catch_unwind(AssertUnwindSafe(|| self.evaluate(request.get_ref(), started_at)));
        let (service, verdict, response) = result.unwrap_or_else(|_| {
            tracing::error!("a check panicked; the request is denied");
            (None, Verdict::Denied(Reason::Internal), self.responses.internal_error())
        });
        self.metrics.record_check(service, verdict, self.clock.since_boot().saturating_sub(started_at));
        Ok(Response::new(response))
    }
}

impl Authorizer {
    fn evaluate(&self, request: &CheckRequest, since_boot: Duration) -> (Option<ServiceId>, Verdict, CheckResponse) {
        let Some((attributes, http)) = http_attributes(request) else {
            return self.respond(&Reason::RequestInvalid.into(), RequestHeaders::default());
        };
        let headers = token_header::all_headers(http);
        let token_header = token_header::extract(&headers);
        let (outcome, forward_token) = match self.resolve_route(attributes, since_boot) {
            Ok((policy, view)) => (self.decide(&view, &policy, &token_header, since_boot), policy.forward_token),
            Err(reason) => (reason.into(), false),
        };
        let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
        let header_to_remove = token_header.name.filter(|_| !forward_token);
        self.respond(&outcome, RequestHeaders { names: &names, token_header: header_to_remove })
    }

    fn resolve_route(
        &self,
        attributes: &AttributeContext,
        since_boot: Duration,
    ) -> Result<(Policy, Arc<View>), Reason> {
        let policy = Policy::from_extensions(&attributes.context_extensions).map_err(|error| {
            if self.invalid_rule_log_limit.allows(since_boot) {
                tracing::warn!(%error, "invalid rule on a route; its requests are denied");
            }
            Reason::RuleInvalid
        })?;
        let view = self.views.resolve(policy.service)?;
        Ok((policy, view))
    }

    fn decide(
        &self,
        view: &View,
        policy: &Policy,
        token_header: &TokenHeader<'_>,
        since_boot: Duration,
    ) -> CheckOutcome {
        let time = CurrentTime { now: self.clock.now(), since_boot };
        let decision = decide(view, policy, token_header.token, time, &self.cache);
        CheckOutcome { service: Some(view.service()), decision }
    }

    fn respond(
        &self,
        outcome: &CheckOutcome,
        headers: RequestHeaders<'_>,
    ) -> (Option<ServiceId>, Verdict, CheckResponse) {
        let CheckOutcome { service, decision } = outcome;
        (*service, outcome.verdict(), self.responses.build(*service, decision, headers))
    }
}

fn http_attributes(request: &CheckRequest) -> Option<(&AttributeContext, &HttpRequest)> {
    let attributes = request.attributes.as_ref()?;
    Some((attributes, attributes.request.as_ref()?.http.as_ref()?))
}

/// Allows one log line per second, because otherwise every request on a route with an invalid rule would write a log
/// line.
#[derive(Debug, Default)]
pub struct LogRateLimit {
    last_logged_second: AtomicU64,
}

impl LogRateLimit {
    fn allows(&self, since_boot: Duration) -> bool {
        let second = since_boot.as_secs();
        self.last_logged_second.swap(second, Ordering::Relaxed) != second
    }
}

#[cfg(test)]
mod tests;
