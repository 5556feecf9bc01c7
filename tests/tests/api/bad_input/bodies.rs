//! Sends the same kinds of hostile bodies to every route that reads a body.

use super::{
    fixture::{Failures, Fixture, error_mismatch, undocumented_error},
    routes::{Field, FieldType, ROUTES, Route},
};
use countersign_tests::HttpResponse;
use serde_json::{Map, Value, json};

const INVALID: (u16, &str) = (400, "VALIDATION_ERROR");

/// An invalid body with the expected error and the fields that the error must name.
struct Case {
    name: String,
    body: Vec<u8>,
    expected: (u16, &'static str),
    fields: Option<Vec<String>>,
}

fn case(name: impl Into<String>, body: impl Into<Vec<u8>>, fields: &[&str]) -> Case {
    let fields = Some(fields.iter().map(ToString::to_string).collect());
    Case { name: name.into(), body: body.into(), expected: INVALID, fields }
}

/// Bodies that are not one JSON object in UTF-8.
fn malformed_bodies(valid_body: &str) -> Vec<Case> {
    let utf16 = |encode: fn(u16) -> [u8; 2]| valid_body.encode_utf16().flat_map(encode).collect::<Vec<u8>>();
    let inner = valid_body.trim_start_matches('{').trim_end_matches('}');
    let texts = [
        ("empty", String::new()),
        ("white space", " \r\n\t".into()),
        ("null", "null".into()),
        ("an array", "[]".into()),
        ("an array with the valid body", format!("[{valid_body}]")),
        ("a string", "\"x\"".into()),
        ("the valid body as a string", json!(valid_body).to_string()),
        ("a number", "1".into()),
        ("true", "true".into()),
        ("NaN", "NaN".into()),
        ("truncated", valid_body[..valid_body.len() - 1].into()),
        ("cut in the middle", valid_body[..valid_body.len() / 2].into()),
        ("trailing garbage", format!("{valid_body} x")),
        ("the valid body twice", format!("{valid_body}{valid_body}")),
        ("two lines of JSON", format!("{valid_body}\n{{}}")),
        ("NUL after", format!("{valid_body}\0")),
        ("NUL before", format!("\0{valid_body}")),
        ("a trailing comma", format!("{{{inner},}}")),
        ("a comment", format!("{{/* */{inner}}}")),
        ("single quotes", valid_body.replace('"', "'")),
        ("a form", "email=a&name=b".into()),
        ("XML", "<?xml version=\"1.0\"?><a/>".into()),
        ("byte-order mark", format!("\u{feff}{valid_body}")),
        ("10,000 brackets", "[".repeat(10_000)),
        ("10,000 braces", "{\"a\":".repeat(2_000)),
        ("arrays, closed", format!("{{\"a\":{}{},{inner}}}", "[".repeat(5_000), "]".repeat(5_000))),
        ("objects, closed", format!("{{\"a\":{}1{},{inner}}}", "{\"a\":".repeat(2_000), "}".repeat(2_000))),
        ("a lone surrogate as a value", format!("{{\"a\":\"\\ud800\",{inner}}}")),
        ("a lone low surrogate", format!("{{\"a\":\"\\udc00x\",{inner}}}")),
        ("a lone surrogate in a name", format!("{{\"\\ud800\":1,{inner}}}")),
        ("an unescaped control character", format!("{{\"a\":\"\n\",{inner}}}")),
        ("an invalid escape", format!("{{\"a\":\"\\x41\",{inner}}}")),
    ];
    let bytes = [
        ("UTF-16LE", utf16(u16::to_le_bytes)),
        ("UTF-16BE", utf16(u16::to_be_bytes)),
        ("invalid UTF-8 in a value", [b"{\"a\":\"\xff\",", inner.as_bytes(), b"}"].concat()),
        ("invalid UTF-8 in a name", [b"{\"\xc3\":1,", inner.as_bytes(), b"}"].concat()),
        ("NUL in overlong UTF-8", [b"{\"a\":\"\xc0\x80\",", inner.as_bytes(), b"}"].concat()),
        ("a surrogate in UTF-8", [b"{\"a\":\"\xed\xa0\x80\",", inner.as_bytes(), b"}"].concat()),
        ("invalid UTF-8 alone", vec![0xff; 64]),
        ("a gzip stream", vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3]),
    ];
    let texts = texts.into_iter().map(|(name, text)| case(name, text, &[]));
    texts.chain(bytes.into_iter().map(|(name, bytes)| case(name, bytes, &[]))).collect()
}

/// Replaces the value of one field with a text that may be invalid JSON.
fn replace_value(valid_body: &Map<String, Value>, field: &str, text: &str) -> String {
    let member = |(name, value): (&String, &Value)| {
        let value = if name == field { text.to_owned() } else { value.to_string() };
        format!("{}:{value}", json!(name))
    };
    format!("{{{}}}", valid_body.iter().map(member).collect::<Vec<_>>().join(","))
}

/// Bodies in which one field has a wrong type, is duplicated or is missing.
fn wrong_types(valid_body: &Map<String, Value>, field: &Field) -> Vec<Case> {
    let name = field.name;
    let mut cases = Vec::new();
    for literal in ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "0x10", "01", "+1", ".5", "1.", "undefined", ""]
    {
        cases.push(case(format!("`{name}`: {literal}"), replace_value(valid_body, name, literal), &[]));
    }
    let value = valid_body[name].to_string();
    for other in ["0", "-1", "1.5", "1e308", "18446744073709551616", "true", "false", "\"x\"", "[]", "{}", "[null]"]
        .into_iter()
        .map(str::to_owned)
        .chain([format!("[{value}]"), format!("{{\"{name}\":{value}}}"), "[[[[1]]]]".into(), "{\"a\":{}}".into()])
    {
        if matches_type(field.kind, &serde_json::from_str(&other).unwrap()) {
            continue;
        }
        cases.push(case(format!("`{name}`: {other}"), replace_value(valid_body, name, &other), &[name]));
    }
    let with_duplicate =
        format!("{},\"{name}\":{value}}}", Value::Object(valid_body.clone()).to_string().strip_suffix('}').unwrap());
    cases.push(case(format!("`{name}` twice"), with_duplicate, &[name]));
    if field.kind == FieldType::Object {
        for object in [r#"{"a":1,"a":1}"#, r#"{"a":[{"b":{"c":1,"d":2,"c":3}}]}"#] {
            cases.push(case(format!("`{name}`: {object}"), replace_value(valid_body, name, object), &[name]));
        }
    }
    if field.required {
        let mut absent = valid_body.clone();
        absent.remove(name);
        cases.push(case(format!("`{name}` missing"), Value::Object(absent).to_string(), &[name]));
        cases.push(case(format!("`{name}` null"), replace_value(valid_body, name, "null"), &[name]));
        let other_case = format!("\"{}\":", name.to_uppercase());
        let capitalized =
            Value::Object(valid_body.clone()).to_string().replacen(&format!("\"{name}\":"), &other_case, 1);
        let mut both_names = [name.to_owned(), name.to_uppercase()];
        both_names.sort();
        cases.push(case(format!("`{name}` in capitals"), capitalized, &both_names.each_ref().map(String::as_str)));
    }
    cases
}

/// Bodies in which one field has the right type but an invalid value.
fn invalid_values(valid_body: &Map<String, Value>, field: &Field) -> Vec<Case> {
    let name = field.name;
    let value = valid_body[name].as_str().unwrap_or_default();
    let always_invalid =
        ["\0".to_owned(), format!("{value}\0"), format!("{value}\u{7f}"), "\u{1b}[2J".into(), "a".repeat(5_000)];
    let invalid_on_one_line =
        [String::new(), " ".into(), format!("{value}\n"), format!("{value}\u{202e}"), "\u{feff}".into()];
    let texts = match field.kind {
        FieldType::SingleLine => {
            always_invalid.iter().chain(&invalid_on_one_line).map(|text| json!(text)).collect::<Vec<_>>()
        }
        FieldType::MultiLine => always_invalid.iter().map(|text| json!(text)).collect(),
        FieldType::Array => {
            always_invalid.iter().chain(&invalid_on_one_line).map(|text| json!(["fine", text])).collect()
        }
        FieldType::Boolean => vec![],
        FieldType::Number => [-0.000_001, 100.000_001, -1.0, 1e300].iter().map(|number| json!(number)).collect(),
        FieldType::Object => vec![json!({ "a": "a".repeat(9_000) })],
        FieldType::Objects => {
            let item = &valid_body[name][0];
            let unknown = json!([{ "extra": true }]);
            vec![json!([{}]), json!([item, []]), json!([item, "a"]), json!(vec![item; 33]), unknown]
        }
    };
    let items =
        if field.kind == FieldType::Array { vec![json!([1]), json!([["read"]]), json!(["a,b"])] } else { vec![] };
    let cases = texts.into_iter().chain(items).map(|text| {
        let shown: String = text.to_string().chars().take(40).collect();
        let fields = (field.invalid_value_error == INVALID).then(|| vec![name.to_owned()]);
        let body = replace_value(valid_body, name, &text.to_string()).into_bytes();
        Case { name: format!("`{name}`: {shown}"), body, expected: field.invalid_value_error, fields }
    });
    cases.collect()
}

fn matches_type(field_type: FieldType, value: &Value) -> bool {
    match field_type {
        FieldType::SingleLine | FieldType::MultiLine => value.is_string(),
        FieldType::Boolean => value.is_boolean(),
        FieldType::Number => value.as_f64().is_some_and(|number| (0.0..=100.0).contains(&number)),
        FieldType::Object => value.is_object(),
        FieldType::Array => value.as_array().is_some_and(|items| items.iter().all(Value::is_string)),
        FieldType::Objects => false,
    }
}

/// Bodies with an additional field that no route accepts.
fn unknown_fields(valid_body: &str) -> Vec<Case> {
    ["extra", "__proto__", "constructor", "", " name", "$where", "\\u0000"]
        .iter()
        .map(|name| {
            let body = format!("{{\"{name}\":{{\"admin\":true}},{}", &valid_body[1..]);
            let name: String = serde_json::from_str(&format!("\"{name}\"")).unwrap();
            case(format!("an additional field {name:?}"), body, &[name.as_str()])
        })
        .collect()
}

fn all_cases(route: &Route, valid_body: &Map<String, Value>) -> Vec<Case> {
    let text = Value::Object(valid_body.clone()).to_string();
    let fields = route.fields.iter().flat_map(|field| {
        let wrong_type_cases = wrong_types(valid_body, field);
        wrong_type_cases.into_iter().chain(invalid_values(valid_body, field))
    });
    malformed_bodies(&text).into_iter().chain(unknown_fields(&text)).chain(fields).collect()
}

fn routes_with_body() -> impl Iterator<Item = &'static Route> {
    ROUTES.iter().filter(|route| !route.fields.is_empty())
}

#[tokio::test]
async fn hostile_bodies_are_refused_with_the_field_name_and_change_nothing() {
    let fixture = Fixture::new().await;
    let mut failures = Failures::default();
    for route in routes_with_body() {
        let valid_body = fixture.body(route).await;
        let authorized = fixture.authorized(route).header("content-type", "application/json");
        let before = fixture.rows().await;
        for Case { name, body, expected, fields } in all_cases(route, &valid_body) {
            let response = HttpResponse::send(authorized.try_clone().unwrap().body(body)).await;
            // A route that ignores invalid values of a field may still refuse an empty string, with the error for a missing field.
            let is_ignored = expected.0 < 400 && response.status == expected.0;
            let expected = if expected.0 < 400 { INVALID } else { expected };
            let fields: Option<Vec<_>> = fields.as_ref().map(|fields| fields.iter().map(String::as_str).collect());
            if !is_ignored {
                failures.add(format_args!("{route}: {name}"), error_mismatch(&response, expected, fields.as_deref()));
            }
            failures.add(route, undocumented_error(route, &response));
        }
        failures.add_changed(route, fixture.rows().await.symmetric_difference(&before));
        // The unmodified body is valid, so the server refused the modified bodies because of their modifications.
        let response = HttpResponse::send(authorized.json(&valid_body)).await;
        let accepted = route.accepts(response.status);
        failures.check(accepted, || format!("{route}: the unmodified body is not accepted: {}", response.body));
    }
    failures.assert_none();
}

#[tokio::test]
async fn optional_fields_may_be_null() {
    let fixture = Fixture::new().await;
    for route in routes_with_body() {
        let mut body = fixture.body(route).await;
        for field in route.fields.iter().filter(|field| !field.required) {
            body[field.name] = Value::Null;
        }
        let response = HttpResponse::send(fixture.authorized(route).json(&body)).await;
        assert_eq!(response.status, route.success_status, "{}: {}", route.path, response.body);
    }
}

#[tokio::test]
async fn bodies_with_another_content_type_are_refused() {
    let fixture = Fixture::new().await;
    let content_types: [&[&[u8]]; 15] = [
        &[b""],
        &[b"text/plain"],
        &[b"text/json"],
        &[b"application/x-www-form-urlencoded"],
        &[b"multipart/form-data; boundary=a"],
        &[b"application/xml"],
        &[b"application/octet-stream"],
        &[b"application/json5"],
        &[b"application/json; charset=latin1"],
        &[b"application/json;charset=\"utf-16\""],
        &[b"application/json; charset = latin1"],
        &[b"application/json, text/plain"],
        &[b"application/json", b"text/plain"],
        &[b"application/json", b"application/json"],
        &[b"application/json\xff"],
    ];
    let mut failures = Failures::default();
    for route in routes_with_body() {
        let body = Value::Object(fixture.body(route).await).to_string();
        let authorized = fixture.authorized(route).body(body);
        let mut unsupported: Vec<Vec<(&str, &[u8])>> = Vec::new();
        unsupported
            .extend(content_types.iter().map(|values| values.iter().map(|value| ("content-type", *value)).collect()));
        for coding in ["gzip", "br", "gzip, identity", "x"] {
            unsupported.push(vec![("content-type", b"application/json"), ("content-encoding", coding.as_bytes())]);
        }
        let is_form = |headers: &Vec<(&str, &[u8])>| headers.iter().any(|(_, value)| value.ends_with(b"urlencoded"));
        for headers in unsupported.into_iter().filter(|headers| route.path != "/auth/revoke" || !is_form(headers)) {
            let request = authorized.try_clone().unwrap();
            let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
            let response = HttpResponse::send(request).await;
            let mismatch = error_mismatch(&response, (415, "UNSUPPORTED_MEDIA_TYPE"), None);
            let shown: Vec<_> = headers.iter().map(|(_, value)| String::from_utf8_lossy(value)).collect();
            failures.add(format_args!("{} {shown:?}", route.path), mismatch);
        }
    }
    failures.assert_none();
    let supported: [&[(&str, &str)]; 6] = [
        &[],
        &[("content-type", "application/json; charset=utf-8")],
        &[("content-type", "Application/JSON;Charset=\"UTF-8\"; q=1")],
        &[("content-type", "application/vnd.countersign+json")],
        &[("content-type", "application/json"), ("content-encoding", "identity")],
        &[("content-encoding", "")],
    ];
    let route = ROUTES.iter().find(|route| route.path == "/auth/challenge").unwrap();
    for headers in supported {
        let body = Value::Object(fixture.body(route).await).to_string();
        let request = headers.iter().fold(fixture.request(route).body(body), |request, (a, b)| request.header(*a, *b));
        assert_eq!(HttpResponse::send(request).await.status, 200, "{headers:?}");
    }
}

#[tokio::test]
async fn oversized_bodies_are_refused_and_unused_bodies_are_not_parsed() {
    let fixture = Fixture::new().await;
    let mut failures = Failures::default();
    for route in ROUTES {
        let authorized = fixture.authorized(route).header("content-type", "application/json");
        let limit = route.body_limit();
        for size in [limit + 1, 1024 * 1024] {
            let padded = format!("{{\"a\":\"{}\"}}", "a".repeat(size - 8));
            let response = HttpResponse::send(authorized.try_clone().unwrap().body(padded)).await;
            let mismatch = error_mismatch(&response, (413, "PAYLOAD_TOO_LARGE"), None);
            failures.add(format_args!("{route}: {size} bytes"), mismatch);
        }
        let body_at_limit = format!("{{\"a\":\"{}\"}}", "a".repeat(limit - 8));
        let response = HttpResponse::send(authorized.try_clone().unwrap().body(body_at_limit)).await;
        let expected = if route.fields.is_empty() { route.accepts(response.status) } else { response.status == 400 };
        failures.check(expected, || format!("{}: a body of the maximum size returns {}", route.path, response.status));
        for body in [&b"null"[..], b"\xff", b"{"].into_iter().filter(|_| route.fields.is_empty()) {
            let response = HttpResponse::send(authorized.try_clone().unwrap().body(body)).await;
            let accepted = route.accepts(response.status);
            failures.check(accepted, || format!("{route}: {}", response.body));
        }
    }
    failures.assert_none();
}
