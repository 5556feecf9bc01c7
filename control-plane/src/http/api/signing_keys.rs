//! `/signing-keys`: the keys that sign access tokens. Only administrators may use the endpoints of signing keys.

use crate::{domain::signing_key::SigningKey, http::api::prelude::*, operations::SigningKeyPosition};
use countersign_identity::{Kid, Revision, Timestamp};

type SigningKeyPage = PageResponse<SigningKeyRecord>;

/// A signing key.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({
    "kid": "oKIywvGUpTVTyxMQ3bwIIeQUudfr_CkLMjCE19ECD-U",
    "status": "signing",
    "algorithm": "ES256",
    "publishedAt": "2027-02-12T15:09:26.535897Z",
    "signsFrom": "2027-03-14T15:09:26.535897Z",
    "retiredAt": null,
    "removedAt": null,
}))]
pub struct SigningKeyRecord {
    #[schema(value_type = schema::KidSchema)]
    kid: Kid,
    /// `next` (published, does not sign yet), `signing`, `retired` (no longer signs; published until the last token that it
    /// signed has expired), `removed` (no longer published) or `revoked` (all its tokens are invalid).
    #[schema(example = "signing")]
    status: &'static str,
    /// Signature algorithm.
    #[schema(example = "ES256")]
    algorithm: &'static str,
    /// Time of publication.
    published_at: Rfc3339,
    /// Time from which the key signs; null until its rotation is scheduled.
    #[schema(required)]
    signs_from: Option<Rfc3339>,
    /// Time from which another key signs instead of this key; null until the rotation to the other key is scheduled.
    #[schema(required)]
    retired_at: Option<Rfc3339>,
    /// Time of the removal or revocation, from which tokens of the key are invalid; null if they are valid.
    #[schema(required)]
    removed_at: Option<Rfc3339>,
}

/// A rotation, completed or scheduled.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RotationRecord {
    /// The key that signs after the rotation.
    #[schema(value_type = schema::KidSchema)]
    kid: Kid,
    /// `signing` if the rotation is completed, `next` if it is scheduled.
    #[schema(example = "next")]
    status: &'static str,
    /// Time from which the key signs.
    signs_from: Rfc3339,
    #[schema(value_type = schema::RevisionSchema)]
    revision: Revision,
}

/// Result of a revocation.
#[derive(Serialize, ToSchema)]
pub struct SigningKeyRevoked {
    /// False if the key was already removed or revoked.
    #[schema(example = true)]
    revoked: bool,
    #[schema(value_type = schema::RevisionSchema)]
    revision: Revision,
}

/// List the signing keys
///
/// Includes removed and revoked keys. Most recently published first.
#[utoipa::path(
    get, path = "/signing-keys", operation_id = "listSigningKeys", tag = "Server",
    params(PageParameters), security(("humanToken" = [])),
    responses((status = 200, description = "A page of signing keys", body = SigningKeyPage), Errors<(AdminAuth, InvalidPaging)>)
)]
pub async fn list(
    call: Call,
    page: Result<Page<SigningKeyPosition>, ApiError>,
) -> Result<Json<SigningKeyPage>, ApiError> {
    call.require_admin().await?;
    let page = page?;
    let list_page = operations::list_signing_keys(call.context(), &page).await?;
    let now = call.context().now();
    Ok(Json(page_response(&page, list_page, |key| signing_key_record(key, now))))
}

/// Rotate the signing keys
///
/// The next key starts to sign immediately if it has been published long enough for every working sidecar to have it. If the
/// next key was published too recently, the rotation is scheduled for the time at which the key has been published long enough,
/// and happens automatically. The earlier key stays published until its last token has expired. If a rotation is already scheduled,
/// the response describes the scheduled rotation.
#[utoipa::path(
    post, path = "/signing-keys/rotate", operation_id = "rotateSigningKeys", tag = "Server",
    security(("humanToken" = [])),
    responses(
        (
            status = 200, description = "The next key signs now", body = RotationRecord,
            example = json!({
                "kid": "oKIywvGUpTVTyxMQ3bwIIeQUudfr_CkLMjCE19ECD-U",
                "status": "signing",
                "signsFrom": "2027-03-14T15:09:26.535897Z",
                "revision": 1_804_950_866_535_897_i64,
            }),
        ),
        (status = 202, description = "The next key signs from `signsFrom`", body = RotationRecord),
        Errors<(AdminAuth,)>,
    )
)]
pub async fn rotate(call: Call) -> Result<(StatusCode, Json<RotationRecord>), ApiError> {
    let initiator = call.require_admin().await?;
    let Changed { value: requested, revision } = operations::rotate_signing_key(call.context(), &initiator).await?;
    let rotation = requested.rotation;
    let (code, status) = if requested.signs_now { (StatusCode::OK, "signing") } else { (StatusCode::ACCEPTED, "next") };
    Ok((code, Json(RotationRecord { kid: rotation.kid, status, signs_from: Rfc3339(rotation.signs_from), revision })))
}

/// Revoke a signing key
///
/// Revoke a key if its private key may have been disclosed. All tokens of the key become invalid immediately and permanently.
/// If the key was the signing key, the next key signs immediately, even if some sidecars do not have the next key yet.
#[utoipa::path(
    delete, path = "/signing-keys/{kid}", operation_id = "revokeSigningKey", tag = "Server",
    params(KidPathParam), security(("humanToken" = [])),
    responses(
        (status = 200, description = "The key is revoked", body = SigningKeyRevoked),
        Errors<(AdminAuth, SigningKeyNotFound)>,
    )
)]
pub async fn revoke(call: Call, PathParams(kid): PathParams<String>) -> Result<Json<SigningKeyRevoked>, ApiError> {
    let initiator = call.require_admin().await?;
    let Changed { value: revoked, revision } =
        operations::revoke_signing_key(call.context(), &initiator, &parse_id::<Kid>(&kid)?).await?;
    Ok(Json(SigningKeyRevoked { revoked, revision }))
}

fn signing_key_record(key: SigningKey, now: Timestamp) -> SigningKeyRecord {
    SigningKeyRecord {
        status: key.status(now).as_str(),
        algorithm: "ES256",
        published_at: Rfc3339(key.published_at),
        signs_from: key.signs_from.map(Rfc3339),
        retired_at: key.retires_at.map(Rfc3339),
        removed_at: key.removed_at.map(Rfc3339),
        kid: key.kid,
    }
}
