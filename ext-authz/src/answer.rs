//! What Envoy is told: headers to set and to remove, denial bodies, dynamic metadata.
//!
//! Neighbours: `decide` says what, `check` sends it. The rule of the room: no header of ours can come
//! from a client, in any spelling; and no verdict is left to Envoy's defaults. Measured there: an unset
//! status is an allow, and `headers_to_remove` is applied after the set, so that a name in both lists
//! is lost.

mod denial;
mod header;
mod names;

use crate::decide::{Decision, Refused};
use countersign_identity::{Permission, Reason, RoleName, ServiceId, VerifiedIdentity};
use envoy_types::{
    ext_authz::v3::pb::{CheckResponse, HeaderValueOption, HttpResponse, OkHttpResponse},
    pb::google::{
        protobuf::{ListValue, Struct, Value, value::Kind},
        rpc::Status,
    },
};
use header::{joined, set};
use std::collections::HashMap;

pub use names::Names;

/// What the client sent, as far as the answer depends on it.
#[derive(Debug, Clone, Copy)]
pub struct Sent<'a> {
    /// The names of all headers, as spelled.
    pub headers: &'a [&'a str],
    /// The header that carried the token and is to be taken out.
    pub spent: Option<&'a str>,
}

/// Puts a decision into Envoy's words.
pub fn answer(names: &Names, service: Option<ServiceId>, decision: &Decision, sent: Sent<'_>) -> CheckResponse {
    let (code, response) = match decision {
        Decision::Verified(identity) => (0, allow(names, service, Some(identity), sent)),
        Decision::Anonymous => (0, allow(names, service, None, sent)),
        Decision::Refused(Refused { refusal, agent: _ }) => {
            (denial::grpc_status(refusal.reason), denial::response(names, *refusal))
        }
    };
    CheckResponse {
        status: Some(Status { code, ..Status::default() }),
        dynamic_metadata: Some(metadata(service, decision)),
        http_response: Some(response),
    }
}

/// The answer when judging itself failed: it depends on nothing that could fail again.
pub fn internal_fault(names: &Names) -> CheckResponse {
    let refused = Decision::Refused(Reason::Internal.into());
    answer(names, None, &refused, Sent { headers: &[], spent: None })
}

fn allow(
    names: &Names,
    service: Option<ServiceId>,
    identity: Option<&VerifiedIdentity>,
    sent: Sent<'_>,
) -> HttpResponse {
    let headers = identity.map_or_else(Vec::new, |identity| identity_headers(names, service, identity));
    let forged = sent.headers.iter().copied().filter(|name| names.removes(name, identity.is_some()));
    let mut headers_to_remove: Vec<String> = forged.chain(sent.spent).map(str::to_owned).collect();
    headers_to_remove.sort_unstable();
    headers_to_remove.dedup();
    HttpResponse::OkResponse(OkHttpResponse { headers, headers_to_remove, ..OkHttpResponse::default() })
}

/// All seven, always: one that was left out could be the client's.
fn identity_headers(names: &Names, service: Option<ServiceId>, identity: &VerifiedIdentity) -> Vec<HeaderValueOption> {
    let VerifiedIdentity { agent, name, roles, permissions, trust_score, token } = identity;
    vec![
        set(&names.id, agent.to_string()),
        set(&names.name, joined([name.as_str()])),
        set(&names.trust_score, trust_score.to_string()),
        set(&names.roles, joined(roles.iter().map(RoleName::as_str))),
        set(&names.permissions, joined(permissions.iter().map(Permission::as_str))),
        set(&names.service, service.map(|service| service.to_string()).unwrap_or_default()),
        set(&names.token_id, token.to_string()),
    ]
}

/// For access logs and for Envoy's RBAC, under `envoy.filters.http.ext_authz`.
fn metadata(service: Option<ServiceId>, decision: &Decision) -> Struct {
    let (agent, roles, reason) = match decision {
        Decision::Verified(identity) => (Some(identity.agent), identity.roles.as_slice(), "verified"),
        Decision::Anonymous => (None, [].as_slice(), "anonymous"),
        Decision::Refused(Refused { refusal, agent }) => (*agent, [].as_slice(), refusal.reason.as_str()),
    };
    let verdict = if matches!(decision, Decision::Refused(_)) { "deny" } else { "allow" };
    let roles = ListValue { values: roles.iter().map(|role| text(role.as_str())).collect() };
    let fields = [
        ("agent_id", text(agent.map(|agent| agent.to_string()).unwrap_or_default())),
        ("service", text(service.map(|service| service.to_string()).unwrap_or_default())),
        ("roles", Value { kind: Some(Kind::ListValue(roles)) }),
        ("decision", text(verdict)),
        ("reason", text(reason)),
    ];
    structure([("countersign", Value { kind: Some(Kind::StructValue(structure(fields))) })])
}

fn structure<const N: usize>(fields: [(&str, Value); N]) -> Struct {
    Struct { fields: fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<HashMap<_, _>>() }
}

fn text(text: impl Into<String>) -> Value {
    Value { kind: Some(Kind::StringValue(text.into())) }
}

#[cfg(test)]
mod tests;
