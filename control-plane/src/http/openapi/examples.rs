//! Adds examples to the OpenAPI description. A body without an example gets one that consists of the examples of its fields.
//! Endpoints with a request body also get examples of the errors that depend on this body.

use super::errors::add_example;
use crate::http::{error::ApiError, request::body::body_limit};
use serde_json::{Map, Value};
use utoipa::openapi::{
    Components, Content, RefOr, Schema,
    path::Operation,
    request_body::RequestBody,
    schema::{ArrayItems, Object},
};

/// Adds examples to the request body and to the responses of an operation.
pub fn add(path: &str, operation: &mut Operation, components: &Components) {
    // We clone the body, because `add_examples_of_body_errors` reads the body and changes `operation`.
    if let Some(RefOr::T(body)) = operation.request_body.clone() {
        add_examples_of_body_errors(path, operation, &body, components);
    }
    if let Some(RefOr::T(body)) = &mut operation.request_body {
        body.content.values_mut().for_each(|content| fill_missing_example(content, components));
    }
    for response in operation.responses.responses.values_mut() {
        if let RefOr::T(response) = response {
            for content in response.content.values_mut() {
                fill_missing_example(content, components);
                if let RefOr::T(Content { example: Some(example), .. }) = content
                    && path.starts_with("/webhooks")
                {
                    clear_service_id(example);
                }
            }
        }
    }
}

/// Sets `serviceId` to null: webhooks of the whole deployment have the same schema as those of a service, but belong to no service.
/// The payload of an event keeps the service of the event.
fn clear_service_id(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                if name == "serviceId" {
                    *field = Value::Null;
                } else if name != "payload" {
                    clear_service_id(field);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(clear_service_id),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Adds examples of two errors: the body is larger than the limit of the path, and a field of the body is invalid. The example of
/// an invalid field is left out if the endpoint declares one.
fn add_examples_of_body_errors(path: &str, operation: &mut Operation, body: &RequestBody, components: &Components) {
    add_error_example(operation, ApiError::too_large(body_limit(path)));
    let Some(fields) = body.content.get("application/json").and_then(|content| content_fields(content, components))
    else {
        return;
    };
    if has_field_error(operation, fields) {
        return;
    }
    let required = fields.required.first();
    let (field, message) = match required {
        Some(field) => (field.as_str(), "is required"),
        None => ("unknownField", "is not a known field"),
    };
    add_error_example(operation, ApiError::invalid_field(field, message));
}

fn add_error_example(operation: &mut Operation, error: ApiError) {
    if let Some(RefOr::T(response)) = operation.responses.responses.get_mut(error.status().as_str()) {
        add_example(response, error);
    }
}

/// Whether the endpoint declares an example of an error in one of the fields: [`add_example`] appends the field to the name.
fn has_field_error(operation: &Operation, fields: &Object) -> bool {
    let Some(RefOr::T(response)) = operation.responses.responses.get("400") else { return false };
    let contents = response.content.values();
    let contents = contents.filter_map(|content| if let RefOr::T(content) = content { Some(content) } else { None });
    let mut names = contents.flat_map(|content| content.examples.keys());
    names.any(|name| name.rsplit('.').next().is_some_and(|field| fields.properties.contains_key(field)))
}

fn content_fields<'a>(content: &'a RefOr<Content>, components: &'a Components) -> Option<&'a Object> {
    let RefOr::T(content) = content else { return None };
    match resolve(content.schema.as_ref()?, components)? {
        Schema::Object(object) => Some(object),
        _ => None,
    }
}

/// The schema, or the component to which it refers.
fn resolve<'a>(schema: &'a RefOr<Schema>, components: &'a Components) -> Option<&'a Schema> {
    match schema {
        RefOr::T(schema) => Some(schema),
        RefOr::Ref(reference) => {
            let name = reference.ref_location.rsplit('/').next()?;
            resolve(components.schemas.get(name)?, components)
        }
    }
}

fn fill_missing_example(content: &mut RefOr<Content>, components: &Components) {
    let RefOr::T(content) = content else { return };
    if content.example.is_none() && content.examples.is_empty() {
        content.example = content.schema.as_ref().and_then(|schema| example_value(schema, components));
    }
}

fn example_value(schema: &RefOr<Schema>, components: &Components) -> Option<Value> {
    match resolve(schema, components)? {
        Schema::Object(object) => {
            let own =
                object.examples.first().or(object.example.as_ref()).or_else(|| object.enum_values.as_ref()?.first());
            own.cloned().or_else(|| {
                let fields = object
                    .properties
                    .iter()
                    .map(|(name, field)| Some((name.clone(), example_value(field, components)?)));
                let fields: Map<_, _> = fields.flatten().collect();
                (!fields.is_empty()).then_some(Value::Object(fields))
            })
        }
        Schema::Array(array) if array.example.is_some() => array.example.clone(),
        Schema::Array(array) => match &array.items {
            ArrayItems::RefOrSchema(item) => Some(Value::Array(example_value(item, components).into_iter().collect())),
            ArrayItems::False => None,
        },
        // Only nullable values use `oneOf`, so the first alternative with an example is the one that is not null.
        Schema::OneOf(one_of) => one_of.items.iter().find_map(|item| example_value(item, components)),
        Schema::AllOf(all_of) => {
            let parts = all_of.items.iter().filter_map(|item| example_value(item, components));
            let fields = parts.filter_map(|part| if let Value::Object(fields) = part { Some(fields) } else { None });
            Some(Value::Object(fields.flatten().collect()))
        }
        _ => None,
    }
}
