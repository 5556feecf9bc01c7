//! `/oauth/*`: the endpoints of OAuth 2.0, for clients that do not know our challenges. They issue, verify and revoke the same tokens
//! with the same operations.

pub mod authorize;
pub mod introspect;
pub mod revoke;
pub mod token;
