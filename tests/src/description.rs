//! The OpenAPI document that the control plane prints.

use crate::tools;
use serde_json::Value;
use std::process::Command;

/// The command that updates the copy in the repository.
pub const COMMAND: &str = "target/debug/countersign-control-plane openapi > docs/openapi.json";

/// The operations of a path item, in lower case.
const METHODS: [&str; 5] = ["get", "put", "post", "patch", "delete"];

/// The output of `countersign-control-plane openapi`.
pub fn printed() -> String {
    let command = Command::new(tools::binary("countersign-control-plane")).arg("openapi").output();
    let output = command.expect("the binary runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// The OpenAPI document as JSON.
pub fn read() -> Value {
    serde_json::from_str(&printed()).expect("JSON")
}

/// Every operation with its method in upper case and its path.
pub fn operations(description: &Value) -> impl Iterator<Item = (String, &String, &Value)> {
    let paths = description["paths"].as_object().expect("paths");
    paths.iter().flat_map(|(path, item)| {
        METHODS.iter().filter_map(move |method| Some((method.to_uppercase(), path, item.get(method)?)))
    })
}

/// Follows `$ref` to a component.
pub fn resolve<'a>(description: &'a Value, value: &'a Value) -> &'a Value {
    match value["$ref"].as_str().and_then(|link| link.strip_prefix('#')) {
        Some(pointer) => resolve(description, description.pointer(pointer).expect(pointer)),
        None => value,
    }
}
