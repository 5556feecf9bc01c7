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
use countersign_identity::{Permission, Reason, RoleName, ServiceId, VerifiedIdentity};
use envoy_types::{
    ext_authz::v3::pb::{CheckResponse, HeaderValueOption, HttpResponse, OkHttpResponse},
    pb::google::rpc::Status,
};
use header::{join_encoded, overwriting_header};

pub use header_names::HeaderNames;

/// The request headers on which the response depends.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestHeaders<'a> {
    /// The names of all headers, as the client spelled them.
    pub names: &'a [&'a str],
    /// The name of the header that contains the token, if Envoy must remove it.
    pub token_header: Option<&'a str>,
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
    pub fn build(&self, service: Option<ServiceId>, decision: &Decision, headers: RequestHeaders<'_>) -> CheckResponse {
        let (code, response) = match decision {
            Decision::Verified(identity) => (0, self.allow(service, Some(identity), headers)),
            Decision::Anonymous => (0, self.allow(service, None, headers)),
            Decision::Denied(denial) => (denial::grpc_status(denial.refusal.reason), self.deny(service, denial)),
        };
        CheckResponse {
            status: Some(Status { code, ..Status::default() }),
            dynamic_metadata: Some(metadata::build(service, decision)),
            http_response: Some(response),
        }
    }

    /// Builds the response after a panic, without the data that may have caused the panic.
    pub fn internal_error(&self) -> CheckResponse {
        self.build(None, &Decision::Denied(Reason::Internal.into()), RequestHeaders::default())
    }

    fn deny(&self, service: Option<ServiceId>, denial: &Denial) -> HttpResponse {
        let Denial { refusal, agent: _, unmet_requirement } = denial;
        denial::build(&self.names, *refusal, service, unmet_requirement.as_ref().filter(|_| self.explain_denials))
    }

    fn allow(
        &self,
        service: Option<ServiceId>,
        identity: Option<&VerifiedIdentity>,
        RequestHeaders { names, token_header }: RequestHeaders<'_>,
    ) -> HttpResponse {
        let headers = identity.map_or_else(Vec::new, |identity| identity_headers(&self.names, service, identity));
        let forged_names = names.iter().copied().filter(|name| self.names.must_remove(name, identity.is_some()));
        let mut headers_to_remove: Vec<String> = forged_names.chain(token_header).map(str::to_owned).collect();
        headers_to_remove.sort_unstable();
        headers_to_remove.dedup();
        HttpResponse::OkResponse(OkHttpResponse { headers, headers_to_remove, ..OkHttpResponse::default() })
    }
}

/// Sets all seven identity headers, because the client could have sent any header that is left out.
fn identity_headers(
    names: &HeaderNames,
    service: Option<ServiceId>,
    identity: &VerifiedIdentity,
) -> Vec<HeaderValueOption> {
    let VerifiedIdentity { agent, name, roles, permissions, trust_score, token } = identity;
    vec![
        overwriting_header(&names.id, agent.to_string()),
        overwriting_header(&names.name, join_encoded([name.as_str()])),
        overwriting_header(&names.trust_score, trust_score.to_string()),
        overwriting_header(&names.roles, join_encoded(roles.iter().map(RoleName::as_str))),
        overwriting_header(&names.permissions, join_encoded(permissions.iter().map(Permission::as_str))),
        overwriting_header(&names.service, service.map(|service| service.to_string()).unwrap_or_default()),
        overwriting_header(&names.token_id, token.to_string()),
    ]
}

#[cfg(test)]
mod tests;
