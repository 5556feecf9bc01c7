//! Counts missing and invalid credentials of clients, at the API port and the sync port together.

use super::rate_limit::{CallerKind, Quota, RateLimit, RateLimitDecision, RateLimitKey, RateLimiter};
use countersign_process::server::Network;
use std::{net::IpAddr, sync::Arc};

/// Counts missing and invalid credentials.
pub struct Failures {
    limiter: Arc<dyn RateLimiter>,
    quota: Quota,
}

impl Failures {
    /// Counts with `limiter`.
    pub const fn new(limiter: Arc<dyn RateLimiter>, quota: Quota) -> Self {
        Self { limiter, quota }
    }

    /// Counts a missing or invalid credential for the network of a client. A refusal means that the clients there sent too many.
    pub async fn count(&self, client: IpAddr) -> RateLimitDecision {
        let client = Network::of_client(client).octets();
        let key = RateLimitKey::new(CallerKind::Unauthenticated, &[b"failures", &client]);
        self.limiter.acquire(&[RateLimit { key, quota: self.quota }]).await
    }
}
