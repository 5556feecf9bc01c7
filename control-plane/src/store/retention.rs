//! Rows that housekeeping deletes by the time in one of their columns, or in their ids.

use super::{Conn, StoreError, query::params, row};
use countersign_identity::Timestamp;
use std::{fmt::Display, str::FromStr, time::Duration};

/// Rows that are kept for a time after an instant in one of their columns.
pub struct ExpiringRows {
    /// Reads the earliest instant at or after `$1` as `oldest`.
    pub(super) oldest: &'static str,
    /// Deletes up to `$3` rows with instants from `$1` until `$2`.
    pub(super) delete: &'static str,
    /// How long a row is kept after its instant.
    pub(super) kept: Duration,
}

impl ExpiringRows {
    /// The earliest time, at or after `from`, at which a row became deletable.
    pub async fn oldest_deletable(&self, conn: &mut Conn, from: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        let oldest = conn.find_oldest(self.oldest, params![from.saturating_sub(self.kept)]).await?;
        Ok(oldest.map(|instant| instant.saturating_add(self.kept)))
    }

    /// Deletes up to `limit` rows that became deletable between `from` and `until`. Returns their number.
    pub async fn delete(
        &self,
        conn: &mut Conn,
        from: Timestamp,
        until: Timestamp,
        limit: i64,
    ) -> Result<u64, StoreError> {
        let (from, until) = (from.saturating_sub(self.kept), until.saturating_sub(self.kept));
        conn.count_changes(self.delete, params![from, until, limit]).await
    }
}

/// Rows that are deleted in the order of their ids, which begin with the time of their creation.
pub struct RowsById {
    /// Reads the lowest id from `$1` on as `id`.
    pub(super) oldest: &'static str,
    /// Deletes up to `$3` rows with ids from `$1` on that are lower than `$2`.
    pub(super) delete: &'static str,
}

impl RowsById {
    /// The lowest id from `from` on.
    pub async fn oldest<Id: Copy + Display + FromStr>(
        &self,
        conn: &mut Conn,
        from: Id,
    ) -> Result<Option<Id>, StoreError> {
        conn.read_row(self.oldest, params![from.to_string()], |row| row::parse_optional(row, "id")).await
    }

    /// Deletes up to `limit` rows with ids from `from` on that are lower than `before`. Returns their number.
    pub async fn delete<Id: Display>(
        &self,
        conn: &mut Conn,
        from: Id,
        before: Id,
        limit: i64,
    ) -> Result<u64, StoreError> {
        conn.count_changes(self.delete, params![from.to_string(), before.to_string(), limit]).await
    }
}
