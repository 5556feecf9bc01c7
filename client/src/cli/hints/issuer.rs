//! The next step after an error of an OIDC issuer.

use super::tls::hint_for_tls_error;
use countersign_client::{IssuerError, api::innermost};

/// The next step after this error, if there is a known one.
pub fn hint_for_issuer_error(error: &IssuerError) -> Option<&'static str> {
    Some(match error {
        IssuerError::Url(_) => "set --issuer https://HOST/PATH or COUNTERSIGN_ISSUER",
        IssuerError::Authority(_) => "set --issuer-ca (COUNTERSIGN_ISSUER_CA) to a PEM file of certificate authorities",
        IssuerError::Unreachable { error, .. } => {
            let trust =
                "pass the authority that signed its certificate, with --issuer-ca FILE or COUNTERSIGN_ISSUER_CA";
            let default = "is --issuer (COUNTERSIGN_ISSUER) right, and is the issuer available?";
            hint_for_tls_error(&innermost(error), trust).unwrap_or(default)
        }
        IssuerError::Redirect(_) => {
            "set --issuer (COUNTERSIGN_ISSUER) to the exact `issuer` of the discovery document, and check its endpoints"
        }
        IssuerError::Status { status: 429 | 500..=599, .. } => "try again; is the issuer available?",
        IssuerError::Status { .. } | IssuerError::Unreadable(_) => {
            "is --issuer (COUNTERSIGN_ISSUER) right? ISSUER/.well-known/openid-configuration must exist"
        }
        IssuerError::OtherIssuer { .. } => {
            "check --issuer (COUNTERSIGN_ISSUER): it must be the exact `iss` of the tokens, like the setting \
             humans.issuers.NAME.issuer of the control plane"
        }
        IssuerError::Missing("device_authorization_endpoint") => {
            "enable the device authorization grant (RFC 8628) at the issuer, or set COUNTERSIGN_HUMAN_TOKEN to one of its tokens"
        }
        IssuerError::Missing(_) | IssuerError::Endpoint(_) => "ask the administrator of the issuer",
        IssuerError::CodeExpired => "run `countersign login` again, and confirm the login in time",
        IssuerError::NoToken("id_token") => "request the scope openid with --scope, or pass --use access-token",
        IssuerError::NoToken(_) => "pass --use id-token",
        IssuerError::Claim { claim: "aud", .. } => "check --client-id (COUNTERSIGN_CLIENT_ID)",
        IssuerError::Claim { claim: "access_token", .. } => {
            "pass --use id-token, or let the issuer issue access tokens that are JWTs (RFC 9068)"
        }
        IssuerError::Claim { claim: "iss", .. } => {
            "check --issuer (COUNTERSIGN_ISSUER); --use selects the ID token or the access token"
        }
        IssuerError::Claim { .. } => "run `countersign login` again",
        IssuerError::Refused { code, .. } => return hint_for_code(code),
    })
}

fn hint_for_code(code: &str) -> Option<&'static str> {
    Some(match code {
        "access_denied" => "run `countersign login` again, and confirm the login in the browser",
        "invalid_client" | "unauthorized_client" | "unsupported_grant_type" => {
            "check --client-id (COUNTERSIGN_CLIENT_ID): the issuer needs a public client with the device authorization grant"
        }
        "invalid_scope" => "check --scope: the client may request only the scopes that the issuer allows",
        "invalid_grant" => "run `countersign login` again",
        "invalid_target" => "check --audience",
        _ => return None,
    })
}
