//! Ids in paths and bodies. An id that does not parse gets the same response as an id that does not exist: the 404 error of its
//! resource.

use crate::{
    http::{error::ApiError, openapi::schema},
    operations::NotFound,
};
use axum::{extract::FromRequestParts, http::request::Parts};
use countersign_identity::{AgentId, ApiKeyId, EventId, Kid, RoleId, ServiceId, WebhookId};
use serde::de::DeserializeOwned;
use std::str::FromStr;
use utoipa::ToSchema;

/// The parameters of the path. A parameter that is not valid UTF-8 causes a 404 error.
pub struct PathParams<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for PathParams<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = axum::extract::Path::from_request_parts(parts, state).await;
        path.map(|axum::extract::Path(params)| Self(params)).map_err(|_| ApiError::not_found())
    }
}

/// An id of a resource.
pub trait ResourceId: FromStr {
    /// The schema of the id in the API description.
    type Schema: ToSchema;

    /// The 404 error for an id of the resource that does not parse.
    const NOT_FOUND: NotFound;
}

macro_rules! resource_ids {
    ($($id:ident: $schema:ident, $not_found:ident;)+) => {$(
        impl ResourceId for $id {
            type Schema = schema::$schema;

            const NOT_FOUND: NotFound = NotFound::$not_found;
        }
    )+};
}

resource_ids! {
    AgentId: AgentIdSchema, Agent;
    ServiceId: ServiceIdSchema, Service;
    ApiKeyId: ApiKeyIdSchema, Key;
    Kid: KidSchema, SigningKey;
    RoleId: RoleIdSchema, Role;
    WebhookId: WebhookIdSchema, Webhook;
    // The path of a delivery contains the id of its event.
    EventId: EventIdSchema, Delivery;
}

/// Parses the id of a resource, or returns the 404 error of the resource.
pub fn parse_id<T: ResourceId>(text: &str) -> Result<T, ApiError> {
    text.parse().map_err(|_| ApiError::resource_not_found(T::NOT_FOUND))
}
