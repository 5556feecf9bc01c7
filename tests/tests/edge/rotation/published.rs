//! What a rotation changes in the public JWKS, in the list of signing keys for administrators and in metrics. Also tests the
//! metadata of the server.

use countersign_tests::{ControlPlane, HttpResponse, eventually};
use serde_json::json;

#[tokio::test]
async fn jwks_lists_every_key_that_may_sign_in_order_of_publication() {
    let control = ControlPlane::start_with(&["sync.max_staleness_seconds=7"]).await;
    let before = control.api.get("/.well-known/jwks.json").await;
    assert_eq!(before.header("cache-control"), "public, max-age=7", "caches expire before the next key signs");
    let kids = |response: &HttpResponse| {
        let keys = response.body["keys"].as_array().unwrap();
        keys.iter().map(|key| key["kid"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (signing, next) = (control.signing_key("signing").await, control.signing_key("next").await);
    assert_eq!(kids(&before), [signing.clone(), next.clone()]);

    let rotation = control.rotate().await.expect(202);
    assert_eq!((&rotation["kid"], &rotation["status"]), (&json!(next), &json!("next")));
    let after = control.api.get("/.well-known/jwks.json").await;
    assert_eq!(kids(&after)[..2], [signing.clone(), next.clone()]);
    assert_eq!(kids(&after).len(), 3);
    assert_ne!(before.header("etag"), after.header("etag"));

    assert!(control.revoke_signing_key(&signing).await);
    let revoked = control.api.get("/.well-known/jwks.json").await;
    assert_eq!(kids(&revoked), kids(&after)[1..]);
    let conditional_request =
        control.api.request("GET", "/.well-known/jwks.json").header("if-none-match", after.header("etag"));
    assert_eq!(
        HttpResponse::send(conditional_request).await.status,
        200,
        "a client with the old key set receives the new one"
    );
}

#[tokio::test]
async fn server_metadata_lists_the_endpoints_of_the_server() {
    let control = ControlPlane::start().await;
    let path = "/.well-known/oauth-authorization-server";
    let response = control.api.get(path).await;
    let (etag, url) = (response.header("etag").to_owned(), &control.env["URL"]);
    assert_eq!(
        (response.header("content-type"), response.header("cache-control")),
        ("application/json", "public, max-age=300")
    );
    let not_modified = HttpResponse::send(control.api.request("GET", path).header("if-none-match", &etag)).await;
    assert_eq!((not_modified.status, not_modified.header("etag")), (304, etag.as_str()));
    assert_eq!(
        response.expect(200),
        json!({
            "issuer": url,
            "authorization_endpoint": format!("{url}/oauth/authorize"),
            "token_endpoint": format!("{url}/oauth/token"),
            "token_endpoint_auth_methods_supported": ["private_key_jwt", "none"],
            "token_endpoint_auth_signing_alg_values_supported": ["ES256"],
            "jwks_uri": format!("{url}/.well-known/jwks.json"),
            "introspection_endpoint": format!("{url}/oauth/introspect"),
            "introspection_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
            "revocation_endpoint": format!("{url}/oauth/revoke"),
            "revocation_endpoint_auth_methods_supported": [
                "none", "private_key_jwt", "client_secret_basic", "client_secret_post",
            ],
            "revocation_endpoint_auth_signing_alg_values_supported": ["ES256"],
            "response_types_supported": [],
            "grant_types_supported": ["client_credentials", "refresh_token"],
        })
    );
}

#[tokio::test]
async fn signing_key_list_shows_status_and_times_of_all_keys() {
    let control = ControlPlane::start().await;
    let signing = control.signing_key("signing").await;
    control.rotate().await.expect(202);
    assert!(control.revoke_signing_key(&signing).await && !control.revoke_signing_key(&signing).await);
    let keys = control.signing_keys().await;
    let statuses: Vec<_> = keys.iter().map(|key| key["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["next", "signing", "revoked"]);
    let [next, successor, revoked] = [&keys[0], &keys[1], &keys[2]];
    assert!(keys.iter().all(|key| key["algorithm"] == "ES256" && key["publishedAt"].is_string()));
    assert!(["signsFrom", "retiredAt", "removedAt"].iter().all(|field| next[field].is_null()), "{next}");
    assert_eq!((&successor["signsFrom"], &successor["retiredAt"]), (&revoked["removedAt"], &json!(null)));
    assert_eq!((&revoked["kid"], &revoked["retiredAt"]), (&json!(signing), &revoked["removedAt"]));
    let page = control.api.get_as(control.human(), "/signing-keys?limit=1&offset=1").await.expect(200);
    assert_eq!((&page["data"], &page["pagination"]["total"]), (&json!([successor]), &json!(3)));

    let unknown = "a".repeat(42) + "A";
    let deletion = HttpResponse::send(
        control.api.request("DELETE", &format!("/signing-keys/{unknown}")).bearer_auth(control.human()),
    );
    assert_eq!(deletion.await.error(), (404, "NOT_FOUND", ""));
    let bob = control.mint_human("bob");
    let refused = control.api.get_as(&bob, "/signing-keys").await;
    assert_eq!(refused.error(), (403, "INSUFFICIENT_PERMISSIONS", "admin_required"));
}

#[tokio::test]
async fn metrics_show_the_keys_and_the_start_of_the_signing_key() {
    let control = ControlPlane::start().await;
    let metric = async |line: &str| control.metric(&format!("{line} ")).await;
    let count = |status| format!("countersign_signing_keys{{status=\"{status}\"}}");
    let since = "countersign_signing_key_signs_from_timestamp_seconds";
    let exported = async || Some(metric(since).await?).filter(|since| *since > 1e9);
    let before = eventually("the metric is exported", exported, || control.log()).await;
    control.rotate().await.expect(202);
    control.revoke_signing_key(&control.signing_key("signing").await).await;
    let updated = async || (metric(&count("next")).await == Some(1.0) && metric(since).await? > before).then_some(());
    eventually("the metrics are updated", updated, || control.log()).await;
    assert_eq!((metric(&count("signing")).await, metric(&count("retired")).await), (Some(1.0), Some(0.0)));
}
