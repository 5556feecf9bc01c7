//! An example for every body that has none, put together of the examples of its words.

use serde_json::{Map, Value};
use utoipa::openapi::{Components, Content, RefOr, Schema, path::Operation, schema::ArrayItems};

/// Adds examples to whatever the operation takes and answers.
pub fn add(operation: &mut Operation, words: &Components) {
    if let Some(RefOr::T(body)) = &mut operation.request_body {
        body.content.values_mut().for_each(|content| fill(content, words));
    }
    for answer in operation.responses.responses.values_mut() {
        if let RefOr::T(answer) = answer {
            answer.content.values_mut().for_each(|content| fill(content, words));
        }
    }
}

fn fill(content: &mut RefOr<Content>, words: &Components) {
    let RefOr::T(content) = content else { return };
    if content.example.is_none() && content.examples.is_empty() {
        content.example = content.schema.as_ref().and_then(|schema| of(schema, words));
    }
}

/// What a value of this form may look like.
fn of(form: &RefOr<Schema>, words: &Components) -> Option<Value> {
    match form {
        RefOr::Ref(link) => of(words.schemas.get(link.ref_location.rsplit('/').next()?)?, words),
        RefOr::T(Schema::Object(object)) => {
            let own =
                object.examples.first().or(object.example.as_ref()).or_else(|| object.enum_values.as_ref()?.first());
            own.cloned().or_else(|| {
                let fields = object.properties.iter().map(|(name, field)| Some((name.clone(), of(field, words)?)));
                let fields: Map<_, _> = fields.flatten().collect();
                (!fields.is_empty()).then_some(Value::Object(fields))
            })
        }
        RefOr::T(Schema::Array(array)) => match &array.items {
            ArrayItems::RefOrSchema(item) => Some(Value::Array(of(item, words).into_iter().collect())),
            ArrayItems::False => None,
        },
        // Of what may be null, what is not; of what is put together, all.
        RefOr::T(Schema::OneOf(either)) => either.items.iter().find_map(|item| of(item, words)),
        RefOr::T(Schema::AllOf(all)) => {
            let parts = all.items.iter().filter_map(|item| of(item, words));
            let fields = parts.filter_map(|part| if let Value::Object(fields) = part { Some(fields) } else { None });
            Some(Value::Object(fields.flatten().collect()))
        }
        RefOr::T(_) => None,
    }
}
