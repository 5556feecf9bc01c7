//! The two kinds of transaction.

use super::{Conn, StoreError, audit, feed, outbox, watch::Watch};
use crate::domain::{
    audit::{Author, Entry, chain::AuditKeys},
    change::Change,
    webhook::event::Event,
};
use countersign_identity::{Revision, Timestamp};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// A read transaction.
pub struct Read {
    conn: Conn,
    _watch: Watch,
}

/// A write transaction. Dropped without [`Write::commit`], it leaves no trace.
pub struct Write {
    conn: Conn,
    now: Timestamp,
    audit_keys: Arc<AuditKeys>,
    changes: Vec<Change>,
    events: Vec<Event>,
    revision: Option<Revision>,
    writable: Arc<AtomicBool>,
}

/// Proof that a transaction was committed, with what came of it.
pub struct Committed<T> {
    /// What came of it.
    pub(super) value: T,
    /// The revision, if anything changed that sidecars must learn.
    pub(super) revision: Option<Revision>,
    /// Whether there is an event that somebody gets.
    pub(super) told: bool,
}

impl Read {
    pub(super) const fn new(conn: Conn, watch: Watch) -> Self {
        Self { conn, _watch: watch }
    }

    /// Where queries run.
    pub fn conn(&mut self) -> &mut Conn {
        &mut self.conn
    }
}

impl Write {
    pub(super) const fn new(conn: Conn, now: Timestamp, audit_keys: Arc<AuditKeys>, writable: Arc<AtomicBool>) -> Self {
        Self { conn, now, audit_keys, changes: Vec::new(), events: Vec::new(), revision: None, writable }
    }

    /// Where queries run.
    pub fn conn(&mut self) -> &mut Conn {
        &mut self.conn
    }

    /// The instant at which the transaction began.
    pub const fn now(&self) -> Timestamp {
        self.now
    }

    /// Records an act of management, which locks its chain until the end: call it late, but before
    /// [`Self::revision`].
    pub async fn record(&mut self, by: &Author, entry: &Entry) -> Result<(), StoreError> {
        if self.revision.is_some() {
            return Err(StoreError::Order);
        }
        audit::append(&mut self.conn, &self.audit_keys, entry, by, self.now).await
    }

    /// Notes what sidecars must learn.
    pub fn changed(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// Notes what webhooks are told.
    pub fn tell(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Takes the revision of this transaction, which locks the feed until the end: call it late.
    pub async fn revision(&mut self) -> Result<Revision, StoreError> {
        if let Some(revision) = self.revision {
            return Ok(revision);
        }
        let revision = feed::next_revision(&mut self.conn, self.now).await?;
        Ok(*self.revision.insert(revision))
    }

    /// Puts the events on their way, appends the changes, and commits.
    pub async fn commit<T>(mut self, value: T) -> Result<Committed<T>, StoreError> {
        let mut told = false;
        for event in &self.events {
            told |= outbox::enqueue(&mut self.conn, event, self.now).await?;
        }
        if !self.changes.is_empty() {
            let revision = self.revision().await?;
            feed::append(&mut self.conn, revision, &self.changes, self.now).await?;
        }
        let done = self.conn.commit().await;
        self.writable.store(done.is_ok(), Ordering::Relaxed);
        done?;
        Ok(Committed { value, revision: self.revision, told })
    }
}
