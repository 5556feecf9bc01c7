//! `/services` and their keys.

use crate::{
    domain::{
        credential::expose,
        page::Page,
        service::{KeyScope, Service, ServiceKey},
        text::DisplayName,
    },
    http::{
        error::{ApiError, Instant},
        openapi::{
            errors::{Body, Errors, NoKey, NoService, Owner, Paging, Person},
            schema::{self, KeyInPath, ServiceInPath},
        },
        request::{
            body::{Fields, shape::body},
            caller::Presented,
            ids::{InPath, id},
            paging::{self, Paged},
        },
        state::AppState,
    },
    operations::{self, NewKey, NewService, ServiceChange, require_owner},
};
use axum::{Json, extract::State, http::StatusCode};
use countersign_identity::{ApiKeyId, ServiceId};
use serde::Serialize;
use utoipa::ToSchema;

body! {
    /// A service to be made.
    ServiceRequest {
        required "name" name: DisplayName,
        /// Whether tokens that are bound to no service are accepted; they are if nothing is said. Say `false` where
        /// roles grant much: another service could replay such a token.
        optional "acceptsUnboundTokens" accepts_unbound: bool,
    }
    /// What is to be changed of a service; what is left out stays.
    ServiceChanges {
        optional "name" name: DisplayName,
        /// Whether tokens that are bound to no service are accepted from now on.
        optional "acceptsUnboundTokens" accepts_unbound: bool,
    }
    /// An API key to be made.
    KeyRequest {
        required "name" name: DisplayName,
        required "scope" scope: KeyScope,
    }
}

/// A page of a listing.
type ServicePage = Paged<ServiceRecord>;

/// A service.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceRecord {
    #[schema(value_type = schema::ServiceId)]
    service_id: ServiceId,
    #[schema(value_type = schema::DisplayName)]
    name: String,
    /// Whether tokens that are bound to no service are accepted.
    #[schema(example = true)]
    accepts_unbound_tokens: bool,
    /// When it was made.
    #[schema(value_type = schema::Instant)]
    created_at: Instant,
}

/// An API key with its secret, which is told this once.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewKeyRecord {
    #[schema(value_type = schema::ApiKeyId)]
    key_id: ApiKeyId,
    #[schema(value_type = schema::ApiKey)]
    api_key: String,
    #[schema(value_type = schema::DisplayName)]
    name: String,
    #[schema(value_type = schema::Scope)]
    scope: &'static str,
    /// When it was made.
    #[schema(value_type = schema::Instant)]
    created_at: Instant,
}

/// A page of a listing.
type KeyPage = Paged<KeyRecord>;

/// An API key, without its secret.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyRecord {
    #[schema(value_type = schema::ApiKeyId)]
    key_id: ApiKeyId,
    #[schema(value_type = schema::DisplayName)]
    name: String,
    #[schema(value_type = schema::Scope)]
    scope: &'static str,
    /// When it was made.
    #[schema(value_type = schema::Instant)]
    created_at: Instant,
    /// Since when it is good for nothing; null if it is good.
    #[schema(value_type = Option<schema::Instant>, required)]
    revoked_at: Option<Instant>,
}

/// What became of a key.
#[derive(Serialize, ToSchema)]
pub struct KeyRevoked {
    /// False if it had been revoked before.
    #[schema(example = true)]
    revoked: bool,
}

/// Make a service
///
/// Whoever makes it owns it.
#[utoipa::path(
    post, path = "/services", operation_id = "createService", tag = "Services",
    request_body = ServiceRequest, security(("humanToken" = [])),
    responses((status = 201, description = "The service", body = ServiceRecord), Errors<(Person, Body)>)
)]
pub async fn create(
    State(state): State<AppState>,
    presented: Presented,
    body: Fields,
) -> Result<(StatusCode, Json<ServiceRecord>), ApiError> {
    let human = presented.human(&state).await?;
    let ServiceRequest { name, accepts_unbound } = body.read()?;
    let request = NewService { name, accepts_unbound: accepts_unbound.unwrap_or(true) };
    let by = presented.author_of(Some(&human));
    let service = operations::create_service(&state.context, &by, human.owner, request).await?;
    Ok((StatusCode::CREATED, Json(present(service))))
}

/// List services
///
/// One's own; all of them, for an administrator.
#[utoipa::path(
    get, path = "/services", operation_id = "listServices", tag = "Services",
    params(Page), security(("humanToken" = [])),
    responses((status = 200, description = "A page of services", body = ServicePage), Errors<(Person, Paging)>)
)]
pub async fn list(
    State(state): State<AppState>,
    presented: Presented,
    page: Result<Page, ApiError>,
) -> Result<Json<ServicePage>, ApiError> {
    let (human, page) = (presented.human(&state).await?, page?);
    let listed = operations::list_services(&state.context, &human, page).await?;
    Ok(Json(paging::present(page, listed, present)))
}

/// Read a service
#[utoipa::path(
    get, path = "/services/{service}", operation_id = "readService", tag = "Services",
    params(ServiceInPath), security(("humanToken" = [])),
    responses((status = 200, description = "The service", body = ServiceRecord), Errors<(Owner, NoService)>)
)]
pub async fn read(
    State(state): State<AppState>,
    presented: Presented,
    InPath(service): InPath<String>,
) -> Result<Json<ServiceRecord>, ApiError> {
    let human = presented.human(&state).await?;
    let service = require_owner(&state.context, &human, id(&service)?).await?;
    Ok(Json(present(service)))
}

/// Change a service
///
/// Sidecars follow within moments.
#[utoipa::path(
    patch, path = "/services/{service}", operation_id = "changeService", tag = "Services",
    params(ServiceInPath), request_body = ServiceChanges, security(("humanToken" = [])),
    responses(
        (status = 200, description = "The service as it is now", body = ServiceRecord),
        Errors<(Owner, Body, NoService)>,
    )
)]
pub async fn change(
    State(state): State<AppState>,
    presented: Presented,
    InPath(service): InPath<String>,
    body: Fields,
) -> Result<Json<ServiceRecord>, ApiError> {
    let human = presented.human(&state).await?;
    let service = require_owner(&state.context, &human, id(&service)?).await?;
    let ServiceChanges { name, accepts_unbound } = body.read()?;
    let (by, change) = (presented.author_of(Some(&human)), ServiceChange { name, accepts_unbound });
    Ok(Json(present(operations::change_service(&state.context, &by, service.id, &change).await?)))
}

/// Make an API key
///
/// The answer is the only place where the key can ever be read. A service may have several, so that one can take the
/// place of another without a gap.
#[utoipa::path(
    post, path = "/services/{service}/keys", operation_id = "createKey", tag = "Services",
    params(ServiceInPath), request_body = KeyRequest, security(("humanToken" = [])),
    responses((status = 201, description = "The key", body = NewKeyRecord), Errors<(Owner, Body, NoService)>)
)]
pub async fn create_key(
    State(state): State<AppState>,
    presented: Presented,
    InPath(service): InPath<String>,
    body: Fields,
) -> Result<(StatusCode, Json<NewKeyRecord>), ApiError> {
    let human = presented.human(&state).await?;
    let service = require_owner(&state.context, &human, id(&service)?).await?;
    let KeyRequest { name, scope } = body.read()?;
    let by = presented.author_of(Some(&human));
    let (key, secret) = operations::create_service_key(&state.context, &by, service.id, NewKey { name, scope }).await?;
    let body = NewKeyRecord {
        key_id: key.id,
        api_key: expose(&secret).to_owned(),
        name: key.name.to_string(),
        scope: key.scope.as_str(),
        created_at: Instant(key.created_at),
    };
    Ok((StatusCode::CREATED, Json(body)))
}

/// List the API keys of a service
///
/// Never the secrets, of which only hashes are left.
#[utoipa::path(
    get, path = "/services/{service}/keys", operation_id = "listKeys", tag = "Services",
    params(ServiceInPath, Page), security(("humanToken" = [])),
    responses(
        (status = 200, description = "A page of keys", body = KeyPage),
        Errors<(Owner, Paging, NoService)>,
    )
)]
pub async fn list_keys(
    State(state): State<AppState>,
    presented: Presented,
    InPath(service): InPath<String>,
    page: Result<Page, ApiError>,
) -> Result<Json<KeyPage>, ApiError> {
    let human = presented.human(&state).await?;
    let service = require_owner(&state.context, &human, id(&service)?).await?;
    let page = page?;
    let listed = operations::list_service_keys(&state.context, service.id, page).await?;
    Ok(Json(paging::present(page, listed, present_key)))
}

/// Revoke an API key
///
/// It is refused from then on; sidecars that follow with it are cut off within seconds.
#[utoipa::path(
    delete, path = "/services/{service}/keys/{key}", operation_id = "revokeKey", tag = "Services",
    params(ServiceInPath, KeyInPath), security(("humanToken" = [])),
    responses(
        (status = 200, description = "The key is of no use any more", body = KeyRevoked),
        Errors<(Owner, NoService, NoKey)>,
    )
)]
pub async fn revoke_key(
    State(state): State<AppState>,
    presented: Presented,
    InPath((service, key)): InPath<(String, String)>,
) -> Result<Json<KeyRevoked>, ApiError> {
    let human = presented.human(&state).await?;
    let service = require_owner(&state.context, &human, id(&service)?).await?;
    let by = presented.author_of(Some(&human));
    let revoked = operations::revoke_service_key(&state.context, &by, service.id, id(&key)?).await?;
    Ok(Json(KeyRevoked { revoked }))
}

fn present(service: Service) -> ServiceRecord {
    let Service { id, owner: _, name, accepts_unbound, created_at } = service;
    ServiceRecord {
        service_id: id,
        name: name.to_string(),
        accepts_unbound_tokens: accepts_unbound,
        created_at: Instant(created_at),
    }
}

fn present_key(key: ServiceKey) -> KeyRecord {
    let ServiceKey { id, service: _, name, scope, secret: _, created_at, revoked_at } = key;
    KeyRecord {
        key_id: id,
        name: name.to_string(),
        scope: scope.as_str(),
        created_at: Instant(created_at),
        revoked_at: revoked_at.map(Instant),
    }
}
