//! `/oauth/revoke`: revocation of tokens (RFC 7009).

use crate::{
    domain::credential::expose,
    http::{
        api::prelude::*,
        error::{OAuthError, OAuthErrors},
        request::{body::Form, service_client::ServiceClient},
    },
};
use secrecy::SecretString;

body! { form
    /// A token to revoke (RFC 7009). Unknown parameters are ignored.
    OAuthRevocationRequest {
        required "token" token: SecretString,
        /// Ignored: the format of a token shows its kind.
        optional "token_type_hint" hint: String,
        /// The id of a service, if it authenticates by the form.
        optional "client_id" client_id: String,
        /// An API key of the service.
        optional "client_secret" client_secret: SecretString as schema::TextSchema,
    }
}

/// Revoke a token as an OAuth client (RFC 7009)
///
/// Revoking a refresh token ends its session; revoking an access token invalidates only that token. Whoever has a token can revoke it,
/// so client authentication is optional. The credentials of a service must be correct; those of other clients are ignored. Text
/// that is not a token of this server gets the same response as a token.
#[utoipa::path(
    post, path = "/oauth/revoke", operation_id = "revokeOAuthToken", tag = "OAuth", security((), ("serviceClient" = [])),
    request_body(
        content = OAuthRevocationRequest, content_type = "application/x-www-form-urlencoded",
        example = json!({ "token": "eyJ0eXAiOiJhdCtqd3QiLCJhbGciOiJFUzI1NiJ9.e30.c2lnbmF0dXJl" }),
    ),
    responses(
        (status = 200, description = "The token is no longer valid"),
        OAuthErrors,
    )
)]
pub async fn revoke(
    State(state): State<AppState>,
    client: ServiceClient,
    body: Result<Form, ApiError>,
) -> Result<StatusCode, OAuthError> {
    let Form(body) = body?;
    let OAuthRevocationRequest { token, hint, client_id, client_secret } = body.read()?;
    drop(hint);
    client.check_service_credentials((client_id, client_secret)).await?;
    operations::revoke_token(&state.context, expose(&token)).await.map_err(ApiError::from)?;
    Ok(StatusCode::OK)
}
