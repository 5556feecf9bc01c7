//! The state of the HTTP API.

use super::{Limits, TrustedProxies};
use crate::{humans::HumanTokenVerifier, metrics::Metrics, operations::Context};
use std::{ops::Deref, sync::Arc, time::Duration};

/// The state that all handlers and middleware share. For each request, it is cloned many times.
#[derive(Clone)]
pub struct AppState(Arc<ApiState>);

impl AppState {
    /// Shares a state.
    pub fn new(state: ApiState) -> Self {
        Self(Arc::new(state))
    }
}

impl Deref for AppState {
    type Target = ApiState;

    fn deref(&self) -> &ApiState {
        &self.0
    }
}

/// What the state contains.
pub struct ApiState {
    /// The context of all operations.
    pub context: Arc<Context>,
    /// Verifies the tokens of human users.
    pub humans: Arc<HumanTokenVerifier>,
    /// Counters and histograms.
    pub metrics: Metrics,
    /// The rate limits.
    pub limits: Arc<Limits>,
    /// The trusted proxies in front of this server.
    pub proxies: Arc<TrustedProxies>,
    /// When this process started, on the boot-time clock.
    pub started_at: Duration,
}
