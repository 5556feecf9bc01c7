//! Rate limits: the category of each route, the keys by which requests are counted, and the limits in response headers.
//!
//! Depends on `ephemeral`, which stores the counters. `caller` reports each authenticated caller and each failed authentication to
//! the [`RequestLimiter`] of the request. Invariant: a request changes the database only after all its limits were checked.

mod category;
mod headers;
mod request_limiter;
mod subject;

pub use category::{Category, LimitsPerMinute, category, rate_categories};
pub use headers::{ceil_seconds, is_counted};
pub use request_limiter::{RequestLimiter, enforce_rate_limits};

use crate::{
    domain::{agent::Owner, service::ServiceKey},
    ephemeral::{
        CallerKind, Failures, Quota, QuotaStatus, RateLimit, RateLimitBackend, RateLimitDecision, RateLimitKey,
        RateLimiter,
    },
};
use countersign_identity::AgentId;
use countersign_process::server::Network;
use std::{net::IpAddr, sync::Arc};
use subject::RateLimitSubject;

/// Identifies a counter: a category, and the key of a caller.
#[derive(Debug, Clone, Copy)]
struct CategoryKey {
    category: Category,
    key: RateLimitKey,
}

impl CategoryKey {
    fn for_person(category: Category, Owner { issuer, subject }: &Owner) -> Self {
        let parts: [&[u8]; 3] = [b"person", issuer.as_bytes(), subject.as_bytes()];
        Self { category, key: category.key(CallerKind::Authenticated, &parts) }
    }

    /// The counters of a request with an API key: one of the service, and one that all services of its owner share.
    fn for_service_key(category: Category, key: &ServiceKey) -> Vec<Self> {
        let parts: [&[u8]; 2] = [b"service", &key.service.bits().to_be_bytes()];
        let of_service = Self { category, key: category.key(CallerKind::Authenticated, &parts) };
        let of_owner = category.owner_category().map(|category| Self::for_person(category, &key.owner));
        std::iter::once(of_service).chain(of_owner).collect()
    }

    fn for_agent(agent: AgentId) -> Self {
        let category = Category::Agent;
        Self { category, key: category.key(CallerKind::Agent, &[&agent.bits().to_be_bytes()]) }
    }

    fn for_address(category: Category, address: IpAddr) -> Self {
        let client = Network::of_client(address).octets();
        Self { category, key: category.key(CallerKind::Unauthenticated, &[&client]) }
    }

    fn for_auth_subject(address: IpAddr, subject: &RateLimitSubject) -> Self {
        let (kind, id) = subject.key();
        let category = Category::Auth;
        let client = Network::of_client(address).octets();
        let key = category.key(CallerKind::Unauthenticated, &[&client, kind, &id]);
        Self { category, key }
    }
}

/// A limit and its remaining requests.
#[derive(Debug, Clone, Copy)]
pub struct LimitStatus {
    pub category: Category,
    /// Maximum number of requests per window.
    pub quota: Quota,
    /// Remaining requests, and the time until one more is allowed.
    pub quota_status: QuotaStatus,
}

/// Whether a request is allowed, and the status of each limit that it counts for.
struct LimitDecision {
    allowed: bool,
    statuses: Vec<LimitStatus>,
}

/// The configured limits, and the counters.
pub struct Limits {
    per_minute: LimitsPerMinute,
    limiter: Arc<dyn RateLimiter>,
    failures: Arc<Failures>,
}

impl Limits {
    pub fn new(per_minute: LimitsPerMinute, limiter: Arc<dyn RateLimiter>) -> Self {
        let failures = Arc::new(Failures::new(limiter.clone(), per_minute.quota(Category::Failures)));
        Self { per_minute, limiter, failures }
    }

    /// Counts failed authentications.
    pub const fn failures(&self) -> &Arc<Failures> {
        &self.failures
    }

    async fn count_failure(&self, address: IpAddr) -> LimitDecision {
        self.decision([Category::Failures].into_iter(), self.failures.count(address).await)
    }

    /// Where the counters are stored.
    pub fn backend(&self) -> RateLimitBackend {
        self.limiter.backend()
    }

    /// Counts a request for all given keys, or for no key if the limit of one key is exhausted.
    async fn acquire(&self, keys: &[CategoryKey]) -> LimitDecision {
        let limits = self.rate_limits(keys);
        self.decision(keys.iter().map(|key| key.category), self.limiter.acquire(&limits).await)
    }

    /// The decision that [`Self::acquire`] would return now, without counting.
    async fn peek(&self, keys: &[CategoryKey]) -> LimitDecision {
        let limits = self.rate_limits(keys);
        self.decision(keys.iter().map(|key| key.category), self.limiter.peek(&limits).await)
    }

    fn rate_limits(&self, keys: &[CategoryKey]) -> Vec<RateLimit> {
        let limit = |key: &CategoryKey| RateLimit { key: key.key, quota: self.per_minute.quota(key.category) };
        keys.iter().map(limit).collect()
    }

    /// Converts a decision of the rate limiter: adds the category and the quota of each limit.
    fn decision(&self, categories: impl Iterator<Item = Category>, decision: RateLimitDecision) -> LimitDecision {
        let RateLimitDecision { allowed, statuses } = decision;
        let statuses = categories.zip(statuses).map(|(category, quota_status)| LimitStatus {
            category,
            quota: self.per_minute.quota(category),
            quota_status,
        });
        LimitDecision { allowed, statuses: statuses.collect() }
    }
}

impl LimitDecision {
    /// The exhausted limit with the longest wait; `None` if the request is allowed.
    fn exhausted(&self) -> Option<LimitStatus> {
        let exhausted = self.statuses.iter().filter(|status| !self.allowed && status.quota_status.remaining == 0);
        exhausted.max_by_key(|status| status.quota_status.reset_after).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_ipv6_clients_by_prefix_and_ipv4_clients_by_address() {
        let key = |text: &str| CategoryKey::for_address(Category::AuthAddress, text.parse().unwrap()).key;
        assert_eq!(key("2001:db8:1:2:3::4"), key("2001:db8:1:2:ffff::"));
        assert_ne!(key("2001:db8:1:2::"), key("2001:db8:1:3::"));
        assert_ne!(key("192.0.2.1"), key("192.0.2.2"));
    }
}
