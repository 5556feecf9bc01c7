//! The state of the HTTP API.

use super::{Limits, TrustedProxies};
use crate::{humans::HumanTokenVerifier, metrics::Metrics, operations::Context};
use std::{sync::Arc, time::Duration};

/// The state that all handlers and middleware share.
pub type AppState = Arc<ApiState>;

pub struct ApiState {
    pub context: Arc<Context>,
    /// Verifies the tokens of human users.
    pub humans: Arc<HumanTokenVerifier>,
    pub metrics: Metrics,
    pub limits: Arc<Limits>,
    pub proxies: Arc<TrustedProxies>,
    /// When this process started, on the boot-time clock.
    pub started_at: Duration,
}
