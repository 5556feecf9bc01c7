//! `/auth/*`: how an agent comes by its tokens.

use super::{
    body::{Fields, FormOrJson},
    caller::Presented,
    error::{ApiError, timestamp},
    idempotency::Repeatable,
    ids::{id, optional_id},
    router::AppState,
};
use crate::{
    domain::{
        agent::{Agent, status_text},
        credential::expose,
    },
    operations::{self, Login, RegistrationRequest, Reply, TokenPair},
};
use axum::{Json, extract::State, http::StatusCode};
use secrecy::SecretString;
use serde_json::{Value, json};

/// `POST /auth/register`
pub async fn register(
    State(state): State<AppState>,
    presented: Presented,
    repeatable: Result<Repeatable, ApiError>,
    body: Fields,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let human = presented.human_if_any(&state).await?;
    let request = body.parse(|fields| {
        let (email, name) = (fields.required("email"), fields.required("name"));
        let (key, metadata) = (fields.required("publicKey"), fields.optional("metadata"));
        Some(RegistrationRequest { email: email?, name: name?, key: key?, metadata: metadata?.unwrap_or_default() })
    })?;
    let present = |agent: &Agent| {
        json!({
            "agentId": agent.id,
            "publicKeyHash": agent.registration.key_hash,
            "status": status_text(agent.status),
        })
    };
    let (by, reply) = (presented.author_of(human.as_ref()), Reply { repeat: repeatable?.0, present });
    let body = operations::register_agent(&state.context, &by, human, request, &reply).await?;
    Ok((StatusCode::CREATED, Json(body)))
}

/// `POST /auth/challenge`
pub async fn challenge(State(state): State<AppState>, body: Fields) -> Result<Json<Value>, ApiError> {
    let (agent, service) = body.parse(|fields| {
        let (agent, service) = (fields.required::<String>("agentId"), fields.optional("serviceId"));
        Some((agent?, service?))
    })?;
    let challenge = operations::issue_challenge(&state.context, id(&agent)?, optional_id(service)?).await?;
    Ok(Json(json!({
        "challengeId": challenge.id,
        "nonce": challenge.nonce,
        "expiresAt": timestamp(challenge.expires_at),
    })))
}

/// `POST /auth/authenticate`
pub async fn authenticate(State(state): State<AppState>, body: Fields) -> Result<Json<Value>, ApiError> {
    let (challenge, signature, service) = body.parse(|fields| {
        let (challenge, signature) = (fields.required("challengeId"), fields.required("signature"));
        let service = fields.optional("serviceId");
        Some((challenge?, signature?, service?))
    })?;
    let login = Login { challenge, signature, service: optional_id(service)? };
    let pair = operations::authenticate(&state.context, &login).await?;
    Ok(Json(present(&pair)))
}

/// `POST /auth/refresh`
pub async fn refresh(State(state): State<AppState>, body: Fields) -> Result<Json<Value>, ApiError> {
    let (token, service) = body.parse(|fields| {
        let (token, service) = (fields.required::<String>("refreshToken"), fields.optional("serviceId"));
        Some((token?, service?))
    })?;
    let pair = operations::refresh(&state.context, &token, optional_id(service)?).await?;
    Ok(Json(present(&pair)))
}

/// `POST /auth/revoke` (RFC 7009)
pub async fn revoke(State(state): State<AppState>, FormOrJson(body): FormOrJson) -> Result<Json<Value>, ApiError> {
    let token = body.parse(|fields| {
        // A token says itself what it is; the hint is taken because OAuth clients send it.
        let (token, hint) = (fields.required::<SecretString>("token"), fields.optional::<String>("token_type_hint"));
        hint.and(token)
    })?;
    operations::revoke_token(&state.context, expose(&token)).await?;
    Ok(Json(json!({})))
}

fn present(pair: &TokenPair) -> Value {
    json!({
        "accessToken": expose(&pair.access),
        "refreshToken": expose(&pair.refresh),
        "expiresIn": pair.expires_in.as_secs(),
    })
}
