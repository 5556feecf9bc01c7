//! `/services` and their keys.

use super::{
    body::Fields,
    caller::Presented,
    error::{ApiError, timestamp},
    ids::{Path, id},
    router::AppState,
};
use crate::{
    domain::credential::expose,
    operations::{self, NewKey, NewService, require_owner},
};
use axum::{Json, extract::State, http::StatusCode};
use serde_json::{Value, json};

/// `POST /services`
pub async fn create(
    State(state): State<AppState>,
    presented: Presented,
    body: Fields,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let human = presented.human(&state)?;
    let request = body.parse(|fields| {
        let (name, accepts) = (fields.required("name"), fields.optional("acceptsUnboundTokens"));
        Some(NewService { name: name?, accepts_unbound: accepts?.unwrap_or(true) })
    })?;
    let service = operations::create_service(&state.context, human.owner, request).await?;
    let body = json!({
        "serviceId": service.id,
        "name": service.name.as_str(),
        "acceptsUnboundTokens": service.accepts_unbound,
        "createdAt": timestamp(service.created_at),
    });
    Ok((StatusCode::CREATED, Json(body)))
}

/// `POST /services/:serviceId/keys`
pub async fn create_key(
    State(state): State<AppState>,
    presented: Presented,
    Path(service): Path<String>,
    body: Fields,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let human = presented.human(&state)?;
    let service = require_owner(&state.context, &human, id(&service)?).await?;
    let request = body.parse(|fields| {
        let (name, scope) = (fields.required("name"), fields.required("scope"));
        Some(NewKey { name: name?, scope: scope? })
    })?;
    let (key, secret) = operations::create_service_key(&state.context, service.id, request).await?;
    let body = json!({
        "keyId": key.id,
        "apiKey": expose(&secret),
        "name": key.name.as_str(),
        "scope": key.scope.as_str(),
        "createdAt": timestamp(key.created_at),
    });
    Ok((StatusCode::CREATED, Json(body)))
}

/// `DELETE /services/:serviceId/keys/:keyId`
pub async fn revoke_key(
    State(state): State<AppState>,
    presented: Presented,
    Path((service, key)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let human = presented.human(&state)?;
    let service = require_owner(&state.context, &human, id(&service)?).await?;
    let revoked = operations::revoke_service_key(&state.context, service.id, id(&key)?).await?;
    Ok(Json(json!({ "revoked": revoked })))
}
