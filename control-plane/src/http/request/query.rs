//! The parameters in the query of a request.

use super::{
    body::FromField,
    ids::{ResourceId, parse_id},
};
use crate::http::error::{ApiError, FieldError};
use axum::{extract::FromRequestParts, http::request::Parts};
use std::borrow::Cow;

/// The query of a request. Parameters that the endpoint does not read are ignored, and a repeated parameter is an error.
pub struct QueryParams(String);

impl<S: Sync> FromRequestParts<S> for QueryParams {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Ok(Self::of(parts))
    }
}

impl QueryParams {
    pub fn of(parts: &Parts) -> Self {
        Self(parts.uri.query().unwrap_or_default().to_owned())
    }

    /// The value of a parameter.
    pub fn text(&self, name: &str) -> Result<Option<Cow<'_, str>>, FieldError> {
        let pairs = form_urlencoded::parse(self.0.as_bytes());
        let mut values = pairs.filter(|(key, _)| key == name).map(|(_, value)| value);
        let value = values.next();
        if values.next().is_some() { Err(FieldError::new(name, "must not occur twice")) } else { Ok(value) }
    }

    /// A parameter that is the id of a resource.
    pub fn id<T: ResourceId>(&self, name: &str) -> Result<Option<T>, ApiError> {
        self.text(name)?.map(|id| parse_id(&id)).transpose()
    }

    /// A parameter that is parsed like a field of a body.
    pub fn field<T: FromField>(&self, name: &str) -> Result<Option<T>, ApiError> {
        let parsed = self.text(name)?.map(|value| T::from_field(value.into_owned().into())).transpose();
        parsed.map_err(|message| ApiError::invalid_field(name, message))
    }

    /// A parameter that is an integer. A value above `i64::MAX` becomes `i64::MAX`.
    pub fn integer(&self, name: &str, min: i64) -> Result<Option<i64>, FieldError> {
        let Some(value) = self.text(name)? else { return Ok(None) };
        let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        let number = is_number.then(|| value.parse().unwrap_or(i64::MAX)).filter(|number| *number >= min);
        number.map(Some).ok_or_else(|| FieldError::new(name, format!("must be a whole number, {min} or more")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl QueryParams {
        pub(in crate::http::request) fn new(text: &str) -> Self {
            Self(text.to_owned())
        }
    }

    #[test]
    fn accepts_one_integer_per_parameter() {
        let limit = |query: &str| QueryParams::new(query).integer("limit", 1).map_err(|error| error.message);
        for (query, expected) in [
            ("", None),
            ("limits=7&LIMIT=7", None),
            ("limit=7", Some(7)),
            ("a&limit=%37&b=1", Some(7)),
            ("limit=99999999999999999999999", Some(i64::MAX)),
        ] {
            assert_eq!(limit(query), Ok(expected), "{query}");
        }
        for query in ["limit", "limit=", "limit=0", "limit=-1", "limit=1.5", "limit=+1", "limit=a", "limit=1&limit=2"] {
            assert!(limit(query).is_err(), "{query}");
        }
        assert_eq!(QueryParams::new("offset=0").integer("offset", 0).map_err(|error| error.message), Ok(Some(0)));
    }
}
