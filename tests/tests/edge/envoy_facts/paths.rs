//! Fact 5, paths: Envoy does not normalize paths by default; the example listener does.

use super::{Fixture, Said};
use countersign_tests::{Environment, HttpResponse, RawRequest, envoy::Envoy};

/// Spellings of `/admin` and of paths below it.
const ADMIN: [&str; 17] = [
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

const TIDY: [&str; 3] =
    ["normalize_path: true", "merge_slashes: true", "path_with_escaped_slashes_action: UNESCAPE_AND_REDIRECT"];
const NEXT_LINE: &str = "\n                ";

#[tokio::test]
async fn path_is_unchanged_by_default() {
    let fixture = Fixture::start(Said::default()).await;
    for path in ["//admin", "/x/../admin", "/%2e/admin", "/%2Fadmin", "/admin/"] {
        let answer = fixture.allowed(RawRequest::get(path)).await;
        assert_eq!((answer.status, answer.header("x-upstream-path")), (200, path));
        assert_eq!(fixture.authorizer.asked().path, path);
    }
}

#[tokio::test]
async fn path_is_normalized_before_the_check_if_configured() {
    let fixture = Fixture::start(Said { manager: &TIDY.join(NEXT_LINE), ..Said::default() }).await;
    for (path, tidy) in [
        ("//admin", "/admin"),
        ("/x/../admin", "/admin"),
        ("/%2e/admin", "/admin"),
        ("/%61dmin", "/admin"),
        ("/admin/", "/admin/"),
    ] {
        let answer = fixture.allowed(RawRequest::get(path)).await;
        assert_eq!((answer.status, answer.header("x-upstream-path")), (200, tidy), "{path}");
        assert_eq!(fixture.authorizer.asked().path, tidy, "{path}");
    }
    let before = fixture.upstream.received();
    let answer = fixture.allowed(RawRequest::get("/%2Fadmin")).await;
    assert_eq!((answer.status, answer.header("location")), (307, "/admin"), "an escaped slash");
    assert_eq!(fixture.upstream.received(), before);
}

#[tokio::test]
async fn example_listener_requires_the_permission_for_every_spelling_of_admin() {
    let environment = Environment::start().await;
    let (reader, _) = environment.agent("reader", &["read"]).await;
    let (admin, _) = environment.agent("administrator", &["admin"]).await;
    let (reader, admin) = tokio::join!(reader.token(), admin.token());
    for path in ADMIN {
        let anybody = followed(&environment.envoy, path, None).await;
        assert_eq!(anybody.error(), (401, "AUTHENTICATION_FAILED", "token_missing"), "{path}");
        let refused = followed(&environment.envoy, path, Some(&reader)).await;
        assert_eq!(refused.error(), (403, "INSUFFICIENT_PERMISSIONS", "permission_missing"), "{path}");
    }
    assert_eq!(environment.upstream.received(), 0);
    for path in ADMIN {
        let answer = followed(&environment.envoy, path, Some(&admin)).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        let tidy = answer.header("x-upstream-path");
        assert!(tidy == "/admin" || tidy.starts_with("/admin/") || tidy == "/admin?x=1", "{path}: {tidy}");
    }
}

#[tokio::test]
async fn example_listener_does_not_require_the_permission_for_other_paths() {
    let environment = Environment::start().await;
    let (reader, _) = environment.agent("reader", &["read"]).await;
    let token = reader.token().await;
    for (path, tidy) in [
        ("/administrators", "/administrators"),
        ("/admin/../x", "/x"),
        ("/x/admin", "/x/admin"),
        ("/?/admin", "/?/admin"),
    ] {
        let answer = followed(&environment.envoy, path, Some(&token)).await;
        assert_eq!((answer.status, answer.header("x-upstream-path")), (200, tidy), "{path}");
    }
}

/// The response after the redirect that Envoy sends for an escaped slash.
async fn followed(envoy: &Envoy, path: &str, token: Option<&str>) -> HttpResponse {
    let request = |path: &str| match token {
        Some(token) => RawRequest::get(path).bearer(token),
        None => RawRequest::get(path),
    };
    let answer = request(path).send_until_checked(&envoy.site).await;
    if answer.status == 307 { request(answer.header("location")).send_until_checked(&envoy.site).await } else { answer }
}
