//! Fact 5, paths: Envoy does not normalize paths by default; the example listener does.

use super::{ConfigAdditions, Fixture};
use countersign_tests::{Environment, HttpResponse, RawRequest, envoy::Envoy};

/// Spellings of `/admin` and of paths below it.
const ADMIN_SPELLINGS: [&str; 17] = [
    "/admin",
    "/admin/",
    "/admin/users",
    "/admin?x=1",
    "//admin",
    "///admin",
    "/./admin",
    "/x/../admin",
    "/%2e/admin",
    "/x/%2E%2e/admin",
    "/%2Fadmin",
    "/x/%2e%2e%2fadmin",
    "/%5Cadmin",
    "/\\admin",
    "/x\\..\\admin",
    "/admin%2fusers",
    "/%61dmin",
];

const NORMALIZATION: [&str; 3] =
    ["normalize_path: true", "merge_slashes: true", "path_with_escaped_slashes_action: UNESCAPE_AND_REDIRECT"];
const NEXT_LINE: &str = "\n                ";

#[tokio::test]
async fn path_is_unchanged_by_default() {
    let fixture = Fixture::start(ConfigAdditions::default()).await;
    for path in ["//admin", "/x/../admin", "/%2e/admin", "/%2Fadmin", "/admin/"] {
        let response = fixture.send_allowed(RawRequest::get(path)).await;
        assert_eq!((response.status, response.header("x-upstream-path")), (200, path));
        assert_eq!(fixture.authorizer.last_request().path, path);
    }
}

#[tokio::test]
async fn path_is_normalized_before_the_check_if_configured() {
    let fixture = Fixture::start(ConfigAdditions {
        connection_manager: &NORMALIZATION.join(NEXT_LINE),
        ..ConfigAdditions::default()
    })
    .await;
    for (path, normalized) in [
        ("//admin", "/admin"),
        ("/x/../admin", "/admin"),
        ("/%2e/admin", "/admin"),
        ("/%61dmin", "/admin"),
        ("/admin/", "/admin/"),
    ] {
        let response = fixture.send_allowed(RawRequest::get(path)).await;
        assert_eq!((response.status, response.header("x-upstream-path")), (200, normalized), "{path}");
        assert_eq!(fixture.authorizer.last_request().path, normalized, "{path}");
    }
    let received_before = fixture.upstream.received();
    let response = fixture.send_allowed(RawRequest::get("/%2Fadmin")).await;
    assert_eq!((response.status, response.header("location")), (307, "/admin"), "an escaped slash");
    assert_eq!(fixture.upstream.received(), received_before);
}

#[tokio::test]
async fn example_listener_requires_the_permission_for_every_spelling_of_admin() {
    let environment = Environment::start().await;
    let (reader, _) = environment.agent("reader", &["read"]).await;
    let (admin, _) = environment.agent("administrator", &["admin"]).await;
    let (reader, admin) = tokio::join!(reader.token(), admin.token());
    for path in ADMIN_SPELLINGS {
        let unauthenticated = get_following_redirect(&environment.envoy, path, None).await;
        assert_eq!(unauthenticated.error(), (401, "AUTHENTICATION_FAILED", "token_missing"), "{path}");
        let refused = get_following_redirect(&environment.envoy, path, Some(&reader)).await;
        assert_eq!(refused.error(), (403, "INSUFFICIENT_PERMISSIONS", "permission_missing"), "{path}");
    }
    assert_eq!(environment.upstream.received(), 0);
    for path in ADMIN_SPELLINGS {
        let response = get_following_redirect(&environment.envoy, path, Some(&admin)).await;
        assert_eq!(response.status, 200, "{path}: {response:?}");
        let normalized = response.header("x-upstream-path");
        assert!(
            normalized == "/admin" || normalized.starts_with("/admin/") || normalized == "/admin?x=1",
            "{path}: {normalized}"
        );
    }
}

#[tokio::test]
async fn example_listener_does_not_require_the_permission_for_other_paths() {
    let environment = Environment::start().await;
    let (reader, _) = environment.agent("reader", &["read"]).await;
    let token = reader.token().await;
    for (path, normalized) in [
        ("/administrators", "/administrators"),
        ("/admin/../x", "/x"),
        ("/x/admin", "/x/admin"),
        ("/?/admin", "/?/admin"),
    ] {
        let response = get_following_redirect(&environment.envoy, path, Some(&token)).await;
        assert_eq!((response.status, response.header("x-upstream-path")), (200, normalized), "{path}");
    }
}

/// The response after the redirect that Envoy sends for an escaped slash.
async fn get_following_redirect(envoy: &Envoy, path: &str, token: Option<&str>) -> HttpResponse {
    let request = |path: &str| match token {
        Some(token) => RawRequest::get(path).bearer(token),
        None => RawRequest::get(path),
    };
    let response = request(path).send_until_checked(&envoy.listener).await;
    if response.status == 307 {
        request(response.header("location")).send_until_checked(&envoy.listener).await
    } else {
        response
    }
}
