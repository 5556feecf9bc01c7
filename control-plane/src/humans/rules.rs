//! The rules that the tokens of an issuer must satisfy.

/// The rules for the tokens of one issuer.
#[derive(Debug, Clone)]
pub struct IssuerRules {
    /// The exact `iss` of the tokens.
    pub issuer: String,
    /// The value that the `aud` of the tokens must be or contain.
    pub audience: String,
    /// The claim that identifies administrators. `None` if the issuer has no administrators.
    pub admin: Option<AdminClaim>,
}

/// The claim that identifies administrators.
#[derive(Debug, Clone)]
pub struct AdminClaim {
    /// The name of the administrator claim, or a path with dots to a nested claim.
    pub name: String,
    /// The value that the claim must have or contain. Empty: the claim must be `true`.
    pub value: String,
}
