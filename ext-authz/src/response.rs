//! Builds Envoy's `CheckResponse` from a decision: headers to set and to remove, denial body, dynamic metadata.
//!
//! `decide` makes the decision, `check` sends the response. Invariants: no client can set an identity header, in any
//! spelling; the response leaves nothing to Envoy's defaults. As measured with Envoy, an unset status is an allow, and
//! `headers_to_remove` is applied after the headers are set, so that a name in both lists is lost.

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
use header::{join_encoded, set};

pub use header_names::HeaderNames;

/// The headers of a request, as far as the response depends on them.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestHeaders<'a> {
    /// The names of all headers, as sent.
    pub names: &'a [&'a str],
    /// The header that contains the token, if it must be removed.
    pub token_header: Option<&'a str>,
}

/// Builds responses.
#[derive(Debug, Clone)]
pub struct ResponseBuilder {
    /// The names of the identity headers.
    pub names: HeaderNames,
    /// Whether denial bodies contain the requirement that is not met.
    pub explain_denials: bool,
}

impl ResponseBuilder {
    /// The response for a decision.
    pub fn build(&self, service: Option<ServiceId>, decision: &Decision, headers: RequestHeaders<'_>) -> CheckResponse {
        let (code, response) = match decision {
            Decision::Verified(identity) => (0, self.allow(service, Some(identity), headers)),
            Decision::Anonymous => (0, self.allow(service, None, headers)),
            Decision::Denied(denial) => (denial::grpc_status(denial.refusal.reason), self.deny(denial)),
        };
        CheckResponse {
            status: Some(Status { code, ..Status::default() }),
            dynamic_metadata: Some(metadata::metadata(service, decision)),
            http_response: Some(response),
        }
    }

    /// The response after a panic. It uses nothing that could panic again.
    pub fn internal_error(&self) -> CheckResponse {
        self.build(None, &Decision::Denied(Reason::Internal.into()), RequestHeaders::default())
    }

    fn deny(&self, Denial { refusal, agent: _, unmet }: &Denial) -> HttpResponse {
        denial::response(&self.names, *refusal, unmet.as_ref().filter(|_| self.explain_denials))
    }

    fn allow(
        &self,
        service: Option<ServiceId>,
        identity: Option<&VerifiedIdentity>,
        RequestHeaders { names, token_header }: RequestHeaders<'_>,
    ) -> HttpResponse {
        let headers = identity.map_or_else(Vec::new, |identity| identity_headers(&self.names, service, identity));
        let forged = names.iter().copied().filter(|name| self.names.removes(name, identity.is_some()));
        let mut headers_to_remove: Vec<String> = forged.chain(token_header).map(str::to_owned).collect();
        headers_to_remove.sort_unstable();
        headers_to_remove.dedup();
        HttpResponse::OkResponse(OkHttpResponse { headers, headers_to_remove, ..OkHttpResponse::default() })
    }
}

/// Always sets all seven headers: an omitted one could come from the client.
fn identity_headers(
    names: &HeaderNames,
    service: Option<ServiceId>,
    identity: &VerifiedIdentity,
) -> Vec<HeaderValueOption> {
    let VerifiedIdentity { agent, name, roles, permissions, trust_score, token } = identity;
    vec![
        set(&names.id, agent.to_string()),
        set(&names.name, join_encoded([name.as_str()])),
        set(&names.trust_score, trust_score.to_string()),
        set(&names.roles, join_encoded(roles.iter().map(RoleName::as_str))),
        set(&names.permissions, join_encoded(permissions.iter().map(Permission::as_str))),
        set(&names.service, service.map(|service| service.to_string()).unwrap_or_default()),
        set(&names.token_id, token.to_string()),
    ]
}

#[cfg(test)]
mod tests;
