//! What an issuer's tokens must satisfy.

use super::jwk_set::JwsAlgorithm;

/// The configuration of an issuer.
#[derive(Debug, Clone)]
pub struct IssuerRules {
    /// The exact `iss` of its tokens.
    pub issuer: String,
    /// The value that the `aud` of its tokens must be or contain.
    pub audience: String,
    /// The accepted signature algorithms.
    pub algorithms: Vec<JwsAlgorithm>,
    /// The claim of administrators; `None`: the issuer has no administrators.
    pub admin: Option<AdminClaim>,
}

/// The claim that identifies administrators.
#[derive(Debug, Clone)]
pub struct AdminClaim {
    /// The name of the claim, or a path with dots.
    pub name: String,
    /// The value that the claim must be or contain; empty: `true`.
    pub value: String,
}
