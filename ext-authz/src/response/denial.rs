//! The HTTP response to a denied request: status, headers and error body.

use super::{DecidedRoute, HeaderNames, overwriting_header};
use crate::{
    decide::{Denial, Qualification, UnmetRequirement},
    view::Resource,
};
use countersign_identity::{Code, Reason, Refusal, ServiceId, scope::scope_text};
use countersign_process::format_rfc3339;
use countersign_proto::envoy::{
    service::auth::v3::{DeniedHttpResponse, check_response::HttpResponse},
    r#type::v3::HttpStatus,
};
use serde::Serialize;

#[derive(Serialize)]
struct ErrorBody<'a> {
    error: ErrorObject<'a>,
}

#[derive(Serialize)]
struct ErrorObject<'a> {
    code: &'static str,
    message: &'static str,
    details: ErrorDetails<'a>,
}

/// The error body for MCP clients: an error response of JSON-RPC. MCP clients show its message. If the body is anything else, they
/// show a text of their own, which does not tell the reason.
#[derive(Serialize)]
struct JsonRpcBody<'a> {
    jsonrpc: &'static str,
    /// Always `null`: the id of the request is not known here.
    id: (),
    error: JsonRpcError<'a>,
}

#[derive(Serialize)]
struct JsonRpcError<'a> {
    /// The HTTP status, as the error code of JSON-RPC. The codes that JSON-RPC reserves are negative.
    code: u16,
    message: &'static str,
    data: JsonRpcErrorData<'a>,
}

#[derive(Serialize)]
struct JsonRpcErrorData<'a> {
    code: &'static str,
    #[serde(flatten)]
    details: ErrorDetails<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ErrorDetails<'a> {
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    expired_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    required: Option<Required<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    actual: Option<&'a Qualification>,
}

#[derive(Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
enum Required<'a> {
    OfAgent(&'a Qualification),
    OfToken { service_id: ServiceId },
}

/// The gRPC status in the `CheckResponse` of a denial. Envoy allows the request if the gRPC status is zero or not set.
pub fn grpc_status(reason: Reason) -> i32 {
    let code = match reason.code() {
        Code::AuthenticationFailed => tonic::Code::Unauthenticated,
        Code::InsufficientPermissions => tonic::Code::PermissionDenied,
        Code::ServiceUnavailable => tonic::Code::Unavailable,
    };
    code.into()
}

/// Builds the response that Envoy sends to the client. With `explain`, the error body contains the requirement that the agent does not
/// meet. If the token was not issued for the service, the error body always names the service.
pub fn build(names: &HeaderNames, denial: &Denial, route: DecidedRoute<'_>, explain: bool) -> HttpResponse {
    let Denial { refusal, agent: _, unmet_requirement } = denial;
    let reason = refusal.reason;
    let mut headers = vec![
        overwriting_header("content-type", "application/json".to_owned()),
        overwriting_header(&names.reason, reason.as_str().to_owned()),
    ];
    headers.extend(
        www_authenticate(denial, route.resource).map(|challenge| overwriting_header("www-authenticate", challenge)),
    );
    if reason.code() == Code::ServiceUnavailable {
        headers.push(overwriting_header("retry-after", "1".to_owned()));
    }
    let status = HttpStatus { code: reason.code().status().into() };
    HttpResponse::DeniedResponse(DeniedHttpResponse {
        status: Some(status),
        headers,
        body: error_body(*refusal, route, unmet_requirement.as_ref().filter(|_| explain)),
    })
}

/// The value of `WWW-Authenticate` (RFC 6750, section 3, and RFC 9728, section 5.1). `None`: the response has no such header. The
/// description comes last, because common clients search the whole header for parameters: they must not find one in the description
/// first. Common clients log in again after each `error="insufficient_scope"`, until the rate limit of logins refuses them. So we
/// send this error only if another token would help.
fn www_authenticate(denial: &Denial, resource: Option<&Resource>) -> Option<String> {
    let reason = denial.refusal.reason;
    let error = match reason.code() {
        // RFC 6750: the answer to a request without a token has no error.
        Code::AuthenticationFailed if reason == Reason::TokenMissing => None,
        Code::AuthenticationFailed => Some("invalid_token"),
        Code::InsufficientPermissions if reason == Reason::TokenScopeInsufficient => Some("insufficient_scope"),
        // The roles lack the permission, so no other token would help: no error. The challenge only tells OAuth clients the scope.
        Code::InsufficientPermissions if reason == Reason::PermissionMissing && resource.is_some() => None,
        Code::InsufficientPermissions | Code::ServiceUnavailable => return None,
    };
    // A service without resource URIs serves no OAuth clients, so we tell nothing about its rules.
    let scope = resource.and_then(|_| required_scope(denial));
    let parameters = [
        ("resource_metadata", resource.map(|resource| &*resource.metadata_url)),
        ("error", error),
        ("scope", scope.as_deref()),
        ("error_description", error.map(|_| reason.message())),
    ];
    let parameters = parameters.into_iter().filter_map(|(name, value)| Some(format!(r#"{name}="{}""#, value?)));
    let parameters: Vec<_> = parameters.collect();
    Some(if parameters.is_empty() { "Bearer".to_owned() } else { format!("Bearer {}", parameters.join(", ")) })
}

/// The permissions that the route requires, as a scope. If one of several suffices, the scope names all.
fn required_scope(denial: &Denial) -> Option<String> {
    let required = &denial.unmet_requirement.as_ref()?.required;
    let (Qualification::Permissions(required) | Qualification::AnyPermission(required)) = required else { return None };
    Some(scope_text(required)).filter(|scope| !scope.is_empty())
}

fn error_body(refusal: Refusal, route: DecidedRoute<'_>, unmet_requirement: Option<&UnmetRequirement>) -> String {
    let Refusal { reason, expired_at } = refusal;
    let service = route.service.filter(|_| reason.is_wrong_audience());
    let required_service = service.map(|service_id| Required::OfToken { service_id });
    let details = ErrorDetails {
        reason: reason.as_str(),
        expired_at: expired_at.map(format_rfc3339),
        required: unmet_requirement.map(|unmet| Required::OfAgent(&unmet.required)).or(required_service),
        actual: unmet_requirement.map(|unmet| &unmet.actual),
    };
    let (code, message) = (reason.code(), reason.message());
    let body = if route.is_about_mcp {
        let data = JsonRpcErrorData { code: code.as_str(), details };
        let error = JsonRpcError { code: code.status(), message, data };
        serde_json::to_string(&JsonRpcBody { jsonrpc: "2.0", id: (), error })
    } else {
        serde_json::to_string(&ErrorBody { error: ErrorObject { code: code.as_str(), message, details } })
    };
    body.unwrap_or_default()
}
