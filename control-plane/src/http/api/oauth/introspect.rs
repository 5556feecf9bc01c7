//! `/oauth/introspect`: verification of tokens for services that speak OAuth (RFC 7662).

use crate::{
    domain::credential::expose,
    http::{
        api::{prelude::*, verify::verify_token},
        error::{ErrorLabels, OAuthError, OAuthErrors},
        request::{
            body::Form,
            service_client::{FormClient, ServiceClient},
        },
    },
    operations::Verified,
};
use axum::{
    http::header,
    response::{IntoResponse, Response},
};
use countersign_identity::{
    AgentId, Audience, Code, Permission, RoleName, TokenId, TrustScore, VerifiedIdentity, scope::scope_text,
};
use secrecy::SecretString;

body! { form
    /// A token to verify (RFC 7662). Unknown parameters are ignored.
    IntrospectionRequest {
        required "token" token: SecretString,
        /// Ignored: only access tokens can be active.
        optional "token_type_hint" hint: String,
        /// The id of the service, if it authenticates by the form.
        optional "client_id" client_id: String,
        /// An API key of the service.
        optional "client_secret" client_secret: SecretString as schema::TextSchema,
    }
}

/// The result of an introspection.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum IntrospectionResponse {
    /// The service must accept the token now.
    Active(Box<ActiveToken>),
    /// The service must refuse the token.
    Inactive(InactiveToken),
}

/// A token that is not active. The response has no other member.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InactiveToken {
    /// Always `false`.
    #[schema(example = false)]
    active: bool,
}

/// An active token, with the current data of the agent, which can be newer than the claims of the token.
#[derive(Serialize, ToSchema)]
pub struct ActiveToken {
    /// Always `true`.
    #[schema(example = true)]
    active: bool,
    /// The permissions of the agent at this service, as far as the token grants them.
    #[schema(example = "invoices:read")]
    scope: String,
    #[schema(value_type = schema::AgentIdSchema)]
    client_id: AgentId,
    #[schema(value_type = schema::AgentIdSchema)]
    sub: AgentId,
    /// The service that the token is for, or the issuer.
    #[schema(example = "svc_01jyd3rq8yfd19yr0w5mz4ypkb")]
    aud: String,
    #[schema(example = "https://countersign.example")]
    iss: String,
    /// Time of expiry, in Unix seconds.
    #[schema(example = 1_804_954_466)]
    exp: i64,
    /// Time of issue, in Unix seconds.
    #[schema(example = 1_804_950_866)]
    iat: i64,
    #[schema(value_type = String, example = "tok_01jyd3rq8yfd19yr0w5mz4ypkb")]
    jti: TokenId,
    /// Always `Bearer`.
    #[schema(example = "Bearer")]
    token_type: &'static str,
    #[schema(value_type = DisplayName)]
    name: String,
    /// Names of the agent's roles at this service.
    #[schema(value_type = Vec<schema::RoleNameSchema>)]
    roles: Vec<RoleName>,
    #[schema(value_type = schema::PermissionsSchema)]
    permissions: Vec<Permission>,
    #[serde(rename = "trustScore")]
    #[schema(value_type = schema::TrustScoreSchema)]
    trust_score: TrustScore,
}

/// Verify a token as an OAuth resource server (RFC 7662)
///
/// Gives the same verdict about an access token as `GET /services/{service}/verify`, for the service that authenticates. A service
/// authenticates with its id and one of its API keys, in HTTP Basic or in the form, or with the API key as a bearer credential.
#[utoipa::path(
    post, path = "/oauth/introspect", operation_id = "introspectToken", tag = "OAuth", security(("serviceClient" = []), ("serviceKey" = [])),
    request_body(
        content = IntrospectionRequest, content_type = "application/x-www-form-urlencoded",
        example = json!({ "token": "eyJ0eXAiOiJhdCtqd3QiLCJhbGciOiJFUzI1NiJ9.e30.c2lnbmF0dXJl" }),
    ),
    responses(
        (status = 200, description = "Whether the token is active", body = IntrospectionResponse),
        OAuthErrors,
    )
)]
pub async fn introspect(
    State(state): State<AppState>,
    client: ServiceClient,
    body: Result<Form, ApiError>,
) -> Result<Response, OAuthError> {
    // Authenticate before we report errors in the form, so that each request of a stranger counts as a failed authentication.
    let credentials = body.as_ref().map_or((None, None), |Form(body)| credentials_of(body));
    let (service, current) = client.require_service(credentials).await?;
    let Form(body) = body?;
    let IntrospectionRequest { token, hint, client_id, client_secret } = body.read()?;
    // The hint is not needed, because only access tokens can be active; `require_service` has checked the credentials.
    drop((hint, client_id, client_secret));
    let mut response = match verify_token(&state, &current, service, expose(&token)).await {
        Ok(verified) => Json(active(&state, &verified)).into_response(),
        Err(error) => inactive(error)?,
    };
    response.headers_mut().insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    Ok(response)
}

fn credentials_of(body: &BodyFields) -> FormClient {
    (body.peek("client_id").map(str::to_owned), body.peek("client_secret").map(|secret| secret.to_owned().into()))
}

fn active(state: &AppState, verified: &Verified) -> IntrospectionResponse {
    let verification = &verified.verification;
    let identity = &verification.identity;
    let VerifiedIdentity { agent, name, roles, permissions, trust_score, token, valid_until: _ } = identity.clone();
    let issuer = state.context.issuer();
    IntrospectionResponse::Active(Box::new(ActiveToken {
        active: true,
        scope: scope_text(&permissions),
        client_id: agent,
        sub: agent,
        aud: verification.audience.map_or(Audience::Unbound, Audience::Service).claim(issuer),
        iss: issuer.to_owned(),
        exp: verification.expires_at.seconds(),
        iat: verification.issued_at.seconds(),
        jti: token,
        token_type: "Bearer",
        name,
        roles,
        permissions,
        trust_score,
    }))
}

/// The response for a token that the service must refuse. Other errors stay errors, because they say nothing about the token.
fn inactive(error: ApiError) -> Result<Response, ApiError> {
    match error.reason().map(countersign_identity::Reason::code) {
        Some(Code::AuthenticationFailed | Code::InsufficientPermissions) => {
            // Metrics and logs count a refused token as an error, although the status is 200.
            let labels: ErrorLabels = error.labels();
            let mut response = Json(IntrospectionResponse::Inactive(InactiveToken { active: false })).into_response();
            response.extensions_mut().insert(labels);
            Ok(response)
        }
        Some(Code::ServiceUnavailable) | None => Err(error),
    }
}
