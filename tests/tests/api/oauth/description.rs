//! The OpenAPI document and the API reference describe the OAuth endpoints.

use countersign_tests::{description, tools};
use std::collections::BTreeSet;

#[test]
fn the_api_reference_lists_the_endpoints_of_the_openapi_document() {
    let openapi = description::openapi();
    let is_limited = |responses: &serde_json::Value| responses["default"]["headers"].get("RateLimit").is_some();
    let described: BTreeSet<_> = description::operations(&openapi)
        .filter(|(_, path, _)| path.starts_with("/oauth/"))
        .map(|(method, path, operation)| (method, path.clone(), is_limited(&operation["responses"])))
        .collect();
    let page = std::fs::read_to_string(tools::root().join("docs/use/api.md")).unwrap();
    let (_, section) = page.split_once("\n## OAuth routes\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let rows = section.lines().filter(|line| line.contains("| /oauth/"));
    let listed: BTreeSet<_> = rows
        .map(|row| {
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            (cells[1].to_owned(), cells[2].to_owned(), cells[4] != "free")
        })
        .collect();
    assert_eq!(listed, described, "left: docs/use/api.md, right: the OpenAPI document");
}
