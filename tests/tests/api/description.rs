//! Tests that the OpenAPI document is served and correct, and that its page loads nothing from other origins.

use countersign_tests::{ControlPlane, HttpResponse, description, tools};
use serde_json::{Value, json};
use std::fs;

#[test]
fn openapi_file_in_the_repository_is_up_to_date() {
    let committed = fs::read_to_string(tools::root().join("docs/openapi.json")).unwrap_or_default();
    let is_current = committed == description::print();
    assert!(
        is_current,
        "docs/openapi.json is outdated: run `{}` and review the difference",
        description::UPDATE_COMMAND
    );
}

#[tokio::test]
async fn openapi_document_is_public_and_cacheable() {
    let control = ControlPlane::shared().await;
    let response = control.api.get("/openapi.json").await;
    assert_eq!((response.status, response.header("content-type")), (200, "application/json"));
    let etag = response.header("etag").to_owned();
    let mut served = response.expect(200);
    assert_eq!(served["openapi"], "3.1.0");
    assert_eq!(served["servers"][0]["url"], control.env["URL"]);
    let mut printed = description::openapi();
    for description in [&mut served, &mut printed] {
        description["servers"] = Value::Null;
    }
    assert_eq!(served, printed);
    let cached = HttpResponse::send(control.api.request("GET", "/openapi.json").header("if-none-match", &etag)).await;
    assert_eq!((cached.status, cached.header("etag")), (304, etag.as_str()));
    let head = HttpResponse::send(control.api.request("HEAD", "/openapi.json")).await;
    assert_eq!((head.status, head.header("etag"), &head.body), (200, etag.as_str(), &Value::String(String::new())));
}

#[test]
fn examples_contain_every_required_field() {
    let openapi = description::openapi();
    let mut count = 0;
    for (method, path, operation) in description::operations(&openapi) {
        let responses = operation["responses"].as_object().unwrap().values();
        let bodies = responses.chain(operation.get("requestBody")).map(|body| description::resolve(&openapi, body));
        for content in bodies.filter_map(|body| body["content"].as_object()).flat_map(|content| content.values()) {
            let Some(example) = content.get("example") else { continue };
            let missing = missing_fields(&openapi, &content["schema"], example);
            assert!(missing.is_empty(), "{method} {path}: {missing:?} not in {example}");
            count += 1;
        }
    }
    assert!(count > 40, "only {count} examples");
}

#[test]
fn generated_clients_can_send_the_agent_token() {
    let openapi = description::openapi();
    let verify = &openapi["paths"]["/services/{service}/verify"]["get"];
    let mut parameters = verify["parameters"].as_array().unwrap().iter();
    let token = parameters.find(|parameter| parameter["name"] == "X-Agent-Token").unwrap();
    assert_eq!((&token["in"], &token["required"]), (&json!("header"), &json!(true)));
    assert_eq!(verify["security"], json!([{ "serviceKey": [] }]));
    // Client generators support one credential per client. The generated functions would have no parameter for a second
    // security scheme. The endpoints of OAuth are for OAuth clients.
    for (name, scheme) in openapi["components"]["securitySchemes"].as_object().unwrap() {
        let expected = if name == "serviceClient" { "basic" } else { "bearer" };
        assert_eq!((&scheme["type"], &scheme["scheme"]), (&json!("http"), &json!(expected)), "{name}");
    }
    for (method, path, operation) in description::operations(&openapi) {
        let schemes = operation["security"].as_array().into_iter().flatten().filter_map(Value::as_object);
        let is_for_oauth = schemes.flat_map(|it| it.keys()).any(|name| name == "serviceClient");
        assert!(path.starts_with("/oauth/") || !is_for_oauth, "{method} {path}");
    }
}

#[test]
fn error_examples_match_their_operation() {
    let openapi = description::openapi();
    let mut fields_checked = 0;
    for (method, path, operation) in description::operations(&openapi) {
        let examples = |status: &str| {
            let response = description::resolve(&openapi, &operation["responses"][status]);
            response["content"]["application/json"]["examples"].as_object().cloned().unwrap_or_default()
        };
        let body = description::resolve(&openapi, &operation["requestBody"]["content"]["application/json"]["schema"]);
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        let parameter_names: Vec<_> = parameters.filter_map(|parameter| parameter["name"].as_str()).collect();
        for example in examples("400").values() {
            let fields = example["value"]["error"]["details"]["fields"].as_object().into_iter().flatten();
            for (field, message) in fields {
                let is_documented =
                    body["properties"].get(field).is_some() || parameter_names.contains(&field.as_str());
                assert!(is_documented != (message == "is not a known field"), "{method} {path}: {field} {message}");
                fields_checked += 1;
            }
        }
        let limit = if path.starts_with("/auth/") && path != "/auth/revoke" { 16 * 1024 } else { 64 * 1024 };
        for example in examples("413").values() {
            let message = example["value"]["error"]["message"].as_str().unwrap();
            assert!(message.contains(&format!("{limit} bytes")), "{method} {path}: {message}");
        }
    }
    assert!(fields_checked > 25, "only {fields_checked} fields");
}

/// The fields that a schema requires and a value does not have, at all levels.
fn missing_fields(openapi: &Value, schema: &Value, value: &Value) -> Vec<String> {
    let schema = description::resolve(openapi, schema);
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let missing_here = required.filter(|name| value.get(name).is_none()).map(str::to_owned);
    let fields = schema["properties"].as_object().into_iter().flatten();
    let nested = fields.filter_map(|(name, field)| Some(missing_fields(openapi, field, value.get(name)?)));
    let parts = schema["allOf"].as_array().into_iter().flatten().map(|part| missing_fields(openapi, part, value));
    let items = value.as_array().into_iter().flatten().map(|item| missing_fields(openapi, &schema["items"], item));
    missing_here.chain(nested.chain(parts).chain(items).flatten()).collect()
}

#[tokio::test]
async fn docs_page_loads_nothing_from_other_origins() {
    let control = ControlPlane::shared().await;
    let page = control.api.get("/docs").await;
    assert_security_headers(&page, "text/html");
    let html = page.body.as_str().unwrap();
    let assets: Vec<_> = html
        .split(['"', '\''])
        .filter(|text| text.contains(".css") || text.contains(".js") || text.contains(".png"))
        .collect();
    assert_eq!(assets.len(), 7, "{html}");
    assert!(!html.contains("//"), "the page contains an absolute URL: {html}");
    for name in assets {
        let file = control.api.get(&format!("/{name}")).await;
        let content_type = match name.rsplit('.').next().unwrap() {
            "css" => "text/css",
            "js" => "text/javascript",
            _ => "image/png",
        };
        assert_security_headers(&file, content_type);
        let text = file.body.as_str().unwrap();
        let external_references = ["url(http", "url(//", "@import", "importScripts", "fonts.googleapis"];
        let external: Vec<_> = external_references.iter().filter(|load| text.contains(*load)).collect();
        assert!(external.is_empty(), "{name} loads something from another origin: {external:?}");
        let head = HttpResponse::send(control.api.request("HEAD", &format!("/{name}"))).await;
        assert_eq!((head.status, head.header("etag")), (200, file.header("etag")));
    }
    let settings = control.api.get("/docs/swagger-initializer.js").await.expect(200);
    let settings = settings.as_str().unwrap();
    // The validator badge of Swagger UI would send the URL of the OpenAPI document to a third party.
    assert!(settings.contains(r#""validatorUrl": "none""#), "{settings}");
    assert!(settings.contains(r#""url": "openapi.json""#), "{settings}");
    for unknown in ["/docs/", "/docs/index.html", "/docs/oauth2-redirect.html", "/docs/..%2fhealth"] {
        assert_eq!(control.api.get(unknown).await.error(), (404, "NOT_FOUND", ""), "{unknown}");
    }
}

fn assert_security_headers(response: &HttpResponse, content_type: &str) {
    assert_eq!(response.status, 200);
    assert!(response.header("content-type").starts_with(content_type), "{}", response.header("content-type"));
    let policy = response.header("content-security-policy");
    assert!(policy.contains("default-src 'self'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert!(!policy.contains("http") && !policy.contains('*') && !policy.contains("unsafe-eval"), "{policy}");
    assert_eq!(
        (response.header("x-content-type-options"), response.header("referrer-policy")),
        ("nosniff", "no-referrer")
    );
}
