//! `GET /services/{service}/verify`: token verification for services without a sidecar.

use crate::{
    http::{api::prelude::*, error::ErrorBody},
    operations::{CurrentState, Verified},
};
use axum::{
    http::{HeaderMap, HeaderName, HeaderValue, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use countersign_identity::{
    AgentId, Permission, Reason, RoleName, ServiceId, TrustScore, VerifiedIdentity,
    bearer::{TOKEN_HEADER, from_token_header},
    identity_headers::{self, DEFAULT_PREFIX, REASON_SUFFIX, SUFFIXES},
};

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The header with preferences of the client (RFC 7240).
const PREFER: &str = "prefer";

/// The preference for identity headers in the response.
const IDENTITY_HEADERS: &str = "identity-headers";

/// Result of a successful verification.
#[derive(Serialize, ToSchema)]
struct VerificationResponse {
    /// Always true: an invalid token is an error response.
    #[schema(example = true)]
    valid: bool,
    agent: VerifiedAgent,
}

/// The current data of the agent, which can be newer than the claims of the token.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct VerifiedAgent {
    #[schema(value_type = schema::AgentIdSchema)]
    id: AgentId,
    #[schema(value_type = DisplayName)]
    name: String,
    #[schema(value_type = schema::TrustScoreSchema)]
    trust_score: TrustScore,
    /// Names of the agent's roles at this service.
    #[schema(value_type = Vec<schema::RoleNameSchema>)]
    roles: Vec<RoleName>,
    #[schema(value_type = schema::PermissionsSchema)]
    permissions: Vec<Permission>,
}

/// An error. If the error is about the agent's token, the body also contains `valid: false`, so that a client that checks only
/// `valid` does not accept the token.
#[derive(Serialize, ToSchema)]
pub struct TokenErrorBody {
    #[serde(flatten)]
    error: ErrorBody,
    /// Always false.
    #[schema(required = false)]
    valid: bool,
}

impl TokenErrorBody {
    /// The body of an error about the agent's token.
    pub fn new(error: &ApiError) -> Self {
        Self { error: error.body(), valid: false }
    }
}

/// Verify an agent's token
///
/// Verifies the access token in `X-Agent-Token`, and returns the agent with its current roles, permissions and trust score.
#[utoipa::path(
    get, path = "/services/{service}/verify", operation_id = "verifyToken", tag = "Verification",
    params(
        ServicePathParam,
        (
            "X-Agent-Token" = schema::BearerAccessTokenSchema, Header,
            description = "The access token to verify, as `Bearer <token>`. The API key of the service goes into `Authorization`.",
        ),
        (
            "Prefer" = Option<String>, Header, example = "identity-headers",
            description = "With `identity-headers`, the response has `Preference-Applied: identity-headers` and the headers that a \
                           sidecar sets: `x-agent-id`, `x-agent-name`, `x-agent-trust-score`, `x-agent-roles`, \
                           `x-agent-permissions`, `x-agent-service` and `x-agent-token-id`. The response to a refused token has \
                           `x-agent-reason`. For proxies that cannot read the body, such as nginx with `auth_request`. Other \
                           preferences are ignored (RFC 7240).",
        ),
    ),
    security(("serviceKey" = [])),
    responses(
        (status = 200, description = "The token is valid", body = VerificationResponse),
        Errors<(ServiceKeyAuth, InvalidAgentToken, ServiceNotFound)>,
    )
)]
pub async fn verify(
    call: Call,
    PathParams(service): PathParams<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let service: ServiceId = parse_id(&service)?;
    let current = call.require_service_key(service).await?;
    let wants_headers = prefers_identity_headers(&headers);
    let verified = match agent_token(&headers) {
        Ok(token) => verify_token(&call.state, &current, service, token).await,
        Err(reason) => Err(reason.into()),
    };
    Ok(match verified {
        Ok(Verified { verification, .. }) => {
            let response = ([(CONTENT_TYPE, JSON)], verification.response(verification_response)).into_response();
            if wants_headers {
                with_headers(response, identity_headers(&verification.identity, service))
            } else {
                response
            }
        }
        Err(error) => {
            let (body, reason) = (TokenErrorBody::new(&error), reason_header(&error));
            let response = error.into_response_with_body(body);
            if wants_headers { with_headers(response, reason) } else { response }
        }
    })
}

/// Whether the client wants the data of the agent as headers (RFC 7240): a proxy such as nginx cannot read the body.
fn prefers_identity_headers(headers: &HeaderMap) -> bool {
    let preferences = headers.get_all(PREFER).iter().filter_map(|value| value.to_str().ok());
    preferences.flat_map(|value| value.split(',')).any(|item| item.trim().eq_ignore_ascii_case(IDENTITY_HEADERS))
}

fn identity_headers(identity: &VerifiedIdentity, service: ServiceId) -> Vec<(String, String)> {
    let names = SUFFIXES.map(|suffix| format!("{DEFAULT_PREFIX}{suffix}"));
    names.into_iter().zip(identity_headers::values(identity, Some(service))).collect()
}

fn reason_header(error: &ApiError) -> Vec<(String, String)> {
    let header = |reason: Reason| (format!("{DEFAULT_PREFIX}{REASON_SUFFIX}"), reason.as_str().to_owned());
    error.reason().map(header).into_iter().collect()
}

fn with_headers(mut response: Response, headers: Vec<(String, String)>) -> Response {
    let applied = ("preference-applied".to_owned(), IDENTITY_HEADERS.to_owned());
    for (name, value) in headers.into_iter().chain([applied]) {
        // All names and values are valid in headers, because the values are encoded. So no header is left out.
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// Verifies a token for a service that has authenticated.
pub(super) async fn verify_token(
    state: &AppState,
    current: &CurrentState,
    service: ServiceId,
    token: &str,
) -> Result<Verified, ApiError> {
    let result = operations::verify_token(&state.context, current, service, token).await;
    let (hits, misses) = (&state.metrics.verification_cache_hits, &state.metrics.verification_cache_misses);
    let is_hit = result.as_ref().is_ok_and(|verified| verified.is_from_memory);
    (if is_hit { hits } else { misses }).inc();
    result.map_err(|error| ApiError::from(error).with_required_service(service))
}

fn agent_token(headers: &HeaderMap) -> Result<&str, Reason> {
    let values: Vec<_> = headers.get_all(TOKEN_HEADER).iter().map(HeaderValue::as_bytes).collect();
    from_token_header(&values)?.ok_or(Reason::TokenMissing)
}

fn verification_response(identity: &VerifiedIdentity) -> Bytes {
    let VerifiedIdentity { agent, name, roles, permissions, trust_score, token: _, valid_until: _ } = identity.clone();
    let agent = VerifiedAgent { id: agent, name, trust_score, roles, permissions };
    // All fields have a JSON form, so this cannot fail.
    serde_json::to_vec(&VerificationResponse { valid: true, agent }).unwrap_or_default().into()
}
