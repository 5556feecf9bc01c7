//! An OAuth client: it logs in with client assertions, and refreshes at the token endpoint. This module converts its responses to
//! those of `/auth`, so that one model predicts both.

use crate::environment::Environment;
use countersign_client::PrivateKey;
use countersign_process::Clock;
use countersign_tests::{
    HttpResponse,
    control_plane::text,
    oauth::{self, ASSERTION_TYPE},
};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};

/// A form of the token endpoint.
pub type Form = Vec<(&'static str, String)>;

/// Logs in with a new assertion. Also returns the assertion.
pub async fn log_in(
    environment: &Environment,
    (id, key): (&str, &PrivateKey),
    service: Option<&str>,
    scope: &str,
) -> (HttpResponse, String) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let metadata = environment.api.get("/.well-known/oauth-authorization-server").await.expect(200);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed).to_string();
    let mut claims = oauth::claims(id, &text(&metadata["issuer"]), &number);
    let now = environment.clock.now().seconds();
    (claims["iat"], claims["exp"]) = (json!(now), json!(now + 300));
    let assertion = oauth::signed(key, &json!({ "alg": "ES256" }), &claims);
    (request_tokens(environment, &login_form(&assertion, service, scope)).await, assertion)
}

/// The form of a login.
pub fn login_form(assertion: &str, service: Option<&str>, scope: &str) -> Form {
    let service = service.map(|service| ("resource", service.to_owned()));
    let form = [
        ("grant_type", "client_credentials".to_owned()),
        ("client_assertion_type", ASSERTION_TYPE.to_owned()),
        ("client_assertion", assertion.to_owned()),
        ("scope", scope.to_owned()),
    ];
    form.into_iter().chain(service).collect()
}

/// The form of a refresh.
pub fn refresh_form(token: &str, scope: &str) -> Form {
    let form = [("grant_type", "refresh_token"), ("refresh_token", token), ("scope", scope)];
    form.map(|(name, value)| (name, value.to_owned())).into()
}

/// Sends a form to the token endpoint. Converts the response to one of `/auth/authenticate` or `/auth/refresh`.
pub async fn request_tokens(environment: &Environment, form: &Form) -> HttpResponse {
    let form: Vec<_> = form.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut response = oauth::post_form(&environment.api, "/oauth/token", &form).await;
    if response.status == 200 {
        let body = json!({
            "accessToken": response.body["access_token"],
            "refreshToken": response.body["refresh_token"],
            "expiresIn": response.body["expires_in"],
        });
        response.body = body;
    }
    response.status = match response.body["reason"].as_str() {
        Some("agent_suspended" | "agent_revoked") => 403,
        Some(reason) if reason.starts_with("refresh_") => 401,
        _ => response.status,
    };
    if let Value::Object(body) = &mut response.body
        && let Some(reason) = body.get("reason").cloned()
    {
        body.insert("error".to_owned(), json!({ "details": { "reason": reason } }));
    }
    response
}
