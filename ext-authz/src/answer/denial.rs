//! The answer to a client that is refused: a status, the error body of the specification, headers.

use super::{Names, header::set};
use countersign_identity::{Code, Reason, Refusal, Timestamp};
use envoy_types::ext_authz::v3::pb::{DeniedHttpResponse, HttpResponse, HttpStatus};
use serde::Serialize;

#[derive(Serialize)]
struct Body {
    error: Error,
}

#[derive(Serialize)]
struct Error {
    code: &'static str,
    message: &'static str,
    details: Details,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Details {
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    expired_at: Option<String>,
}

/// The status of the check itself. It must not be unset or zero, which Envoy takes for an allow.
pub fn grpc_status(reason: Reason) -> i32 {
    let code = match reason.code() {
        Code::AuthenticationFailed => tonic::Code::Unauthenticated,
        Code::InsufficientPermissions => tonic::Code::PermissionDenied,
        Code::ServiceUnavailable => tonic::Code::Unavailable,
    };
    code.into()
}

/// The response that Envoy passes on to the client.
pub fn response(names: &Names, refusal: Refusal) -> HttpResponse {
    let reason = refusal.reason;
    let mut headers =
        vec![set("content-type", "application/json".to_owned()), set(&names.reason, reason.as_str().to_owned())];
    headers.extend(challenge(reason).map(|challenge| set("www-authenticate", challenge)));
    if reason.code() == Code::ServiceUnavailable {
        headers.push(set("retry-after", "1".to_owned()));
    }
    let status = HttpStatus { code: reason.code().status().into() };
    HttpResponse::DeniedResponse(DeniedHttpResponse { status: Some(status), headers, body: body(refusal) })
}

/// RFC 6750, section 3: without a token the client learns only which scheme is wanted.
fn challenge(reason: Reason) -> Option<String> {
    let error = match reason.code() {
        Code::AuthenticationFailed if reason == Reason::TokenMissing => return Some("Bearer".to_owned()),
        Code::AuthenticationFailed => "invalid_token",
        Code::InsufficientPermissions => "insufficient_scope",
        Code::ServiceUnavailable => return None,
    };
    Some(format!(r#"Bearer error="{error}", error_description="{}""#, reason.message()))
}

fn body(Refusal { reason, expired_at }: Refusal) -> String {
    let details = Details { reason: reason.as_str(), expired_at: expired_at.and_then(rfc3339) };
    let error = Error { code: reason.code().as_str(), message: reason.message(), details };
    serde_json::to_string(&Body { error }).unwrap_or_default()
}

fn rfc3339(instant: Timestamp) -> Option<String> {
    jiff::Timestamp::from_microsecond(instant.micros()).ok().map(|instant| instant.to_string())
}
