//! The OpenAPI document lists every route, with the tested fields and the errors of docs/use/api.md.

use super::{
    contract::{RouteRow, route_row},
    fixture::Failures,
    routes::{Field, FieldType, ROUTES, is_of_oauth},
};
use countersign_tests::description::{self, openapi, resolve};
use serde_json::Value;
use std::collections::BTreeSet;

/// The operations of the API except those of OAuth, which have other errors and bodies.
fn operations(described: &Value) -> impl Iterator<Item = (String, &String, &Value)> {
    description::operations(described).filter(|(_, path, _)| !is_of_oauth(path))
}

#[test]
fn openapi_document_lists_exactly_the_tested_routes() {
    let tested: BTreeSet<_> = ROUTES.iter().map(|route| (route.method.to_owned(), route.path.to_owned())).collect();
    let described = openapi();
    let documented: BTreeSet<_> = operations(&described).map(|(method, path, _)| (method, path.to_owned())).collect();
    assert_eq!(tested, documented, "left: the table in routes.rs, right: the OpenAPI document");
}

#[test]
fn openapi_body_fields_match_the_tested_fields() {
    let description = openapi();
    let mut failures = Failures::default();
    for (method, path, operation) in operations(&description) {
        let route = ROUTES.iter().find(|route| route.method == method && route.path == path).unwrap();
        let body = &operation["requestBody"]["content"]["application/json"]["schema"];
        let body = resolve(&description, body);
        if route.fields.is_empty() {
            failures
                .check(body.is_null(), || format!("{method} {path}: describes a body that the route does not read"));
            continue;
        }
        let required: BTreeSet<_> =
            body["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let described: BTreeSet<_> = body["properties"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, schema)| (name.as_str(), required.contains(name.as_str()), schema_type(&description, schema)))
            .collect();
        let tested: BTreeSet<_> =
            route.fields.iter().map(|field| (field.name, field.required, tested_type(field))).collect();
        let is_expected = described == tested && body["additionalProperties"] == false;
        failures.check(is_expected, || format!("{method} {path}: described {described:?}, tested {tested:?}"));
    }
    failures.assert_none();
}

/// The JSON type of a schema. The alternatives of `oneOf` have the same type or are null.
fn schema_type<'a>(description: &'a Value, schema: &'a Value) -> &'a str {
    let schema = resolve(description, schema);
    match schema["oneOf"].as_array() {
        Some(alternatives) => schema_type(description, &alternatives[0]),
        None => schema["type"].as_str().unwrap_or_default(),
    }
}

fn tested_type(field: &Field) -> &'static str {
    match field.kind {
        FieldType::SingleLine | FieldType::MultiLine => "string",
        FieldType::Boolean => "boolean",
        FieldType::Number => "number",
        FieldType::Object => "object",
        FieldType::Array | FieldType::Objects => "array",
    }
}

#[test]
fn openapi_errors_match_the_api_page() {
    let description = openapi();
    let mut failures = Failures::default();
    for (method, path, operation) in operations(&description) {
        let RouteRow { errors, success_status, .. } = route_row(&method, path);
        let responses = operation["responses"].as_object().unwrap();
        let examples = responses.values().filter_map(|response| {
            response["content"]["application/json"]["examples"].as_object().map(serde_json::Map::values)
        });
        let described: BTreeSet<_> =
            examples.flatten().filter_map(|example| example["value"]["error"]["code"].as_str()).collect();
        let missing: Vec<_> = errors.iter().filter(|code| !described.contains(code.as_str())).collect();
        let undocumented: Vec<_> = described.iter().filter(|code| !route_row(&method, path).allows(code)).collect();
        let limit_matches = route_row(&method, path).category.is_some() == responses.contains_key("429");
        let is_expected = limit_matches
            && missing.is_empty()
            && undocumented.is_empty()
            && responses.contains_key(&success_status.to_string());
        let message =
            || format!("{method} {path}: described {described:?}, documented {errors:?} and {success_status}");
        failures.check(is_expected, message);
    }
    failures.assert_none();
}
