//! What housekeeping deletes, how large its transactions are, and whether it keeps up.

use std::time::Duration;

/// A kind of rows that housekeeping deletes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpiredData {
    /// Changes below the revision floor.
    Changes,
    /// Expired and ended sessions with their refresh tokens.
    Sessions,
    /// Stored responses to requests with an `Idempotency-Key`.
    IdempotencyKeys,
    /// Contacts between agents and services that no longer count.
    KnownAgents,
    /// Audiences whose tokens have expired.
    TokenAudiences,
    /// Offers of services that can no longer be accepted.
    ServiceTransfers,
    /// Assignments of roles that have expired.
    Assignments,
    /// Deliveries of old events, deliveries to deleted webhooks, and the rows of deleted webhooks.
    WebhookDeliveries,
    /// Old webhook events.
    WebhookEvents,
    /// Previous secrets of webhooks that no longer sign.
    WebhookSecrets,
    /// Rows that depend on deleted services.
    DeletedServices,
    /// Rows that depend on deleted agents.
    DeletedAgents,
    /// Assignments of deleted roles, and the rows of these roles.
    DeletedRoles,
}

impl ExpiredData {
    /// All kinds.
    pub const ALL: [Self; 13] = [
        Self::Changes,
        Self::Sessions,
        Self::IdempotencyKeys,
        Self::KnownAgents,
        Self::TokenAudiences,
        Self::ServiceTransfers,
        Self::Assignments,
        Self::WebhookDeliveries,
        Self::WebhookEvents,
        Self::WebhookSecrets,
        Self::DeletedServices,
        Self::DeletedAgents,
        Self::DeletedRoles,
    ];

    /// Whether the rows depend on something that was deleted. All other rows expire with time.
    pub const fn is_dependent(self) -> bool {
        match self {
            Self::DeletedServices | Self::DeletedAgents | Self::DeletedRoles => true,
            Self::Changes
            | Self::Sessions
            | Self::IdempotencyKeys
            | Self::KnownAgents
            | Self::TokenAudiences
            | Self::ServiceTransfers
            | Self::Assignments
            | Self::WebhookDeliveries
            | Self::WebhookEvents
            | Self::WebhookSecrets => false,
        }
    }

    /// The stable name, a label of metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Changes => "changes",
            Self::Sessions => "sessions",
            Self::IdempotencyKeys => "idempotency_keys",
            Self::KnownAgents => "known_agents",
            Self::TokenAudiences => "token_audiences",
            Self::ServiceTransfers => "service_transfers",
            Self::Assignments => "assignments",
            Self::WebhookDeliveries => "webhook_deliveries",
            Self::WebhookEvents => "webhook_events",
            Self::WebhookSecrets => "webhook_secrets",
            Self::DeletedServices => "deleted_services",
            Self::DeletedAgents => "deleted_agents",
            Self::DeletedRoles => "deleted_roles",
        }
    }
}

/// For how long rows may wait for their deletion before [`HousekeepingHealth::Overdue`].
pub const MAX_OVERDUE: Duration = Duration::from_hours(1);

/// Maximum time between two complete passes of housekeeping. A pass takes long while it deletes a backlog.
pub const MAX_PASS_AGE: Duration = Duration::from_hours(2);

/// Whether housekeeping keeps up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HousekeepingHealth {
    /// Rows are deleted in time.
    Up,
    /// Rows of this kind have waited for their deletion for more than [`MAX_OVERDUE`].
    Overdue(ExpiredData),
    /// No pass was complete within [`MAX_PASS_AGE`].
    Stalled,
}

impl HousekeepingHealth {
    /// Derives the health from the time since the last complete pass, and the kind of rows that has waited longest.
    pub fn from_ages(last_pass: Duration, longest_wait: Option<(ExpiredData, Duration)>) -> Self {
        match longest_wait {
            Some((data, wait)) if wait > MAX_OVERDUE => Self::Overdue(data),
            _ if last_pass > MAX_PASS_AGE => Self::Stalled,
            _ => Self::Up,
        }
    }
}

/// Time that one transaction of background work shall work before its commit. A request waits for at most one of them.
const TARGET: Duration = Duration::from_millis(5);

/// Bounds of the number of rows that one transaction of background work removes.
const MIN_ROWS: i64 = 10;
const MAX_ROWS: i64 = 5000;

/// Fewer rows than this are removed only after failures: a slow transaction with fewer rows is slow for another reason, such as
/// a disk that reads slowly. Even if each transaction takes 30 ms, several times more rows are removed than logins can create.
const MIN_ROWS_WHEN_SLOW: i64 = 50;

/// The number of rows that the next transaction of a background job removes at most. It follows the duration of the last ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchSize(i64);

impl Default for BatchSize {
    fn default() -> Self {
        Self(200)
    }
}

impl BatchSize {
    /// The number of rows.
    pub const fn rows(self) -> i64 {
        self.0
    }

    /// The size after a transaction that removed `removed` rows and took `took`. A transaction that found much fewer rows than
    /// it may remove does not show that more rows are possible.
    #[must_use]
    pub fn after(self, removed: u64, took: Duration) -> Self {
        let is_full = removed.saturating_mul(2) >= self.0.unsigned_abs();
        let slower = |rows: i64| Self(rows.max(MIN_ROWS_WHEN_SLOW.min(self.0)));
        let faster = |rows: i64| Self(rows.min(MAX_ROWS));
        if took > TARGET * 2 {
            slower(self.0 / 2)
        } else if took > TARGET {
            slower(self.0 * 3 / 4)
        } else if is_full && took < TARGET / 2 {
            faster(self.0 * 2)
        } else if is_full && took < TARGET * 4 / 5 {
            faster(self.0 * 5 / 4)
        } else {
            self
        }
    }

    /// Half of the size, after a transaction that failed: it may have taken too long.
    #[must_use]
    pub fn halved(self) -> Self {
        Self((self.0 / 2).max(MIN_ROWS))
    }
}

/// The pause after a transaction of background work that took `took`: at least as long, so that requests get at least half of the
/// time. A clock that jumps must not stop the work.
pub fn pause_after(took: Duration) -> Duration {
    took.clamp(Duration::from_millis(1), Duration::from_secs(5))
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

    /// A table whose rows take a constant time each reaches the target time and stays there.
    #[test]
    fn size_follows_the_duration_of_batches() {
        for micros_per_row in [2, 10, 40] {
            let mut size = BatchSize::default();
            let cost = |size: BatchSize| Duration::from_micros(size.rows().unsigned_abs() * micros_per_row);
            for _ in 0..40 {
                size = size.after(size.rows().unsigned_abs(), cost(size));
            }
            let took = cost(size);
            assert!(took <= TARGET && took * 2 >= TARGET, "{micros_per_row}: {took:?}");
        }
    }

    #[test]
    fn size_stays_within_its_bounds() {
        let mut size = BatchSize::default();
        for _ in 0..20 {
            size = size.after(size.rows().unsigned_abs(), Duration::ZERO);
        }
        assert_eq!(size.rows(), MAX_ROWS);
        for _ in 0..20 {
            size = size.halved();
        }
        assert_eq!(size.rows(), MIN_ROWS);
        assert_eq!(size.after(10, TARGET * 100).rows(), MIN_ROWS);
        for _ in 0..20 {
            size = size.after(1000, TARGET / 4).after(1000, TARGET * 100);
        }
        assert!((MIN_ROWS_WHEN_SLOW..MIN_ROWS_WHEN_SLOW * 3).contains(&size.rows()), "{size:?}");
    }

    #[test]
    fn size_grows_only_if_there_are_more_rows() {
        let size = BatchSize::default();
        assert_eq!(size.after(size.rows().unsigned_abs() / 2 - 1, Duration::ZERO), size);
        // The deletion of sessions may remove only half as many rows as it may: refresh tokens, and no session.
        assert!(size.after(size.rows().unsigned_abs() / 2, Duration::ZERO).rows() > size.rows());
        assert!(size.after(1, TARGET * 3).rows() < size.rows(), "a slow batch counts even if it is not full");
    }

    #[test]
    fn pause_is_at_least_as_long_as_the_batch() {
        for millis in [1, 50, 400, 4000] {
            assert!(pause_after(Duration::from_millis(millis)) >= Duration::from_millis(millis));
        }
        assert!(pause_after(Duration::ZERO) > Duration::ZERO);
        assert!(pause_after(Duration::from_hours(1)) < Duration::from_mins(1), "the machine was suspended");
    }
}
