//! The state that every handler and middleware shares.

use super::{Limits, TrustedProxies};
use crate::{humans::HumanTokenVerifier, metrics::Metrics, operations::Context};
use std::{sync::Arc, time::Duration};

/// The state that every handler and middleware shares.
#[derive(Clone)]
pub struct AppState {
    /// The context that operations run in.
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
