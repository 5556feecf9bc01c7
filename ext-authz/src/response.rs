//! Builds Envoy's `CheckResponse` from a decision: headers to set and to remove, denial body, dynamic metadata.
//!
//! `decide` makes the decision, and `check` sends the response. Invariants: a client cannot set an identity header in
//! any spelling, and the response does not rely on Envoy's defaults. According to measurements, Envoy allows a request
//! if the status of the `CheckResponse` is not set, and removes `headers_to_remove` after it sets headers, so that a
//! header in both lists (to set and to remove) is removed.

mod denial;
mod header;
mod header_names;
mod metadata;

use crate::decide::{Decision, Denial};
use countersign_identity::{Reason, ServiceId, VerifiedIdentity, identity_headers};
use envoy_types::{
    ext_authz::v3::pb::{CheckResponse, HeaderValueOption, HttpResponse, OkHttpResponse},
    pb::google::rpc::Status,
};
use header::overwriting_header;

pub use header_names::HeaderNames;

/// The request headers on which the response depends.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestHeaders<'a> {
    /// The names of all headers, as the client spelled them.
    pub names: &'a [&'a str],
    /// The names of the headers with tokens that Envoy must remove.
    pub token_headers: [Option<&'a str>; 2],
}

/// What a response says about the route: the service, and the rule of the rules file, as far as they are known.
#[derive(Debug, Clone, Copy, Default)]
pub struct DecidedRoute<'a> {
    /// The service of the route.
    pub service: Option<ServiceId>,
    /// The name of the rule of the rules file that decided.
    pub rule: Option<&'a str>,
}

/// Builds `CheckResponse`s from decisions.
#[derive(Debug, Clone)]
pub struct ResponseBuilder {
    /// The names of the identity headers.
    pub names: HeaderNames,
    /// Whether the error body of a denial contains the requirement that the agent does not meet.
    pub explain_denials: bool,
}

impl ResponseBuilder {
    /// Builds the response for a decision.
    pub fn build(&self, route: DecidedRoute<'_>, decision: &Decision, headers: RequestHeaders<'_>) -> CheckResponse {
        let DecidedRoute { service, rule } = route;
        let (code, response) = match decision {
            Decision::Verified(identity, _) => (0, self.allow(service, Some(identity), headers)),
            Decision::Anonymous | Decision::DryRun(_) => (0, self.allow(service, None, headers)),
            Decision::Denied(denial) => (denial::grpc_status(denial.refusal.reason), self.deny(service, denial)),
        };
        CheckResponse {
            status: Some(Status { code, ..Status::default() }),
            dynamic_metadata: Some(metadata::build(service, rule, decision)),
            http_response: Some(response),
        }
    }

    /// Builds the response after a panic, without the data that may have caused the panic.
    pub fn internal_error(&self) -> CheckResponse {
        self.build(DecidedRoute::default(), &Decision::Denied(Reason::Internal.into()), RequestHeaders::default())
    }

    fn deny(&self, service: Option<ServiceId>, denial: &Denial) -> HttpResponse {
        let Denial { refusal, agent: _, unmet_requirement } = denial;
        denial::build(&self.names, *refusal, service, unmet_requirement.as_ref().filter(|_| self.explain_denials))
    }

    fn allow(
        &self,
        service: Option<ServiceId>,
        identity: Option<&VerifiedIdentity>,
        RequestHeaders { names, token_headers }: RequestHeaders<'_>,
    ) -> HttpResponse {
        let headers =
            identity.map_or_else(Vec::new, |identity| overwriting_identity_headers(&self.names, service, identity));
        let forged_names = names.iter().copied().filter(|name| self.names.must_remove(name, identity.is_some()));
        let mut headers_to_remove: Vec<String> =
            forged_names.chain(token_headers.into_iter().flatten()).map(str::to_owned).collect();
        headers_to_remove.sort_unstable();
        headers_to_remove.dedup();
        HttpResponse::OkResponse(OkHttpResponse { headers, headers_to_remove, ..OkHttpResponse::default() })
    }
}

/// Sets all seven identity headers, because the client could have sent any header that is left out.
fn overwriting_identity_headers(
    names: &HeaderNames,
    service: Option<ServiceId>,
    identity: &VerifiedIdentity,
) -> Vec<HeaderValueOption> {
    let values = identity_headers::values(identity, service);
    names.identity_names().into_iter().zip(values).map(|(name, value)| overwriting_header(name, value)).collect()
}

#[cfg(test)]
mod tests;
