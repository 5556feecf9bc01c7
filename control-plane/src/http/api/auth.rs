//! `/auth/*`: registration, login, refresh and revocation.

use crate::{
    domain::{
        agent::{Agent, status_text},
        credential::expose,
        text::EmailAddress,
    },
    http::{
        api::prelude::*,
        middleware::limits::RequestLimiter,
        request::{body::FormOrJson, client_address::ClientAddress},
    },
    operations::{LoginRequest, RegistrationRequest, RequestedToken, TokenPair},
};
use axum::Extension;
use countersign_identity::{AgentId, P256PublicKey, Revision, ServiceId};
use secrecy::SecretString;
use serde::Deserialize;
use std::borrow::Cow;

body! {
    /// An agent to register.
    AgentRegistration {
        /// E-mail address of the registrant.
        required "email" email: EmailAddress,
        /// Display name of the agent.
        required "name" name: DisplayName,
        required "publicKey" key: P256PublicKey,
        /// Free-form data, which is returned when the agent is read.
        optional "metadata" metadata: Metadata,
    }
    /// A request for a challenge.
    ChallengeRequest {
        required "agentId" agent: UnparsedId<AgentId>,
        /// The service that the tokens are for; its id becomes their `aud` claim. Default: the service of the agent's last
        /// login that was for a service, if the agent still holds a role there; else the only service at which it holds a role;
        /// else none. Tokens for no service are accepted by the services that accept unbound tokens, with the agent's roles at each.
        optional "serviceId" service: UnparsedId<ServiceId>,
    }
    /// A signed challenge.
    AuthenticationRequest {
        required "challengeId" challenge: String as schema::ChallengeIdSchema,
        required "signature" signature: String as schema::SignatureSchema,
        /// The service that the tokens are for. If the challenge was requested for a service, the value must be the same
        /// service.
        optional "serviceId" service: UnparsedId<ServiceId>,
    }
    /// A refresh token to exchange for new tokens.
    RefreshRequest {
        required "refreshToken" token: String as schema::RefreshTokenSchema,
        /// The service that the next access token is for. Default: the service of the login. If the login was for no service,
        /// the default is that of a challenge.
        optional "serviceId" service: UnparsedId<ServiceId>,
    }
    /// A token to revoke.
    RevocationRequest {
        required "token" token: SecretString,
        /// Ignored. OAuth clients send `access_token` or `refresh_token` in this field.
        optional "token_type_hint" hint: String,
    }
}

/// A registered agent.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RegisteredAgent {
    #[schema(value_type = schema::AgentIdSchema)]
    agent_id: AgentId,
    #[schema(value_type = schema::PublicKeyHashSchema)]
    public_key_hash: String,
    #[schema(value_type = schema::AgentStatusSchema)]
    status: Cow<'static, str>,
}

/// A challenge. The server stores nothing for a challenge, so an agent can have any number of open challenges.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChallengeResponse {
    #[schema(value_type = schema::ChallengeIdSchema)]
    challenge_id: String,
    #[schema(value_type = schema::NonceSchema)]
    nonce: String,
    /// Time at which the challenge expires.
    expires_at: Rfc3339,
}

/// Tokens of a session.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenResponse {
    #[schema(value_type = schema::AccessTokenSchema)]
    access_token: String,
    #[schema(value_type = schema::RefreshTokenSchema)]
    refresh_token: String,
    /// Lifetime of the access token, in seconds.
    #[schema(minimum = 1, example = 3600)]
    expires_in: u64,
}

/// Result of a revocation, which is the same for text that is not a token.
#[derive(Serialize, ToSchema)]
pub struct RevocationResponse {
    #[schema(value_type = schema::RevisionSchema)]
    revision: Revision,
}

/// Register an agent
///
/// Registers an agent by its public key. If public registration is disabled, a human user's token is required. If a token
/// is sent, it must be valid. Registering the same key with the same name by the same registrant again returns the same
/// agent; any other registration creates a new agent.
#[utoipa::path(
    post, path = "/auth/register", operation_id = "registerAgent", tag = "Authentication",
    params(IdempotencyHeader), request_body = AgentRegistration, security((), ("humanToken" = [])),
    responses((status = 201, description = "The agent is registered", body = RegisteredAgent), Errors<(OptionalHumanAuth, InvalidBody, InvalidIdempotencyKey, AgentLimit)>)
)]
pub async fn register(
    call: Call,
    idempotency: Result<IdempotencyHeader, ApiError>,
    body: BodyFields,
) -> Result<(StatusCode, Json<RegisteredAgent>), ApiError> {
    let human = call.optional_human().await?;
    let AgentRegistration { email, name, key, metadata } = body.read()?;
    let request = RegistrationRequest { email, name, key, metadata: metadata.unwrap_or_default() };
    let initiator = call.initiator_for_human(human.as_ref());
    let reply = IdempotentResponse { request: idempotency?.0, present: registered_agent };
    let agent_of = |response: &RegisteredAgent| response.agent_id;
    let body = operations::register_agent(call.context(), &initiator, human, request, &reply, agent_of).await?;
    Ok((StatusCode::CREATED, Json(body)))
}

fn registered_agent(agent: &Agent) -> RegisteredAgent {
    RegisteredAgent {
        agent_id: agent.id,
        public_key_hash: agent.registration.key_hash.clone(),
        status: status_text(agent.status).into(),
    }
}

/// Request a challenge
///
/// Returns a nonce that the agent signs with its private key.
#[utoipa::path(
    post, path = "/auth/challenge", operation_id = "issueChallenge", tag = "Authentication",
    request_body = ChallengeRequest, security(()),
    responses(
        (status = 200, description = "A challenge for this agent", body = ChallengeResponse),
        Errors<(PublicAccess, InvalidBody, InactiveAgent, AgentNotFound, ServiceNotFound)>,
    )
)]
pub async fn challenge(State(state): State<AppState>, body: BodyFields) -> Result<Json<ChallengeResponse>, ApiError> {
    let ChallengeRequest { agent, service } = body.read()?;
    let (agent, service) = (agent.parse()?, service.map(|service| service.parse()).transpose()?);
    let challenge = operations::issue_challenge(&state.context, agent, service).await?;
    let expires_at = Rfc3339(challenge.expires_at);
    Ok(Json(ChallengeResponse { challenge_id: challenge.id, nonce: challenge.nonce, expires_at }))
}

/// Log in with a signed challenge
///
/// Verifies the signature of the nonce and returns the tokens of a new session. A challenge can be used for one login. A wrong
/// signature does not use up the challenge.
#[utoipa::path(
    post, path = "/auth/authenticate", operation_id = "authenticate", tag = "Authentication",
    request_body = AuthenticationRequest, security(()),
    responses(
        (status = 200, description = "The tokens of the new session", body = TokenResponse),
        Errors<(PublicAccess, InvalidBody, InvalidChallenge, InactiveAgent, ServiceNotFound, AudienceLimit)>,
    )
)]
pub async fn authenticate(
    State(state): State<AppState>,
    Extension(client): Extension<ClientAddress>,
    Extension(limiter): Extension<RequestLimiter>,
    body: BodyFields,
) -> Result<Json<TokenResponse>, ApiError> {
    let AuthenticationRequest { challenge, signature, service } = body.read()?;
    let service = service.map(|service| service.parse()).transpose()?;
    let login = LoginRequest { challenge, signature, service, client_address: Some(client.ip) };
    let verified = operations::verify_login(&state.context, &login).await?;
    limiter.count_agent(&state, verified.agent()).await?;
    let pair = operations::begin_session(&state.context, verified).await?;
    Ok(Json(token_response(&pair)))
}

/// Refresh the tokens of a session
///
/// Returns the next pair of tokens for a refresh token. A refresh token can be used once. A second use of a refresh token means
/// that the token was copied, so the second use ends the session.
#[utoipa::path(
    post, path = "/auth/refresh", operation_id = "refresh", tag = "Authentication",
    request_body = RefreshRequest, security(()),
    responses(
        (status = 200, description = "The next tokens of the session", body = TokenResponse),
        Errors<(PublicAccess, InvalidBody, InvalidRefreshToken, InactiveAgent, ServiceNotFound, AudienceLimit)>,
    )
)]
pub async fn refresh(
    State(state): State<AppState>,
    Extension(client): Extension<ClientAddress>,
    Extension(limiter): Extension<RequestLimiter>,
    body: BodyFields,
) -> Result<Json<TokenResponse>, ApiError> {
    let RefreshRequest { token, service } = body.read()?;
    let service = service.map(|service| service.parse()).transpose()?;
    let requested = RequestedToken { service, ..RequestedToken::default() };
    let refresh = operations::verify_refresh(&state.context, &token, Some(client.ip)).await?;
    // If the token was used before, or its session has ended, it does not prove who sends it, so it does not count for the agent.
    if let Some(agent) = refresh.proven_agent() {
        limiter.count_agent(&state, agent).await?;
    }
    let pair = operations::refresh_session(&state.context, refresh, requested).await?;
    Ok(Json(token_response(&pair)))
}

/// Revoke a token (RFC 7009)
///
/// Revoking a refresh token ends its session; revoking an access token invalidates only that token. The token is the only
/// credential that is required. Text that is not a token of this server gets the same response as a token.
#[utoipa::path(
    post, path = "/auth/revoke", operation_id = "revokeToken", tag = "Authentication", security(()),
    request_body(content(
        (RevocationRequest = "application/json"),
        (schema::RevocationFormSchema = "application/x-www-form-urlencoded"),
    )),
    responses((status = 200, description = "The token is no longer valid", body = RevocationResponse), Errors<(PublicAccess, InvalidBody)>)
)]
pub async fn revoke(
    State(state): State<AppState>,
    FormOrJson(body): FormOrJson,
) -> Result<Json<RevocationResponse>, ApiError> {
    let RevocationRequest { token, hint } = body.read()?;
    // The format of a token shows its kind, so `token_type_hint`, which OAuth clients may send, is not needed.
    drop(hint);
    let revision = operations::revoke_token(&state.context, expose(&token)).await?;
    Ok(Json(RevocationResponse { revision }))
}

fn token_response(pair: &TokenPair) -> TokenResponse {
    TokenResponse {
        access_token: expose(&pair.access).to_owned(),
        refresh_token: expose(&pair.refresh).to_owned(),
        expires_in: pair.expires_in.as_secs(),
    }
}
