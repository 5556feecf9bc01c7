//! The categories of requests, and their limits.

use crate::{
    domain::string_enum::string_enum,
    ephemeral::{CallerKind, Quota, RateLimitKey},
};
use std::time::Duration;

/// Length of the sliding window: limits are configured per minute.
pub(super) const WINDOW: Duration = Duration::from_mins(1);

string_enum! {
    /// A class of requests with its own limit. Its name is in headers, errors and metrics.
    Category {
        /// Requests under `/auth`, to `/oauth/token` and to `/oauth/revoke`, from one address for the same agent, key or token.
        Auth = "auth";
        /// Requests of [`Self::Auth`], and requests for the metadata of services, per client address.
        AuthAddress = "auth_address";
        /// Token verifications, per service.
        Verification = "verification";
        /// Feedback, per service.
        Feedback = "feedback";
        /// Authenticated requests that no other category contains, per service or human user.
        Management = "management";
        /// Missing and invalid credentials, per client address.
        Failures = "failures";
        /// Logins with a valid signature and refreshes with a valid refresh token, per agent.
        Agent = "agent";
        /// Token verifications, per owner of services.
        VerificationOwner = "verification_owner";
        /// Feedback, per owner of services.
        FeedbackOwner = "feedback_owner";
        /// Requests of [`Self::Management`] with an API key, per owner of services.
        ManagementOwner = "management_owner";
    }
}

/// The category of a route, by its path in the router; `None` for unlimited routes. Routes that are not listed here are
/// `Management`, so that a new route is never unlimited by omission.
pub fn category(route: &str) -> Option<Category> {
    match route {
        "/health" | "/openapi.json" | "/docs" | "/oauth/authorize" => None,
        route if route.starts_with("/.well-known/") || route.starts_with("/docs/") => None,
        "/services/{service}/protected-resource-metadata" => Some(Category::AuthAddress),
        "/oauth/token" | "/oauth/revoke" => Some(Category::Auth),
        route if route.starts_with("/auth/") => Some(Category::Auth),
        "/services/{service}/verify" | "/oauth/introspect" => Some(Category::Verification),
        "/trust/feedback" => Some(Category::Feedback),
        _ => Some(Category::Management),
    }
}

pub fn rate_categories() -> Vec<&'static str> {
    Category::ALL.iter().map(|category| category.as_str()).collect()
}

impl Category {
    /// The first part of the error message when the limit is exceeded.
    pub const fn exceeded_message(self) -> &'static str {
        match self {
            Self::Auth => "Too many requests under /auth and /oauth from this address for the same agent, key or token",
            Self::AuthAddress => {
                "Too many requests under /auth and /oauth, or for the metadata of services, from this address"
            }
            Self::Verification => "Too many verifications by this service",
            Self::Feedback => "Too much feedback by this service",
            Self::Management => "Too many management requests by this service or human user",
            Self::Failures => "Too many requests from this address with a missing or invalid credential",
            Self::Agent => "Too many logins and refreshes of this agent",
            Self::VerificationOwner => "Too many verifications by the services of this owner",
            Self::FeedbackOwner => "Too much feedback by the services of this owner",
            Self::ManagementOwner => "Too many management requests by the services of this owner",
        }
    }

    /// The category in which requests with an API key also count for the owner of the service, because one person can own many
    /// services. Requests with the owner's own token do not count in this category: if they did, stolen API keys could use up the
    /// limit, and the owner could not revoke the keys.
    pub(super) const fn owner_category(self) -> Option<Self> {
        match self {
            Self::Verification => Some(Self::VerificationOwner),
            Self::Feedback => Some(Self::FeedbackOwner),
            Self::Management => Some(Self::ManagementOwner),
            Self::Auth
            | Self::AuthAddress
            | Self::Failures
            | Self::Agent
            | Self::VerificationOwner
            | Self::FeedbackOwner
            | Self::ManagementOwner => None,
        }
    }

    pub(super) fn key(self, caller: CallerKind, parts: &[&[u8]]) -> RateLimitKey {
        RateLimitKey::new(caller, &[&[self.as_str().as_bytes()], parts].concat())
    }
}

/// An agent may log in and refresh this many times as often as `auth` allows from one address, because it may use many addresses.
const AGENT_FACTOR: u32 = 12;

/// The services of an owner may verify this many times as often as one service. The factor is high, because each request to an
/// honest service may need a verification, and verifications write nothing.
const VERIFICATION_OWNER_FACTOR: u32 = 20;

/// Like [`VERIFICATION_OWNER_FACTOR`], for feedback and management.
const OWNER_FACTOR: u32 = 5;

/// Upper bound of the derived limits, and of the settings. The rate limiter stores the time of each call, so a limit costs memory.
const MAX_PER_MINUTE: u32 = 1_000_000;

/// The settings `[limits]`, in requests per minute. The limit of each category is one of these, or a multiple of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitsPerMinute {
    pub auth: u32,
    pub address: u32,
    pub verification: u32,
    pub management: u32,
    pub feedback: u32,
}

impl LimitsPerMinute {
    /// The default limits, for the examples in the API's documentation. A test compares them with `config.default.toml`, which this
    /// module cannot read.
    pub const DEFAULT: Self = Self { auth: 10, address: 300, verification: 1000, management: 100, feedback: 50 };

    pub const fn quota(&self, category: Category) -> Quota {
        let max_calls = match category {
            Category::Auth => self.auth,
            Category::AuthAddress | Category::Failures => self.address,
            Category::Verification => self.verification,
            Category::Feedback => self.feedback,
            Category::Management => self.management,
            Category::Agent => times(self.auth, AGENT_FACTOR),
            Category::VerificationOwner => times(self.verification, VERIFICATION_OWNER_FACTOR),
            Category::FeedbackOwner => times(self.feedback, OWNER_FACTOR),
            Category::ManagementOwner => times(self.management, OWNER_FACTOR),
        };
        Quota { max_calls, window: WINDOW }
    }
}

const fn times(limit: u32, factor: u32) -> u32 {
    let product = limit.saturating_mul(factor);
    if product < MAX_PER_MINUTE { product } else { MAX_PER_MINUTE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_agents_and_owners_are_multiples_up_to_the_bound() {
        let limits = |auth, verification, management, feedback| {
            let limits = LimitsPerMinute { auth, address: 300, verification, management, feedback };
            let quota = |category| limits.quota(category).max_calls;
            let of_address = [Category::AuthAddress, Category::Failures].map(quota);
            let derived =
                [Category::Agent, Category::VerificationOwner, Category::ManagementOwner, Category::FeedbackOwner];
            (of_address, derived.map(quota))
        };
        assert_eq!(limits(10, 1000, 100, 50), ([300; 2], [120, 20_000, 500, 250]));
        assert_eq!(limits(1_000_000, 1_000_000, 1_000_000, 300_000), ([300; 2], [1_000_000; 4]));
        assert_eq!(limits(u32::MAX, 1, 1, 1), ([300; 2], [1_000_000, 20, 5, 5]));
    }
}
