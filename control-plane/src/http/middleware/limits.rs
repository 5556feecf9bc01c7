//! Rate limits: the category of each route, the keys by which requests are counted, and the limits in response headers.
//!
//! Depends on `ephemeral`, which stores the counters. `caller` reports each authenticated caller and each failed authentication
//! to the [`RequestLimiter`] of the request. Invariant: a route is in at most one category, and the limit of the category is
//! checked before anything is written.

mod headers;
mod request_limiter;
mod subject;

pub use headers::ceil_seconds;
pub use request_limiter::{AuthenticatedCaller, RequestLimiter, enforce_rate_limits};

use crate::{
    domain::caller::Human,
    ephemeral::{
        CallerKind, ClientNetwork, Quota, QuotaStatus, RateLimit, RateLimitBackend, RateLimitDecision, RateLimitKey,
        RateLimiter,
    },
};
use countersign_identity::ServiceId;
use countersign_process::server::Network;
use std::{net::IpAddr, sync::Arc, time::Duration};
use subject::RateLimitSubject;

/// Length of the sliding window. The specification states its limits per minute.
const WINDOW: Duration = Duration::from_mins(1);

/// A class of requests with its own limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Category {
    /// Requests under `/auth`, per client address and subject.
    Auth,
    /// Requests under `/auth`, per client address.
    AuthAddress,
    /// Token verifications, per service.
    Verification,
    /// Feedback, per service.
    Feedback,
    /// Authenticated requests that no other category contains, per service or human user.
    Management,
    /// Missing and invalid credentials, per client address.
    Failures,
}

/// The category of a route, by its path in the router; `None` for unlimited routes. Routes that are not listed here are
/// `Management`, so that a new route is never unlimited by omission.
pub fn category(route: &str) -> Option<Category> {
    match route {
        "/health" | "/openapi.json" | "/docs" => None,
        route if route.starts_with("/.well-known/") || route.starts_with("/docs/") => None,
        route if route.starts_with("/auth/") => Some(Category::Auth),
        "/services/{service}/verify" => Some(Category::Verification),
        "/trust/feedback" => Some(Category::Feedback),
        _ => Some(Category::Management),
    }
}

/// The names of all categories.
pub const RATE_CATEGORIES: [&str; 6] = {
    use Category::{Auth, AuthAddress, Failures, Feedback, Management, Verification};
    [Auth.name(), AuthAddress.name(), Verification.name(), Feedback.name(), Management.name(), Failures.name()]
};

impl Category {
    /// The name of the category in headers, errors and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::AuthAddress => "auth_address",
            Self::Verification => "verification",
            Self::Feedback => "feedback",
            Self::Management => "management",
            Self::Failures => "failures",
        }
    }

    /// The first part of the error message when the limit is exceeded.
    pub const fn exceeded_message(self) -> &'static str {
        match self {
            Self::Auth => "Too many requests under /auth from this address for the same agent, key or token",
            Self::AuthAddress => "Too many requests under /auth from this address",
            Self::Verification => "Too many verifications by this service",
            Self::Feedback => "Too much feedback by this service",
            Self::Management => "Too many management requests by this service or human user",
            Self::Failures => "Too many requests from this address with a missing or invalid credential",
        }
    }

    /// An unauthenticated caller at an address, whose network may get a common window for the category.
    fn unauthenticated(self, address: IpAddr) -> CallerKind {
        CallerKind::Unauthenticated(ClientNetwork::new(self as u8, address))
    }

    fn key(self, caller: CallerKind, parts: &[&[u8]]) -> RateLimitKey {
        RateLimitKey::new(caller, &[&[self.name().as_bytes()], parts].concat())
    }
}

/// Maximum number of requests per minute, by category.
#[derive(Debug, Clone, Copy)]
pub struct LimitsPerMinute {
    /// Requests under `/auth`, per client address and agent.
    pub auth: u32,
    /// Requests under `/auth`, per client address.
    pub auth_address: u32,
    /// Verifications, per service.
    pub verification: u32,
    /// Feedback, per service.
    pub feedback: u32,
    /// Authenticated requests that no other category contains, per service or human user.
    pub management: u32,
    /// Missing and invalid credentials, per client address.
    pub failures: u32,
}

impl LimitsPerMinute {
    const fn quota(&self, category: Category) -> Quota {
        let max_calls = match category {
            Category::Auth => self.auth,
            Category::AuthAddress => self.auth_address,
            Category::Verification => self.verification,
            Category::Feedback => self.feedback,
            Category::Management => self.management,
            Category::Failures => self.failures,
        };
        Quota { max_calls, window: WINDOW }
    }
}

/// Identifies a counter: a category, and the key of a caller.
#[derive(Debug, Clone, Copy)]
struct CategoryKey {
    category: Category,
    key: RateLimitKey,
}

impl CategoryKey {
    fn for_service(category: Category, service: ServiceId) -> Self {
        let key = category.key(CallerKind::Authenticated, &[b"service", &service.bits().to_be_bytes()]);
        Self { category, key }
    }

    fn for_human(category: Category, human: &Human) -> Self {
        let owner = &human.identity;
        let parts: [&[u8]; 3] = [b"person", owner.issuer.as_bytes(), owner.subject.as_bytes()];
        Self { category, key: category.key(CallerKind::Authenticated, &parts) }
    }

    fn for_address(category: Category, address: IpAddr) -> Self {
        Self {
            category,
            key: category.key(category.unauthenticated(address), &[&Network::of_client(address).octets()]),
        }
    }

    fn for_auth_subject(address: IpAddr, subject: &RateLimitSubject) -> Self {
        let (kind, id) = subject.key();
        let category = Category::Auth;
        let key = category.key(category.unauthenticated(address), &[&Network::of_client(address).octets(), kind, &id]);
        Self { category, key }
    }
}

/// A limit and its remaining requests.
#[derive(Debug, Clone, Copy)]
pub struct LimitStatus {
    /// The category.
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
}

impl Limits {
    /// Creates the limits. `limiter` stores the counters.
    pub fn new(per_minute: LimitsPerMinute, limiter: Arc<dyn RateLimiter>) -> Self {
        Self { per_minute, limiter }
    }

    /// Where the counters are stored.
    pub fn backend(&self) -> RateLimitBackend {
        self.limiter.backend()
    }

    /// Counts a request for all given keys, or for no key if the limit of one key is exhausted.
    async fn acquire(&self, keys: &[CategoryKey]) -> LimitDecision {
        let limits = self.rate_limits(keys);
        self.decision(keys, self.limiter.acquire(&limits).await)
    }

    /// The decision that [`Self::acquire`] would return now, without counting.
    async fn peek(&self, keys: &[CategoryKey]) -> LimitDecision {
        let limits = self.rate_limits(keys);
        self.decision(keys, self.limiter.peek(&limits).await)
    }

    fn rate_limits(&self, keys: &[CategoryKey]) -> Vec<RateLimit> {
        let limit = |key: &CategoryKey| RateLimit { key: key.key, quota: self.per_minute.quota(key.category) };
        keys.iter().map(limit).collect()
    }

    fn decision(&self, keys: &[CategoryKey], decision: RateLimitDecision) -> LimitDecision {
        let RateLimitDecision { allowed, statuses } = decision;
        let statuses = keys.iter().zip(statuses).map(|(key, quota_status)| LimitStatus {
            category: key.category,
            quota: self.per_minute.quota(key.category),
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
        let key_in = |category| CategoryKey::for_address(category, "192.0.2.1".parse().unwrap()).key;
        assert_ne!(key_in(Category::AuthAddress), key_in(Category::Failures));
    }
}
