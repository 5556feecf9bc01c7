//! Tests that a rotation of signing keys invalidates no tokens, and that an emergency revocation invalidates every
//! token of the key.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests panic on unexpected values")]

mod commands;
mod continuous;
mod key_schedule;
mod published;
mod replicas;
mod revoked;

/// The `kid` of a token.
fn kid(token: &str) -> String {
    countersign_tests::jwt::header(token)["kid"].as_str().unwrap().to_owned()
}
