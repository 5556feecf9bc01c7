//! Extractors that authorize a caller to manage the webhooks of a scope.

use crate::{
    domain::{audit::Initiator, webhook::WebhookScope},
    http::{
        error::ApiError,
        request::{
            caller::Credentials,
            ids::{PathParams, parse_id},
        },
        state::AppState,
    },
};
use axum::{extract::FromRequestParts, http::request::Parts};
use countersign_identity::ServiceId;
use serde::Deserialize;

/// An authorized caller, and the scope whose webhooks it may manage.
pub struct WebhookManager {
    /// The scope of the request path.
    pub scope: WebhookScope,
    /// The caller, as the initiator in audit entries.
    pub initiator: Initiator,
}

/// Extracts a caller that is authorized to manage the webhooks of the service in the path.
pub struct ServiceManager(pub WebhookManager);

/// Extracts a caller that is authorized to manage the webhooks of the whole Countersign deployment.
pub struct DeploymentManager(pub WebhookManager);

#[derive(Deserialize)]
struct ServicePath {
    service: String,
}

impl FromRequestParts<AppState> for ServiceManager {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let credentials = Credentials::from_request_parts(parts, state).await?;
        let PathParams(ServicePath { service }) = PathParams::from_request_parts(parts, state).await?;
        let service: ServiceId = parse_id(&service)?;
        let initiator = credentials.require_manager_of(state, service).await?;
        Ok(Self(WebhookManager { scope: WebhookScope::Service(service), initiator }))
    }
}

impl FromRequestParts<AppState> for DeploymentManager {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let credentials = Credentials::from_request_parts(parts, state).await?;
        let administrator = credentials.require_admin(state).await?;
        let initiator = credentials.initiator_for_human(Some(&administrator));
        Ok(Self(WebhookManager { scope: WebhookScope::Deployment, initiator }))
    }
}
