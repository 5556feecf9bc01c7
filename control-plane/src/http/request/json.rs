//! JSON whose names are counted: where one stands twice in an object, two readers could disagree on its value.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, fmt};

/// A JSON object, and which of its fields are ambiguous.
#[derive(Default)]
pub struct Object {
    /// The fields.
    pub fields: Map<String, Value>,
    /// What is wrong with a field whose name stands twice, or that holds such a name.
    pub ambiguous: BTreeMap<String, &'static str>,
}

/// Any JSON, and whether a name stands twice somewhere in it.
struct Any {
    value: Value,
    ambiguous: bool,
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ReadObject)
    }
}

impl<'de> Deserialize<'de> for Any {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ReadAny)
    }
}

struct ReadObject;

impl<'de> Visitor<'de> for ReadObject {
    type Value = Object;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
        let mut object = Object::default();
        while let Some((name, Any { value, ambiguous })) = map.next_entry::<String, Any>()? {
            if ambiguous {
                object.ambiguous.insert(name.clone(), "must not hold a name twice");
            }
            if object.fields.insert(name.clone(), value).is_some() {
                object.ambiguous.insert(name, "must not stand twice");
            }
        }
        Ok(object)
    }
}

struct ReadAny;

impl From<Value> for Any {
    fn from(value: Value) -> Self {
        Self { value, ambiguous: false }
    }
}

impl<'de> Visitor<'de> for ReadAny {
    type Value = Any;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_unit<E>(self) -> Result<Any, E> {
        Ok(Value::Null.into())
    }

    fn visit_bool<E>(self, value: bool) -> Result<Any, E> {
        Ok(Value::from(value).into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Any, E> {
        Ok(Value::from(value).into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Any, E> {
        Ok(Value::from(value).into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Any, E> {
        Ok(Value::from(value).into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Any, E> {
        Ok(Value::from(value).into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Any, A::Error> {
        let (mut values, mut any_ambiguous) = (Vec::new(), false);
        while let Some(Any { value, ambiguous }) = items.next_element()? {
            values.push(value);
            any_ambiguous |= ambiguous;
        }
        Ok(Any { value: values.into(), ambiguous: any_ambiguous })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Any, A::Error> {
        let Object { fields, ambiguous } = ReadObject.visit_map(map)?;
        Ok(Any { value: fields.into(), ambiguous: !ambiguous.is_empty() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_what_the_library_reads() {
        let text =
            r#"{"a":null,"b":[true,-1,18446744073709551615,1.5,1e300,"\u00e9\n"],"c":{"d":{"e":[{}]}},"f":-0.0}"#;
        let object: Object = serde_json::from_str(text).unwrap();
        assert_eq!(Value::Object(object.fields), serde_json::from_str::<Value>(text).unwrap());
        assert!(object.ambiguous.is_empty());
    }

    #[test]
    fn a_name_that_stands_twice_is_found_at_any_depth() {
        let text = r#"{"a":1,"b":{"x":1,"x":1},"c":[0,[{"y":{"z":1,"z":2}}]],"a":2,"d":{"x":[{"x":1},{"x":1}]}}"#;
        let object: Object = serde_json::from_str(text).unwrap();
        let names: Vec<_> = object.ambiguous.keys().map(String::as_str).collect();
        assert_eq!(names, ["a", "b", "c"]);
    }
}
