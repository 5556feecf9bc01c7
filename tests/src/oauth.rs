//! Requests of OAuth clients: client assertions (RFC 7523) and forms.

use crate::{Agent, ControlPlane, HttpClient, HttpResponse, control_plane::text};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use countersign_client::PrivateKey;
use countersign_process::{Clock, SystemClock};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};

/// The value of `client_assertion_type`.
pub const ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// The current time, in Unix seconds.
pub fn now() -> u64 {
    u64::try_from(SystemClock.now().seconds()).expect("the clock is after 1970")
}

/// The issuer in the metadata of the server.
pub async fn issuer(control: &ControlPlane) -> String {
    text(&control.api.get("/.well-known/oauth-authorization-server").await.expect(200)["issuer"])
}

/// The claims of an assertion.
pub fn claims(agent: &str, issuer: &str, id: &str) -> Value {
    json!({ "iss": agent, "sub": agent, "aud": issuer, "iat": now(), "exp": now() + 300, "jti": id })
}

/// A JWT with this header and these claims.
pub fn signed(key: &PrivateKey, header: &Value, claims: &Value) -> String {
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", encode(header), encode(claims));
    let signature = hex::decode(key.sign(&signed)).expect("a signature is hex");
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// An assertion with this id.
pub async fn assertion(control: &ControlPlane, agent: &Agent, id: &str) -> String {
    signed(&agent.key, &json!({ "alg": "ES256", "typ": "JWT" }), &claims(&agent.id, &issuer(control).await, id))
}

/// Sends a form.
pub async fn post_form(api: &HttpClient, path: &str, form: &[(&str, &str)]) -> HttpResponse {
    post_form_as(api, path, form, None).await
}

/// Sends a form with a value of the header `Authorization`.
pub async fn post_form_as(
    api: &HttpClient,
    path: &str,
    form: &[(&str, &str)],
    authorization: Option<&str>,
) -> HttpResponse {
    let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish();
    let request = api.request("POST", path).header("content-type", "application/x-www-form-urlencoded").body(body);
    let request = authorization.into_iter().fold(request, |request, value| request.header("authorization", value));
    HttpResponse::send(request).await
}

/// The form of a login with an assertion, and other parameters.
pub fn login_form<'a>(assertion: &'a str, others: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let form = [
        ("grant_type", "client_credentials"),
        ("client_assertion_type", ASSERTION_TYPE),
        ("client_assertion", assertion),
    ];
    [&form[..], others].concat()
}

/// Sends a request to the token endpoint.
pub async fn request_token(control: &ControlPlane, form: &[(&str, &str)]) -> HttpResponse {
    post_form(&control.api, "/oauth/token", form).await
}

/// Logs in with a new assertion and other parameters.
pub async fn log_in(control: &ControlPlane, agent: &Agent, others: &[(&str, &str)]) -> HttpResponse {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let id = format!("{}-{}", now(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let assertion = assertion(control, agent, &id).await;
    request_token(control, &login_form(&assertion, others)).await
}

/// Refreshes with other parameters.
pub async fn refresh(control: &ControlPlane, token: &str, others: &[(&str, &str)]) -> HttpResponse {
    let form = [("grant_type", "refresh_token"), ("refresh_token", token)];
    request_token(control, &[&form[..], others].concat()).await
}

/// Status, `error` and `reason` of an error response.
pub fn error(response: &HttpResponse) -> (u16, String, String) {
    let field = |name: &str| response.body[name].as_str().unwrap_or_default().to_owned();
    (response.status, field("error"), field("reason"))
}

/// Like [`error`], borrowed from the response.
pub fn refusal(response: &HttpResponse) -> (u16, &str, &str) {
    (response.status, response.text("/error"), response.text("/reason"))
}

/// Status and `error` of an error response.
pub fn code(response: &HttpResponse) -> (u16, &str) {
    (response.status, response.text("/error"))
}
