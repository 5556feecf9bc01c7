//! Fuzz tests of body parsing: any input either parses to the values in the body, or is refused with an error that names the
//! invalid fields. Nothing panics.

use super::*;
use crate::domain::{
    service::KeyScope,
    text::{Description, DisplayName, EmailAddress, Metadata},
};
use axum::http::StatusCode;
use countersign_identity::{AgentStatus, P256PublicKey, Permission, RoleName, Timestamp};
use countersign_mangle::{any_bytes, any_json, any_text, cases_divided_by, mutated_bytes, mutated_text};
use countersign_process::format_rfc3339;
use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::json;

/// The fields whose values the tests compare. `read_all_fields` also parses six others.
#[derive(Debug)]
struct AllFieldTypes {
    name: DisplayName,
    email: Option<EmailAddress>,
    description: Option<Description>,
    metadata: Option<Metadata>,
    permissions: Option<Vec<Permission>>,
    at: Option<Timestamp>,
}

fn read_all_fields(fields: &mut BodyFields) -> Option<AllFieldTypes> {
    let name = fields.required("name");
    let (email, description) = (fields.optional("email"), fields.optional("description"));
    let (metadata, permissions) = (fields.optional("metadata"), fields.optional("permissions"));
    let (at, text, flag) = (fields.optional("at"), fields.optional::<String>("text"), fields.optional::<bool>("flag"));
    let (role, key) = (fields.optional::<RoleName>("role"), fields.optional::<P256PublicKey>("key"));
    let (scope, status) = (fields.optional::<KeyScope>("scope"), fields.optional::<AgentStatus>("status"));
    let (_, _, _, _, _, _) = (text?, flag?, role?, key?, scope?, status?);
    Some(AllFieldTypes {
        name: name?,
        email: email?,
        description: description?,
        metadata: metadata?,
        permissions: permissions?,
        at: at?,
    })
}

const FIELDS: [&str; 12] =
    ["name", "email", "description", "metadata", "permissions", "at", "text", "flag", "role", "key", "scope", "status"];

fn valid_body() -> Value {
    json!({
        "name": "Größe", "email": "a@b.example", "description": "", "metadata": { "a": [1.5, null] },
        "permissions": ["b", "a", "b"], "at": "2030-01-31T12:00:00+01:00", "text": "x", "flag": true, "role": "reader",
        "key": null, "scope": "sync", "status": "active",
    })
}

fn parse(bytes: &[u8]) -> Result<AllFieldTypes, ApiError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let request = Request::new(Body::from(bytes.to_vec()));
    runtime.block_on(BodyFields::from_request(request, &()))?.parse(read_all_fields)
}

/// Checks that the error is a validation error in the error format of the API.
fn assert_validation_error(error: ApiError) -> Result<(), TestCaseError> {
    let body = serde_json::to_value(error.body()).unwrap();
    prop_assert_eq!(&body["error"]["code"], "VALIDATION_ERROR");
    let message = body["error"]["message"].as_str().unwrap_or_default();
    prop_assert!(!message.is_empty());
    let fields = body["error"]["details"]["fields"].as_object();
    prop_assert!(fields.is_some_and(|fields| fields.values().all(Value::is_string)), "{}", body);
    prop_assert_eq!(error.into_response().status(), StatusCode::BAD_REQUEST);
    Ok(())
}

fn assert_parsed_or_refused(bytes: &[u8]) -> Result<(), TestCaseError> {
    match parse(bytes) {
        Err(error) => assert_validation_error(error),
        Ok(fields) => assert_matches_body(&fields, &serde_json::from_slice(bytes).unwrap()),
    }
}

fn assert_matches_body(fields: &AllFieldTypes, body: &Value) -> Result<(), TestCaseError> {
    let AllFieldTypes { name, email, description, metadata, permissions, at } = fields;
    prop_assert!(body.as_object().unwrap().keys().all(|field| FIELDS.contains(&field.as_str())));
    prop_assert_eq!(&json!(name.as_str()), &body["name"]);
    prop_assert_eq!(&json!(email.as_ref().map(EmailAddress::as_str)), &body["email"]);
    prop_assert_eq!(&json!(description.as_ref().map(Description::as_str)), &body["description"]);
    prop_assert_eq!(&json!(metadata), &body["metadata"]);
    if let Some(permissions) = permissions {
        prop_assert!(permissions.is_sorted() && body["permissions"].as_array().unwrap().len() >= permissions.len());
        prop_assert!(
            body["permissions"]
                .as_array()
                .unwrap()
                .iter()
                .all(|name| permissions.iter().any(|permission| permission.as_str() == name))
        );
    }
    prop_assert_eq!(at.is_some(), body["at"].is_string());
    // Responses repeat the time from the body, so RFC 3339 must be able to express it.
    prop_assert!(at.is_none_or(|at| format_rfc3339(at).ends_with('Z')));
    Ok(())
}

proptest! {
    #![proptest_config(cases_divided_by(1))]

    #[test]
    fn any_bytes_parse_or_are_refused(bytes in prop_oneof![any_bytes(), mutated_bytes(valid_body().to_string().as_bytes()), any_text().prop_map(String::into_bytes)]) {
        assert_parsed_or_refused(&bytes)?;
    }

    #[test]
    fn any_json_parses_or_is_refused(json in any_json(), field in select(&FIELDS[..]), value in any_json(), extra_field in any_text()) {
        assert_parsed_or_refused(json.to_string().as_bytes())?;
        let mut body = valid_body();
        body[field] = value.clone();
        assert_parsed_or_refused(body.to_string().as_bytes())?;
        body[&extra_field] = value;
        assert_parsed_or_refused(body.to_string().as_bytes())?;
    }

    #[test]
    fn any_text_in_a_field_parses_or_is_refused(
        texts in vec((select(&FIELDS[..]), prop_oneof![
            any_text(), mutated_text("first.last@host.example"), mutated_text("2030-01-31T12:00:00.5-23:59"), mutated_text("-009999-01-01T00:00:00Z"),
        ]), 1..4)
    ) {
        let mut body = valid_body();
        for (field, text) in texts {
            body[field] = json!(text);
        }
        assert_parsed_or_refused(body.to_string().as_bytes())?;
    }

    #[test]
    fn refuses_a_duplicate_field(field in select(&FIELDS[..])) {
        let duplicated = valid_body().to_string().replacen('{', &format!("{{\"{field}\":null,"), 1);
        prop_assert!(parse(duplicated.as_bytes()).is_err());
    }
}

#[test]
fn parses_the_valid_body() {
    assert_eq!(parse(valid_body().to_string().as_bytes()).unwrap().permissions.unwrap().len(), 2);
}

#[test]
fn refuses_deeply_nested_bodies() {
    for open in ["[", "{\"a\":"] {
        assert_validation_error(parse(open.repeat(12_000).as_bytes()).unwrap_err()).unwrap();
        let body = format!("{{\"name\":\"a\",\"metadata\":{}", open.repeat(10_000));
        assert_validation_error(parse(body.as_bytes()).unwrap_err()).unwrap();
    }
}
