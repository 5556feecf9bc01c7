//! The OpenAPI document lists every route, with the tested fields and the errors of docs/use/api.md.

use super::{
    contract::{RouteRow, route_row},
    fixture::assert_none,
    routes::{Field, FieldType, ROUTES},
};
use countersign_tests::description::{operations, read, resolve};
use serde_json::Value;
use std::collections::BTreeSet;

#[test]
fn every_documented_route_is_in_the_table() {
    let tested: BTreeSet<_> = ROUTES.iter().map(|route| (route.method.to_owned(), route.path.to_owned())).collect();
    let described = read();
    let documented: BTreeSet<_> = operations(&described).map(|(method, path, _)| (method, path.to_owned())).collect();
    assert_eq!(tested, documented, "left: the table in routes.rs, right: the OpenAPI document");
}

#[test]
fn described_body_fields_match_the_table() {
    let description = read();
    let mut faults = Vec::new();
    for (method, path, operation) in operations(&description) {
        let route = ROUTES.iter().find(|route| route.method == method && route.path == path).unwrap();
        let body = &operation["requestBody"]["content"]["application/json"]["schema"];
        let body = resolve(&description, body);
        if route.fields.is_empty() {
            faults.extend(
                (!body.is_null()).then(|| format!("{method} {path}: describes a body that the route does not read")),
            );
            continue;
        }
        let required: BTreeSet<_> =
            body["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let described: BTreeSet<_> = body["properties"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, form)| (name.as_str(), required.contains(name.as_str()), type_of(&description, form)))
            .collect();
        let tested: BTreeSet<_> =
            route.fields.iter().map(|field| (field.name, field.required, tested_type(field))).collect();
        let right = described == tested && body["additionalProperties"] == false;
        faults.extend((!right).then(|| format!("{method} {path}: described {described:?}, tested {tested:?}")));
    }
    assert_none(&faults);
}

/// The type of a field. Alternatives are null or have the same type.
fn type_of<'a>(description: &'a Value, form: &'a Value) -> &'a str {
    let form = resolve(description, form);
    match form["oneOf"].as_array() {
        Some(either) => type_of(description, &either[0]),
        None => form["type"].as_str().unwrap_or_default(),
    }
}

fn tested_type(field: &Field) -> &'static str {
    match field.kind {
        FieldType::SingleLine | FieldType::MultiLine => "string",
        FieldType::Boolean => "boolean",
        FieldType::Number => "number",
        FieldType::Object => "object",
        FieldType::Array => "array",
    }
}

#[test]
fn described_errors_match_the_documentation() {
    let description = read();
    let mut faults = Vec::new();
    for (method, path, operation) in operations(&description) {
        let RouteRow { errors, good, .. } = route_row(&method, path);
        let responses = operation["responses"].as_object().unwrap();
        let examples = responses.values().filter_map(|response| {
            response["content"]["application/json"]["examples"].as_object().map(serde_json::Map::values)
        });
        let described: BTreeSet<_> =
            examples.flatten().filter_map(|example| example["value"]["error"]["code"].as_str()).collect();
        let missing: Vec<_> = errors.iter().filter(|code| !described.contains(code.as_str())).collect();
        let surplus: Vec<_> = described.iter().filter(|code| !route_row(&method, path).allows(code)).collect();
        let limited = route_row(&method, path).category.is_some() == responses.contains_key("429");
        let right = limited && missing.is_empty() && surplus.is_empty() && responses.contains_key(&good.to_string());
        let message = || format!("{method} {path}: described {described:?}, documented {errors:?} and {good}");
        faults.extend((!right).then(message));
    }
    assert_none(&faults);
}
