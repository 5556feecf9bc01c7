//! The description of the API: where it is, that it is true, and that reading it needs nobody else.

use countersign_tests::{ControlPlane, HttpResponse, description, tools};
use reqwest::Method;
use serde_json::Value;
use std::fs;

#[test]
fn openapi_file_in_the_repository_is_up_to_date() {
    let kept = fs::read_to_string(tools::root().join("docs/openapi.json")).unwrap_or_default();
    let same = kept == description::printed();
    assert!(same, "docs/openapi.json is outdated: run `{}` and look at the difference", description::COMMAND);
}

#[tokio::test]
async fn openapi_document_is_public_and_cacheable() {
    let control = ControlPlane::start().await;
    let answer = control.api.get("/openapi.json").await;
    assert_eq!((answer.status, answer.header("content-type")), (200, "application/json"));
    let tag = answer.header("etag").to_owned();
    let mut served = answer.expect(200);
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
    let mut seen = 0;
    for (method, path, operation) in description::operations(&described) {
        let answers = operation["responses"].as_object().unwrap().values();
        let bodies = answers.chain(operation.get("requestBody")).map(|body| description::resolve(&described, body));
        for content in bodies.filter_map(|body| body["content"].as_object()).flat_map(|content| content.values()) {
            let Some(example) = content.get("example") else { continue };
            let missing = missing(&described, &content["schema"], example);
            assert!(missing.is_empty(), "{method} {path}: {missing:?} not in {example}");
            seen += 1;
        }
    }
    assert!(seen > 40, "only {seen} examples");
}

/// The fields that are required, and that the value does not have.
fn missing(described: &Value, form: &Value, value: &Value) -> Vec<String> {
    let form = description::resolve(described, form);
    let required = form["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let here = required.filter(|name| value.get(name).is_none()).map(str::to_owned);
    let fields = form["properties"].as_object().into_iter().flatten();
    let below = fields.filter_map(|(name, field)| Some(missing(described, field, value.get(name)?)));
    let parts = form["allOf"].as_array().into_iter().flatten().map(|part| missing(described, part, value));
    let items = value.as_array().into_iter().flatten().map(|item| missing(described, &form["items"], item));
    here.chain(below.chain(parts).chain(items).flatten()).collect()
}

#[tokio::test]
async fn docs_page_loads_nothing_from_other_origins() {
    let control = ControlPlane::start().await;
    let page = control.api.get("/docs").await;
    assert_guarded(&page, "text/html");
    let html = page.body.as_str().unwrap();
    let named: Vec<_> = html
        .split(['"', '\''])
        .filter(|text| text.contains(".css") || text.contains(".js") || text.contains(".png"))
        .collect();
    assert_eq!(named.len(), 7, "{html}");
    assert!(!html.contains("//"), "an address elsewhere: {html}");
    for name in named {
        let file = control.api.get(&format!("/{name}")).await;
        let kind = match name.rsplit('.').next().unwrap() {
            "css" => "text/css",
            "js" => "text/javascript",
            _ => "image/png",
        };
        assert_guarded(&file, kind);
        let text = file.body.as_str().unwrap();
        let loads = ["url(http", "url(//", "@import", "importScripts", "fonts.googleapis"];
        let elsewhere: Vec<_> = loads.iter().filter(|load| text.contains(*load)).collect();
        assert!(elsewhere.is_empty(), "{name} loads something from elsewhere: {elsewhere:?}");
        let head =
            HttpResponse::send(control.api.client.request(Method::HEAD, format!("{}/{name}", control.api.url))).await;
        assert_eq!((head.status, head.header("etag")), (200, file.header("etag")));
    }
    let settings = control.api.get("/docs/swagger-initializer.js").await.expect(200);
    let settings = settings.as_str().unwrap();
    // The badge of a validator would send the address of the description to whoever runs it.
    assert!(settings.contains(r#""validatorUrl": "none""#), "{settings}");
    assert!(settings.contains(r#""url": "openapi.json""#), "{settings}");
    for nothing in ["/docs/", "/docs/index.html", "/docs/oauth2-redirect.html", "/docs/..%2fhealth"] {
        assert_eq!(control.api.get(nothing).await.error(), (404, "NOT_FOUND", ""), "{nothing}");
    }
}

fn assert_guarded(answer: &HttpResponse, kind: &str) {
    assert_eq!(answer.status, 200);
    assert!(answer.header("content-type").starts_with(kind), "{}", answer.header("content-type"));
    let policy = answer.header("content-security-policy");
    assert!(policy.contains("default-src 'self'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert!(!policy.contains("http") && !policy.contains('*') && !policy.contains("unsafe-eval"), "{policy}");
    assert_eq!((answer.header("x-content-type-options"), answer.header("referrer-policy")), ("nosniff", "no-referrer"));
}
