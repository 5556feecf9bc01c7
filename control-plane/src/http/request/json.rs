//! Parses JSON objects and finds duplicate names. We refuse these, because another parser of the same bytes could use the other
//! value.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, fmt};

/// A JSON object, and its fields that are or contain duplicates.
#[derive(Default)]
pub struct JsonObject {
    /// The fields. A duplicate name has its last value.
    pub fields: Map<String, Value>,
    /// An error message for each field that occurs twice, or contains an object with a duplicate name.
    pub duplicates: BTreeMap<String, &'static str>,
}

/// A JSON value, and whether an object in it has a duplicate name.
struct JsonValue {
    value: Value,
    has_duplicates: bool,
}

impl<'de> Deserialize<'de> for JsonObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor)
    }
}

impl<'de> Deserialize<'de> for JsonValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = JsonObject;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonObject, A::Error> {
        let mut object = JsonObject::default();
        while let Some((name, JsonValue { value, has_duplicates })) = map.next_entry::<String, JsonValue>()? {
            if has_duplicates {
                object.duplicates.insert(name.clone(), "must not contain a duplicate name");
            }
            if object.fields.insert(name.clone(), value).is_some() {
                object.duplicates.insert(name, "must not occur twice");
            }
        }
        Ok(object)
    }
}

struct ValueVisitor;

impl From<Value> for JsonValue {
    fn from(value: Value) -> Self {
        Self { value, has_duplicates: false }
    }
}

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = JsonValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_unit<E>(self) -> Result<JsonValue, E> {
        Ok(Value::Null.into())
    }

    fn visit_bool<E>(self, value: bool) -> Result<JsonValue, E> {
        Ok(Value::from(value).into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<JsonValue, E> {
        Ok(Value::from(value).into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<JsonValue, E> {
        Ok(Value::from(value).into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<JsonValue, E> {
        Ok(Value::from(value).into())
    }

    fn visit_str<E>(self, value: &str) -> Result<JsonValue, E> {
        Ok(Value::from(value).into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<JsonValue, A::Error> {
        let (mut values, mut any_duplicates) = (Vec::new(), false);
        while let Some(JsonValue { value, has_duplicates }) = items.next_element()? {
            values.push(value);
            any_duplicates |= has_duplicates;
        }
        Ok(JsonValue { value: values.into(), has_duplicates: any_duplicates })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<JsonValue, A::Error> {
        let JsonObject { fields, duplicates } = ObjectVisitor.visit_map(map)?;
        Ok(JsonValue { value: fields.into(), has_duplicates: !duplicates.is_empty() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_to_the_same_value_as_serde_json() {
        let text =
            r#"{"a":null,"b":[true,-1,18446744073709551615,1.5,1e300,"\u00e9\n"],"c":{"d":{"e":[{}]}},"f":-0.0}"#;
        let object: JsonObject = serde_json::from_str(text).unwrap();
        assert_eq!(Value::Object(object.fields), serde_json::from_str::<Value>(text).unwrap());
        assert!(object.duplicates.is_empty());
    }

    #[test]
    fn finds_duplicate_names_at_any_depth() {
        let text = r#"{"a":1,"b":{"x":1,"x":1},"c":[0,[{"y":{"z":1,"z":2}}]],"a":2,"d":{"x":[{"x":1},{"x":1}]}}"#;
        let object: JsonObject = serde_json::from_str(text).unwrap();
        let names: Vec<_> = object.duplicates.keys().map(String::as_str).collect();
        assert_eq!(names, ["a", "b", "c"]);
    }
}
