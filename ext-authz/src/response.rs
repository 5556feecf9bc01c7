//! Builds Envoy's `CheckResponse` from a decision: headers to set and to remove, denial body, dynamic metadata.
//!
//! `decide` makes the decision, and `check` sends the response. Invariants: a client cannot set an identity header in
//! any spelling, and the response does not rely on Envoy's defaults. According to measurements, Envoy allows a request
//! if the status of the `CheckResponse` is not set, and removes `headers_to_remove` after it sets headers, so that a
//! header in both lists (to set and to remove) is removed.

mod denial;
mod encoded;
mod header;
mod header_names;
mod metadata;
mod reply;
mod resource_metadata;

use crate::{
    decide::{Decision, EncodedIdentity, EvaluatedIdentity},
    view::Resource,
};
use countersign_identity::{Reason, ServiceId, bearer::TOKEN_HEADER};
use countersign_proto::{
    envoy::service::auth::v3::{CheckResponse, OkHttpResponse, check_response::HttpResponse},
    google::rpc::Status,
};
use encoded::{RemovedHeaders, VerifiedReply};
use prost_types::Struct;
use std::{iter, sync::Arc};

pub use header_names::HeaderNames;
pub use reply::Reply;

/// The name of the header `Authorization` in lower case, as HTTP/2 and Envoy write it. It contains the token if the request has no
/// header [`TOKEN_HEADER`].
pub const AUTHORIZATION_HEADER: &str = "authorization";

/// The request headers on which the response depends.
#[derive(Debug, Clone, Copy)]
pub struct RequestHeaders<'a, Names> {
    /// The names of all headers, as the client spelled them.
    pub names: Names,
    /// The names of the headers with tokens that Envoy must remove.
    pub token_headers: [Option<&'a str>; 2],
}

impl Default for RequestHeaders<'_, iter::Empty<&'static [u8]>> {
    fn default() -> Self {
        Self { names: iter::empty(), token_headers: [None; 2] }
    }
}

/// What a response depends on besides the decision, as far as it is known.
#[derive(Debug, Clone, Copy, Default)]
pub struct DecidedRoute<'a> {
    /// The service of the route.
    pub service: Option<ServiceId>,
    /// The name of the rule of the rules file that decided.
    pub rule: Option<&'a Arc<str>>,
    /// The resource that the request is for.
    pub resource: Option<&'a Resource>,
    /// Whether the rule is about MCP, so that a denial is an error response of JSON-RPC.
    pub is_about_mcp: bool,
}

/// Builds responses from decisions.
#[derive(Debug, Clone)]
pub struct ResponseBuilder {
    /// The names of the identity headers.
    pub names: HeaderNames,
    /// Whether the error body of a denial contains the requirement that the agent does not meet.
    pub explain_denials: bool,
}

impl ResponseBuilder {
    /// Builds the response for a decision. An identity must belong to the service of the route.
    pub fn build<'a>(
        &self,
        route: DecidedRoute<'_>,
        decision: &Decision,
        headers: RequestHeaders<'a, impl Iterator<Item = &'a [u8]>>,
    ) -> Reply {
        let DecidedRoute { service, rule, .. } = route;
        let rule_name = rule.map(|rule| &**rule);
        match (decision, service) {
            (Decision::Verified(identity, validity), Some(service)) => Reply::Verified(VerifiedReply {
                identity: self.encoded(service, identity),
                validity: *validity,
                rule: rule.map(Arc::clone),
                removed: self.removed_headers(headers, true),
            }),
            (Decision::Verified(..), None) => self.internal_error(),
            (Decision::Anonymous, _) => {
                other_reply(0, self.allow_without_identity(headers), metadata::of_anonymous(service, rule_name))
            }
            (Decision::DryRun(denial), _) => {
                let metadata = metadata::of_denial(service, rule_name, denial, true);
                other_reply(0, self.allow_without_identity(headers), metadata)
            }
            (Decision::Denied(denial), _) => {
                let metadata = metadata::of_denial(service, rule_name, denial, false);
                let response = denial::build(&self.names, denial, route, self.explain_denials);
                other_reply(denial::grpc_status(denial.refusal.reason), response, metadata)
            }
        }
    }

    /// Builds the response after a panic, without the data that may have caused the panic.
    pub fn internal_error(&self) -> Reply {
        self.build(DecidedRoute::default(), &Decision::Denied(Reason::Internal.into()), RequestHeaders::default())
    }

    fn encoded(&self, service: ServiceId, identity: &EvaluatedIdentity) -> Arc<EncodedIdentity> {
        identity.encoded(|identity| encoded::encode_identity(&self.names, service, identity))
    }

    /// Builds the response with which Envoy answers a request for the metadata of a resource. Envoy sends a denial with any status.
    pub fn resource_metadata(&self, service: ServiceId, resource: &Resource) -> Reply {
        let code = tonic::Code::PermissionDenied.into();
        other_reply(code, resource_metadata::build(resource), metadata::of_anonymous(Some(service), None))
    }

    fn allow_without_identity<'a>(&self, headers: RequestHeaders<'a, impl Iterator<Item = &'a [u8]>>) -> HttpResponse {
        let headers_to_remove = self.removed_headers(headers, false).into_names();
        HttpResponse::OkResponse(OkHttpResponse { headers_to_remove, ..OkHttpResponse::default() })
    }

    /// The headers that Envoy removes: those with tokens, and those that could pass for identity headers. `overwritten`: the
    /// response sets the identity headers.
    fn removed_headers<'a>(
        &self,
        RequestHeaders { names, token_headers }: RequestHeaders<'a, impl Iterator<Item = &'a [u8]>>,
        overwritten: bool,
    ) -> RemovedHeaders {
        let forged_names = names.filter(|name| self.names.must_remove(name, overwritten));
        // `check` has refused a request with another name.
        let forged_names = forged_names.filter_map(|name| std::str::from_utf8(name).ok());
        let mut removed = token_headers.into_iter().flatten().chain(forged_names);
        let Some(first) = removed.next() else { return RemovedHeaders::Known(None) };
        let second = removed.next();
        let known = [AUTHORIZATION_HEADER, TOKEN_HEADER].into_iter().find(|known| *known == first);
        if let (Some(known), None) = (known, second) {
            return RemovedHeaders::Known(Some(known));
        }
        let mut names: Vec<String> = iter::once(first).chain(second).chain(removed).map(str::to_owned).collect();
        names.sort_unstable();
        names.dedup();
        RemovedHeaders::Any(names)
    }
}

fn other_reply(code: i32, http_response: HttpResponse, metadata: Struct) -> Reply {
    Reply::Other(Box::new(CheckResponse {
        status: Some(Status { code, ..Status::default() }),
        dynamic_metadata: Some(metadata),
        http_response: Some(http_response),
    }))
}

#[cfg(test)]
mod tests;
