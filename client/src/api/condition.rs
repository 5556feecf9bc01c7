//! What anybody, or a service, asks about the control plane itself.

use super::{Api, ApiError, place};
use reqwest::Method;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How the control plane feels.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Health {
    /// `healthy`, `degraded` or `unhealthy`.
    pub status: String,
    /// What time it is there (RFC 3339).
    pub timestamp: String,
    /// `up`, `degraded` or `down`, by part.
    pub checks: BTreeMap<String, String>,
}

/// How much there is.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Of the control plane.
    pub version: String,
    /// Seconds since it was started.
    pub uptime: u64,
}

impl Api {
    /// How the control plane feels; it says so also when it is unhealthy.
    pub async fn health(&self) -> Result<Health, ApiError> {
        let url = place(self.url.as_str());
        let unreachable = |error| ApiError::Unreachable { url: url.clone(), error };
        let response = self.http.get(self.at(&["health"])?).send().await.map_err(unreachable)?;
        response.json().await.map_err(|_| ApiError::Unreadable(url))
    }

    /// How much there is, for whoever holds a service's key of full scope.
    pub async fn status(&self, key: &SecretString) -> Result<Status, ApiError> {
        self.call(Method::GET, &["status"], Some(key), None).await
    }
}
