//! Tests that a rotation of signing keys invalidates no tokens, and that an emergency revocation invalidates every
//! token of the key.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests panic on unexpected values")]

mod commands;
mod continuous;
mod key_schedule;
mod published;
mod replicas;
mod revoked;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::Value;

/// The `kid` of a token.
fn kid(token: &str) -> String {
    let header = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').next().unwrap()).unwrap();
    serde_json::from_slice::<Value>(&header).unwrap()["kid"].as_str().unwrap().to_owned()
}
