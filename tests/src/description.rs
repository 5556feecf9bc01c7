//! The OpenAPI document that the control plane prints.

use crate::tools;
use serde_json::Value;
use std::process::Command;

/// The shell command that updates `docs/openapi.json`.
pub const UPDATE_COMMAND: &str = "target/debug/countersign-control-plane openapi > docs/openapi.json";

/// The HTTP methods that a path item may define.
const METHODS: [&str; 5] = ["get", "put", "post", "patch", "delete"];

/// Runs `countersign-control-plane openapi` and returns its output.
pub fn print() -> String {
    let command = Command::new(tools::binary("countersign-control-plane")).arg("openapi").output();
    let output = command.expect("the binary runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("the text is UTF-8")
}

/// The OpenAPI document as JSON.
pub fn openapi() -> Value {
    serde_json::from_str(&print()).expect("the text is JSON")
}

/// Every operation as method in upper case, path and operation object.
pub fn operations(description: &Value) -> impl Iterator<Item = (String, &String, &Value)> {
    let paths = description["paths"].as_object().expect("the document has paths");
    paths.iter().flat_map(|(path, item)| {
        METHODS.iter().filter_map(move |method| Some((method.to_uppercase(), path, item.get(method)?)))
    })
}

/// Follows `$ref` to a component.
pub fn resolve<'a>(description: &'a Value, value: &'a Value) -> &'a Value {
    match value["$ref"].as_str().and_then(|reference| reference.strip_prefix('#')) {
        Some(pointer) => resolve(description, description.pointer(pointer).expect(pointer)),
        None => value,
    }
}
