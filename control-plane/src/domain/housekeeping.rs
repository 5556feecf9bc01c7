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
    /// Sidecars without a stream that refuse all requests by themselves.
    Sidecars,
    /// Offers of services that can no longer be accepted.
    ServiceTransfers,
    /// Assignments of roles that have expired.
    Assignments,
    /// Deliveries of old events, deliveries to deleted webhooks, and the rows of deleted webhooks.
    WebhookDeliveries,
    /// Old webhook events.
    WebhookEvents,
    /// Old webhook events that still wait for their fan-out.
    WebhookOutbox,
    /// Previous secrets of webhooks that no longer sign.
    WebhookSecrets,
    /// Old feedback about agents.
    TrustFeedback,
    /// Agents of public registrations that never logged in.
    UnusedAgents,
    /// Counts of deleted agents that no longer count for a quota.
    AgentDeletions,
    /// Rows of deleted agents, with the feedback about them.
    AgentRows,
    /// Rows that depend on deleted services.
    DeletedServices,
    /// Rows that depend on deleted agents.
    DeletedAgents,
    /// Assignments of deleted roles, and the rows of these roles.
    DeletedRoles,
}

impl ExpiredData {
    /// All kinds.
    pub const ALL: [Self; 19] = [
        Self::Changes,
        Self::Sessions,
        Self::IdempotencyKeys,
        Self::KnownAgents,
        Self::TokenAudiences,
        Self::Sidecars,
        Self::ServiceTransfers,
        Self::Assignments,
        Self::WebhookDeliveries,
        Self::WebhookEvents,
        Self::WebhookOutbox,
        Self::WebhookSecrets,
        Self::TrustFeedback,
        Self::UnusedAgents,
        Self::AgentDeletions,
        Self::AgentRows,
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
            | Self::Sidecars
            | Self::ServiceTransfers
            | Self::Assignments
            | Self::WebhookDeliveries
            | Self::WebhookEvents
            | Self::WebhookOutbox
            | Self::WebhookSecrets
            | Self::TrustFeedback
            | Self::UnusedAgents
            | Self::AgentDeletions
            | Self::AgentRows => false,
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
            Self::Sidecars => "sidecars",
            Self::ServiceTransfers => "service_transfers",
            Self::Assignments => "assignments",
            Self::WebhookDeliveries => "webhook_deliveries",
            Self::WebhookEvents => "webhook_events",
            Self::WebhookOutbox => "webhook_outbox",
            Self::WebhookSecrets => "webhook_secrets",
            Self::TrustFeedback => "trust_feedback",
            Self::UnusedAgents => "unused_agents",
            Self::AgentDeletions => "agent_deletions",
            Self::AgentRows => "agent_rows",
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

/// How long the transactions of background work are, and the pauses after them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Time that one transaction shall work before its commit.
    target: Duration,
    /// The pause after a transaction, as a multiple of its time.
    pause_factor: u32,
}

impl Pace {
    /// For a database with only one writer at a time, of whose time requests get two thirds. A request waits for at most one
    /// transaction.
    pub const ONE_WRITER: Self = Self { target: Duration::from_micros(1500), pause_factor: 2 };

    /// For a database with many writers. Requests do not wait for transactions of background work, so these are longer: each of
    /// them needs messages to the database and a commit, however few rows it removes. They use its processors and its disk, and so
    /// does the database when it removes the deleted rows from its tables.
    pub const MANY_WRITERS: Self = Self { target: Duration::from_millis(10), pause_factor: 3 };

    /// The pause after a transaction that took `took`. A clock that jumps must not stop the work.
    pub fn pause_after(self, took: Duration) -> Duration {
        took.saturating_mul(self.pause_factor).clamp(Duration::from_millis(1), Duration::from_secs(5))
    }
}

/// Bounds of the number of rows that one transaction of background work removes.
const MIN_ROWS: i64 = 10;
const MAX_ROWS: i64 = 5000;

/// Fewer rows than this are removed only after failures: a slow transaction with fewer rows is slow for another reason, such as
/// a disk that reads slowly. Even if each transaction on SQLite takes 30 ms, several times more rows are removed than logins can
/// create.
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

    /// The size after a transaction that removed `removed` rows and worked for `took`. A transaction that found much fewer rows than
    /// it may remove does not show that more rows are possible.
    #[must_use]
    pub fn after(self, removed: u64, took: Duration, Pace { target, pause_factor: _ }: Pace) -> Self {
        let is_full = removed.saturating_mul(2) >= self.0.unsigned_abs();
        let slower = |rows: i64| Self(rows.max(MIN_ROWS_WHEN_SLOW.min(self.0)));
        let faster = |rows: i64| Self(rows.min(MAX_ROWS));
        if took > target * 2 {
            slower(self.0 / 2)
        } else if took > target {
            slower(self.0 * 3 / 4)
        } else if is_full && took < target / 2 {
            faster(self.0 * 2)
        } else if is_full && took < target * 4 / 5 {
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

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);
    const PACE: Pace = Pace::ONE_WRITER;
    const TARGET: Duration = PACE.target;

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
        for (pace, micros_per_row) in [(PACE, 2), (PACE, 10), (PACE, 20), (Pace::MANY_WRITERS, 10)] {
            let mut size = BatchSize::default();
            let cost = |size: BatchSize| Duration::from_micros(size.rows().unsigned_abs() * micros_per_row);
            for _ in 0..40 {
                size = size.after(size.rows().unsigned_abs(), cost(size), pace);
            }
            let took = cost(size);
            assert!(took <= pace.target && took * 2 >= pace.target, "{pace:?}, {micros_per_row}: {took:?}");
        }
    }

    #[test]
    fn size_stays_within_its_bounds() {
        let mut size = BatchSize::default();
        for _ in 0..20 {
            size = size.after(size.rows().unsigned_abs(), Duration::ZERO, PACE);
        }
        assert_eq!(size.rows(), MAX_ROWS);
        for _ in 0..20 {
            size = size.halved();
        }
        assert_eq!(size.rows(), MIN_ROWS);
        assert_eq!(size.after(10, TARGET * 100, PACE).rows(), MIN_ROWS);
        for _ in 0..20 {
            size = size.after(1000, TARGET / 4, PACE).after(1000, TARGET * 100, PACE);
        }
        assert!((MIN_ROWS_WHEN_SLOW..MIN_ROWS_WHEN_SLOW * 3).contains(&size.rows()), "{size:?}");
    }

    #[test]
    fn size_grows_only_if_there_are_more_rows() {
        let size = BatchSize::default();
        assert_eq!(size.after(size.rows().unsigned_abs() / 2 - 1, Duration::ZERO, PACE), size);
        // The deletion of sessions may remove only half as many rows as it may: refresh tokens, and no session.
        assert!(size.after(size.rows().unsigned_abs() / 2, Duration::ZERO, PACE).rows() > size.rows());
        assert!(size.after(1, TARGET * 3, PACE).rows() < size.rows(), "a slow batch counts even if it is not full");
    }

    #[test]
    fn pause_is_a_multiple_of_the_time_of_the_transaction() {
        for millis in [1, 50, 400] {
            let took = MILLISECOND * millis;
            assert_eq!(PACE.pause_after(took), took * 2);
        }
        assert!(PACE.pause_after(Duration::ZERO) > Duration::ZERO);
        assert!(PACE.pause_after(Duration::MAX) < Duration::from_mins(1), "the machine was suspended");
    }
}
