//! Webhooks: targets, events, and the rules of delivery.
//!
//! A *target* is a URL that receives events, an *event* is something that happened, and a *delivery* is one event for
//! one target. Delivery is at least once: receivers deduplicate by event id.

pub mod address;
pub mod delivery;
pub mod event;
pub mod health;
pub mod secret;
pub mod suppressed_burst;
pub mod url;

use super::{
    agent::Owner,
    service::ServiceOrDeployment,
    string_enum::string_enum,
    text::{Description, ManagedBy},
};
use countersign_identity::{Timestamp, WebhookId};
use event::EventFilter;
use std::time::Duration;
use url::TargetUrl;

/// How long the previous secret of a webhook target still signs after a rotation.
pub const SECRET_OVERLAP: Duration = Duration::from_hours(24);

/// After this time without a delivery attempt, the next failure starts a new failing period of the target.
pub const FAILING_PERIOD_RESET: Duration = Duration::from_hours(3 * 24);

/// How long a target may fail before it is disabled.
pub const DISABLED_AFTER: Duration = Duration::from_hours(5 * 24);

/// A webhook target, without its secrets. Its managers are those who manage its service, or the administrators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookTarget {
    pub id: WebhookId,
    /// A target of a service receives the events of the service, and a target of the deployment receives all events.
    pub scope: ServiceOrDeployment,
    /// Where events are sent.
    pub url: TargetUrl,
    /// The kinds of events that the target receives.
    pub events: EventFilter,
    /// Description by the manager; may be empty.
    pub description: Description,
    /// The label (`managedBy`) of the set of files that declares the target, if any.
    pub managed_by: Option<ManagedBy>,
    /// Creation time.
    pub created_at: Timestamp,
    /// Time of the last change by a manager.
    pub updated_at: Timestamp,
    /// When a manager paused the target; `None` if it is not paused.
    pub paused_at: Option<Timestamp>,
    /// When and why the target was disabled; `None` if it is not disabled.
    pub disabled: Option<(Timestamp, DisabledReason)>,
    /// Start of the current period in which every attempt failed; `None` if the last attempt succeeded.
    pub failing_since: Option<Timestamp>,
    /// Time until which the previous secret also signs; `None` if there is no previous secret.
    pub previous_secret_until: Option<Timestamp>,
}

/// For whom events are delivered to a target. The number of attempts that may run at the same time is divided among these owners.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TargetOwner {
    /// The deployment, for targets that receive the events of all services.
    Deployment,
    /// The owner of the service.
    Person(Owner),
}

/// A target with deliveries that are due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueTarget {
    /// The target.
    pub id: WebhookId,
    /// The URL that requests are sent to.
    pub url: TargetUrl,
    /// Time of the last change of the target.
    pub updated_at: Timestamp,
    /// Start of the current period in which every attempt failed; `None` if the last attempt succeeded.
    pub failing_since: Option<Timestamp>,
    /// For whom the deliveries are sent.
    pub owner: TargetOwner,
}

string_enum! {
    /// Whether events are delivered to a target.
    TargetStatus {
        /// Events are delivered.
        Active = "active";
        /// A manager paused delivery. Events stay queued.
        Paused = "paused";
        /// Delivery failed for too long, or the receiver returned 410 Gone. Events stay queued.
        Disabled = "disabled";
    }
    /// Why a target is disabled.
    DisabledReason {
        /// The receiver returned 410 Gone.
        Gone = "gone";
        /// Every attempt failed for [`DISABLED_AFTER`].
        Failing = "failing";
    }
}

impl WebhookTarget {
    /// The status of the target. A pause by a manager takes precedence over automatic disabling.
    pub const fn status(&self) -> TargetStatus {
        match (self.paused_at, self.disabled) {
            (Some(_), _) => TargetStatus::Paused,
            (None, Some(_)) => TargetStatus::Disabled,
            (None, None) => TargetStatus::Active,
        }
    }
}
