//! People: verification of their tokens.
//!
//! Neighbours: `http` asks who a bearer token belongs to. The rule of the room: a token is verified
//! against the key of the issuer it names, or not at all; there is no fallback to another key.

mod operator;

pub use operator::{OperatorError, OperatorKey};
