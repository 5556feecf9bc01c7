//! The `Idempotency-Key` header, with which a client can repeat a request without repeating its effect.

use crate::{
    domain::idempotency::{IdempotencyKey, IdempotentRequest},
    http::error::ApiError,
};
use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, request::Parts},
};
use utoipa::{
    IntoParams,
    openapi::{
        Type,
        path::{Parameter, ParameterBuilder, ParameterIn},
        schema::ObjectBuilder,
    },
};

const IDEMPOTENCY_KEY_HEADER: &str = "idempotency-key";

/// Regular expression of the values that `IdempotencyKey::parse` accepts: 1 to 255 visible ASCII characters. Without quotes around
/// them, they contain no comma, because a proxy joins two headers with a comma. In quotes, `"` and `\` are escaped with `\`.
const IDEMPOTENCY_KEY_PATTERN: &str = r#"^([!#-+\--~][!-+\--~]{0,254}|"([!#-\[\]-~]|\\["\\]){1,255}")$"#;

/// The hash of the body of a request that has the header `Idempotency-Key`, stored as an extension of the request.
#[derive(Debug, Clone)]
pub struct BodyDigest(String);

impl BodyDigest {
    /// Hashes the body if the request has the header `Idempotency-Key`.
    pub fn from_request(headers: &HeaderMap, body: &[u8]) -> Option<Self> {
        headers.contains_key(IDEMPOTENCY_KEY_HEADER).then(|| Self(IdempotentRequest::digest(body)))
    }
}

/// The idempotency key of a request, with the hash of its body; `None` if it has no key.
pub struct IdempotencyHeader(pub Option<IdempotentRequest>);

impl<S: Sync> FromRequestParts<S> for IdempotencyHeader {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let mut values = parts.headers.get_all(IDEMPOTENCY_KEY_HEADER).into_iter();
        let Some(value) = values.next() else { return Ok(Self(None)) };
        let is_single = values.next().is_none();
        let key = value.to_str().ok().filter(|_| is_single).and_then(IdempotencyKey::parse);
        // `buffer_body` has stored the digest, because the request has the header.
        let digest = parts.extensions.get::<BodyDigest>().map(|digest| digest.0.clone());
        let Some((key, body_digest)) = key.zip(digest) else {
            let message = "must be one string of 1 to 255 visible ASCII characters, optionally in quotes";
            return Err(ApiError::invalid_field("Idempotency-Key", message));
        };
        Ok(Self(Some(IdempotentRequest { key, body_digest })))
    }
}

impl IntoParams for IdempotencyHeader {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let description = "A string that is unique to this request. If a request is sent again with the same key and body, \
                           it takes effect only once, and the response is the same. Keys are stored for 24 hours.";
        let key = ObjectBuilder::new().schema_type(Type::String).pattern(Some(IDEMPOTENCY_KEY_PATTERN));
        let parameter = ParameterBuilder::new().name("Idempotency-Key").parameter_in(ParameterIn::Header);
        vec![parameter.description(Some(description)).schema(Some(key)).build()]
    }
}
