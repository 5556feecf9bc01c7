//! Read and write transactions.

use super::{
    Conn, StoreError, audit,
    commit_signals::CommitSignals,
    deployment, feed, outbox,
    transaction_timer::TransactionTimer,
    unconfirmed_changes::{self, UnconfirmedChanges},
};
use crate::domain::{
    audit::{Initiator, NewAuditEntry, keys::AuditKeyRing},
    change::{Change, Changed},
    webhook::event::Event,
};
use countersign_identity::{Revision, Timestamp};
use std::sync::Arc;

pub struct ReadTransaction {
    conn: Conn,
    _timer: TransactionTimer,
}

/// A write transaction, which is rolled back if dropped without [`WriteTransaction::commit`].
pub struct WriteTransaction {
    conn: Conn,
    now: Timestamp,
    audit_keys: Arc<AuditKeyRing>,
    changes: Vec<Change>,
    /// The audit entries of this transaction, one item for each chain.
    audited: Vec<UnconfirmedChanges>,
    events: Vec<Event>,
    revision: Option<Revision>,
    signals: CommitSignals,
    /// Whether [`Self::check_write`] has written a row.
    is_write_check: bool,
}

/// The result of a committed transaction. Only the commit of a [`WriteTransaction`] makes one, so this type proves the commit.
pub struct CommittedTransaction<T> {
    /// The value that the transaction returns.
    pub(super) value: T,
}

impl ReadTransaction {
    pub(super) const fn new(conn: Conn, timer: TransactionTimer) -> Self {
        Self { conn, _timer: timer }
    }

    /// The connection for the queries of the transaction.
    pub fn conn(&mut self) -> &mut Conn {
        &mut self.conn
    }
}

impl WriteTransaction {
    pub(super) const fn new(conn: Conn, now: Timestamp, audit_keys: Arc<AuditKeyRing>, signals: CommitSignals) -> Self {
        Self {
            conn,
            now,
            audit_keys,
            changes: Vec::new(),
            audited: Vec::new(),
            events: Vec::new(),
            revision: None,
            signals,
            is_write_check: false,
        }
    }

    /// The connection for the queries of the transaction.
    pub fn conn(&mut self) -> &mut Conn {
        &mut self.conn
    }

    /// Writes a row, so that the commit shows whether the database accepts writes.
    pub async fn check_write(&mut self) -> Result<(), StoreError> {
        self.is_write_check = true;
        deployment::record_write_check(&mut self.conn, self.now).await
    }

    /// The time at which the transaction began.
    pub const fn now(&self) -> Timestamp {
        self.now
    }

    /// Appends an entry to the audit log. This locks the audit chain until the transaction ends, so call it late in the
    /// transaction, but before [`Self::revision`].
    pub async fn audit(&mut self, initiator: &Initiator, entry: &NewAuditEntry) -> Result<(), StoreError> {
        if self.revision.is_some() {
            return Err(StoreError::AuditAfterRevision);
        }
        let sequence = audit::append(&mut self.conn, &self.audit_keys, initiator, entry, self.now).await?;
        let chain = entry.chain.audit_chain();
        match self.audited.iter_mut().find(|audited| audited.chain == chain) {
            Some(audited) => audited.last_sequence = sequence,
            None => self.audited.push(UnconfirmedChanges {
                chain,
                first_sequence: sequence,
                last_sequence: sequence,
                first_changed_at: self.now,
                changed_at: self.now,
                awaited: None,
            }),
        }
        Ok(())
    }

    /// Records a change for the sidecars. [`Self::commit`] writes the change to the change feed.
    pub fn record_change(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// Emits a webhook event. [`Self::commit`] writes the event to the outbox.
    pub fn emit(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Returns the revision of the transaction, and assigns one if there is none. This locks the change feed until the transaction
    /// ends, so call it late in the transaction.
    pub async fn revision(&mut self) -> Result<Revision, StoreError> {
        if let Some(revision) = self.revision {
            return Ok(revision);
        }
        let revision = feed::next_revision(&mut self.conn, self.now).await?;
        Ok(*self.revision.insert(revision))
    }

    /// Writes the events to the outbox and the changes to the change feed, and commits.
    pub async fn commit<T>(mut self, value: T) -> Result<CommittedTransaction<T>, StoreError> {
        let has_events = self.write_events_and_changes().await?;
        self.finish(value, has_events).await
    }

    /// Commits like [`Self::commit`], and returns the revision with the value. If nothing has changed, this is the newest revision.
    /// The transaction must have locked what it reads: otherwise, the current value might come from a change with a later revision.
    pub async fn commit_change<T>(mut self, value: T) -> Result<CommittedTransaction<Changed<T>>, StoreError> {
        let has_events = self.write_events_and_changes().await?;
        let revision = match self.revision {
            Some(revision) => revision,
            None => feed::position(&mut self.conn).await?.revision,
        };
        self.finish(Changed { value, revision }, has_events).await
    }

    /// Returns whether a webhook target receives any of the events.
    async fn write_events_and_changes(&mut self) -> Result<bool, StoreError> {
        let has_events = outbox::enqueue(&mut self.conn, &self.events).await?;
        if !self.changes.is_empty() {
            for audited in &self.audited {
                unconfirmed_changes::add(&mut self.conn, audited).await?;
            }
            let revision = self.revision().await?;
            feed::append_changes(&mut self.conn, revision, &self.changes, self.now).await?;
        }
        Ok(has_events)
    }

    async fn finish<T>(self, value: T, has_events: bool) -> Result<CommittedTransaction<T>, StoreError> {
        // In other cases, the transaction may have written something, too, but we do not know whether it has.
        let is_write = self.revision.is_some() || has_events || self.is_write_check;
        self.conn.commit(self.signals.announcement(self.revision, has_events, is_write)).await?;
        Ok(CommittedTransaction { value })
    }
}
