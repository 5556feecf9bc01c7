//! Human users with tokens of OIDC issuers on loopback: identity, key retrieval, and issuers that are slow, wrong or unreachable.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

mod administrators;
mod keys;
mod ownership;
mod production;
mod settings;
mod tokens;

use countersign_tests::{ControlPlane, HttpResponse, Issuer};

/// Starts a control plane with `--dev` that trusts this issuer under the name `corp`.
async fn start_with_issuer(issuer: &Issuer, issuer_settings: &[(&str, &str)]) -> ControlPlane {
    start(&issuer.settings("corp", issuer_settings)).await
}

async fn start(settings: &[String]) -> ControlPlane {
    let settings: Vec<_> = settings.iter().map(String::as_str).collect();
    ControlPlane::start_with(&settings).await
}

/// Lists services, which every human user may do.
async fn list_services(control: &ControlPlane, token: &str) -> HttpResponse {
    control.api.get_as(token, "/services").await
}

const INVALID: (u16, &str, &str) = (401, "AUTHENTICATION_FAILED", "human_token_invalid");
const EXPIRED: (u16, &str, &str) = (401, "AUTHENTICATION_FAILED", "human_token_expired");
const UNAVAILABLE: (u16, &str, &str) = (503, "SERVICE_UNAVAILABLE", "human_issuer_unavailable");
const NOT_YOURS: (u16, &str, &str) = (403, "INSUFFICIENT_PERMISSIONS", "not_yours");
