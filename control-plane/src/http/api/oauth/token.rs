//! `/oauth/token`: the token endpoint (RFC 6749, section 3.2).

use crate::{
    domain::{
        client_assertion::{ASSERTION_TYPE, InvalidAssertion},
        credential::expose,
    },
    http::{
        api::prelude::*,
        error::{OAuthError, OAuthErrors, Scheme},
        middleware::{limits::RequestLimiter, operation_metrics::RefreshOperation},
        request::{body::Form, client_address::ClientAddress},
    },
    operations::{OperationError, RequestedToken, TokenPair},
};
use axum::{
    Extension,
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};
use countersign_identity::{Reason, Scope};
use secrecy::SecretString;
use std::net::IpAddr;

body! { form
    /// A request for tokens (RFC 6749, section 3.2). Unknown parameters are ignored.
    OAuthTokenRequest {
        required "grant_type" grant_type: String as schema::GrantTypeSchema,
        /// Required for `client_credentials`.
        optional "client_assertion_type" assertion_type: String as schema::AssertionTypeSchema,
        /// A JWT that the agent has signed (RFC 7523, section 2.2). Required for `client_credentials`.
        optional "client_assertion" assertion: SecretString,
        /// The id of the agent. Not needed: the assertion or the refresh token belongs to the agent.
        optional "client_id" client_id: String,
        /// Required for `refresh_token`.
        optional "refresh_token" refresh_token: SecretString,
        /// The service that the tokens are for: its id, or one of its resource URIs (RFC 8707). Default: the service of the agent's
        /// last login that was for a service, if the agent still holds a role there; else the only service at which it holds a role;
        /// else none. Tokens for no service are accepted by the services that accept unbound tokens, with the agent's roles at each.
        /// For a refresh, the default is the service of the login, if it was for a service.
        optional "resource" resource: String,
        /// The same as `resource`.
        optional "audience" audience: String,
        /// Permissions, separated by spaces. The tokens of the session grant no others, whatever roles the agent gets. Permissions
        /// that the agent does not have are ignored. Default: all permissions of the roles of the agent.
        optional "scope" scope: Scope,
    }
}

/// The tokens of a session (RFC 6749, section 5.1).
#[derive(Serialize, ToSchema)]
pub struct OAuthTokenResponse {
    #[schema(value_type = schema::AccessTokenSchema)]
    access_token: String,
    /// Always `Bearer`.
    #[schema(example = "Bearer")]
    token_type: &'static str,
    /// Lifetime of the access token, in seconds.
    #[schema(minimum = 1, example = 3600)]
    expires_in: u64,
    #[schema(value_type = schema::RefreshTokenSchema)]
    refresh_token: String,
    /// The permissions that the access token grants now, separated by spaces. Permissions with `"` or `\` are left out. For a token for
    /// no service, the requested scope: each service finds its own roles in the token.
    #[schema(example = "invoices:read")]
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<String>,
}

/// Request tokens (RFC 6749)
///
/// Returns the tokens of a new session for a client assertion of the agent (RFC 7523), or the next tokens for a refresh token. An
/// assertion can be used once.
#[utoipa::path(
    post, path = "/oauth/token", operation_id = "requestToken", tag = "OAuth", security(()),
    request_body(
        content = OAuthTokenRequest, content_type = "application/x-www-form-urlencoded",
        example = json!({
            "grant_type": "client_credentials",
            "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
            "client_assertion": "eyJhbGciOiJFUzI1NiJ9.e30.c2lnbmF0dXJl",
            "resource": "https://api.example/mcp",
            "scope": "invoices:read",
        }),
    ),
    responses(
        (status = 200, description = "The tokens of the session", body = OAuthTokenResponse),
        OAuthErrors,
    )
)]
pub async fn token(
    State(state): State<AppState>,
    Extension(client): Extension<ClientAddress>,
    Extension(limiter): Extension<RequestLimiter>,
    headers: HeaderMap,
    body: Result<Form, ApiError>,
) -> Result<Response, OAuthError> {
    require_no_secret(&headers)?;
    let Form(body) = body?;
    if body.peek("client_secret").is_some() {
        return Err(secret_refused(None));
    }
    let request: OAuthTokenRequest = body.read()?;
    match request.grant_type.as_str() {
        "client_credentials" => Ok(token_response(&log_in(&state, &limiter, request, client.ip).await?)),
        "refresh_token" => {
            let refreshed = refresh(&state, &limiter, request, client.ip).await;
            let mut response = refreshed.map_or_else(OAuthError::into_response, |pair| token_response(&pair));
            // The metrics count the responses of this route as logins, unless the response, also an error, is marked as a refresh.
            response.extensions_mut().insert(RefreshOperation);
            Ok(response)
        }
        _ => {
            let message = "`grant_type` must be client_credentials or refresh_token";
            Err(OAuthError::new("unsupported_grant_type", message))
        }
    }
}

/// Refuses a client that authenticates with a secret. If we ignored the secret, the client would believe that the secret is right.
fn require_no_secret(headers: &HeaderMap) -> Result<(), OAuthError> {
    let is_basic =
        |value: &HeaderValue| value.as_bytes().get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"basic "));
    if headers.get_all(header::AUTHORIZATION).iter().any(is_basic) {
        Err(secret_refused(Some(Scheme::Basic)))
    } else {
        Ok(())
    }
}

fn secret_refused(scheme: Option<Scheme>) -> OAuthError {
    let message =
        "agents have no client secret: configure private_key_jwt, or start the program with `countersign agent exec`";
    let error = InvalidAssertion { message: message.into(), reason: Reason::AssertionInvalid };
    OAuthError::of_client(OperationError::InvalidAssertion(error).into(), scheme)
}

async fn log_in(
    state: &AppState,
    limiter: &RequestLimiter,
    request: OAuthTokenRequest,
    client: IpAddr,
) -> Result<TokenPair, OAuthError> {
    if request.assertion_type.as_deref() != Some(ASSERTION_TYPE) {
        let message = format!("`client_assertion_type` must be {ASSERTION_TYPE}");
        return Err(OAuthError::new("invalid_client", &message));
    }
    let assertion = request.assertion.as_ref();
    let assertion = assertion.ok_or_else(|| OAuthError::new("invalid_client", "`client_assertion` is required"))?;
    let context = &state.context;
    let assertion = operations::parse_assertion(context, expose(assertion)).map_err(ApiError::from)?;
    if request.client_id.as_ref().is_some_and(|id| id.parse() != Ok(assertion.agent)) {
        return Err(OAuthError::new("invalid_client", "`client_id` must be the `sub` of the assertion, or absent"));
    }
    // The event about a failed login contains the service only if the request names it by id: a resource URI is looked up after the
    // assertion is verified.
    let service_id = [&request.resource, &request.audience].into_iter().flatten().find_map(|text| text.parse().ok());
    let verified = operations::verify_assertion(context, &assertion, service_id, Some(client)).await;
    let verified = verified.map_err(assertion_error)?;
    limiter.count_agent(state, verified.agent()).await?;
    let requested = requested_token(state, request).await?;
    Ok(operations::begin_session(context, verified.requesting(requested)).await.map_err(ApiError::from)?)
}

async fn refresh(
    state: &AppState,
    limiter: &RequestLimiter,
    request: OAuthTokenRequest,
    client: IpAddr,
) -> Result<TokenPair, OAuthError> {
    let token = request.refresh_token.as_ref();
    let token = token.ok_or_else(|| OAuthError::new("invalid_request", "`refresh_token` is required"))?;
    let verified = operations::verify_refresh(&state.context, expose(token), Some(client)).await;
    let verified = verified.map_err(ApiError::from)?;
    // A refresh token that was used, or whose session has ended, does not prove who sends it. `refresh_session` refuses it whatever
    // else the request asks for, and a used token also ends its session.
    let mut requested = RequestedToken::default();
    if let Some(agent) = verified.proven_agent() {
        if request.client_id.as_ref().is_some_and(|id| id.parse() != Ok(agent)) {
            let message = "`client_id` must be the agent that the refresh token was issued to, or absent";
            return Err(OAuthError::new("invalid_grant", message));
        }
        limiter.count_agent(state, agent).await?;
        requested = requested_token(state, request).await?;
    }
    Ok(operations::refresh_session(&state.context, verified, requested).await.map_err(ApiError::from)?)
}

/// The error of a wrong signature. The usual message tells the agent to sign a nonce and to send hex, which is wrong for an assertion.
fn assertion_error(error: OperationError) -> ApiError {
    const WRONG_SIGNATURE: InvalidAssertion =
        InvalidAssertion::new("client_assertion must be signed with the registered key of the agent");
    match error {
        OperationError::InvalidSignature => OperationError::InvalidAssertion(WRONG_SIGNATURE).into(),
        error => error.into(),
    }
}

/// Reads for which service and with which permissions the client wants the tokens.
async fn requested_token(state: &AppState, request: OAuthTokenRequest) -> Result<RequestedToken, OAuthError> {
    let mut service = None;
    for (parameter, text) in [("resource", &request.resource), ("audience", &request.audience)] {
        let Some(text) = text else { continue };
        let named = operations::find_service_of_resource(&state.context, text).await.map_err(ApiError::from)?;
        let Some(named) = named else {
            let message =
                format!("`{parameter}` must be the id of a service, or one of the resource URIs of a service");
            return Err(OAuthError::new("invalid_target", &message));
        };
        if service.replace(named).is_some_and(|other| other != named) {
            return Err(OAuthError::new("invalid_target", "`resource` and `audience` must name the same service"));
        }
    }
    Ok(RequestedToken { service, scope: request.scope, always_has_scope_claim: true })
}

fn token_response(pair: &TokenPair) -> Response {
    let body = OAuthTokenResponse {
        access_token: expose(&pair.access).to_owned(),
        token_type: "Bearer",
        expires_in: pair.expires_in.as_secs(),
        refresh_token: expose(&pair.refresh).to_owned(),
        scope: pair.scope.clone(),
    };
    ([(header::CACHE_CONTROL, "no-store")], Json(body)).into_response()
}
