//! Verifies the signature of an access token: format, key, signature.
//!
//! Invariant: only [`UnverifiedToken::verify`] creates a [`SignedToken`]. The claims were correct
//! when the token was issued; [`crate::evaluation`] decides what they grant now.

use crate::{Claims, KeySet, Kid, Reason, Refusal};
use base64::{DecodeSliceError, Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, Header, Validation};

/// The maximum length of a token in bytes. The longest token that the control plane issues has about 23 KiB: 4 KiB of
/// permissions, and 2 KiB of role names in `roles` and again in `until`, escaped as JSON and encoded in base64.
pub const MAX_TOKEN_BYTES: usize = 32 * 1024;

/// The length of an ES256 signature in bytes (RFC 7518, section 3.4).
const SIGNATURE_BYTES: usize = 64;

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
    /// Parses the header. `alg` must be `ES256` and `typ` must be `at+jwt` (RFC 9068). The header must have a `kid`, and no
    /// member that names another key or changes how the payload is decoded.
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

    /// Verifies the signature and parses the claims. It does not use `jsonwebtoken`, which would parse the header and the claims
    /// twice, and the key again for each token.
    pub fn verify(self, keys: &KeySet) -> Result<SignedToken, Refusal> {
        let key = keys.get(&self.kid).ok_or(Reason::TokenKeyUnknown)?;
        let (signed, signature) = self.text.rsplit_once('.').ok_or(Reason::TokenMalformed)?;
        let (_header, claims) = signed.split_once('.').ok_or(Reason::TokenMalformed)?;
        let mut buffer = [0; SIGNATURE_BYTES];
        let signature = match URL_SAFE_NO_PAD.decode_slice(signature, &mut buffer) {
            Ok(length) => buffer.get(..length).unwrap_or_default(),
            // A text that is too long for a signature counts as an invalid one: the empty signature never verifies.
            Err(DecodeSliceError::OutputSliceTooSmall) => &[],
            Err(DecodeSliceError::DecodeError(_)) => return Err(Reason::TokenMalformed.into()),
        };
        key.verify_sig(signed.as_bytes(), signature).map_err(|_| Reason::TokenSignatureInvalid)?;
        let claims = URL_SAFE_NO_PAD.decode(claims).map_err(|_| Reason::TokenMalformed)?;
        let claims = serde_json::from_slice(&claims).map_err(|_| Reason::TokenClaimsInvalid)?;
        Ok(SignedToken { kid: self.kid, claims })
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

/// True if no header member names another key or changes how the payload is decoded. The control plane never writes such a member, but
/// another JWT library could apply it. Unknown members are ignored (RFC 7515), so that new ones can be added.
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

/// Makes `jsonwebtoken` check only the signature. This crate checks the claims, because `jsonwebtoken` would compare times with the
/// system clock.
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
