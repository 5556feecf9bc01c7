//! Writes the copy of one API key, while its view is confirmed.

use super::{Contact, CopyDirectory, CopyKey};
use crate::{
    metrics::Metrics,
    view::{ApiKeyIndex, View, Views},
};
use countersign_process::{Clock, Rng, Shutdown};
use std::{io, path::PathBuf, sync::Arc, time::Duration};

/// The interval at which the writer looks for a newer confirmation.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// After a write, the writer waits at least this number of times as long as the write took.
const PAUSE_FACTOR: u32 = 20;

/// Writes the copy of one API key.
pub struct CopyWriter {
    /// The API key, by its index in the settings.
    pub index: ApiKeyIndex,
    /// Derives the key of the copy from the API key, which may be replaced.
    pub key: Box<dyn Fn() -> Option<CopyKey> + Send + Sync>,
    /// The directory with the copies.
    pub directory: CopyDirectory,
    /// The shortest time between two writes.
    pub interval: Duration,
    /// The views.
    pub views: Arc<Views>,
    /// The metrics of copies.
    pub metrics: Arc<Metrics>,
    /// The source of the current time.
    pub clock: Arc<dyn Clock>,
    /// The source of salts.
    pub rng: Arc<dyn Rng>,
    /// What was written.
    pub state: WriterState,
}

/// What a writer has done.
#[derive(Debug, Default)]
pub struct WriterState {
    /// The confirmation of the written view, since boot.
    confirmed_at: Option<Duration>,
    /// The earliest time of the next write, since boot.
    next_write: Duration,
    /// The file of the last write.
    path: Option<PathBuf>,
    has_failed: bool,
    was_refused: bool,
}

impl CopyWriter {
    /// Writes copies until shutdown is requested, and then the last one.
    pub async fn run(mut self, shutdown: Shutdown) {
        loop {
            let stops = tokio::select! {
                () = shutdown.requested() => true,
                () = tokio::time::sleep(POLL_INTERVAL) => false,
            };
            self.update(stops).await;
            if stops {
                return;
            }
        }
    }

    /// Writes the view if it is due, or removes the copy if the control plane refuses the API key. `is_last` is true for the write
    /// before the process stops.
    async fn update(&mut self, is_last: bool) {
        if self.views.is_key_unknown(self.index) {
            if !self.state.was_refused {
                self.state.was_refused = true;
                self.remove().await;
            }
            return;
        }
        self.state.was_refused = false;
        let Some(view) = self.views.of_key(self.index) else { return };
        let Some(contact) = Contact::of(&view, &*self.clock) else { return };
        let is_due = is_last || self.clock.since_boot() >= self.state.next_write;
        if is_due && self.state.confirmed_at < Some(contact.since_boot) {
            self.write(view, contact).await;
        }
    }

    async fn write(&mut self, view: Arc<View>, contact: Contact) {
        let Some(key) = (self.key)() else { return };
        let started_at = self.clock.since_boot();
        let (path, service, agents) = (self.directory.path_of(&key), view.service(), view.agent_count());
        let (directory, rng) = (self.directory.clone(), Arc::clone(&self.rng));
        let previous = self.state.path.replace(path.clone()).filter(|previous| *previous != path);
        let write = move || {
            let len = directory.write(&key, &view, contact, &*rng)?;
            // The API key was replaced: the copy of the previous key is not written any more.
            if let Some(previous) = previous {
                directory.remove(&previous)?;
            }
            Ok(len)
        };
        let result = tokio::task::spawn_blocking(write).await.unwrap_or_else(|panic| Err(io::Error::other(panic)));
        let now = self.clock.since_boot();
        self.state.next_write = now + self.interval.max(now.saturating_sub(started_at) * PAUSE_FACTOR);
        let path = path.display();
        match result {
            Ok(bytes) => {
                self.metrics.copies().written(service, bytes, contact.wall);
                if self.state.confirmed_at.is_none() || self.state.has_failed {
                    tracing::info!(key = self.index.0, %path, bytes, agents, "the copy of the view is on disk");
                }
                self.state.confirmed_at = Some(contact.since_boot);
                self.state.has_failed = false;
            }
            Err(error) => {
                self.metrics.copies().write_failed();
                if !self.state.has_failed {
                    tracing::warn!(key = self.index.0, %path, %error, "cannot write the copy of the view; trying again");
                }
                self.state.has_failed = true;
            }
        }
    }

    async fn remove(&mut self) {
        let Some(key) = (self.key)() else { return };
        let (directory, path) = (self.directory.clone(), self.directory.path_of(&key));
        let removed = path.clone();
        let result = tokio::task::spawn_blocking(move || directory.remove(&removed)).await;
        let path = path.display();
        match result.unwrap_or_else(|panic| Err(io::Error::other(panic))) {
            Ok(()) => tracing::warn!(key = self.index.0, %path, "removed the copy of the view: the API key is refused"),
            Err(error) => tracing::error!(key = self.index.0, %path, %error, "cannot remove the copy of the view"),
        }
    }
}
