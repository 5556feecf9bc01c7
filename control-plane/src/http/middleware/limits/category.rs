//! The categories of requests, and their limits.

use crate::ephemeral::{CallerKind, ClientNetwork, Quota, RateLimitKey};
use std::{net::IpAddr, time::Duration};

/// Length of the sliding window. The specification states its limits per minute.
pub(super) const WINDOW: Duration = Duration::from_mins(1);

/// A class of requests with its own limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Category {
    /// Requests under `/auth` and `/oauth`, per client address and subject.
    Auth,
    /// Requests under `/auth` and `/oauth`, and for the metadata of services, per client address.
    AuthAddress,
    /// Token verifications, per service.
    Verification,
    /// Feedback, per service.
    Feedback,
    /// Authenticated requests that no other category contains, per service or human user.
    Management,
    /// Missing and invalid credentials, per client address.
    Failures,
    /// Logins with a valid signature and refreshes with a valid refresh token, per agent.
    Agent,
    /// Token verifications, per owner of services.
    VerificationOwner,
    /// Feedback, per owner of services.
    FeedbackOwner,
    /// Requests of [`Self::Management`] with an API key, per owner of services.
    ManagementOwner,
}

/// The category of a route, by its path in the router; `None` for unlimited routes. Routes that are not listed here are
/// `Management`, so that a new route is never unlimited by omission.
pub fn category(route: &str) -> Option<Category> {
    match route {
        "/health" | "/openapi.json" | "/docs" => None,
        route if route.starts_with("/.well-known/") || route.starts_with("/docs/") => None,
        "/oauth/authorize" => None,
        "/services/{service}/protected-resource-metadata" => Some(Category::AuthAddress),
        "/oauth/token" | "/oauth/revoke" => Some(Category::Auth),
        route if route.starts_with("/auth/") => Some(Category::Auth),
        "/services/{service}/verify" | "/oauth/introspect" => Some(Category::Verification),
        "/trust/feedback" => Some(Category::Feedback),
        _ => Some(Category::Management),
    }
}

/// The names of all categories.
pub const RATE_CATEGORIES: [&str; 10] = {
    use Category::{
        Agent, Auth, AuthAddress, Failures, Feedback, FeedbackOwner, Management, ManagementOwner, Verification,
        VerificationOwner,
    };
    [
        Auth.name(),
        AuthAddress.name(),
        Agent.name(),
        Verification.name(),
        VerificationOwner.name(),
        Feedback.name(),
        FeedbackOwner.name(),
        Management.name(),
        ManagementOwner.name(),
        Failures.name(),
    ]
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
            Self::Agent => "agent",
            Self::VerificationOwner => "verification_owner",
            Self::FeedbackOwner => "feedback_owner",
            Self::ManagementOwner => "management_owner",
        }
    }

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

    /// The category in which requests of an API key also count for the owner of the service, because one person can own many
    /// services. Requests with the token of the owner do not count in it, so that API keys cannot keep the owner from revoking
    /// them.
    pub(super) const fn of_owner(self) -> Option<Self> {
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

    /// An unauthenticated caller at an address, whose network may get a common window for the category.
    pub(super) fn unauthenticated(self, address: IpAddr) -> CallerKind {
        CallerKind::Unauthenticated(ClientNetwork::new(self as u8, address))
    }

    pub(super) fn key(self, caller: CallerKind, parts: &[&[u8]]) -> RateLimitKey {
        RateLimitKey::new(caller, &[&[self.name().as_bytes()], parts].concat())
    }
}

/// Maximum number of requests per minute, by category.
#[derive(Debug, Clone, Copy)]
pub struct LimitsPerMinute {
    /// Requests under `/auth`, per client address and agent.
    pub auth: u32,
    /// Requests under `/auth` and `/oauth`, per client address.
    pub auth_address: u32,
    /// Verifications, per service.
    pub verification: u32,
    /// Feedback, per service.
    pub feedback: u32,
    /// Authenticated requests that no other category contains, per service or human user.
    pub management: u32,
    /// Missing and invalid credentials, per client address.
    pub failures: u32,
    /// Logins and refreshes, per agent.
    pub agent: u32,
    /// Verifications, per owner of services.
    pub verification_owner: u32,
    /// Feedback, per owner of services.
    pub feedback_owner: u32,
    /// Requests of `management` with an API key, per owner of services.
    pub management_owner: u32,
}

impl LimitsPerMinute {
    pub(super) const fn quota(&self, category: Category) -> Quota {
        let max_calls = match category {
            Category::Auth => self.auth,
            Category::AuthAddress => self.auth_address,
            Category::Verification => self.verification,
            Category::Feedback => self.feedback,
            Category::Management => self.management,
            Category::Failures => self.failures,
            Category::Agent => self.agent,
            Category::VerificationOwner => self.verification_owner,
            Category::FeedbackOwner => self.feedback_owner,
            Category::ManagementOwner => self.management_owner,
        };
        Quota { max_calls, window: WINDOW }
    }
}
