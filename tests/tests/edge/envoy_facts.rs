//! What Envoy does, as far as the sidecar relies on it: "Measured on Envoy 1.40" in the design, by the
//! numbers there. A newer Envoy that fails here has changed its mind.
//!
//! Each fact is shown with a scripted authorizer, and its consequence with the real sidecar.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test says what it expects")]

mod failure;
mod headers;
mod paths;
mod raw_headers;
mod scripted;
mod verdicts;

use scripted::{Fixture, Said};
