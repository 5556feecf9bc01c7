//! Writes the copy of one API key, while its view is confirmed.
//!
//! A newer confirmation alone is written only after an interval. A revision that the sync client has to report to the control plane
//! is written sooner, because the report waits until the copy has it. Invariant: writing takes at most 5 % of the time.

use super::{Contact, CopyDirectory, CopyKey, Origin};
use crate::{
    metrics::Metrics,
    sync::{Authorization, CopyProgress, Instance},
    view::{ApiKeyIndex, View, Views},
};
use countersign_process::{Clock, Shutdown};
use std::{io, path::PathBuf, sync::Arc, time::Duration};

/// The longest interval between writes while no report waits for the copy.
const MAX_INTERVAL: Duration = Duration::from_secs(10);

/// How often a copy is written within the maximum age of its view. So a sidecar that starts from it can decide for almost this age.
const PARTS_OF_MAX_AGE: u32 = 60;

/// How often the writer looks for a newer confirmation.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// After a write, the writer waits at least 20 times as long as the write took, so that it writes at most 5 % of the time.
const PAUSE_FACTOR: u32 = 20;

/// The shortest pause before a write for which a report waits. In this time, the view is usually confirmed, too.
const MIN_PAUSE: Duration = Duration::from_millis(10);

/// The interval between writes while no report waits for the copy. `max_age` is the age at which the view is stale.
pub fn copy_interval(max_age: Duration) -> Duration {
    MAX_INTERVAL.min(max_age / PARTS_OF_MAX_AGE)
}

pub struct CopyWriter {
    pub index: ApiKeyIndex,
    /// The API key, from which the key of the copy is derived.
    pub authorization: Authorization,
    pub directory: CopyDirectory,
    /// [`copy_interval`], except in tests.
    pub interval: fn(Duration) -> Duration,
    /// This process, whose name the copy contains.
    pub instance: Instance,
    /// What the sync client has to report, and what is on disk.
    pub progress: Arc<CopyProgress>,
    pub views: Arc<Views>,
    pub metrics: Arc<Metrics>,
    pub clock: Arc<dyn Clock>,
    pub state: WriterState,
}

/// What a writer has done.
#[derive(Debug, Default)]
pub struct WriterState {
    /// When the view on disk was confirmed, since boot.
    confirmed_at: Option<Duration>,
    /// The earliest time of the next write, since boot.
    next_write: Duration,
    /// The earliest time of the next write for which a report waits, since boot.
    next_awaited_write: Duration,
    /// The file of the last write.
    path: Option<PathBuf>,
    has_failed: bool,
    was_refused: bool,
}

impl CopyWriter {
    /// Writes copies until shutdown is requested, and then the last one. The caller requests it after the last check.
    pub async fn run(mut self, shutdown: Shutdown) {
        loop {
            let stops = tokio::select! {
                () = shutdown.requested() => true,
                () = self.pause() => false,
            };
            self.update(stops).await;
            if stops {
                return;
            }
        }
    }

    /// Waits until a write may be due.
    async fn pause(&self) {
        let pause = self.state.next_awaited_write.saturating_sub(self.clock.since_boot()).max(MIN_PAUSE);
        let awaited = async {
            self.progress.wait_until_awaited().await;
            tokio::time::sleep(pause).await;
        };
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            () = awaited => {}
        }
    }

    /// Writes the view if it is due, or removes the copy if the API key was removed, or if the control plane does not know it.
    /// `is_last`: the writer stops.
    async fn update(&mut self, is_last: bool) {
        if !self.views.uses_key(self.index) {
            return self.remove("its API key was removed").await;
        }
        if self.views.is_key_unknown(self.index) {
            if !self.state.was_refused {
                self.state.was_refused = true;
                self.remove("the API key is refused").await;
            }
            return;
        }
        self.state.was_refused = false;
        let Some((_, contact)) = self.confirmed_view() else { return };
        let (now, is_awaited) = (self.clock.since_boot(), self.progress.is_awaited());
        let is_due = is_last || now >= self.state.next_write || (is_awaited && now >= self.state.next_awaited_write);
        if is_due && (is_awaited || self.state.confirmed_at < Some(contact.since_boot)) {
            self.write().await;
        }
    }

    /// The view of the API key, and its last confirmation. `None` if this process has not received one.
    fn confirmed_view(&self) -> Option<(Arc<View>, Contact)> {
        let view = self.views.of_key(self.index)?;
        let contact = Contact::of(&view, &*self.clock)?;
        Some((view, contact))
    }

    async fn write(&mut self) {
        let Some(key) = CopyKey::of(&self.authorization) else { return };
        let begun = self.progress.begin_write();
        let Some((view, contact)) = self.confirmed_view() else {
            return self.progress.write_failed(self.directory.has_file(&key));
        };
        let interval = (self.interval)(view.max_age());
        let started_at = self.clock.since_boot();
        let (service, revision, agents) = (view.service(), view.revision(), view.agent_count());
        let path = self.directory.path_of(&key);
        let (directory, instance) = (self.directory.clone(), self.instance);
        let previous = self.state.path.clone().filter(|previous| *previous != path);
        let write = move || {
            let result = directory.write(&key, &view, Origin { contact, instance }).and_then(|len| {
                // If the API key was replaced, nobody writes the copy of the previous key any more, so we remove it.
                previous.as_ref().map_or(Ok(()), |previous| directory.remove(previous))?;
                Ok(len)
            });
            // After a failed write, an earlier copy may still be there.
            result.map_err(|error| (error, directory.has_file(&key) || previous.is_some()))
        };
        let result = tokio::task::spawn_blocking(write).await;
        let result = result.unwrap_or_else(|panic| Err((io::Error::other(panic), true)));
        let now = self.clock.since_boot();
        let pause = now.saturating_sub(started_at) * PAUSE_FACTOR;
        self.state.next_write = now + interval.max(pause);
        self.state.next_awaited_write = if result.is_ok() { now + pause } else { self.state.next_write };
        match result {
            Ok(bytes) => {
                self.progress.written(begun, revision);
                self.metrics.copies.written(service, bytes, contact.wall);
                self.state.path = Some(path.clone());
                let path = path.display();
                if self.state.confirmed_at.is_none() || self.state.has_failed {
                    tracing::info!(key = self.index.0, %path, bytes, agents, "the copy of the view is on disk");
                }
                self.state.confirmed_at = Some(contact.since_boot);
                self.state.has_failed = false;
            }
            Err((error, has_file)) => {
                self.progress.write_failed(has_file);
                self.metrics.copies.write_failed();
                let path = path.display();
                if !self.state.has_failed {
                    tracing::warn!(key = self.index.0, %path, %error, "cannot write the copy of the view; trying again");
                }
                self.state.has_failed = true;
            }
        }
    }

    async fn remove(&self, reason: &str) {
        let Some(key) = CopyKey::of(&self.authorization) else { return };
        let (directory, path) = (self.directory.clone(), self.directory.path_of(&key));
        let removed = path.clone();
        let result = tokio::task::spawn_blocking(move || directory.remove(&removed)).await;
        let path = path.display();
        match result.unwrap_or_else(|panic| Err(io::Error::other(panic))) {
            Ok(()) => {
                self.progress.removed();
                tracing::warn!(key = self.index.0, %path, "removed the copy of the view: {reason}");
            }
            Err(error) => tracing::error!(key = self.index.0, %path, %error, "cannot remove the copy of the view"),
        }
    }
}
