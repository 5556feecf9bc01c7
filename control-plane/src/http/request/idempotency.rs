//! `Idempotency-Key`: a request that its sender may have to send again, and wants done once.

use crate::{
    domain::idempotency::{IdempotencyKey, IdempotentRequest},
    http::error::{ApiError, Problem},
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

/// The header.
const NAME: &str = "idempotency-key";

/// What `IdempotencyKey::parse` takes: plain, or in quotes.
const FORM: &str = r#"^([!#-+\--~][!-+\--~]{0,254}|"([!#-\[\]-~]|\\["\\]){1,255}")$"#;

/// The hash of the body of a request with that header, as an extension of it.
#[derive(Debug, Clone)]
pub struct BodyDigest(String);

impl BodyDigest {
    /// The hash of a body, if it is wanted.
    pub fn of(headers: &HeaderMap, body: &[u8]) -> Option<Self> {
        headers.contains_key(NAME).then(|| Self(IdempotentRequest::digest(body)))
    }
}

/// Whether a request may come again.
pub struct Repeatable(pub Option<IdempotentRequest>);

impl<S: Sync> FromRequestParts<S> for Repeatable {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let mut values = parts.headers.get_all(NAME).into_iter();
        let Some(value) = values.next() else { return Ok(Self(None)) };
        let key = value.to_str().ok().and_then(IdempotencyKey::parse).filter(|_| values.next().is_none());
        let digest = parts.extensions.get::<BodyDigest>().map(|digest| digest.0.clone());
        let Some((key, body_digest)) = key.zip(digest) else {
            let message = "must be one string of 1 to 255 visible ASCII characters, with or without quotes around it";
            return Err(ApiError::invalid(&[Problem { field: "Idempotency-Key".into(), message: message.into() }]));
        };
        Ok(Self(Some(IdempotentRequest { key, body_digest })))
    }
}

impl IntoParams for Repeatable {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let about = "A string that is new for every request, and the same when one is sent again because its answer was lost: \
                     it is done once, and answered alike.";
        let key = ObjectBuilder::new().schema_type(Type::String).pattern(Some(FORM));
        let parameter = ParameterBuilder::new().name("Idempotency-Key").parameter_in(ParameterIn::Header);
        vec![parameter.description(Some(about)).schema(Some(key)).build()]
    }
}
