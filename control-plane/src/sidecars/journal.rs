//! Records the streams of this control plane in the database.
//!
//! A new stream is recorded at once, many in one transaction, because its sidecar waits. Ends of streams follow within
//! [`INTERVAL`]. The progress of open streams is written only while other control planes run, which read it from there.

use super::{NotRecorded, Pending, Sidecars, StreamStatus, Waiting, streams::Phase};
use crate::{
    domain::sidecar::SidecarKey,
    store::{
        StoreError, WriteTransaction,
        sidecars::{self, NewRecord, StreamId},
    },
};
use countersign_process::Shutdown;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::time::{sleep, timeout};

/// The interval at which the ends and the progress of streams are written.
const INTERVAL: Duration = Duration::from_millis(250);

/// After a transaction, the journal pauses this number of times as long as the transaction took, so that writing the progress of
/// streams leaves most of the database to requests.
const PAUSE_FACTOR: u32 = 4;

/// The interval at which the control plane writes that it runs, if nothing else is to be written.
const SEEN_INTERVAL: Duration = Duration::from_secs(10);

/// The same interval while other control planes wait for the revision that is distributed.
const SEEN_INTERVAL_WITH_PEERS: Duration = Duration::from_secs(1);

/// The largest number of streams in one transaction.
const MAX_BATCH: usize = 256;

/// How many streams of a killed control plane are ended at once.
const ENDED_PER_TRANSACTION: i64 = 500;

/// The longest time for the last transactions of a control plane that stops.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// The task that writes to the database.
pub struct Journal {
    sidecars: Sidecars,
    /// When the process last wrote that it runs, since boot.
    seen_at: Option<Duration>,
    has_failed: bool,
}

/// What one transaction writes.
struct Batch {
    unrecorded: Vec<(Arc<StreamStatus>, Option<Waiting>)>,
    changed: Vec<(Arc<StreamStatus>, Phase)>,
    forgotten: Vec<SidecarKey>,
}

impl Journal {
    /// The journal of the streams of this process.
    pub const fn new(sidecars: Sidecars) -> Self {
        Self { sidecars, seen_at: None, has_failed: false }
    }

    /// Writes until shutdown is requested and all streams have ended, and states then that the control plane has stopped.
    pub async fn run(mut self, shutdown: Shutdown) {
        let mut changes_due = Duration::ZERO;
        loop {
            tokio::select! {
                () = shutdown.requested() => break,
                () = self.sidecars.0.wakeup.notified() => {}
                () = sleep(INTERVAL) => {}
            }
            let began_at = self.sidecars.since_boot();
            let with_changes = began_at >= changes_due;
            self.write(with_changes).await;
            if with_changes {
                let ended_at = self.sidecars.since_boot();
                changes_due = ended_at + (ended_at.saturating_sub(began_at) * PAUSE_FACTOR).max(INTERVAL / 2);
            }
        }
        if timeout(LAST_WRITE_TIMEOUT, self.stop()).await.is_err() {
            tracing::warn!("the ends of sync streams could not be recorded in time");
        }
    }

    /// Waits for the ends of the streams and records them.
    async fn stop(&mut self) {
        while self.sidecars.has_open_streams() {
            self.write(true).await;
            sleep(INTERVAL / 10).await;
        }
        self.write(true).await;
        let inner = &self.sidecars.0;
        let work = async |mut tx: WriteTransaction| {
            sidecars::delete_control_plane(tx.conn(), &inner.control_plane).await?;
            tx.commit(()).await
        };
        if let Err(error) = inner.store.write::<_, StoreError, _, _>("delete_control_plane", work).await {
            tracing::warn!(%error, "the row of this control plane could not be deleted");
        }
    }

    /// Writes everything that waits, a batch per transaction.
    async fn write(&mut self, with_changes: bool) {
        loop {
            let batch = self.sidecars.take_batch(with_changes);
            let interval = if self.sidecars.has_peers() { SEEN_INTERVAL_WITH_PEERS } else { SEEN_INTERVAL };
            let now = self.sidecars.since_boot();
            let is_due = self.seen_at.is_none_or(|at| now.saturating_sub(at) >= interval);
            if batch.is_empty() && !is_due {
                return;
            }
            let is_last = batch.len() < MAX_BATCH;
            if !self.write_batch(batch).await || is_last {
                return;
            }
        }
    }

    /// Returns whether the transaction was committed.
    async fn write_batch(&mut self, batch: Batch) -> bool {
        match self.sidecars.commit(&batch).await {
            Ok(has_peers) => {
                self.seen_at = Some(self.sidecars.since_boot());
                self.has_failed = false;
                self.sidecars.set_has_peers(has_peers);
                self.sidecars.finish(batch);
                true
            }
            Err(error) => {
                if !self.has_failed {
                    tracing::warn!(%error, "sync streams cannot be recorded; trying again");
                }
                self.has_failed = true;
                self.sidecars.keep(batch).await;
                false
            }
        }
    }
}

impl Batch {
    fn len(&self) -> usize {
        self.unrecorded.len() + self.changed.len() + self.forgotten.len()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Sidecars {
    /// Whether a stream in use has not ended.
    fn has_open_streams(&self) -> bool {
        self.streams().values().flatten().any(|(_, stream)| stream.phase() == Phase::InUse)
    }

    fn take_batch(&self, with_changes: bool) -> Batch {
        let mut pending = self.pending();
        let Pending { unrecorded, changed, forgotten } = &mut *pending;
        let of_unrecorded = unrecorded.len().min(MAX_BATCH);
        let of_changed = if with_changes { changed.len().min(MAX_BATCH - of_unrecorded) } else { 0 };
        let changed: Vec<_> = changed.drain(..of_changed).collect();
        let of_forgotten = forgotten.len().min(MAX_BATCH);
        let batch = Batch {
            unrecorded: unrecorded.drain(..of_unrecorded).collect(),
            forgotten: forgotten.drain(..of_forgotten).collect(),
            // The phase is read after the stream is taken from the list, so a later change puts it there again.
            changed: changed
                .into_iter()
                .map(|stream| {
                    stream.take_update();
                    let phase = stream.phase();
                    (stream, phase)
                })
                .collect(),
        };
        drop(pending);
        batch
    }

    /// Writes a batch in one transaction, and that the control plane runs. Returns whether other control planes run.
    async fn commit(&self, batch: &Batch) -> Result<bool, StoreError> {
        // The revision is read first: all changes up to it are contained in the progress that is read after it.
        let distributed = self.distributed();
        let control_plane = &self.0.control_plane;
        let work = async |mut tx: WriteTransaction| {
            let now = tx.now();
            let conn = tx.conn();
            sidecars::record_control_plane(conn, control_plane, (now, distributed)).await?;
            for (stream, _) in &batch.unrecorded {
                let id = StreamId { control_plane, number: stream.number };
                if let Some(confirmed_at) = sidecars::record(conn, id, &record_of(stream)).await? {
                    stream.confirm(confirmed_at);
                }
            }
            for (stream, phase) in &batch.changed {
                let id = StreamId { control_plane, number: stream.number };
                match phase {
                    Phase::Standby => {}
                    Phase::InUse => sidecars::update(conn, id, &record_of(stream), None).await?,
                    // A sidecar that was never confirmed refuses all requests.
                    Phase::Ended if stream.confirmed_at().is_some() => {
                        sidecars::update(conn, id, &record_of(stream), Some(now)).await?;
                    }
                    Phase::Ended | Phase::Left => sidecars::delete(conn, id, stream.identity.key).await?,
                }
            }
            for key in &batch.forgotten {
                sidecars::forget(conn, *key).await?;
            }
            sidecars::end_streams_of_killed(conn, now, ENDED_PER_TRANSACTION).await?;
            let has_peers = sidecars::has_peers(conn, control_plane, now).await?;
            tx.commit(has_peers).await
        };
        self.0.store.write("record_sidecars", work).await
    }

    /// A batch was committed.
    fn finish(&self, batch: Batch) {
        let Batch { unrecorded, changed, forgotten: _ } = batch;
        for (stream, waiting) in unrecorded {
            stream.mark_recorded();
            if let Some(waiting) = waiting {
                // Sending fails if the stream has ended, which is no problem.
                let _ignored = waiting.send(Ok(()));
            }
        }
        for (stream, phase) in changed {
            if matches!(phase, Phase::Ended | Phase::Left) {
                self.remove(&stream);
            }
        }
    }

    /// A batch was not committed: it is written later. A stream whose sidecar is recorded with an earlier stream may continue,
    /// because receipts count this sidecar.
    async fn keep(&self, batch: Batch) {
        let Batch { unrecorded, changed, forgotten } = batch;
        for (stream, waiting) in unrecorded {
            let waits = waiting.is_some();
            let result = if self.is_recorded(&stream).await { Ok(()) } else { Err(NotRecorded) };
            if result.is_ok() {
                stream.mark_recorded();
            }
            if let Some(waiting) = waiting {
                let _ignored = waiting.send(result);
            }
            // A stream that is refused ends, and is never recorded.
            if result.is_ok() || !waits {
                self.pending().unrecorded.push((stream, None));
            }
        }
        for (stream, _) in changed {
            self.request_update(&stream);
        }
        self.pending().forgotten.extend(forgotten);
    }

    async fn is_recorded(&self, stream: &StreamStatus) -> bool {
        let find = async { sidecars::is_recorded(self.0.store.read().await?.conn(), stream.identity.key).await };
        find.await.unwrap_or(false)
    }

    /// States whether other control planes run. If one has started, it must learn of the progress of all streams.
    fn set_has_peers(&self, has_peers: bool) {
        let before = self.0.has_peers.swap(has_peers, Ordering::SeqCst);
        if has_peers && !before {
            let open: Vec<_> = self.streams().values().flatten().map(|(_, stream)| Arc::clone(stream)).collect();
            for stream in &open {
                self.request_update(stream);
            }
        }
    }
}

fn record_of(stream: &StreamStatus) -> NewRecord<'_> {
    let StreamStatus { identity, number: _, connected_at, max_staleness, .. } = stream;
    NewRecord {
        identity,
        connected_at: *connected_at,
        progress: stream.progress(),
        confirmed_at: stream.confirmed_at(),
        max_staleness: *max_staleness,
    }
}
