//! The metadata of the server (RFC 8414), and errors that occur before the handler of an OAuth endpoint runs.

use countersign_tests::{
    ControlPlane, HttpResponse,
    control_plane::text,
    oauth::{post_form, refusal},
};
use serde_json::json;

#[tokio::test]
async fn metadata_names_endpoints_that_exist() {
    let control = ControlPlane::start().await;
    let path = "/.well-known/oauth-authorization-server";
    let metadata = control.api.get(path).await.expect(200);
    let issuer = text(&metadata["issuer"]);
    let endpoint = |name: &str| text(&metadata[name]).strip_prefix(&issuer).unwrap().to_owned();
    assert_eq!(metadata["grant_types_supported"], json!(["client_credentials", "refresh_token"]));
    assert_eq!(metadata["token_endpoint_auth_signing_alg_values_supported"], json!(["ES256"]));
    assert!(metadata.get("scopes_supported").is_none(), "common clients would ask for these scopes only");
    for name in ["token_endpoint", "introspection_endpoint", "revocation_endpoint"] {
        let status = post_form(&control.api, &endpoint(name), &[]).await.status;
        // Introspection refuses callers without credentials before it reads the form.
        assert_eq!(status, if name == "introspection_endpoint" { 401 } else { 400 }, "{name}");
    }
    let refused = control.api.get(&format!("{}?response_type=code", endpoint("authorization_endpoint"))).await;
    assert_eq!(refusal(&refused), (400, "unsupported_response_type", ""));
    assert_eq!(control.api.get(&endpoint("jwks_uri")).await.status, 200);
    for absent in ["/.well-known/openid-configuration", &format!("{path}/other")] {
        assert_eq!(control.api.get(absent).await.status, 404, "{absent}");
    }
}

#[tokio::test]
async fn metadata_of_an_issuer_with_a_path_is_below_the_well_known_path() {
    let control = ControlPlane::start_with(&["public_url=http://127.0.0.1/a/b"]).await;
    let metadata = control.api.get("/.well-known/oauth-authorization-server/a/b").await.expect(200);
    assert_eq!(metadata["token_endpoint"], "http://127.0.0.1/a/b/oauth/token");
    assert_eq!(control.api.get("/.well-known/oauth-authorization-server/a").await.status, 404);
}

#[tokio::test]
async fn errors_before_the_handler_have_the_format_of_oauth() {
    let control = ControlPlane::start().await;
    let send = async |request: reqwest::RequestBuilder| HttpResponse::send(request).await;
    let post = |path: &str| control.api.request("POST", path);
    for (response, status) in [
        (send(control.api.request("GET", "/oauth/token")).await, 405),
        (send(post("/oauth/none")).await, 404),
        (send(post("/oauth/token").json(&json!({}))).await, 415),
        (send(post("/oauth/revoke").json(&json!({}))).await, 415),
        (send(post("/oauth/token").body("a".repeat(17 << 10))).await, 413),
    ] {
        assert_eq!(refusal(&response), (status, "invalid_request", ""), "{response:?}");
        assert!(response.body["error_description"].is_string() && !response.header("x-request-id").is_empty());
    }
    let control = ControlPlane::start_with(&["limits.auth_per_minute=1"]).await;
    let form = [("grant_type", "refresh_token"), ("refresh_token", "the same")];
    assert_eq!(post_form(&control.api, "/oauth/token", &form).await.status, 400);
    let limited = post_form(&control.api, "/oauth/token", &form).await;
    assert_eq!(refusal(&limited), (429, "temporarily_unavailable", ""));
    assert!(!limited.header("retry-after").is_empty() && !limited.header("ratelimit").is_empty(), "{limited:?}");
}
