//! `/services/{service}/keys`: the API keys of a service.

use crate::{
    domain::{
        credential::expose,
        service::{KeyScope, ServiceKey},
    },
    http::api::prelude::*,
    operations::NewServiceKey,
};
use countersign_identity::{ApiKeyId, Revision};

body! {
    /// An API key to create.
    KeyRequest {
        required "name" name: DisplayName,
        required "scope" scope: KeyScope,
        /// The label of the declaration files that contain the key. A service has at most one valid key with this name and label.
        optional "managedBy" managed_by: ManagedBy,
    }
}

/// An API key with its secret. The secret of an API key cannot be read later.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewKeyRecord {
    #[schema(value_type = schema::ApiKeyIdSchema)]
    key_id: ApiKeyId,
    #[schema(value_type = schema::ApiKeySchema)]
    api_key: String,
    name: DisplayName,
    #[schema(value_type = schema::KeyScopeSchema)]
    scope: &'static str,
    /// Time of creation.
    created_at: Rfc3339,
}

type KeyPage = PageResponse<KeyRecord>;

/// An API key, without its secret.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({
    "keyId": "key_01jyd3rq8yfd19yr0w5mz4ypkb",
    "name": "Sidecar",
    "scope": "sync",
    "managedBy": null,
    "createdAt": "2027-03-14T15:09:26.535897Z",
    "revokedAt": null,
}))]
pub struct KeyRecord {
    #[schema(value_type = schema::ApiKeyIdSchema)]
    key_id: ApiKeyId,
    name: DisplayName,
    #[schema(value_type = schema::KeyScopeSchema)]
    scope: &'static str,
    /// The label of the declaration files that contain the key; null if no file does.
    #[schema(required)]
    managed_by: Option<ManagedBy>,
    /// Time of creation.
    created_at: Rfc3339,
    /// Time of revocation; null if the key is valid.
    #[schema(required)]
    revoked_at: Option<Rfc3339>,
}

/// Result of a revocation.
#[derive(Serialize, ToSchema)]
pub struct KeyRevoked {
    /// False if the key was already revoked.
    #[schema(example = true)]
    revoked: bool,
    #[schema(value_type = schema::RevisionSchema)]
    revision: Revision,
}

/// Create an API key
///
/// The response contains the API key, which cannot be read later. A service can have several keys, so that a key can be
/// replaced without interruption.
#[utoipa::path(
    post, path = "/services/{service}/keys", operation_id = "createKey", tag = "Services",
    params(ServicePathParam), request_body = KeyRequest, security(("humanToken" = [])),
    responses((status = 201, description = "The API key", body = NewKeyRecord), Errors<(OwnerAuth, InvalidBody, ServiceNotFound, KeyLimit, AlreadyManaged)>)
)]
pub async fn create(
    call: Call,
    PathParams(service): PathParams<String>,
    body: BodyFields,
) -> Result<(StatusCode, Json<NewKeyRecord>), ApiError> {
    let (human, service) = call.require_owner_of(&service).await?;
    let KeyRequest { name, scope, managed_by } = body.read()?;
    let initiator = call.initiator_for_human(Some(&human));
    let request = NewServiceKey { name, scope, managed_by };
    let created = operations::create_service_key(call.context(), &initiator, service.id, request).await;
    let (key, secret) = created.map_err(|error| owner_access_error(error, &human))?;
    let body = NewKeyRecord {
        key_id: key.id,
        api_key: expose(&secret).to_owned(),
        name: key.name,
        scope: key.scope.as_str(),
        created_at: Rfc3339(key.created_at),
    };
    Ok((StatusCode::CREATED, Json(body)))
}

/// List the API keys of a service
///
/// The response contains no secrets: the server stores only hashes.
#[utoipa::path(
    get, path = "/services/{service}/keys", operation_id = "listKeys", tag = "Services",
    params(ServicePathParam, PageParameters), security(("humanToken" = [])),
    responses(
        (status = 200, description = "A page of API keys", body = KeyPage),
        Errors<(OwnerAuth, InvalidPaging, ServiceNotFound)>,
    )
)]
pub async fn list(
    call: Call,
    PathParams(service): PathParams<String>,
    page: Result<Page<ApiKeyId>, ApiError>,
) -> Result<Json<KeyPage>, ApiError> {
    let (_, service) = call.require_owner_of(&service).await?;
    let page = page?;
    let list_page = operations::list_service_keys(call.context(), service.id, page).await?;
    Ok(Json(page_response(&page, list_page, key_record)))
}

/// Revoke an API key
///
/// The key is refused immediately. Sync streams of sidecars that use the key are closed within seconds.
#[utoipa::path(
    delete, path = "/services/{service}/keys/{key}", operation_id = "revokeKey", tag = "Services",
    params(ServicePathParam, KeyPathParam), security(("humanToken" = [])),
    responses(
        (status = 200, description = "The key is revoked", body = KeyRevoked),
        Errors<(OwnerAuth, ServiceNotFound, KeyNotFound)>,
    )
)]
pub async fn revoke(
    call: Call,
    PathParams((service, key)): PathParams<(String, String)>,
) -> Result<Json<KeyRevoked>, ApiError> {
    let (human, service) = call.require_owner_of(&service).await?;
    let initiator = call.initiator_for_human(Some(&human));
    let revoked = operations::revoke_service_key(call.context(), &initiator, service.id, parse_id(&key)?).await;
    let Changed { value: revoked, revision } = revoked.map_err(|error| owner_access_error(error, &human))?;
    Ok(Json(KeyRevoked { revoked, revision }))
}

fn key_record(key: ServiceKey) -> KeyRecord {
    let ServiceKey { id, service: _, owner: _, name, scope, managed_by, secret: _, created_at, revoked_at } = key;
    KeyRecord {
        key_id: id,
        name,
        scope: scope.as_str(),
        managed_by,
        created_at: Rfc3339(created_at),
        revoked_at: revoked_at.map(Rfc3339),
    }
}
