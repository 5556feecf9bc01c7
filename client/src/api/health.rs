//! Requests for the health and status of the control plane.

use super::{Api, ApiError, Result, redacted_url, response::read_json};
use reqwest::Method;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The response of `GET /health`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Health {
    /// The overall health: `healthy`, `degraded` or `unhealthy`.
    pub status: String,
    /// The current time of the control plane (RFC 3339).
    pub timestamp: String,
    /// The state of each component: `up`, `degraded` or `down`.
    pub checks: BTreeMap<String, String>,
}

/// The members of the response of `GET /status` that this crate uses.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The version of the control plane.
    pub version: String,
}

impl Api {
    /// Fetches the health of the control plane. A control plane that is unhealthy is no error: the result says so.
    pub async fn health(&self) -> Result<Health> {
        let response = self.execute(self.http.get(self.endpoint(&["health"])?)).await?;
        read_json(response).await.ok_or_else(|| ApiError::Unreadable(redacted_url(self.url.as_str())))
    }

    /// Fetches the status of the control plane. `key` is an API key of scope `full`.
    pub async fn status(&self, key: &SecretString) -> Result<Status> {
        self.call(Method::GET, &["status"], Some(key), None).await
    }
}
