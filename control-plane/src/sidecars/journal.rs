//! Records the streams of this control plane in the database.
//!
//! New streams are recorded at once, many in one transaction, because we answer no ping of their sidecars before that. The end of a
//! stream is recorded within about [`INTERVAL`]. We write the progress of open streams only while other control planes run, because
//! only they read it. A row holds the whole state of a stream. So we can write a row again after a failure, or when we do not know
//! whether the commit happened.
//!
//! All changes up to the *distributed* revision are in the queues of our streams. Invariant: when the database has this revision,
//! it also has the progress of all our streams at this revision. Otherwise, other control planes would think that a sidecar has
//! applied a change that is still in its queue.

use super::{
    Sidecars,
    peers::Peers,
    rows::{Selection, Unwritten},
    streams::{Phase, StreamStatus},
};
use crate::store::{
    StoreError, WriteTransaction,
    sidecars::{self, ControlPlane, Peer, RecordedSidecar},
};
use countersign_identity::{Revision, Timestamp};
use countersign_process::Shutdown;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::time::{sleep, timeout};

/// The interval at which we write ends and progress.
const INTERVAL: Duration = Duration::from_millis(250);

/// We pause four times as long as the last write of ends and progress took, so that requests get most of the database.
const PAUSE_FACTOR: u32 = 4;

/// The shortest pause after a write of ends and progress, because new streams wake us at any time. It is below [`INTERVAL`], so
/// that we skip no interval after a fast write.
const MIN_PAUSE: Duration = Duration::from_millis(125);

/// The interval at which a control plane that stops looks whether all its streams have ended.
const STOP_INTERVAL: Duration = Duration::from_millis(25);

/// Maximum time between two writes of our own row. Without them, other control planes would conclude that we were killed.
const SEEN_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum time between two writes of our own row while the distributed revision grows: other control planes may wait for it.
const NEWS_INTERVAL: Duration = Duration::from_secs(1);

/// The largest number of streams in one transaction.
const MAX_BATCH: usize = 256;

/// The longest time for the last transactions of a control plane that stops.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// The task that writes to the database.
pub struct Journal {
    sidecars: Sidecars,
    /// The time since boot at which we last wrote our own row. `None`: the database has no row under our name.
    seen_at: Option<Duration>,
    /// The distributed revision in our own row.
    published: Revision,
    peers: Peers,
    has_failed: bool,
}

/// What one transaction writes.
struct Batch {
    streams: Vec<Unwritten>,
    /// Streams whose sidecar has told us that its previous process is gone; we delete that process's row.
    replacements: Vec<Arc<StreamStatus>>,
    distributed: Revision,
}

/// What a transaction has written.
struct Written {
    /// For each stream: false if the database already has a later stream of this sidecar process.
    are_newest: Vec<bool>,
    /// For each of the `replacements`: whether the row of the previous process is gone.
    have_forgotten: Vec<bool>,
    peers: Vec<Peer>,
}

/// A transaction that failed.
struct Failure {
    error: StoreError,
    /// Whether the database may have committed the transaction nevertheless.
    is_unknown: bool,
}

impl Journal {
    /// The journal of the streams of this process.
    pub fn new(sidecars: Sidecars) -> Self {
        Self { sidecars, seen_at: None, published: Revision::default(), peers: Peers::default(), has_failed: false }
    }

    /// Writes until shutdown is requested and all streams have ended, and then deletes the row of this control plane.
    pub async fn run(mut self, shutdown: Shutdown) {
        let mut next_full_write = Duration::ZERO;
        loop {
            tokio::select! {
                () = shutdown.requested() => break,
                // After a failure, new streams must not make us try again without a pause.
                () = self.sidecars.0.wakeup.notified(), if !self.has_failed => {}
                () = sleep(INTERVAL) => {}
            }
            let began_at = self.since_boot();
            let with_ends_and_progress = began_at >= next_full_write;
            self.write(with_ends_and_progress).await;
            if with_ends_and_progress {
                let ended_at = self.since_boot();
                next_full_write = ended_at + (ended_at.saturating_sub(began_at) * PAUSE_FACTOR).max(MIN_PAUSE);
            }
        }
        if timeout(LAST_WRITE_TIMEOUT, self.stop()).await.is_err() {
            tracing::warn!("the ends of sync streams could not be recorded in time");
        }
    }

    /// Waits for the ends of the streams, records them, and deletes the row of this control plane.
    pub(super) async fn stop(&mut self) {
        while !self.sidecars.streams().have_ended() {
            self.write(true).await;
            sleep(STOP_INTERVAL).await;
        }
        let name = self.sidecars.name();
        let work = async |mut tx: WriteTransaction| {
            sidecars::delete_control_plane(tx.conn(), &name).await?;
            tx.commit(()).await
        };
        if let Err(error) = self.sidecars.0.store.write::<_, StoreError, _, _>("delete_control_plane", work).await {
            tracing::warn!(%error, "the row of this control plane could not be deleted");
        }
    }

    fn since_boot(&self) -> Duration {
        self.sidecars.0.clock.since_boot()
    }

    /// Writes new streams, and if asked to, ends and progress of streams, in transactions of at most [`MAX_BATCH`] streams.
    pub(super) async fn write(&mut self, with_ends_and_progress: bool) {
        let with_progress = with_ends_and_progress && self.sidecars.has_peers();
        // Read the distributed revision before the progress of the streams, so that the progress accounts for all changes up to it.
        let distributed = if with_progress { self.sidecars.distributed() } else { self.published };
        let name = self.sidecars.name();
        let selection = Selection { with_ends: with_ends_and_progress, with_progress };
        let mut streams = self.sidecars.streams().take_unwritten(&name, selection);
        let max_replacements = if with_ends_and_progress { MAX_BATCH } else { 0 };
        let mut replacements = self.sidecars.streams().replacements(max_replacements);
        loop {
            let rest = streams.split_off(streams.len().min(MAX_BATCH));
            // Only the last batch may publish the revision, because until then the database lacks the progress of some streams.
            let distributed = if rest.is_empty() { distributed } else { self.published };
            let batch = Batch { streams, replacements, distributed };
            let is_empty = batch.streams.is_empty() && batch.replacements.is_empty();
            if is_empty && !self.is_due(batch.distributed > self.published) {
                return;
            }
            let is_written = self.write_batch(batch, &name).await;
            if !is_written {
                for stream in rest {
                    self.sidecars.streams().not_written(stream);
                }
                return;
            }
            if rest.is_empty() {
                return;
            }
            (streams, replacements) = (rest, Vec::new());
        }
    }

    /// Whether to write although no stream has changed: our own row must be renewed, or a killed control plane left streams to end.
    fn is_due(&self, has_news: bool) -> bool {
        let interval = if has_news { NEWS_INTERVAL } else { SEEN_INTERVAL };
        let now = self.since_boot();
        self.peers.killed(now).next().is_some() || self.seen_at.is_none_or(|at| now.saturating_sub(at) >= interval)
    }

    /// Returns whether the batch was written.
    async fn write_batch(&mut self, batch: Batch, name: &Arc<str>) -> bool {
        match self.commit(&batch, name).await {
            Ok(Some(Written { are_newest, have_forgotten, peers })) => {
                let now = self.since_boot();
                (self.seen_at, self.published, self.has_failed) = (Some(now), batch.distributed, false);
                self.sidecars.0.has_peers.store(!peers.is_empty(), Ordering::SeqCst);
                self.peers.read(peers, now);
                let mut streams = self.sidecars.streams();
                for (stream, is_newest) in batch.streams.iter().zip(are_newest) {
                    streams.written(stream, name, is_newest);
                }
                for (stream, is_forgotten) in batch.replacements.iter().zip(have_forgotten) {
                    if is_forgotten {
                        stream.clear_previous();
                    }
                }
                true
            }
            Ok(None) => {
                tracing::warn!("another control plane considered this one killed; all sync streams are recorded again");
                (self.seen_at, self.published) = (None, Revision::default());
                self.sidecars.take_new_name();
                false
            }
            Err(Failure { error, is_unknown }) => {
                if !self.has_failed {
                    tracing::warn!(%error, "sync streams cannot be recorded; trying again");
                }
                self.has_failed = true;
                if !is_unknown {
                    let mut streams = self.sidecars.streams();
                    for stream in batch.streams {
                        streams.not_written(stream);
                    }
                }
                false
            }
        }
    }

    /// Writes a batch and our own row in one transaction, and ends the streams of killed control planes. Returns `None`, and writes
    /// nothing, if another control plane has deleted our row because it concluded that we were killed.
    async fn commit(&self, batch: &Batch, name: &Arc<str>) -> Result<Option<Written>, Failure> {
        let killed: Vec<_> = self.peers.killed(self.since_boot()).collect();
        let begins_commit = AtomicBool::new(false);
        let work = async |mut tx: WriteTransaction| {
            // The store may run this work several times, so clear what an earlier run has set.
            begins_commit.store(false, Ordering::SeqCst);
            let (now, conn) = (self.sidecars.0.clock.now(), tx.conn());
            let control_plane = ControlPlane { id: name, seen_at: now, distributed: batch.distributed };
            let is_registered = match self.seen_at {
                Some(_) => sidecars::renew(conn, control_plane).await?,
                None => sidecars::register(conn, control_plane).await?,
            };
            if !is_registered {
                return tx.commit(None).await;
            }
            let mut are_newest = Vec::new();
            for unwritten in &batch.streams {
                let record = record_of(unwritten, name, now);
                are_newest.push(sidecars::write(conn, &record).await?);
                if unwritten.decides_no_more() {
                    sidecars::delete(conn, &record).await?;
                }
            }
            let mut have_forgotten = Vec::new();
            for stream in &batch.replacements {
                have_forgotten.push(match stream.process_to_forget() {
                    Some(previous) => sidecars::forget(conn, stream.identity.service, previous).await?,
                    None => false,
                });
            }
            for peer in &killed {
                sidecars::end_killed(conn, peer, now).await?;
            }
            let peers = sidecars::peers(conn, name).await?;
            begins_commit.store(true, Ordering::SeqCst);
            tx.commit(Some(Written { are_newest, have_forgotten, peers })).await
        };
        let result = self.sidecars.0.store.write_alone("record_sidecars", work).await;
        result.map_err(|error: StoreError| {
            let is_unknown = begins_commit.load(Ordering::SeqCst) && error.leaves_outcome_unknown();
            Failure { error, is_unknown }
        })
    }
}

/// The row of a stream. If the stream has ended, `now` becomes its end, which is never too early.
fn record_of(unwritten: &Unwritten, control_plane: &str, now: Timestamp) -> RecordedSidecar {
    let Unwritten { stream, progress, phase, .. } = unwritten;
    RecordedSidecar {
        identity: stream.identity.clone(),
        control_plane: control_plane.to_owned(),
        stream: stream.number,
        connected_at: stream.connected_at,
        progress: *progress,
        confirmed_at: stream.latest_confirmation(),
        ended_at: (*phase != Phase::InUse).then_some(now),
        max_staleness: stream.max_staleness,
        distributed: None,
    }
}
