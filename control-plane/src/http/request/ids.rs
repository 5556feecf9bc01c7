//! Ids in paths and bodies. One that does not parse does not exist: the 404 of its kind.

use crate::{http::error::ApiError, operations::NotFound};
use axum::{extract::FromRequestParts, http::request::Parts};
use countersign_identity::{AgentId, ApiKeyId, EventId, Kid, RoleId, ServiceId, WebhookId};
use serde::de::DeserializeOwned;
use std::str::FromStr;

/// The parts of a path; what is no text leads nowhere.
pub struct InPath<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for InPath<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = axum::extract::Path::from_request_parts(parts, state).await;
        path.map(|axum::extract::Path(parts)| Self(parts)).map_err(|_| ApiError::not_found())
    }
}

/// An id and the error that says it leads nowhere.
pub trait PathId: FromStr {
    /// What is missing then.
    const KIND: NotFound;
}

impl PathId for AgentId {
    const KIND: NotFound = NotFound::Agent;
}

impl PathId for ServiceId {
    const KIND: NotFound = NotFound::Service;
}

impl PathId for ApiKeyId {
    const KIND: NotFound = NotFound::Key;
}

impl PathId for Kid {
    const KIND: NotFound = NotFound::SigningKey;
}

impl PathId for RoleId {
    const KIND: NotFound = NotFound::Role;
}

impl PathId for WebhookId {
    const KIND: NotFound = NotFound::Webhook;
}

impl PathId for EventId {
    const KIND: NotFound = NotFound::Delivery;
}

/// Reads an id.
pub fn id<T: PathId>(text: &str) -> Result<T, ApiError> {
    text.parse().map_err(|_| ApiError::resource_not_found(T::KIND))
}
