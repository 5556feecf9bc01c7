//! What a commit announces to other parts of the process.

use countersign_identity::Revision;
use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::sync::{Notify, watch};

/// The channels to the readers of the change feed and to the webhook dispatcher, and the state for the health of the database.
#[derive(Debug, Clone)]
pub struct CommitSignals {
    /// The newest revision that this process has committed.
    pub committed_revision: watch::Sender<Revision>,
    /// Notified when this process has committed an event for a webhook target.
    pub events_committed: Arc<Notify>,
    /// Whether the last write succeeded.
    pub writable: Arc<AtomicBool>,
}

/// What to announce after the commit of one or several transactions, by [`Announcement::send`] or [`Announcement::fail`].
#[derive(Debug, Default)]
pub struct Announcement {
    revision: Option<(Revision, watch::Sender<Revision>)>,
    events: Option<Arc<Notify>>,
    writable: Option<Arc<AtomicBool>>,
    is_write: bool,
}

impl CommitSignals {
    /// The announcement of a transaction. `revision`: its revision, if it needed one. `is_write`: it has written something, so its
    /// commit shows that the database accepts writes. Without a write, a commit succeeds even on a full disk.
    pub fn announcement(self, revision: Option<Revision>, has_events: bool, is_write: bool) -> Announcement {
        let Self { committed_revision, events_committed, writable } = self;
        Announcement {
            revision: revision.map(|revision| (revision, committed_revision)),
            events: has_events.then_some(events_committed),
            writable: Some(writable),
            is_write,
        }
    }
}

impl Announcement {
    /// The flag [`CommitSignals::writable`], which this announcement sets.
    pub fn writable(&self) -> Option<Arc<AtomicBool>> {
        self.writable.clone()
    }

    /// Adds what a later transaction announces.
    pub fn add(&mut self, later: Self) {
        let Self { revision, events, writable, is_write } = later;
        self.revision = revision.or(self.revision.take());
        self.events = events.or(self.events.take());
        self.writable = writable.or(self.writable.take());
        self.is_write |= is_write;
    }

    /// Announces the commit. Call this only after the commit has succeeded.
    pub fn send(&mut self) {
        let Self { revision, events, writable, is_write } = mem::take(self);
        if let Some(writable) = writable.filter(|_| is_write) {
            writable.store(true, Ordering::Relaxed);
        }
        if let Some((revision, committed_revision)) = revision {
            committed_revision.send_if_modified(|newest| revision > mem::replace(newest, revision.max(*newest)));
        }
        if let Some(events) = events {
            events.notify_one();
        }
    }

    /// Records that the commit failed.
    pub fn fail(&mut self) {
        if let Some(writable) = mem::take(self).writable {
            writable.store(false, Ordering::Relaxed);
        }
    }
}
