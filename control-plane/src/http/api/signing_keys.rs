//! `/signing-keys`: the keys that sign access tokens, for administrators.

use crate::{
    domain::{page::Page, signing_key::SigningKey},
    http::{
        error::{ApiError, Instant},
        openapi::{
            errors::{Admin, Errors, NoSigningKey, Paging},
            schema::{self, KidInPath},
        },
        request::{
            caller::Presented,
            ids::{InPath, id},
            paging::{self, Paged},
        },
        state::AppState,
    },
    operations,
};
use axum::{Json, extract::State, http::StatusCode};
use countersign_identity::{Kid, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

/// A page of a listing.
type SigningKeyPage = Paged<SigningKeyRecord>;

/// A signing key.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SigningKeyRecord {
    #[schema(value_type = schema::Kid)]
    kid: Kid,
    /// `next` (published, does not sign yet), `signing`, `retired` (signs no more; published until the last token that it
    /// signed is dead), `removed` or `revoked` (no token under it is believed).
    #[schema(example = "signing")]
    status: &'static str,
    /// How it signs.
    #[schema(example = "ES256")]
    algorithm: &'static str,
    /// Since when it is published.
    #[schema(value_type = schema::Instant)]
    published_at: Instant,
    /// From when it signs; null as long as no rotation is asked for.
    #[schema(value_type = Option<schema::Instant>, required)]
    signs_from: Option<Instant>,
    /// From when another signs; null if that is not known yet.
    #[schema(value_type = Option<schema::Instant>, required)]
    retired_at: Option<Instant>,
    /// Since when no token under it is believed; null if they are.
    #[schema(value_type = Option<schema::Instant>, required)]
    removed_at: Option<Instant>,
}

/// A rotation, done or to come.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RotationRecord {
    /// The key that signs then.
    #[schema(value_type = schema::Kid)]
    kid: Kid,
    /// `signing`, or `next` as long as it waits.
    #[schema(example = "next")]
    status: &'static str,
    /// From when it signs.
    #[schema(value_type = schema::Instant)]
    signs_from: Instant,
}

/// What became of a signing key.
#[derive(Serialize, ToSchema)]
pub struct SigningKeyRevoked {
    /// False if no token under it was believed any more.
    #[schema(example = true)]
    revoked: bool,
}

/// List the signing keys
///
/// Also those that are gone; the one published last first.
#[utoipa::path(
    get, path = "/signing-keys", operation_id = "listSigningKeys", tag = "Server",
    params(Page), security(("humanToken" = [])),
    responses((status = 200, description = "A page of keys", body = SigningKeyPage), Errors<(Admin, Paging)>)
)]
pub async fn list(
    State(state): State<AppState>,
    presented: Presented,
    page: Result<Page, ApiError>,
) -> Result<Json<SigningKeyPage>, ApiError> {
    presented.admin(&state).await?;
    let page = page?;
    let listed = operations::list_signing_keys(&state.context, page).await?;
    let now = state.context.now();
    Ok(Json(paging::present(page, listed, |key| present(key, now))))
}

/// Rotate the signing keys
///
/// The next key signs: at once, if it was published long enough ago for every sidecar that still answers to know it,
/// else as soon as it was, without anything more to be done. The old key stays until its last token is dead. While a
/// rotation is to come, that is the answer.
#[utoipa::path(
    post, path = "/signing-keys/rotate", operation_id = "rotateSigningKeys", tag = "Server",
    security(("humanToken" = [])),
    responses(
        (status = 200, description = "The next key signs now", body = RotationRecord),
        (status = 202, description = "The next key signs from `signsFrom` on", body = RotationRecord),
        Errors<(Admin,)>,
    )
)]
pub async fn rotate(
    State(state): State<AppState>,
    presented: Presented,
) -> Result<(StatusCode, Json<RotationRecord>), ApiError> {
    let human = presented.admin(&state).await?;
    let by = presented.author_of(Some(&human));
    let (rotation, signs) = operations::rotate_signing_key(&state.context, &by).await?;
    let (code, status) = if signs { (StatusCode::OK, "signing") } else { (StatusCode::ACCEPTED, "next") };
    Ok((code, Json(RotationRecord { kid: rotation.kid, status, signs_from: Instant(rotation.signs_from) })))
}

/// Revoke a signing key
///
/// For a key that somebody else may have. Every token under it is refused at once, for good; if it signed, the next key
/// signs at once, however young it is.
#[utoipa::path(
    delete, path = "/signing-keys/{kid}", operation_id = "revokeSigningKey", tag = "Server",
    params(KidInPath), security(("humanToken" = [])),
    responses(
        (status = 200, description = "It is revoked", body = SigningKeyRevoked),
        Errors<(Admin, NoSigningKey)>,
    )
)]
pub async fn revoke(
    State(state): State<AppState>,
    presented: Presented,
    InPath(kid): InPath<String>,
) -> Result<Json<SigningKeyRevoked>, ApiError> {
    let human = presented.admin(&state).await?;
    let by = presented.author_of(Some(&human));
    let revoked = operations::revoke_signing_key(&state.context, &by, &id::<Kid>(&kid)?).await?;
    Ok(Json(SigningKeyRevoked { revoked }))
}

fn present(key: SigningKey, now: Timestamp) -> SigningKeyRecord {
    SigningKeyRecord {
        status: key.status(now).as_str(),
        algorithm: "ES256",
        published_at: Instant(key.published_at),
        signs_from: key.signs_from.map(Instant),
        retired_at: key.retires_at.map(Instant),
        removed_at: key.removed_at.map(Instant),
        kid: key.kid,
    }
}
