//! Sends hostile ids in the paths of all routes that contain an id.

use super::{
    fixture::{Failures, Fixture, error_mismatch, undocumented_error},
    routes::ROUTES,
};
use countersign_tests::HttpResponse;

/// Hostile ids, percent-encoded, and whether each decodes to UTF-8.
fn hostile_ids(valid_id: &str) -> Vec<(String, bool)> {
    // The id of a signing key is a thumbprint, which has no prefix.
    let (prefix, suffix) = valid_id.split_once('_').filter(|_| valid_id.len() == 31).unwrap_or(("kid", valid_id));
    let texts = [
        "nonsense".to_owned(),
        "%00".into(),
        format!("{valid_id}%00"),
        format!("%20{valid_id}"),
        format!("{valid_id}%0a"),
        format!("{valid_id}%2f"),
        format!("..%2f{valid_id}"),
        valid_id.to_uppercase(),
        format!("{prefix}_{}", &suffix[1..]),
        format!("{prefix}_{suffix}0"),
        format!("{prefix}_8{}", &suffix[1..]),
        format!("tok_{suffix}"),
        "%27%20OR%201=1--".into(),
        "%F0%9F%A4%96".into(),
        "%7Bservice%7D".into(),
        "a".repeat(8_000),
        "%25".into(),
    ];
    let invalid_utf8 = ["%ff".to_owned(), "%c0%80".into(), format!("{valid_id}%ed%a0%80")];
    texts.map(|text| (text, true)).into_iter().chain(invalid_utf8.map(|bytes| (bytes, false))).collect()
}

#[tokio::test]
async fn invalid_ids_in_paths_return_404() {
    let fixture = Fixture::new().await;
    let mut failures = Failures::default();
    for route in ROUTES {
        let body = fixture.body(route).await;
        let before = fixture.rows().await;
        let path = fixture.path(route);
        for (name, code) in [
            ("service", "SERVICE_NOT_FOUND"),
            ("agent", "AGENT_NOT_FOUND"),
            ("role", "ROLE_NOT_FOUND"),
            ("key", "NOT_FOUND"),
            ("kid", "NOT_FOUND"),
        ] {
            let Some(position) = route.path.split('/').position(|part| part == format!("{{{name}}}")) else { continue };
            let parts: Vec<_> = path.split('/').collect();
            for (id, is_text) in hostile_ids(parts[position]) {
                let hostile_path = [&parts[..position], &[id.as_str()], &parts[position + 1..]].concat().join("/");
                let request = fixture.authorize(route, fixture.control.api.request(route.method, &hostile_path));
                let response = HttpResponse::send(route.with_body(request, &body)).await;
                let expected = (404, if is_text { code } else { "NOT_FOUND" });
                let mismatch = error_mismatch(&response, expected, None);
                failures.add(format_args!("{route} with {name} {id}"), mismatch);
                failures.add(route, undocumented_error(route, &response).filter(|_| is_text));
            }
        }
        failures.add_changed(route, fixture.rows().await.difference(&before));
    }
    failures.assert_none();
}

#[tokio::test]
async fn other_methods_return_405_with_the_allowed_methods() {
    let fixture = Fixture::new().await;
    let mut failures = Failures::default();
    for route in ROUTES {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "get"] {
            if ROUTES.iter().any(|other| other.path == route.path && other.method == method) {
                continue;
            }
            let response =
                HttpResponse::send(fixture.authorize(route, fixture.control.api.request(method, &fixture.path(route))))
                    .await;
            let mismatch = error_mismatch(&response, (405, "METHOD_NOT_ALLOWED"), None);
            failures.add(format_args!("{method} {}", route.path), mismatch);
            let allowed = response.header("allow").split(',').any(|allowed| allowed == route.method);
            failures.check(allowed, || {
                format!("{method} {}: the header `allow` is {:?}", route.path, response.header("allow"))
            });
        }
    }
    failures.assert_none();
}
