//! Rate limits: the category of each route, who is counted, and what the response says about the limits.
//!
//! Depends on `ephemeral`, which counts. `caller` reports each authenticated caller and each failed authentication to the
//! [`RequestLimiter`] of the request. Invariant: a route is in at most one category, and its limit is checked before anything
//! is written.

mod headers;
mod request_limiter;
mod subject;

pub use headers::ceil_seconds;
pub use request_limiter::{AuthenticatedCaller, RequestLimiter, limit};

use crate::{
    domain::caller::Human,
    ephemeral::{Count, Kind, Presence, Quota, Reading, Subject, Verdict, Windows},
};
use countersign_identity::ServiceId;
use std::{
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};
use subject::RateLimitSubject;

/// Length of the sliding window. The specification states its limits per minute.
const WINDOW: Duration = Duration::from_mins(1);

/// What is counted separately.
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
    /// All other authenticated requests, per service or human user.
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
    /// The name as in headers, errors and metrics.
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

    fn subject(self, kind: Kind, parts: &[&[u8]]) -> Subject {
        Subject::new(kind, &[&[self.name().as_bytes()], parts].concat())
    }
}

/// Maximum number of requests per minute, by category.
#[derive(Debug, Clone, Copy)]
pub struct PerMinute {
    /// Under `/auth`, per client address and agent.
    pub auth: u32,
    /// Under `/auth`, per client address.
    pub auth_address: u32,
    /// Verifications, per service.
    pub verification: u32,
    /// Feedback, per service.
    pub feedback: u32,
    /// Management, per service or human user.
    pub management: u32,
    /// Missing and invalid credentials, per client address.
    pub failures: u32,
}

impl PerMinute {
    const fn quota(&self, category: Category) -> Quota {
        let most = match category {
            Category::Auth => self.auth,
            Category::AuthAddress => self.auth_address,
            Category::Verification => self.verification,
            Category::Feedback => self.feedback,
            Category::Management => self.management,
            Category::Failures => self.failures,
        };
        Quota { most, window: WINDOW }
    }
}

/// A counter: the category, and who is counted.
#[derive(Debug, Clone, Copy)]
struct RateLimitKey {
    category: Category,
    subject: Subject,
}

impl RateLimitKey {
    fn for_service(category: Category, service: ServiceId) -> Self {
        let subject = category.subject(Kind::Proven, &[b"service", &service.bits().to_be_bytes()]);
        Self { category, subject }
    }

    fn for_human(category: Category, human: &Human) -> Self {
        let owner = &human.owner;
        let parts: [&[u8]; 3] = [b"person", owner.issuer.as_bytes(), owner.subject.as_bytes()];
        Self { category, subject: category.subject(Kind::Proven, &parts) }
    }

    fn for_address(category: Category, address: IpAddr) -> Self {
        Self { category, subject: category.subject(Kind::Claimed, &[&network_prefix(address)]) }
    }

    fn for_auth_subject(address: IpAddr, subject: &RateLimitSubject) -> Self {
        let (kind, id) = subject.key();
        let subject = Category::Auth.subject(Kind::Claimed, &[&network_prefix(address), kind, &id]);
        Self { category: Category::Auth, subject }
    }
}

/// The part of the address that is counted: all of an IPv4 address, the /64 prefix of an IPv6 address. A client with one
/// IPv6 address usually has its whole /64.
fn network_prefix(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => Ipv6Addr::octets(&address)[..8].to_vec(),
    }
}

/// A limit and what is left of it.
#[derive(Debug, Clone, Copy)]
pub struct LimitStatus {
    /// The category.
    pub category: Category,
    /// Maximum number of requests per window.
    pub quota: Quota,
    /// Remaining requests, and the time until there is one more.
    pub reading: Reading,
}

/// Whether a request is allowed, and the status of each limit that it counts for.
struct RateLimitDecision {
    allowed: bool,
    statuses: Vec<LimitStatus>,
}

/// The configured limits, and the counters.
pub struct Limits {
    per_minute: PerMinute,
    windows: Arc<dyn Windows>,
}

impl Limits {
    /// `windows` keeps the counters.
    pub fn new(per_minute: PerMinute, windows: Arc<dyn Windows>) -> Self {
        Self { per_minute, windows }
    }

    /// Where the counters are stored.
    pub fn presence(&self) -> Presence {
        self.windows.presence()
    }

    /// Counts a request for all these keys, or for none if one of them has no request left.
    async fn consume(&self, keys: &[RateLimitKey]) -> RateLimitDecision {
        let counts = self.counts(keys);
        self.decision(keys, self.windows.take(&counts).await)
    }

    /// The decision that [`Self::consume`] would return now, without counting.
    async fn peek(&self, keys: &[RateLimitKey]) -> RateLimitDecision {
        let counts = self.counts(keys);
        self.decision(keys, self.windows.look(&counts).await)
    }

    fn counts(&self, keys: &[RateLimitKey]) -> Vec<Count> {
        let count = |key: &RateLimitKey| Count { subject: key.subject, quota: self.per_minute.quota(key.category) };
        keys.iter().map(count).collect()
    }

    fn decision(&self, keys: &[RateLimitKey], verdict: Verdict) -> RateLimitDecision {
        let Verdict { granted, readings } = verdict;
        let statuses = keys.iter().zip(readings).map(|(key, reading)| LimitStatus {
            category: key.category,
            quota: self.per_minute.quota(key.category),
            reading,
        });
        RateLimitDecision { allowed: granted, statuses: statuses.collect() }
    }
}

impl RateLimitDecision {
    /// The exhausted limit with the longest wait; `None` if the request is allowed.
    fn exhausted(&self) -> Option<LimitStatus> {
        let exhausted = self.statuses.iter().filter(|status| !self.allowed && status.reading.left == 0);
        exhausted.max_by_key(|status| status.reading.wait).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_ipv6_clients_by_prefix_and_ipv4_clients_by_address() {
        let subject = |text: &str| RateLimitKey::for_address(Category::AuthAddress, text.parse().unwrap()).subject;
        assert_eq!(subject("2001:db8:1:2:3::4"), subject("2001:db8:1:2:ffff::"));
        assert_ne!(subject("2001:db8:1:2::"), subject("2001:db8:1:3::"));
        assert_ne!(subject("192.0.2.1"), subject("192.0.2.2"));
        let of_category = |category| RateLimitKey::for_address(category, "192.0.2.1".parse().unwrap()).subject;
        assert_ne!(of_category(Category::AuthAddress), of_category(Category::Failures));
    }
}
