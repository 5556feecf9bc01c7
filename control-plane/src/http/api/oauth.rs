//! `/oauth/*`: the endpoints of OAuth 2.0, for clients that do not know our challenges. They issue, verify and revoke the same
//! tokens as the other endpoints, with the same operations.

pub mod introspect;
pub mod revoke;
pub mod token;

use crate::http::error::{OAuthError, OAuthErrorBody};

const NO_AUTHORIZATION: &str = "this server has no authorization by users: request a token with grant_type=client_credentials at the token endpoint";

/// Refuse an authorization request (RFC 6749, section 3.1)
///
/// Agents get tokens with their keys, at the token endpoint: there is nobody to ask for authorization. The endpoint answers every
/// request with the error `unsupported_response_type`, and never redirects.
// Clients that need no authorization endpoint nevertheless insist that the metadata of the server names one.
#[utoipa::path(
    get, path = "/oauth/authorize", operation_id = "authorize", tag = "OAuth", security(()),
    responses((
        status = 400, description = "`unsupported_response_type`", body = OAuthErrorBody,
        example = json!({ "error": "unsupported_response_type", "error_description": NO_AUTHORIZATION }),
    ))
)]
pub async fn authorize() -> OAuthError {
    OAuthError::new("unsupported_response_type", NO_AUTHORIZATION)
}
