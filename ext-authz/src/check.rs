//! Envoy's question: `CheckRequest` → view → decide → `CheckResponse`.
//!
//! Neighbours: `view`, `policy`, `decide` and `answer` do the work. The rule of the room: every verdict is
//! an `Ok` response with an explicit status. A gRPC error is left to transport failures, since what Envoy
//! makes of one is the operator's setting, and it may be to let everybody in.

mod presented;

use crate::{
    answer::{self, Names, Sent},
    decide::{Decision, Moment, TokenCache, decide},
    metrics::{Metrics, Verdict},
    policy::Policy,
    view::{View, Views},
};
use countersign_identity::{Reason, ServiceId};
use countersign_process::Clock;
use envoy_types::{
    ext_authz::v3::pb::{Authorization, CheckRequest, CheckResponse},
    pb::envoy::service::auth::v3::{AttributeContext, attribute_context::HttpRequest},
};
use presented::Found;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tonic::{Request, Response, Status};

/// Answers Envoy.
pub struct Authorizer {
    /// What is known.
    pub views: Arc<Views>,
    /// Signatures verified before.
    pub cache: TokenCache,
    /// The names of our headers.
    pub names: Names,
    /// Counts verdicts.
    pub metrics: Arc<Metrics>,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Keeps the log from being flooded.
    pub complaints: Complaints,
}

/// A verdict, and the service that it is for, if that is known.
struct Judged {
    service: Option<ServiceId>,
    decision: Decision,
}

impl From<Reason> for Judged {
    fn from(reason: Reason) -> Self {
        Self { service: None, decision: Decision::Refused(reason.into()) }
    }
}

#[tonic::async_trait]
impl Authorization for Authorizer {
    async fn check(&self, request: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        let begun = self.clock.since_boot();
        let judged = catch_unwind(AssertUnwindSafe(|| self.judge(request.get_ref(), begun)));
        let (service, verdict, response) = judged.unwrap_or_else(|_| {
            tracing::error!("a check panicked");
            (None, Verdict::Refused(Reason::Internal), answer::internal_fault(&self.names))
        });
        self.metrics.checked(service, verdict, self.clock.since_boot().saturating_sub(begun));
        Ok(Response::new(response))
    }
}

impl Authorizer {
    fn judge(&self, request: &CheckRequest, since_boot: Duration) -> (Option<ServiceId>, Verdict, CheckResponse) {
        let Some((attributes, http)) = parts(request) else {
            return self.tell(&Reason::RequestInvalid.into(), Sent { headers: &[], spent: None });
        };
        let headers = presented::headers(http);
        let found = presented::find(&headers);
        let (judged, forward) = match self.resolve(attributes, since_boot) {
            Ok((policy, view)) => (self.decide(&view, &policy, &found, since_boot), policy.forward_token),
            Err(reason) => (reason.into(), false),
        };
        let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
        self.tell(&judged, Sent { headers: &names, spent: found.carrier.filter(|_| !forward) })
    }

    fn resolve(&self, attributes: &AttributeContext, since_boot: Duration) -> Result<(Policy, Arc<View>), Reason> {
        let policy = Policy::from_extensions(&attributes.context_extensions).map_err(|error| {
            if self.complaints.may_be_heard(since_boot) {
                tracing::warn!(%error, "a route's rule is invalid, its requests are refused");
            }
            Reason::RuleInvalid
        })?;
        let view = self.views.resolve(policy.service)?;
        Ok((policy, view))
    }

    fn decide(&self, view: &View, policy: &Policy, found: &Found<'_>, since_boot: Duration) -> Judged {
        let moment = Moment { now: self.clock.now(), since_boot };
        let decision = decide(view, policy, found.presented, moment, &self.cache);
        Judged { service: Some(view.service()), decision }
    }

    fn tell(&self, judged: &Judged, sent: Sent<'_>) -> (Option<ServiceId>, Verdict, CheckResponse) {
        let Judged { service, decision } = judged;
        let verdict = match decision {
            Decision::Verified(_) => Verdict::Verified,
            Decision::Anonymous => Verdict::Anonymous,
            Decision::Refused(refused) => Verdict::Refused(refused.refusal.reason),
        };
        (*service, verdict, answer::answer(&self.names, *service, decision, sent))
    }
}

fn parts(request: &CheckRequest) -> Option<(&AttributeContext, &HttpRequest)> {
    let attributes = request.attributes.as_ref()?;
    Some((attributes, attributes.request.as_ref()?.http.as_ref()?))
}

/// Lets one complaint a second be heard: a wrong rule is met by every request of its route.
#[derive(Debug, Default)]
pub struct Complaints(AtomicU64);

impl Complaints {
    fn may_be_heard(&self, since_boot: Duration) -> bool {
        let second = since_boot.as_secs();
        self.0.swap(second, Ordering::Relaxed) != second
    }
}

#[cfg(test)]
mod tests;
