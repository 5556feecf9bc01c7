//! Verifies the signature of an access token: format, key, signature.
//!
//! Invariant: only [`UnverifiedToken::verify`] creates a [`SignedToken`]. The claims were correct
//! when the token was issued; [`crate::evaluation`] decides what they grant now.

use crate::{Claims, KeySet, Kid, Reason, Refusal};
use jsonwebtoken::{Algorithm, Header, Validation};

/// The maximum length of a token in bytes. The longest token that the control plane issues has about 23 KiB: 4 KiB of
/// permissions, and 2 KiB of role names in `roles` and again in `until`, escaped as JSON and encoded in base64.
pub const MAX_TOKEN_BYTES: usize = 32 * 1024;

/// A well-formed token whose signature is not verified.
#[derive(Clone)]
pub struct UnverifiedToken<'a> {
    text: &'a str,
    kid: Kid,
}

/// A token whose signature was verified with a key of the key set.
#[derive(Debug, Clone)]
pub struct SignedToken {
    kid: Kid,
    claims: Claims,
}

impl<'a> UnverifiedToken<'a> {
    /// Parses the header. `alg` must be `ES256` and `typ` must be `at+jwt` (RFC 9068). The header must have a `kid`,
    /// and no member that names another key or changes how the payload is decoded.
    pub fn parse(text: &'a str) -> Result<Self, Refusal> {
        if text.len() > MAX_TOKEN_BYTES {
            return Err(Reason::TokenMalformed.into());
        }
        let header = jsonwebtoken::decode_header(text).map_err(|_| Reason::TokenMalformed)?;
        let typ = header.typ.as_deref().unwrap_or_default();
        let is_access_token = typ.eq_ignore_ascii_case("at+jwt") || typ.eq_ignore_ascii_case("application/at+jwt");
        match &header.kid {
            Some(kid) if header.alg == Algorithm::ES256 && is_access_token && has_no_overrides(&header) => {
                Ok(Self { text, kid: Kid::new(kid) })
            }
            _ => Err(Reason::TokenMalformed.into()),
        }
    }

    /// The unverified `kid` from the header.
    pub const fn kid(&self) -> &Kid {
        &self.kid
    }

    /// Verifies the signature and parses the claims.
    pub fn verify(self, keys: &KeySet) -> Result<SignedToken, Refusal> {
        let key = keys.get(&self.kid).ok_or(Reason::TokenKeyUnknown)?;
        let token = jsonwebtoken::decode::<Claims>(self.text, key, &signature_only_validation(Algorithm::ES256))
            .map_err(|error| match error.kind() {
                jsonwebtoken::errors::ErrorKind::InvalidSignature => Reason::TokenSignatureInvalid,
                jsonwebtoken::errors::ErrorKind::Json(_) => Reason::TokenClaimsInvalid,
                _ => Reason::TokenMalformed,
            })?;
        Ok(SignedToken { kid: self.kid, claims: token.claims })
    }
}

impl SignedToken {
    /// The claims of the token.
    pub const fn claims(&self) -> &Claims {
        &self.claims
    }

    /// The id of the key that signed the token. After a cache hit, check that the key set still contains this key.
    pub const fn kid(&self) -> &Kid {
        &self.kid
    }
}

/// True if no header member names another key or changes how the payload is decoded. The control plane never writes a
/// member that names another key or changes the decoding, and a different JWT library could apply such a member.
/// Unknown header members are ignored (RFC 7515), so that new members can be added.
fn has_no_overrides(header: &Header) -> bool {
    let Header {
        typ: _,
        alg: _,
        kid: _,
        cty,
        jku,
        jwk,
        x5u,
        x5c,
        x5t,
        x5t_s256,
        crit,
        enc,
        zip,
        url: _,
        nonce: _,
        extras,
    } = header;
    let names_another_key =
        jku.is_some() || jwk.is_some() || x5u.is_some() || x5c.is_some() || x5t.is_some() || x5t_s256.is_some();
    let changes_payload = cty.is_some() || enc.is_some() || zip.is_some() || extras.inner().contains_key("b64");
    !names_another_key && !changes_payload && crit.is_none()
}

/// Settings with which `jsonwebtoken` checks the signature and no claims. `jsonwebtoken` would compare times with the
/// system clock; this crate receives the time as an argument and checks the claims itself.
pub fn signature_only_validation(algorithm: Algorithm) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_nbf = false;
    validation.validate_aud = false;
    validation.leeway = 0;
    validation
}

#[cfg(test)]
mod fuzz;
