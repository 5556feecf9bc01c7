//! How many requests pass: which route is limited how, who is counted, and what the answer says of it.
//!
//! Neighbours: `ephemeral` counts; `caller` brings whoever it has authenticated, or failed to, to the [`Gate`]. The
//! rule of the room: a route is in exactly one category, and its limit is asked before anything is written.

mod gate;
mod headers;
mod named;

pub use gate::{Authenticated, Gate, limit};
pub use headers::seconds;

use crate::{
    domain::caller::Human,
    ephemeral::{
        CallerKind, Quota, QuotaStatus, RateLimit, RateLimitBackend, RateLimitDecision, RateLimitKey, RateLimiter,
    },
};
use countersign_identity::ServiceId;
use named::Named;
use std::{
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

/// The span in which calls are counted: the specification states its numbers for it.
const WINDOW: Duration = Duration::from_mins(1);

/// What is counted apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Category {
    /// Calls under `/auth`, by address and whom they name.
    Auth,
    /// Calls under `/auth`, by address.
    AuthAddress,
    /// Verifications, by service.
    Verification,
    /// Feedback, by service.
    Feedback,
    /// All else that takes a credential, by service or person.
    Management,
    /// Credentials that are missing or no good, by address.
    Failures,
}

/// The category of a route, as it stands in the router; none for what is free. What is not named here is management,
/// so that nothing is unlimited because it was forgotten.
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
    /// As it stands in headers, errors and metrics.
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

    /// Of what there was too much.
    pub const fn excess(self) -> &'static str {
        match self {
            Self::Auth => "Too many calls under /auth from this address for the same agent, key or token",
            Self::AuthAddress => "Too many calls under /auth from this address",
            Self::Verification => "Too many verifications by this service",
            Self::Feedback => "Too much feedback by this service",
            Self::Management => "Too many management calls by this service or person",
            Self::Failures => "Too many requests from this address with a credential that is missing or wrong",
        }
    }

    fn key(self, caller: CallerKind, parts: &[&[u8]]) -> RateLimitKey {
        RateLimitKey::new(caller, &[&[self.name().as_bytes()], parts].concat())
    }
}

/// How many calls a minute pass, by category.
#[derive(Debug, Clone, Copy)]
pub struct PerMinute {
    /// Under `/auth`, from one address for one agent.
    pub auth: u32,
    /// Under `/auth`, from one address.
    pub auth_address: u32,
    /// Verifications by one service.
    pub verification: u32,
    /// Feedback by one service.
    pub feedback: u32,
    /// Management by one service or person.
    pub management: u32,
    /// Missing and wrong credentials from one address.
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
        Quota { max_calls: most, window: WINDOW }
    }
}

/// Who is counted, and of what.
#[derive(Debug, Clone, Copy)]
struct Counted {
    category: Category,
    key: RateLimitKey,
}

impl Counted {
    fn service(category: Category, service: ServiceId) -> Self {
        let key = category.key(CallerKind::Authenticated, &[b"service", &service.bits().to_be_bytes()]);
        Self { category, key }
    }

    fn human(category: Category, human: &Human) -> Self {
        let owner = &human.owner;
        let parts: [&[u8]; 3] = [b"person", owner.issuer.as_bytes(), owner.subject.as_bytes()];
        Self { category, key: category.key(CallerKind::Authenticated, &parts) }
    }

    fn address(category: Category, address: IpAddr) -> Self {
        Self { category, key: category.key(CallerKind::Unauthenticated, &[&network(address)]) }
    }

    fn named(address: IpAddr, named: &Named) -> Self {
        let (kind, id) = named.key();
        let key = Category::Auth.key(CallerKind::Unauthenticated, &[&network(address), kind, &id]);
        Self { category: Category::Auth, key }
    }
}

/// Whoever has one IPv6 address has its /64.
fn network(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => Ipv6Addr::octets(&address)[..8].to_vec(),
    }
}

/// What is said of a count.
#[derive(Debug, Clone, Copy)]
pub struct Told {
    /// Of what.
    pub category: Category,
    /// How many may be.
    pub quota: Quota,
    /// How many are left.
    pub reading: QuotaStatus,
}

/// Whether a request passes, and what is said of its counts.
struct Ruling {
    granted: bool,
    told: Vec<Told>,
}

/// The limits, and what was used of them.
pub struct Limits {
    per_minute: PerMinute,
    limiter: Arc<dyn RateLimiter>,
}

impl Limits {
    /// Limits that are counted in these windows.
    pub fn new(per_minute: PerMinute, limiter: Arc<dyn RateLimiter>) -> Self {
        Self { per_minute, limiter }
    }

    /// Where it is kept what was used of them.
    pub fn backend(&self) -> RateLimitBackend {
        self.limiter.backend()
    }

    async fn take(&self, counted: &[Counted]) -> Ruling {
        let limits = self.rate_limits(counted);
        self.ruling(counted, self.limiter.acquire(&limits).await)
    }

    async fn look(&self, counted: &[Counted]) -> Ruling {
        let limits = self.rate_limits(counted);
        self.ruling(counted, self.limiter.peek(&limits).await)
    }

    fn rate_limits(&self, counted: &[Counted]) -> Vec<RateLimit> {
        let limit = |of: &Counted| RateLimit { key: of.key, quota: self.per_minute.quota(of.category) };
        counted.iter().map(limit).collect()
    }

    fn ruling(&self, counted: &[Counted], decision: RateLimitDecision) -> Ruling {
        let RateLimitDecision { allowed: granted, statuses } = decision;
        let told = counted.iter().zip(statuses).map(|(of, reading)| Told {
            category: of.category,
            quota: self.per_minute.quota(of.category),
            reading,
        });
        Ruling { granted, told: told.collect() }
    }
}

impl Ruling {
    /// What is exhausted, and for the longest; nothing if the request passes.
    fn exhausted(&self) -> Option<Told> {
        let exhausted = self.told.iter().filter(|told| !self.granted && told.reading.remaining == 0);
        exhausted.max_by_key(|told| told.reading.reset_after).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_its_network_and_an_ipv4_address_itself() {
        let subject = |text: &str| Counted::address(Category::AuthAddress, text.parse().unwrap()).key;
        assert_eq!(subject("2001:db8:1:2:3::4"), subject("2001:db8:1:2:ffff::"));
        assert_ne!(subject("2001:db8:1:2::"), subject("2001:db8:1:3::"));
        assert_ne!(subject("192.0.2.1"), subject("192.0.2.2"));
        let of = |category| Counted::address(category, "192.0.2.1".parse().unwrap()).key;
        assert_ne!(of(Category::AuthAddress), of(Category::Failures));
    }
}
