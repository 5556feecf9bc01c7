//! Hostile ids in paths, on every route that has one.

use super::{
    fixture::{Fixture, assert_none, fault, undocumented},
    routes::ROUTES,
};
use countersign_tests::HttpResponse;

/// Hostile ids, percent-encoded, and whether each decodes to UTF-8.
fn hostile_ids(good: &str) -> Vec<(String, bool)> {
    // A key thumbprint has no prefix.
    let (prefix, digits) = good.split_once('_').filter(|_| good.len() == 31).unwrap_or(("kid", good));
    let texts = [
        "nonsense".to_owned(),
        "%00".into(),
        format!("{good}%00"),
        format!("%20{good}"),
        format!("{good}%0a"),
        format!("{good}%2f"),
        format!("..%2f{good}"),
        good.to_uppercase(),
        format!("{prefix}_{}", &digits[1..]),
        format!("{prefix}_{digits}0"),
        format!("{prefix}_8{}", &digits[1..]),
        format!("tok_{digits}"),
        "%27%20OR%201=1--".into(),
        "%F0%9F%A4%96".into(),
        "%7Bservice%7D".into(),
        "a".repeat(8_000),
        "%25".into(),
    ];
    let not_text = ["%ff".to_owned(), "%c0%80".into(), format!("{good}%ed%a0%80")];
    texts.map(|text| (text, true)).into_iter().chain(not_text.map(|bytes| (bytes, false))).collect()
}

#[tokio::test]
async fn invalid_ids_in_paths_return_404() {
    let fixture = Fixture::new().await;
    let mut faults = Vec::new();
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
                let response =
                    HttpResponse::send(if route.fields.is_empty() { request } else { request.json(&body) }).await;
                let expected = (404, if is_text { code } else { "NOT_FOUND" });
                let fault = fault(&response, expected, None);
                faults.extend(fault.map(|fault| format!("{} {} with {name} {id}: {fault}", route.method, route.path)));
                faults.extend(if is_text { undocumented(route, &response) } else { None });
            }
        }
        let after = fixture.rows().await;
        faults.extend(after.difference(&before).map(|row| format!("{}: a row changed: {row}", route.path)));
    }
    assert_none(&faults);
}

#[tokio::test]
async fn other_methods_return_405_with_the_allowed_ones() {
    let fixture = Fixture::new().await;
    let mut faults = Vec::new();
    for route in ROUTES {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "get"] {
            if ROUTES.iter().any(|other| other.path == route.path && other.method == method) {
                continue;
            }
            let response =
                HttpResponse::send(fixture.authorize(route, fixture.control.api.request(method, &fixture.path(route))))
                    .await;
            let fault = fault(&response, (405, "METHOD_NOT_ALLOWED"), None);
            faults.extend(fault.map(|fault| format!("{method} {}: {fault}", route.path)));
            let allowed = response.header("allow").split(',').any(|allowed| allowed == route.method);
            faults.extend((!allowed).then(|| format!("{method} {}: allow {:?}", route.path, response.header("allow"))));
        }
    }
    assert_none(&faults);
}
