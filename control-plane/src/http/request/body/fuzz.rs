//! Whatever a body says: no panic, and fields that mean what they say or a problem that names them.

use super::*;
use axum::http::StatusCode;
use countersign_mangle::{any_bytes, any_json, any_text, cases_divided_by, mutated_bytes, mutated_text};
use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::json;

/// What a handler may ask for: every type of field there is.
#[derive(Debug)]
struct Everything {
    name: DisplayName,
    email: Option<EmailAddress>,
    description: Option<Description>,
    metadata: Option<Metadata>,
    permissions: Option<Vec<Permission>>,
    at: Option<Timestamp>,
}

fn ask(fields: &mut Fields) -> Option<Everything> {
    let name = fields.required("name");
    let (email, description) = (fields.optional("email"), fields.optional("description"));
    let (metadata, permissions) = (fields.optional("metadata"), fields.optional("permissions"));
    let (at, text, flag) = (fields.optional("at"), fields.optional::<String>("text"), fields.optional::<bool>("flag"));
    let (role, key) = (fields.optional::<RoleName>("role"), fields.optional::<P256PublicKey>("key"));
    let (scope, status) = (fields.optional::<KeyScope>("scope"), fields.optional::<AgentStatus>("status"));
    let (_, _, _, _, _, _) = (text?, flag?, role?, key?, scope?, status?);
    Some(Everything {
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

fn good() -> Value {
    json!({
        "name": "Größe", "email": "a@b.example", "description": "", "metadata": { "a": [1.5, null] },
        "permissions": ["b", "a", "b"], "at": "2030-01-31T12:00:00+01:00", "text": "x", "flag": true, "role": "reader",
        "key": null, "scope": "sync", "status": "active",
    })
}

fn read(bytes: &[u8]) -> Result<Everything, ApiError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let request = Request::new(Body::from(bytes.to_vec()));
    runtime.block_on(Fields::from_request(request, &()))?.parse(ask)
}

/// A refusal in the shape of the specification, which names fields only.
fn is_a_refusal(error: ApiError) -> Result<(), TestCaseError> {
    let body = serde_json::to_value(error.body()).unwrap();
    prop_assert_eq!(&body["error"]["code"], "VALIDATION_ERROR");
    let message = body["error"]["message"].as_str().unwrap_or_default();
    prop_assert!(!message.is_empty());
    let fields = body["error"]["details"]["fields"].as_object();
    prop_assert!(fields.is_some_and(|fields| fields.values().all(Value::is_string)), "{}", body);
    prop_assert_eq!(error.into_response().status(), StatusCode::BAD_REQUEST);
    Ok(())
}

fn is_read_or_refused(bytes: &[u8]) -> Result<(), TestCaseError> {
    match read(bytes) {
        Err(error) => is_a_refusal(error),
        Ok(everything) => says_what_the_body_says(&everything, &serde_json::from_slice(bytes).unwrap()),
    }
}

fn says_what_the_body_says(read: &Everything, body: &Value) -> Result<(), TestCaseError> {
    let Everything { name, email, description, metadata, permissions, at } = read;
    prop_assert!(body.as_object().unwrap().keys().all(|field| FIELDS.contains(&field.as_str())));
    prop_assert_eq!(&json!(name.as_str()), &body["name"]);
    prop_assert_eq!(&json!(email.as_ref().map(EmailAddress::as_str)), &body["email"]);
    prop_assert_eq!(&json!(description.as_ref().map(Description::as_str)), &body["description"]);
    prop_assert_eq!(&json!(metadata.as_ref().map(Metadata::as_map)), &body["metadata"]);
    if let Some(permissions) = permissions {
        prop_assert!(permissions.is_sorted() && body["permissions"].as_array().unwrap().len() >= permissions.len());
        prop_assert!(
            body["permissions"].as_array().unwrap().iter().all(|said| permissions.iter().any(|it| it.as_str() == said))
        );
    }
    prop_assert_eq!(at.is_some(), body["at"].is_string());
    // It is shown again, so it must be an instant that can be written.
    prop_assert!(at.is_none_or(|at| !crate::domain::timestamp::format_rfc3339(at).is_empty()));
    Ok(())
}

proptest! {
    #![proptest_config(cases_divided_by(1))]

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop_oneof![any_bytes(), mutated_bytes(good().to_string().as_bytes()), any_text().prop_map(String::into_bytes)]) {
        is_read_or_refused(&bytes)?;
    }

    #[test]
    fn any_json_is_read_or_refused(anything in any_json(), field in select(&FIELDS[..]), value in any_json(), more in any_text()) {
        is_read_or_refused(anything.to_string().as_bytes())?;
        let mut body = good();
        body[field] = value.clone();
        is_read_or_refused(body.to_string().as_bytes())?;
        body[&more] = value;
        is_read_or_refused(body.to_string().as_bytes())?;
    }

    #[test]
    fn any_text_in_a_field_is_read_or_refused(
        texts in vec((select(&FIELDS[..]), prop_oneof![
            any_text(), mutated_text("first.last@host.example"), mutated_text("2030-01-31T12:00:00.5-23:59"), mutated_text("-009999-01-01T00:00:00Z"),
        ]), 1..4)
    ) {
        let mut body = good();
        for (field, text) in texts {
            body[field] = json!(text);
        }
        is_read_or_refused(body.to_string().as_bytes())?;
    }

    #[test]
    fn a_field_that_stands_twice_is_refused_wherever_it_stands(field in select(&FIELDS[..])) {
        let twice = good().to_string().replacen('{', &format!("{{\"{field}\":null,"), 1);
        prop_assert!(read(twice.as_bytes()).is_err());
    }
}

#[test]
fn the_good_one_is_good() {
    assert_eq!(read(good().to_string().as_bytes()).unwrap().permissions.unwrap().len(), 2);
}

#[test]
fn what_is_nested_beyond_reason_is_refused() {
    for open in ["[", "{\"a\":"] {
        is_a_refusal(read(open.repeat(12_000).as_bytes()).unwrap_err()).unwrap();
        let body = format!("{{\"name\":\"a\",\"metadata\":{}", open.repeat(10_000));
        is_a_refusal(read(body.as_bytes()).unwrap_err()).unwrap();
    }
}
