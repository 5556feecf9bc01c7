//! Webhooks: targets, events, and the rules of their delivery.
//!
//! A *target* is a place to deliver to, an *event* something that happened, a *delivery* one event on its way to one
//! target. Delivered is at least once: whoever gets an event twice knows it by its id.

pub mod address;
pub mod delivery;
pub mod event;
pub mod secret;
pub mod suppressed_burst;
pub mod url;

use super::{audit::Chain, named::named, text::Description};
use countersign_identity::{ServiceId, Timestamp, WebhookId};
use event::EventFilter;
use std::time::Duration;
use url::TargetUrl;

/// Targets that one service can have, and that the deployment can have.
pub const MOST_TARGETS: usize = 10;

/// How long the secret of before a rotation signs too.
pub const BOTH_SECRETS: Duration = Duration::from_hours(24);

/// A target that was not tried for so long after a failure begins to fail anew with the next.
pub const FORGIVEN_AFTER: Duration = Duration::from_hours(3 * 24);

/// A target that has failed for so long is disabled.
pub const DISABLED_AFTER: Duration = Duration::from_hours(5 * 24);

/// Whose events a target gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Those of one service.
    Service(ServiceId),
    /// Those of all services, and of none.
    Deployment,
}

impl Place {
    /// The chain of the audit that tells what is done with its targets.
    pub const fn chain(self) -> Chain {
        match self {
            Self::Service(service) => Chain::Service(service),
            Self::Deployment => Chain::Deployment,
        }
    }

    /// The service, if it is one.
    pub const fn service(self) -> Option<ServiceId> {
        match self {
            Self::Service(service) => Some(service),
            Self::Deployment => None,
        }
    }
}

/// A place to deliver to, without its secrets.
#[derive(Debug, Clone)]
pub struct Target {
    /// Its identifier.
    pub id: WebhookId,
    /// Whose events it gets.
    pub place: Place,
    /// Where it is.
    pub url: TargetUrl,
    /// Which events it gets.
    pub events: EventFilter,
    /// What it is for; may be empty.
    pub description: Description,
    /// When it was made.
    pub created_at: Timestamp,
    /// When somebody changed it last.
    pub updated_at: Timestamp,
    /// Since when it is paused.
    pub paused_at: Option<Timestamp>,
    /// Since when it is disabled, and why.
    pub disabled: Option<(Timestamp, DisabledReason)>,
    /// Since when nothing could be delivered to it.
    pub failing_since: Option<Timestamp>,
    /// Until when the secret of before signs too.
    pub previous_until: Option<Timestamp>,
}

/// Whether events are delivered to a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetStatus {
    /// They are.
    Active,
    /// They are kept, as somebody asked for.
    Paused,
    /// They are kept, since it cannot be delivered to.
    Disabled,
}

impl TargetStatus {
    /// The status as it stands in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Paused => "paused",
            Self::Disabled => "disabled",
        }
    }
}

named! {
    /// Why a target is disabled.
    DisabledReason {
        /// It answered 410.
        Gone = "gone";
        /// Nothing could be delivered for [`DISABLED_AFTER`].
        Failing = "failing";
    }
}

impl Target {
    /// Whether events are delivered to it. What somebody asked for goes before what happened.
    pub const fn status(&self) -> TargetStatus {
        match (self.paused_at, self.disabled) {
            (Some(_), _) => TargetStatus::Paused,
            (None, Some(_)) => TargetStatus::Disabled,
            (None, None) => TargetStatus::Active,
        }
    }
}
