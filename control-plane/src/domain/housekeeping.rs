//! The kinds of rows that housekeeping deletes, and whether it deletes them in time.

use super::string_enum::string_enum;
use std::time::Duration;

string_enum! {
    /// A kind of rows that housekeeping deletes. The name is a label of metrics.
    ExpiredData {
        /// Changes up to the revision floor. Sidecars resume from the floor or later, so they do not need these changes.
        Changes = "changes";
        /// Expired and ended sessions.
        Sessions = "sessions";
        /// Stored responses to requests with an `Idempotency-Key`.
        IdempotencyKeys = "idempotency_keys";
        /// Contacts that made an agent known to a service, and are too old for this now.
        KnownAgents = "known_agents";
        /// Audiences whose tokens have expired.
        TokenAudiences = "token_audiences";
        /// Sidecars that have no stream, and refuse all requests because nobody confirms them.
        Sidecars = "sidecars";
        /// Offers to transfer a service that nobody can accept any more.
        ServiceTransfers = "service_transfers";
        /// Assignments of roles that have expired.
        Assignments = "assignments";
        /// Deliveries of old events, deliveries to deleted webhooks, and the rows of deleted webhooks.
        WebhookDeliveries = "webhook_deliveries";
        /// Old webhook events.
        WebhookEvents = "webhook_events";
        /// Old webhook events for which no deliveries were made.
        WebhookOutbox = "webhook_outbox";
        /// Previous secrets of webhooks, which no longer sign events.
        WebhookSecrets = "webhook_secrets";
        /// Old feedback about agents.
        TrustFeedback = "trust_feedback";
        /// Agents of public registrations that never logged in.
        UnusedAgents = "unused_agents";
        /// Counts of agents that were deleted so long ago that they no longer count for a quota.
        AgentDeletions = "agent_deletions";
        /// Rows of deleted agents, with the feedback about them.
        AgentRows = "agent_rows";
        /// Rows that depend on deleted services.
        DeletedServices = "deleted_services";
        /// Rows that depend on deleted agents.
        DeletedAgents = "deleted_agents";
        /// Assignments of deleted roles, and the rows of these roles.
        DeletedRoles = "deleted_roles";
    }
}

impl ExpiredData {
    /// Whether the rows depend on a service, agent or role. Soon after its deletion, a separate job deletes these rows.
    pub const fn is_dependent(self) -> bool {
        matches!(self, Self::DeletedServices | Self::DeletedAgents | Self::DeletedRoles)
    }
}

/// How long rows may wait for their deletion until the health is [`HousekeepingHealth::Overdue`].
pub const MAX_OVERDUE: Duration = Duration::from_hours(1);

/// Maximum time since the last complete pass of housekeeping. It is long, because a pass may have a backlog to delete.
pub const MAX_PASS_AGE: Duration = Duration::from_hours(2);

/// Whether housekeeping keeps up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HousekeepingHealth {
    /// Rows are deleted in time.
    Up,
    /// Rows of this kind have waited for their deletion for more than [`MAX_OVERDUE`].
    Overdue(ExpiredData),
    /// The last complete pass is older than [`MAX_PASS_AGE`].
    Stalled,
}

impl HousekeepingHealth {
    /// Derives the health from the time since the last complete pass, and from the kind of rows that has waited longest.
    pub fn from_ages(last_pass: Duration, longest_wait: Option<(ExpiredData, Duration)>) -> Self {
        match longest_wait {
            Some((data, wait)) if wait > MAX_OVERDUE => Self::Overdue(data),
            _ if last_pass > MAX_PASS_AGE => Self::Stalled,
            _ => Self::Up,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn health_depends_on_the_longest_wait_and_the_last_pass() {
        let sessions = |wait| Some((ExpiredData::Sessions, wait));
        for (last_pass, wait, expected) in [
            (Duration::ZERO, None, HousekeepingHealth::Up),
            (MAX_PASS_AGE, sessions(MAX_OVERDUE), HousekeepingHealth::Up),
            (MAX_PASS_AGE + MILLISECOND, sessions(MAX_OVERDUE), HousekeepingHealth::Stalled),
            (MAX_PASS_AGE + MILLISECOND, None, HousekeepingHealth::Stalled),
            (Duration::ZERO, sessions(MAX_OVERDUE + MILLISECOND), HousekeepingHealth::Overdue(ExpiredData::Sessions)),
        ] {
            assert_eq!(HousekeepingHealth::from_ages(last_pass, wait), expected, "{last_pass:?} {wait:?}");
        }
    }
}
