//! `/auth/*`: how an agent comes by its tokens.

use crate::{
    domain::{
        agent::{Agent, status_text},
        credential::expose,
        text::{DisplayName, EmailAddress, Metadata},
    },
    http::{
        error::{ApiError, Instant},
        openapi::{
            errors::{Anybody, Body, Challenge, Errors, Inactive, NoAgent, NoService, Refresh, Registrant, Repeated},
            schema,
        },
        request::{
            body::{
                Fields, FormOrJson,
                shape::{Sent, body},
            },
            caller::Presented,
            idempotency::Repeatable,
            origin::Origin,
        },
        state::AppState,
    },
    operations::{self, IdempotentReply, Login, RegistrationRequest, TokenPair},
};
use axum::{Extension, Json, extract::State, http::StatusCode};
use countersign_identity::{AgentId, P256PublicKey, ServiceId};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use utoipa::ToSchema;

body! {
    /// An agent to be registered.
    Registration {
        /// Where the registrant can be written to.
        required "email" email: EmailAddress,
        /// What people call the agent.
        required "name" name: DisplayName,
        required "publicKey" key: P256PublicKey,
        /// What its owner attaches; it comes back with the agent.
        optional "metadata" metadata: Metadata,
    }
    /// Who asks for a challenge.
    ChallengeRequest {
        required "agentId" agent: Sent<AgentId>,
        /// The service that the tokens are for: its id becomes their `aud`. If it is left out: the service of the
        /// agent's oldest live role; with no role anywhere, the tokens are bound to no service.
        optional "serviceId" service: Sent<ServiceId>,
    }
    /// The answer to a challenge.
    Authentication {
        required "challengeId" challenge: String as ChallengeId,
        required "signature" signature: String as Signature,
        /// As with the challenge, for which it may have been said before; then it must be the same.
        optional "serviceId" service: Sent<ServiceId>,
    }
    /// A refresh token to be used.
    Continuation {
        required "refreshToken" token: String as RefreshToken,
        /// The service that the next access token is for, if it is to be another than that of the login.
        optional "serviceId" service: Sent<ServiceId>,
    }
    /// A token to be revoked.
    Revocation {
        required "token" token: SecretString,
        /// `access_token` or `refresh_token`, as OAuth clients send it. A token says itself what it is.
        optional "token_type_hint" hint: String,
    }
}

/// An agent that was registered.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Registered {
    #[schema(value_type = schema::AgentId)]
    agent_id: AgentId,
    #[schema(value_type = schema::PublicKeyHash)]
    public_key_hash: String,
    #[schema(value_type = schema::AgentStatus)]
    status: Cow<'static, str>,
}

/// A challenge, of which nothing is stored: many may be open at a time.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct IssuedChallenge {
    #[schema(value_type = schema::ChallengeId)]
    challenge_id: String,
    #[schema(value_type = schema::Nonce)]
    nonce: String,
    /// After this instant the challenge is of no use.
    #[schema(value_type = schema::Instant)]
    expires_at: Instant,
}

/// The tokens of a login.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tokens {
    #[schema(value_type = schema::AccessToken)]
    access_token: String,
    #[schema(value_type = schema::RefreshToken)]
    refresh_token: String,
    /// Life of the access token, in seconds.
    #[schema(minimum = 1, example = 3600)]
    expires_in: u64,
}

/// Nothing is to be said.
#[derive(Serialize, ToSchema)]
pub struct Done {}

/// Register an agent
///
/// Registers an agent by its public key. Where public registration is off, this takes a person's token; where one is
/// sent, it must be good. The same key under the same name from the same registrant is the same agent: its answer comes
/// again. A new key is a new agent.
#[utoipa::path(
    post, path = "/auth/register", operation_id = "registerAgent", tag = "Authentication",
    params(Repeatable), request_body = Registration, security((), ("humanToken" = [])),
    responses((status = 201, description = "The agent is registered", body = Registered), Errors<(Registrant, Body, Repeated)>)
)]
pub async fn register(
    State(state): State<AppState>,
    presented: Presented,
    repeatable: Result<Repeatable, ApiError>,
    body: Fields,
) -> Result<(StatusCode, Json<Registered>), ApiError> {
    let human = presented.human_if_any(&state).await?;
    let Registration { email, name, key, metadata } = body.read()?;
    let request = RegistrationRequest { email, name, key, metadata: metadata.unwrap_or_default() };
    let (by, reply) =
        (presented.author_of(human.as_ref()), IdempotentReply { request: repeatable?.0, present: registered });
    let body = operations::register_agent(&state.context, &by, human, request, &reply).await?;
    Ok((StatusCode::CREATED, Json(body)))
}

fn registered(agent: &Agent) -> Registered {
    Registered {
        agent_id: agent.id,
        public_key_hash: agent.registration.key_hash.clone(),
        status: status_text(agent.status).into(),
    }
}

/// Ask for a challenge
///
/// Gives a nonce for the agent to sign with its private key.
#[utoipa::path(
    post, path = "/auth/challenge", operation_id = "issueChallenge", tag = "Authentication",
    request_body = ChallengeRequest, security(()),
    responses(
        (status = 200, description = "A challenge for this agent", body = IssuedChallenge),
        Errors<(Anybody, Body, Inactive, NoAgent, NoService)>,
    )
)]
pub async fn challenge(State(state): State<AppState>, body: Fields) -> Result<Json<IssuedChallenge>, ApiError> {
    let ChallengeRequest { agent, service } = body.read()?;
    let (agent, service) = (agent.id()?, service.map(|service| service.id()).transpose()?);
    let challenge = operations::issue_challenge(&state.context, agent, service).await?;
    let expires_at = Instant(challenge.expires_at);
    Ok(Json(IssuedChallenge { challenge_id: challenge.id, nonce: challenge.nonce, expires_at }))
}

/// Log in with a signed challenge
///
/// Takes the signature of a nonce and gives the tokens of a new login. A challenge yields at most one login; a wrong
/// signature does not use it up.
#[utoipa::path(
    post, path = "/auth/authenticate", operation_id = "authenticate", tag = "Authentication",
    request_body = Authentication, security(()),
    responses(
        (status = 200, description = "The agent is logged in", body = Tokens),
        Errors<(Anybody, Body, Challenge, Inactive, NoService)>,
    )
)]
pub async fn authenticate(
    State(state): State<AppState>,
    Extension(origin): Extension<Origin>,
    body: Fields,
) -> Result<Json<Tokens>, ApiError> {
    let Authentication { challenge, signature, service } = body.read()?;
    let service = service.map(|service| service.id()).transpose()?;
    let login = Login { challenge, signature, service, from: Some(origin.address) };
    let pair = operations::authenticate(&state.context, &login).await?;
    Ok(Json(present(&pair)))
}

/// Continue a login
///
/// Takes a refresh token and gives the next pair. A refresh token can be used once: one that comes again ends its login,
/// for two hold it.
#[utoipa::path(
    post, path = "/auth/refresh", operation_id = "refresh", tag = "Authentication",
    request_body = Continuation, security(()),
    responses(
        (status = 200, description = "The next tokens of the login", body = Tokens),
        Errors<(Anybody, Body, Refresh, Inactive, NoService)>,
    )
)]
pub async fn refresh(
    State(state): State<AppState>,
    Extension(origin): Extension<Origin>,
    body: Fields,
) -> Result<Json<Tokens>, ApiError> {
    let Continuation { token, service } = body.read()?;
    let service = service.map(|service| service.id()).transpose()?;
    let pair = operations::refresh(&state.context, &token, service, Some(origin.address)).await?;
    Ok(Json(present(&pair)))
}

/// Revoke a token (RFC 7009)
///
/// A refresh token ends its login, an access token only itself. Whoever has a token may revoke it; what is no token of
/// ours has nothing to be revoked, and the answer is the same.
#[utoipa::path(
    post, path = "/auth/revoke", operation_id = "revokeToken", tag = "Authentication", security(()),
    request_body(content(
        (Revocation = "application/json"),
        (schema::RevocationForm = "application/x-www-form-urlencoded"),
    )),
    responses((status = 200, description = "The token is of no use any more", body = Done), Errors<(Anybody, Body)>)
)]
pub async fn revoke(State(state): State<AppState>, FormOrJson(body): FormOrJson) -> Result<Json<Done>, ApiError> {
    let Revocation { token, hint } = body.read()?;
    // A token says itself what it is; the hint is taken because OAuth clients send it.
    drop(hint);
    operations::revoke_token(&state.context, expose(&token)).await?;
    Ok(Json(Done {}))
}

fn present(pair: &TokenPair) -> Tokens {
    Tokens {
        access_token: expose(&pair.access).to_owned(),
        refresh_token: expose(&pair.refresh).to_owned(),
        expires_in: pair.expires_in.as_secs(),
    }
}
