//! People by the tokens of real issuers on loopback: whom they are taken for, where the keys come from, and what
//! happens when an issuer is slow, wrong or away.

#![expect(clippy::unwrap_used, reason = "a test says what it expects")]

mod administrators;
mod keys;
mod ownership;
mod real;
mod settings;
mod tokens;

use countersign_tests::{ControlPlane, HttpResponse, Issuer};
use serde_json::json;

/// A control plane with `--dev` that knows this issuer as `corp`.
async fn control_of(issuer: &Issuer, more: &[(&str, &str)]) -> ControlPlane {
    start(&issuer.settings("corp", more)).await
}

async fn start(settings: &[String]) -> ControlPlane {
    let settings: Vec<_> = settings.iter().map(String::as_str).collect();
    ControlPlane::start_with(&settings).await
}

/// Asks for something that any person may have.
async fn ask(control: &ControlPlane, token: &str) -> HttpResponse {
    control.api.get_as(token, "/services").await
}

/// Makes a service as this person.
async fn make_service(control: &ControlPlane, token: &str) -> String {
    let made = control.api.send_as(token, "POST", "/services", json!({ "name": "theirs" })).await.expect(201);
    made["serviceId"].as_str().unwrap().to_owned()
}

const INVALID: (u16, &str, &str) = (401, "AUTHENTICATION_FAILED", "human_token_invalid");
const EXPIRED: (u16, &str, &str) = (401, "AUTHENTICATION_FAILED", "human_token_expired");
const UNAVAILABLE: (u16, &str, &str) = (503, "SERVICE_UNAVAILABLE", "human_issuer_unavailable");
const NOT_YOURS: (u16, &str, &str) = (403, "INSUFFICIENT_PERMISSIONS", "not_yours");
