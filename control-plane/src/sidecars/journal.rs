//! Records the streams of this control plane in the database.
//!
//! A new stream is recorded at once, many in one transaction, because its sidecar waits. Ends of streams follow within
//! [`INTERVAL`]. The progress of open streams is written only while other control planes run, which read it from there. A row states
//! all of a stream, so a transaction that failed, or whose outcome is not known, is repeated. Invariant: the row of this control plane
//! states a distributed revision only together with the progress of all its streams at this revision, so that the database never shows
//! a stream without a change that is in its queue.

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

/// The interval at which the ends and the progress of streams are written.
const INTERVAL: Duration = Duration::from_millis(250);

/// After it has written ends and progress, the journal pauses this number of times as long as that took, so that it leaves most of the
/// database to requests.
const PAUSE_FACTOR: u32 = 4;

/// The interval at which the control plane writes that it runs, if nothing else is to be written.
const SEEN_INTERVAL: Duration = Duration::from_secs(10);

/// The same interval if the distributed revision has grown, for which other control planes may wait.
const NEWS_INTERVAL: Duration = Duration::from_secs(1);

/// The largest number of streams in one transaction.
const MAX_BATCH: usize = 256;

/// The longest time for the last transactions of a control plane that stops.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// The task that writes to the database.
pub struct Journal {
    sidecars: Sidecars,
    /// When the process last wrote that it runs, since boot. `None` if its name is not in the database.
    seen_at: Option<Duration>,
    /// The distributed revision in the database.
    published: Revision,
    peers: Peers,
    has_failed: bool,
}

/// What one transaction writes.
struct Batch {
    streams: Vec<Unwritten>,
    /// Streams whose sidecars say that an earlier process has ended.
    forgetting: Vec<Arc<StreamStatus>>,
    distributed: Revision,
}

/// What a transaction has written.
struct Written {
    /// Whether the row of each stream has no later one of the process.
    are_newest: Vec<bool>,
    /// Whether the earlier process was forgotten for each stream.
    have_forgotten: Vec<bool>,
    peers: Vec<Peer>,
}

/// A transaction that failed.
struct Failure {
    error: StoreError,
    /// Whether it may have been committed nevertheless.
    is_unknown: bool,
}

impl Journal {
    /// The journal of the streams of this process.
    pub fn new(sidecars: Sidecars) -> Self {
        Self { sidecars, seen_at: None, published: Revision::default(), peers: Peers::default(), has_failed: false }
    }

    /// Writes until shutdown is requested and all streams have ended, and states then that the control plane has stopped.
    pub async fn run(mut self, shutdown: Shutdown) {
        let mut changes_due = Duration::ZERO;
        loop {
            tokio::select! {
                () = shutdown.requested() => break,
                // After a failure, streams that want to be recorded must not make the journal try again and again.
                () = self.sidecars.0.wakeup.notified(), if !self.has_failed => {}
                () = sleep(INTERVAL) => {}
            }
            let began_at = self.since_boot();
            let with_changes = began_at >= changes_due;
            self.write(with_changes).await;
            if with_changes {
                let ended_at = self.since_boot();
                changes_due = ended_at + (ended_at.saturating_sub(began_at) * PAUSE_FACTOR).max(INTERVAL / 2);
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
            sleep(INTERVAL / 10).await;
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

    /// Writes everything that waits, a batch per transaction. Ends and progress are written only `with_changes`.
    pub(super) async fn write(&mut self, with_changes: bool) {
        let with_progress = with_changes && self.sidecars.has_peers();
        // The revision is read first: all changes up to it are contained in the progress that is read after it.
        let distributed = if with_progress { self.sidecars.distributed() } else { self.published };
        let name = self.sidecars.name();
        let selection = Selection { with_changes, with_progress };
        let mut streams = self.sidecars.streams().take_unwritten(&name, selection);
        let mut forgetting = if with_changes { self.sidecars.streams().forgetting(MAX_BATCH) } else { Vec::new() };
        loop {
            let rest = streams.split_off(streams.len().min(MAX_BATCH));
            let distributed = if rest.is_empty() { distributed } else { self.published };
            let batch = Batch { streams, forgetting, distributed };
            let is_empty = batch.streams.is_empty() && batch.forgetting.is_empty();
            if is_empty && !self.is_due(batch.distributed > self.published) {
                return;
            }
            let is_written = self.write_batch(batch, &name).await;
            (streams, forgetting) = (rest, Vec::new());
            if !is_written {
                for stream in streams {
                    self.sidecars.streams().not_written(stream);
                }
                return;
            }
            if streams.is_empty() {
                return;
            }
        }
    }

    /// Whether the row of this control plane must be written again.
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
                let forgotten = batch.forgetting.iter().zip(have_forgotten).filter(|(_, has_forgotten)| *has_forgotten);
                for (stream, _) in forgotten {
                    stream.has_forgotten();
                }
                true
            }
            Ok(None) => {
                tracing::warn!("another control plane took this one for killed; all sync streams are recorded again");
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

    /// Writes a batch, and the time at which this control plane last ran, in one transaction. Returns `None`, and writes nothing, if
    /// others took this control plane for killed.
    async fn commit(&self, batch: &Batch, name: &Arc<str>) -> Result<Option<Written>, Failure> {
        let killed: Vec<_> = self.peers.killed(self.since_boot()).collect();
        let begins_commit = AtomicBool::new(false);
        let work = async |mut tx: WriteTransaction| {
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
            for stream in &batch.forgetting {
                let previous = stream.process_to_forget();
                have_forgotten.push(match previous {
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

/// The row of a stream. `now`: a stream that has ended had ended by this time.
fn record_of(unwritten: &Unwritten, control_plane: &str, now: Timestamp) -> RecordedSidecar {
    let Unwritten { stream, progress, phase, .. } = unwritten;
    RecordedSidecar {
        identity: stream.identity.clone(),
        control_plane: control_plane.to_owned(),
        stream: stream.number,
        connected_at: stream.connected_at,
        progress: *progress,
        confirmed_at: stream.confirmed_by(),
        ended_at: (*phase != Phase::InUse).then_some(now),
        max_staleness: stream.max_staleness,
        distributed: None,
    }
}
