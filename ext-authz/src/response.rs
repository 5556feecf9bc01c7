//! Builds Envoy's `CheckResponse` from a decision: headers to set and to remove, denial body, dynamic metadata.
//!
//! `decide` makes the decision, and `check` sends the response. Invariants: a client cannot set an identity header in any
//! spelling, and the response does not rely on Envoy's defaults. Measured: Envoy allows a request if the status of the
//! `CheckResponse` is not set. It sets headers before it removes those in `headers_to_remove`, so a header in both lists is lost.

mod denial;
mod header_names;
mod metadata;

use crate::{decide::Decision, view::Resource};
use countersign_identity::{Reason, ServiceId, VerifiedIdentity, identity_headers};
use countersign_proto::{
    envoy::{
        config::core::v3::{HeaderValue, HeaderValueOption, header_value_option::HeaderAppendAction},
        service::auth::v3::{CheckResponse, DeniedHttpResponse, OkHttpResponse, check_response::HttpResponse},
        r#type::v3::HttpStatus,
    },
    google::rpc::Status,
};
use prost_types::Struct;
use std::{iter, sync::Arc};

pub use header_names::HeaderNames;

/// The header with the token, unless the request has the header `X-Agent-Token`. In lower case, as HTTP/2 and Envoy write it.
pub const AUTHORIZATION_HEADER: &str = "authorization";

/// How long clients may keep the metadata of a resource.
const CACHE_CONTROL: &str = "public, max-age=300";

/// The parts of the request's headers that the response depends on.
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

/// What is known about the route of a request besides the decision.
#[derive(Debug, Clone, Copy, Default)]
pub struct DecidedRoute<'a> {
    pub service: Option<ServiceId>,
    /// The name of the rule of the rules file that decided.
    pub rule: Option<&'a Arc<str>>,
    /// The resource that the request is for.
    pub resource: Option<&'a Resource>,
    /// Whether the rule is about MCP, so that a denial is an error response of JSON-RPC.
    pub is_about_mcp: bool,
}

#[derive(Debug, Clone)]
pub struct ResponseBuilder {
    pub names: HeaderNames,
    /// Whether the error body of a denial contains the requirement that the agent does not meet.
    pub explain_denials: bool,
}

impl ResponseBuilder {
    /// Builds the response for a decision. `route.service` is the service for which the identity was evaluated.
    pub fn build<'a>(
        &self,
        route: DecidedRoute<'_>,
        decision: &Decision,
        headers: RequestHeaders<'a, impl Iterator<Item = &'a [u8]>>,
    ) -> CheckResponse {
        let DecidedRoute { service, rule, .. } = route;
        let rule_name = rule.map(|rule| &**rule);
        match (decision, service) {
            (Decision::Verified(identity, validity), Some(service)) => {
                let metadata = metadata::of_identity(service, rule_name, &identity.identity, *validity);
                response(0, self.allow_with_identity(service, &identity.identity, headers), metadata)
            }
            (Decision::Verified(..), None) => self.internal_error(),
            (Decision::Anonymous, _) => {
                response(0, self.allow_without_identity(headers), metadata::of_anonymous(service, rule_name))
            }
            (Decision::DryRun(denial), _) => {
                let metadata = metadata::of_denial(service, rule_name, denial, true);
                response(0, self.allow_without_identity(headers), metadata)
            }
            (Decision::Denied(denial), _) => {
                let metadata = metadata::of_denial(service, rule_name, denial, false);
                let denied = denial::build(&self.names, denial, route, self.explain_denials);
                response(denial::grpc_status(denial.refusal.reason), denied, metadata)
            }
        }
    }

    /// Builds the response after a panic, without the data that may have caused the panic.
    pub fn internal_error(&self) -> CheckResponse {
        self.build(DecidedRoute::default(), &Decision::Denied(Reason::Internal.into()), RequestHeaders::default())
    }

    /// Sets all seven identity headers, even empty ones, because the client could have sent any that is left out.
    fn allow_with_identity<'a>(
        &self,
        service: ServiceId,
        identity: &VerifiedIdentity,
        headers: RequestHeaders<'a, impl Iterator<Item = &'a [u8]>>,
    ) -> HttpResponse {
        let values = identity_headers::values(identity, Some(service));
        let named = self.names.identity.iter().zip(values);
        HttpResponse::OkResponse(OkHttpResponse {
            headers: named.map(|(name, value)| overwriting_header(name, value)).collect(),
            headers_to_remove: self.removed_headers(headers, true),
            ..OkHttpResponse::default()
        })
    }

    fn allow_without_identity<'a>(&self, headers: RequestHeaders<'a, impl Iterator<Item = &'a [u8]>>) -> HttpResponse {
        let headers_to_remove = self.removed_headers(headers, false);
        HttpResponse::OkResponse(OkHttpResponse { headers_to_remove, ..OkHttpResponse::default() })
    }

    /// The headers that Envoy removes: tokens, and whatever a service could take for an identity header. `overwritten` says that the
    /// response sets the identity headers.
    fn removed_headers<'a>(
        &self,
        RequestHeaders { names, token_headers }: RequestHeaders<'a, impl Iterator<Item = &'a [u8]>>,
        overwritten: bool,
    ) -> Vec<String> {
        let forged_names = names.filter(|name| self.names.must_remove(name, overwritten));
        // `check` has refused requests with names that are not UTF-8, so this leaves out no name.
        let forged_names = forged_names.filter_map(|name| std::str::from_utf8(name).ok());
        let mut removed: Vec<_> = token_headers.into_iter().flatten().chain(forged_names).map(str::to_owned).collect();
        removed.sort_unstable();
        removed.dedup();
        removed
    }
}

/// Makes Envoy answer a request for the metadata of a resource (RFC 9728) itself: with a denial, whose status may be 200.
pub fn resource_metadata(service: ServiceId, resource: &Resource) -> CheckResponse {
    // The document is public, so scripts in browsers may read it.
    let headers =
        [("content-type", "application/json"), ("cache-control", CACHE_CONTROL), ("access-control-allow-origin", "*")];
    let denied = HttpResponse::DeniedResponse(DeniedHttpResponse {
        status: Some(HttpStatus { code: 200 }),
        headers: headers.map(|(name, value)| overwriting_header(name, value.to_owned())).into(),
        body: resource.document.to_string(),
    });
    response(tonic::Code::PermissionDenied.into(), denied, metadata::of_anonymous(Some(service), None))
}

/// A header that overwrites the value of the client. Both `append` and `append_action` are set, because older and newer versions of
/// Envoy read different ones, with different defaults.
#[expect(deprecated, reason = "older Envoy versions read only `append`")]
fn overwriting_header(name: &str, value: String) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue { key: name.to_owned(), value, raw_value: vec![] }),
        append: Some(false),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        keep_empty_value: true,
    }
}

fn response(code: i32, http_response: HttpResponse, dynamic_metadata: Struct) -> CheckResponse {
    CheckResponse {
        status: Some(Status { code, ..Status::default() }),
        dynamic_metadata: Some(dynamic_metadata),
        http_response: Some(http_response),
    }
}

#[cfg(test)]
mod tests;
