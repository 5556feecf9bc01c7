//! The OpenAPI document: where it is served, that it is correct, and that its page loads nothing from elsewhere.

use countersign_tests::{ControlPlane, HttpResponse, description, tools};
use reqwest::Method;
use serde_json::Value;
use std::fs;

#[test]
fn openapi_file_in_the_repository_is_up_to_date() {
    let committed = fs::read_to_string(tools::root().join("docs/openapi.json")).unwrap_or_default();
    let same = committed == description::printed();
    assert!(same, "docs/openapi.json is outdated: run `{}` and review the difference", description::COMMAND);
}

#[tokio::test]
async fn openapi_document_is_public_and_cacheable() {
    let control = ControlPlane::start().await;
    let response = control.api.get("/openapi.json").await;
    assert_eq!((response.status, response.header("content-type")), (200, "application/json"));
    let tag = response.header("etag").to_owned();
    let mut served = response.expect(200);
    assert_eq!(served["openapi"], "3.1.0");
    assert_eq!(served["servers"][0]["url"], control.env["URL"]);
    let mut printed = description::read();
    for description in [&mut served, &mut printed] {
        description["servers"] = Value::Null;
    }
    assert_eq!(served, printed);
    let again = HttpResponse::send(control.api.request("GET", "/openapi.json").header("if-none-match", &tag)).await;
    assert_eq!((again.status, again.header("etag")), (304, tag.as_str()));
    let head = HttpResponse::send(control.api.request("HEAD", "/openapi.json")).await;
    assert_eq!((head.status, head.header("etag"), &head.body), (200, tag.as_str(), &Value::String(String::new())));
}

#[test]
fn examples_contain_every_required_field() {
    let described = description::read();
    let mut count = 0;
    for (method, path, operation) in description::operations(&described) {
        let responses = operation["responses"].as_object().unwrap().values();
        let bodies = responses.chain(operation.get("requestBody")).map(|body| description::resolve(&described, body));
        for content in bodies.filter_map(|body| body["content"].as_object()).flat_map(|content| content.values()) {
            let Some(example) = content.get("example") else { continue };
            let missing = missing(&described, &content["schema"], example);
            assert!(missing.is_empty(), "{method} {path}: {missing:?} not in {example}");
            count += 1;
        }
    }
    assert!(count > 40, "only {count} examples");
}

/// The required fields that the value does not have.
fn missing(described: &Value, form: &Value, value: &Value) -> Vec<String> {
    let form = description::resolve(described, form);
    let required = form["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let own = required.filter(|name| value.get(name).is_none()).map(str::to_owned);
    let fields = form["properties"].as_object().into_iter().flatten();
    let nested = fields.filter_map(|(name, field)| Some(missing(described, field, value.get(name)?)));
    let parts = form["allOf"].as_array().into_iter().flatten().map(|part| missing(described, part, value));
    let items = value.as_array().into_iter().flatten().map(|item| missing(described, &form["items"], item));
    own.chain(nested.chain(parts).chain(items).flatten()).collect()
}

#[tokio::test]
async fn docs_page_loads_nothing_from_other_origins() {
    let control = ControlPlane::start().await;
    let page = control.api.get("/docs").await;
    assert_security_headers(&page, "text/html");
    let html = page.body.as_str().unwrap();
    let named: Vec<_> = html
        .split(['"', '\''])
        .filter(|text| text.contains(".css") || text.contains(".js") || text.contains(".png"))
        .collect();
    assert_eq!(named.len(), 7, "{html}");
    assert!(!html.contains("//"), "an absolute URL: {html}");
    for name in named {
        let file = control.api.get(&format!("/{name}")).await;
        let kind = match name.rsplit('.').next().unwrap() {
            "css" => "text/css",
            "js" => "text/javascript",
            _ => "image/png",
        };
        assert_security_headers(&file, kind);
        let text = file.body.as_str().unwrap();
        let external_references = ["url(http", "url(//", "@import", "importScripts", "fonts.googleapis"];
        let external: Vec<_> = external_references.iter().filter(|load| text.contains(*load)).collect();
        assert!(external.is_empty(), "{name} loads something from another origin: {external:?}");
        let head =
            HttpResponse::send(control.api.client.request(Method::HEAD, format!("{}/{name}", control.api.url))).await;
        assert_eq!((head.status, head.header("etag")), (200, file.header("etag")));
    }
    let settings = control.api.get("/docs/swagger-initializer.js").await.expect(200);
    let settings = settings.as_str().unwrap();
    // The validator badge would send the URL of the document to a third party.
    assert!(settings.contains(r#""validatorUrl": "none""#), "{settings}");
    assert!(settings.contains(r#""url": "openapi.json""#), "{settings}");
    for unknown in ["/docs/", "/docs/index.html", "/docs/oauth2-redirect.html", "/docs/..%2fhealth"] {
        assert_eq!(control.api.get(unknown).await.error(), (404, "NOT_FOUND", ""), "{unknown}");
    }
}

fn assert_security_headers(response: &HttpResponse, kind: &str) {
    assert_eq!(response.status, 200);
    assert!(response.header("content-type").starts_with(kind), "{}", response.header("content-type"));
    let policy = response.header("content-security-policy");
    assert!(policy.contains("default-src 'self'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert!(!policy.contains("http") && !policy.contains('*') && !policy.contains("unsafe-eval"), "{policy}");
    assert_eq!(
        (response.header("x-content-type-options"), response.header("referrer-policy")),
        ("nosniff", "no-referrer")
    );
}
