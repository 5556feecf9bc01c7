//! Checks that a request to the token endpoint comes from the program that `countersign agent exec` started: it must have the client id
//! and the client secret (RFC 6749, section 2.3.1), in the header `Authorization` or in the body.
//!
//! Invariant: secrets are compared in constant time, and `Debug` prints none.

use super::token_request::{Form, RequestError};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::{Engine, engine::general_purpose::STANDARD};
use countersign_client::PrivateKey;
use hyper::header::{AUTHORIZATION, HeaderMap};
use secrecy::{ExposeSecret, SecretString};

/// The client id and the client secret of one run of the program.
#[derive(Debug)]
pub struct ClientCredentials {
    pub id: String,
    pub secret: SecretString,
}

/// The credentials that a request presents.
struct Presented {
    id: String,
    secret: SecretString,
}

impl ClientCredentials {
    /// Generates a secret of 256 bits for a client id.
    pub fn generate(id: String) -> Self {
        Self { id, secret: PrivateKey::random_nonce().into() }
    }

    /// Authenticates a request, which must present the secret in one place only.
    pub fn authenticate(&self, headers: &HeaderMap, form: &Form) -> Result<(), RequestError> {
        let failed = || RequestError::new("invalid_client", "the client id or the client secret is wrong");
        let mut authorization = headers.get_all(AUTHORIZATION).iter();
        let presented = match (authorization.next(), authorization.next(), form.get("client_secret")) {
            (Some(_), Some(_), _) | (Some(_), None, Some(_)) => {
                let problem = "authenticate with one method: the header Authorization, or client_secret in the body";
                return Err(RequestError::new("invalid_request", problem));
            }
            (Some(header), None, None) => from_basic(header.as_bytes()).ok_or_else(failed)?,
            (None, _, Some(secret)) => {
                let id = form.get("client_id").ok_or_else(failed)?;
                vec![Presented { id: id.to_owned(), secret: secret.into() }]
            }
            (None, _, None) => return Err(RequestError::new("invalid_client", "the client secret is missing")),
        };
        let is_other_client = form.get("client_id").is_some_and(|id| id != self.id);
        if is_other_client || !presented.iter().any(|presented| self.matches(presented)) {
            return Err(failed());
        }
        Ok(())
    }

    fn matches(&self, presented: &Presented) -> bool {
        let expected = self.secret.expose_secret().as_bytes();
        let secret = presented.secret.expose_secret().as_bytes();
        verify_slices_are_equal(expected, secret).is_ok() && presented.id == self.id
    }
}

/// Both readings of a `Basic` header: its credentials unchanged, and form-decoded. RFC 6749 requires form-encoded credentials here,
/// but many programs do not encode them.
fn from_basic(header: &[u8]) -> Option<Vec<Presented>> {
    let (scheme, encoded) = std::str::from_utf8(header).ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = SecretString::from(String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?);
    let (id, secret) = decoded.expose_secret().split_once(':')?;
    let raw = Presented { id: id.to_owned(), secret: secret.into() };
    let form_decoded = Presented { id: form_decode(id), secret: form_decode(secret).into() };
    Some(vec![raw, form_decoded])
}

fn form_decode(text: &str) -> String {
    // The parser decodes whole forms, so we pass a form with one parameter: the text, in which `=` and `&` keep no special meaning.
    let escaped = text.replace('&', "%26");
    form_urlencoded::parse(format!("v={escaped}").as_bytes()).map(|(_, value)| value.into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    const ID: &str = "agent_1";

    fn headers(authorization: &[String]) -> HeaderMap {
        authorization.iter().map(|text| (AUTHORIZATION, HeaderValue::from_str(text).unwrap())).collect()
    }

    fn basic(id: &str, secret: &str) -> String {
        format!("Basic {}", STANDARD.encode(format!("{id}:{secret}")))
    }

    fn result(authorization: &[String], body: &str) -> Result<(), &'static str> {
        let credentials = ClientCredentials { id: ID.to_owned(), secret: "s3cr3t".into() };
        let form = Form::parse(body.as_bytes()).unwrap();
        credentials.authenticate(&headers(authorization), &form).map_err(|error| error.code)
    }

    #[test]
    fn both_methods_and_both_encodings_are_accepted() {
        for (authorization, body) in [
            (vec![basic(ID, "s3cr3t")], ""),
            (vec![basic("agent%5F1", "s3cr3%74")], ""),
            (vec![basic(ID, "s3cr3t").replacen("Basic", "bAsIc", 1)], "client_id=agent_1"),
            (vec![], "client_id=agent_1&client_secret=s3cr3t"),
        ] {
            assert_eq!(result(&authorization, body), Ok(()), "{authorization:?} {body}");
        }
    }

    #[test]
    fn other_credentials_are_refused() {
        for (authorization, body, code) in [
            (vec![], "", "invalid_client"),
            (vec![], "client_id=agent_1", "invalid_client"),
            (vec![], "client_secret=s3cr3t", "invalid_client"),
            (vec![], "client_id=agent_1&client_secret=", "invalid_client"),
            (vec![], "client_id=agent_1&client_secret=s3cr3T", "invalid_client"),
            (vec![], "client_id=agent_2&client_secret=s3cr3t", "invalid_client"),
            (vec![basic(ID, "s3cr3t ")], "", "invalid_client"),
            (vec![basic(ID, "")], "", "invalid_client"),
            (vec![basic("", "s3cr3t")], "", "invalid_client"),
            (vec![basic(ID, "s3cr3t")], "client_id=agent_2", "invalid_client"),
            (vec!["Basic s3cr3t".to_owned()], "", "invalid_client"),
            (vec!["Basic".to_owned()], "", "invalid_client"),
            (vec!["Bearer s3cr3t".to_owned()], "", "invalid_client"),
            (vec![basic(ID, "s3cr3t")], "client_id=agent_1&client_secret=s3cr3t", "invalid_request"),
            (vec![basic(ID, "s3cr3t"), basic(ID, "s3cr3t")], "", "invalid_request"),
        ] {
            assert_eq!(result(&authorization, body), Err(code), "{authorization:?} {body}");
        }
    }

    #[test]
    fn generated_secrets_differ_and_are_not_printed() {
        let [first, second] = [(); 2].map(|()| ClientCredentials::generate(ID.to_owned()));
        assert_ne!(first.secret.expose_secret(), second.secret.expose_secret());
        assert_eq!(first.secret.expose_secret().len(), 64);
        assert!(!format!("{first:?}").contains(first.secret.expose_secret()));
    }
}
