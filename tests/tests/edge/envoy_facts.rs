//! Facts about Envoy that the sidecar relies on, measured on Envoy 1.40. If the test of a fact fails, a newer Envoy
//! behaves differently.
//!
//! Each fact is tested with a scripted authorizer, and its consequence with the real sidecar.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests panic on unexpected values")]

mod denials;
mod failure;
mod headers;
mod paths;
mod raw_headers;
mod scripted_authorizer;

use scripted_authorizer::{ConfigAdditions, Fixture};
