//! Authenticates a service at an OAuth endpoint. Its client id is the id of the service, and its client secret is an API key (RFC 6749,
//! section 2.3.1). It may also send the API key as a bearer credential, as at other endpoints (RFC 7662, section 2.1).

use super::caller::Call;
use crate::{
    http::{
        error::{OAuthError, Scheme},
        state::AppState,
    },
    operations::CurrentState,
};
use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, header, request::Parts},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use countersign_identity::{Reason, ServiceId};
use secrecy::SecretString;
use std::sync::Arc;

/// The parameters `client_id` and `client_secret` of a form.
pub type FormClient = (Option<String>, Option<SecretString>);

/// The client of a request at an OAuth endpoint. Nothing is verified yet.
pub struct ServiceClient {
    call: Call,
    header: Option<HeaderCredential>,
}

/// What the header `Authorization` contains.
enum HeaderCredential {
    /// A client id with a secret.
    Basic(String, SecretString),
    /// A secret.
    Bearer(SecretString),
    /// The header is repeated, or its value cannot be parsed.
    Malformed,
}

/// Why the credentials of a request cannot be used.
#[derive(Debug, Clone, Copy, thiserror::Error)]
enum CredentialsError {
    #[error("the header `Authorization` must be Basic, or Bearer with an API key")]
    MalformedHeader,
    #[error("the service must authenticate in one way only")]
    TwoWays,
    #[error("`client_id` must be the client id of the header")]
    OtherClientId,
    #[error("`client_id` is required beside `client_secret`")]
    NoClientId,
    #[error("the service must send its id and an API key, or the API key as Bearer")]
    NoCredentials,
    #[error("the client id must be the id of a service")]
    InvalidClientId,
}

impl FromRequestParts<AppState> for ServiceClient {
    type Rejection = OAuthError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, OAuthError> {
        Ok(Self { call: Call::without_bearer(parts, state)?, header: header_credential(&parts.headers) })
    }
}

impl ServiceClient {
    /// Requires the credentials of a service. Also returns the state of the database, read after the request arrived.
    pub async fn require_service(self, form: FormClient) -> Result<(ServiceId, Arc<CurrentState>), OAuthError> {
        let Self { call, header } = self;
        let scheme = match &header {
            None => None,
            Some(HeaderCredential::Bearer(_)) => Some(Scheme::Bearer),
            Some(HeaderCredential::Basic(..) | HeaderCredential::Malformed) => Some(Scheme::Basic),
        };
        let result = match service_and_key(header, form) {
            Ok((Some(service), key)) => {
                let current = call.with_bearer(key).require_service_key(service).await;
                current.map(|current| (service, current))
            }
            Ok((None, key)) => call.with_bearer(key).require_any_service_key().await,
            Err(problem) => {
                // This is the refusal, or after too many failures the error of the rate limit.
                let error = call.count_failure(Reason::ServiceKeyMissing).await;
                // RFC 6749, section 5.2: two ways to authenticate are an invalid request, and not an invalid client.
                if matches!(problem, CredentialsError::TwoWays) && error.is_unauthenticated() {
                    return Err(OAuthError::new("invalid_request", &problem.to_string()));
                }
                Err(error.with_refusal_message(&problem.to_string()))
            }
        };
        result.map_err(|error| {
            let is_of_other_service = error.reason() == Some(Reason::NotYours);
            let problem = "the API key is of another service than the client id";
            OAuthError::of_client(if is_of_other_service { error.with_refusal_message(problem) } else { error }, scheme)
        })
    }

    /// Checks the credentials if their client id is the id of a service. Other credentials are ignored, even an API key as Bearer.
    pub async fn check_service_credentials(self, form: FormClient) -> Result<(), OAuthError> {
        let (form_id, form_secret) = &form;
        let id = match &self.header {
            Some(HeaderCredential::Basic(id, _)) => Some(id),
            Some(HeaderCredential::Bearer(_) | HeaderCredential::Malformed) => None,
            None => form_id.as_ref().filter(|_| form_secret.is_some()),
        };
        if id.is_some_and(|id| id.parse::<ServiceId>().is_ok()) {
            self.require_service(form).await?;
        }
        Ok(())
    }
}

/// Finds the API key in the request, and the service if the request names one.
fn service_and_key(
    header: Option<HeaderCredential>,
    (form_id, form_secret): FormClient,
) -> Result<(Option<ServiceId>, SecretString), CredentialsError> {
    let (id, key) = match (header, form_secret) {
        (Some(HeaderCredential::Malformed), _) => return Err(CredentialsError::MalformedHeader),
        (Some(_), Some(_)) => return Err(CredentialsError::TwoWays),
        (Some(HeaderCredential::Bearer(key)), None) => (form_id, key),
        (Some(HeaderCredential::Basic(id, key)), None) if form_id.as_ref().is_none_or(|form_id| *form_id == id) => {
            (Some(id), key)
        }
        (Some(HeaderCredential::Basic(..)), None) => return Err(CredentialsError::OtherClientId),
        (None, Some(key)) if form_id.is_some() => (form_id, key),
        (None, Some(_)) => return Err(CredentialsError::NoClientId),
        (None, None) => return Err(CredentialsError::NoCredentials),
    };
    let service = id.map(|id| id.parse::<ServiceId>()).transpose();
    Ok((service.map_err(|_| CredentialsError::InvalidClientId)?, key))
}

/// The credential in `Authorization`; `None` if there is no such header. With HTTP Basic, clients should encode id and secret like
/// a form. Clients that forget to encode them send the same text, because our ids and keys contain nothing to encode.
fn header_credential(headers: &HeaderMap) -> Option<HeaderCredential> {
    let mut values = headers.get_all(header::AUTHORIZATION).into_iter();
    let (value, is_single) = (values.next()?, values.next().is_none());
    let parse = || {
        let (scheme, encoded) = value.to_str().ok().filter(|_| is_single)?.split_once(' ')?;
        let encoded = encoded.trim_matches(' ');
        if scheme.eq_ignore_ascii_case("bearer") {
            return Some(HeaderCredential::Bearer(encoded.to_owned().into()));
        }
        let is_basic = scheme.eq_ignore_ascii_case("basic");
        let text = STANDARD.decode(encoded).ok().filter(|_| is_basic)?;
        let (id, secret) = std::str::from_utf8(&text).ok()?.split_once(':')?;
        Some(HeaderCredential::Basic(form_decode(id)?, form_decode(secret)?.into()))
    };
    Some(parse().unwrap_or(HeaderCredential::Malformed))
}

/// Decodes one value of a form; `None` if the text is empty or has several values.
fn form_decode(text: &str) -> Option<String> {
    if text.contains(['&', '=']) {
        return None;
    }
    // The text contains no `=`, so the parser returns all of it as a name without a value.
    let mut pairs = form_urlencoded::parse(text.as_bytes());
    let (value, _) = pairs.next()?;
    Some(value.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use secrecy::ExposeSecret;

    fn parse(value: &str) -> Option<(String, String)> {
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
        match header_credential(&headers).unwrap() {
            HeaderCredential::Basic(id, secret) => Some((id, secret.expose_secret().to_owned())),
            HeaderCredential::Bearer(secret) => Some((String::new(), secret.expose_secret().to_owned())),
            HeaderCredential::Malformed => None,
        }
    }

    #[test]
    fn credentials_of_basic_are_decoded_like_a_form() {
        let basic = |text: &str| format!("Basic {}", STANDARD.encode(text));
        let expected = Some(("svc_1".to_owned(), "key".to_owned()));
        assert_eq!(parse(&basic("svc_1:key")), expected);
        assert_eq!(parse(&basic("svc%5F1:k%65y")), expected);
        assert_eq!(parse(&basic("svc_1:key").replace("Basic", "basic")), expected);
        assert_eq!(parse("bearer  key"), Some((String::new(), "key".to_owned())));
        for malformed in [&basic("svc_1"), &basic("a=b:c"), &basic(":key"), "Basic !", "Digest key", "Basic"] {
            assert_eq!(parse(malformed), None, "{malformed}");
        }
        assert!(header_credential(&HeaderMap::new()).is_none());
    }
}
