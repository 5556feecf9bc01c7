//! Bad input at every door: the answer is the error of the specification or a denial, never a fault of ours,
//! never an allow.
//!
//! `routes` says what doors there are, so a new one is tried in every way by one more entry there; docs/api.md says
//! the same to people, and which errors may come: `contract` reads it.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a bad input that cannot be made ends the test")]

mod bodies;
mod cancelled;
mod checks;
mod claims;
mod contract;
mod credentials;
mod logs;
mod paths;
mod refusals;
mod routes;
mod signer;
mod stage;
mod streams;
mod wire;

use countersign_tests::tools;
use std::collections::BTreeSet;

#[test]
fn every_route_of_the_router_is_in_the_table() {
    let source = std::fs::read_to_string(tools::root().join("control-plane/src/http/router.rs")).unwrap();
    let here: BTreeSet<_> =
        routes::ROUTES.iter().map(|route| (route.method.to_owned(), route.path.to_owned())).collect();
    assert_eq!(here, routes::in_router(&source), "left: the table in routes.rs, right: router.rs");
    let planted =
        ".route(\n            \"/planted\",\n            get(a::get).patch(b),\n        )\n        .fallback(";
    let found = routes::in_router(&source.replace(".fallback(", planted));
    let more: Vec<_> = found.difference(&here).map(|(method, path)| format!("{method} {path}")).collect();
    assert_eq!(more, ["GET /planted", "PATCH /planted"], "a route that is missing in the table is seen");
}
