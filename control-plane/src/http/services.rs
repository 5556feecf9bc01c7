//! `/services` and their keys.

use super::{
    body::Fields,
    caller::Presented,
    error::{ApiError, timestamp},
    ids::{Path, id},
    paging,
    router::AppState,
};
use crate::{
    domain::{
        credential::expose,
        page::Page,
        service::{Service, ServiceKey},
    },
    operations::{self, NewKey, NewService, ServiceChange, require_owner},
};
use axum::{Json, extract::State, http::StatusCode};
use serde_json::{Value, json};

/// `POST /services`
pub async fn create(
    State(state): State<AppState>,
    presented: Presented,
    body: Fields,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let human = presented.human(&state).await?;
    let request = body.parse(|fields| {
        let (name, accepts) = (fields.required("name"), fields.optional("acceptsUnboundTokens"));
        Some(NewService { name: name?, accepts_unbound: accepts?.unwrap_or(true) })
    })?;
    let service =
        operations::create_service(&state.context, &presented.author_of(Some(&human)), human.owner, request).await?;
    Ok((StatusCode::CREATED, Json(present(&service))))
}

/// `GET /services`
pub async fn list(
    State(state): State<AppState>,
    presented: Presented,
    page: Result<Page, ApiError>,
) -> Result<Json<Value>, ApiError> {
    let (human, page) = (presented.human(&state).await?, page?);
    let listed = operations::list_services(&state.context, &human, page).await?;
    Ok(Json(paging::present(page, &listed, present)))
}

/// `GET /services/:serviceId`
pub async fn read(
    State(state): State<AppState>,
    presented: Presented,
    Path(service): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let human = presented.human(&state).await?;
    let service = require_owner(&state.context, &human, id(&service)?).await?;
    Ok(Json(present(&service)))
}

/// `PATCH /services/:serviceId`
pub async fn change(
    State(state): State<AppState>,
    presented: Presented,
    Path(service): Path<String>,
    body: Fields,
) -> Result<Json<Value>, ApiError> {
    let human = presented.human(&state).await?;
    let service = require_owner(&state.context, &human, id(&service)?).await?;
    let change = body.parse(|fields| {
        let (name, accepts) = (fields.optional("name"), fields.optional("acceptsUnboundTokens"));
        Some(ServiceChange { name: name?, accepts_unbound: accepts? })
    })?;
    let service =
        operations::change_service(&state.context, &presented.author_of(Some(&human)), service.id, &change).await?;
    Ok(Json(present(&service)))
}

/// `POST /services/:serviceId/keys`
pub async fn create_key(
    State(state): State<AppState>,
    presented: Presented,
    Path(service): Path<String>,
    body: Fields,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let human = presented.human(&state).await?;
    let service = require_owner(&state.context, &human, id(&service)?).await?;
    let request = body.parse(|fields| {
        let (name, scope) = (fields.required("name"), fields.required("scope"));
        Some(NewKey { name: name?, scope: scope? })
    })?;
    let (key, secret) =
        operations::create_service_key(&state.context, &presented.author_of(Some(&human)), service.id, request).await?;
    let body = json!({
        "keyId": key.id,
        "apiKey": expose(&secret),
        "name": key.name.as_str(),
        "scope": key.scope.as_str(),
        "createdAt": timestamp(key.created_at),
    });
    Ok((StatusCode::CREATED, Json(body)))
}

/// `GET /services/:serviceId/keys`: never the secrets, of which only hashes are left.
pub async fn list_keys(
    State(state): State<AppState>,
    presented: Presented,
    Path(service): Path<String>,
    page: Result<Page, ApiError>,
) -> Result<Json<Value>, ApiError> {
    let human = presented.human(&state).await?;
    let service = require_owner(&state.context, &human, id(&service)?).await?;
    let page = page?;
    let listed = operations::list_service_keys(&state.context, service.id, page).await?;
    let present = |key: &ServiceKey| {
        json!({
            "keyId": key.id,
            "name": key.name.as_str(),
            "scope": key.scope.as_str(),
            "createdAt": timestamp(key.created_at),
            "revokedAt": key.revoked_at.map(timestamp),
        })
    };
    Ok(Json(paging::present(page, &listed, present)))
}

/// `DELETE /services/:serviceId/keys/:keyId`
pub async fn revoke_key(
    State(state): State<AppState>,
    presented: Presented,
    Path((service, key)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let human = presented.human(&state).await?;
    let service = require_owner(&state.context, &human, id(&service)?).await?;
    let revoked =
        operations::revoke_service_key(&state.context, &presented.author_of(Some(&human)), service.id, id(&key)?)
            .await?;
    Ok(Json(json!({ "revoked": revoked })))
}

fn present(service: &Service) -> Value {
    json!({
        "serviceId": service.id,
        "name": service.name.as_str(),
        "acceptsUnboundTokens": service.accepts_unbound,
        "createdAt": timestamp(service.created_at),
    })
}
