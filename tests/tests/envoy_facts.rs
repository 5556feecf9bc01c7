//! What Envoy does, as far as the sidecar relies on it: "Measured on Envoy 1.40" in the design, by the
//! numbers there. A newer Envoy that fails here has changed its mind.
//!
//! Each fact is shown with a scripted authorizer, and its consequence with the real sidecar.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test says what it expects")]

#[path = "envoy_facts/failure.rs"]
mod failure;
#[path = "envoy_facts/headers.rs"]
mod headers;
#[path = "envoy_facts/paths.rs"]
mod paths;
#[path = "envoy_facts/raw_headers.rs"]
mod raw_headers;
#[path = "envoy_facts/scripted.rs"]
mod scripted;
#[path = "envoy_facts/verdicts.rs"]
mod verdicts;

use scripted::{Said, Stage};
