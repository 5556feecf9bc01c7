//! Records the streams of this control plane in the database.
//!
//! A new stream is recorded at once, many in one transaction, because its sidecar waits. Ends of streams follow within
//! [`INTERVAL`]. The progress of open streams is written only while other control planes run, which read it from there. Invariant: the
//! row of this control plane states a distributed revision only together with the progress of all its streams at this revision, so
//! that the database never shows a stream without a change that is in its queue.

use super::{NotRecorded, Pending, Sidecars, StreamStatus, Waiting, streams::Phase};
use crate::{
    domain::sidecar::{SidecarKey, SidecarProgress},
    store::{
        Conn, StoreError, WriteTransaction,
        sidecars::{self, NewRecord, StreamId},
    },
};
use countersign_identity::{Revision, Timestamp};
use countersign_process::Shutdown;
use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
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

/// How many streams of a killed control plane are ended at once.
const ENDED_PER_TRANSACTION: i64 = 500;

/// How many sidecars without a stream are kept for an API key. The oldest of more become one row.
const MAX_ENDED_PER_KEY: i64 = 1000;

/// The longest time for the last transactions of a control plane that stops.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// The task that writes to the database.
pub struct Journal {
    sidecars: Sidecars,
    /// When the process last wrote that it runs, since boot.
    seen_at: Option<Duration>,
    /// The distributed revision in the database.
    published: Revision,
    has_failed: bool,
}

/// What one transaction writes.
#[derive(Default)]
struct Batch {
    unrecorded: Vec<(Arc<StreamStatus>, SidecarProgress, Option<Waiting>)>,
    progressed: Vec<(Arc<StreamStatus>, SidecarProgress)>,
    ended: Vec<Arc<StreamStatus>>,
    forgotten: Vec<SidecarKey>,
    distributed: Revision,
}

impl Journal {
    /// The journal of the streams of this process.
    pub fn new(sidecars: Sidecars) -> Self {
        Self { sidecars, seen_at: None, published: Revision::default(), has_failed: false }
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

    /// Waits for the ends of the streams, records them, and deletes the row of this control plane.
    async fn stop(&mut self) {
        while self.sidecars.has_streams() {
            self.write(true).await;
            sleep(INTERVAL / 10).await;
        }
        let inner = &self.sidecars.0;
        let work = async |mut tx: WriteTransaction| {
            sidecars::delete_control_plane(tx.conn(), &inner.control_plane).await?;
            tx.commit(()).await
        };
        if let Err(error) = inner.store.write::<_, StoreError, _, _>("delete_control_plane", work).await {
            tracing::warn!(%error, "the row of this control plane could not be deleted");
        }
    }

    /// Writes everything that waits, a batch per transaction. Ends and progress are written only `with_changes`.
    async fn write(&mut self, with_changes: bool) {
        let has_peers = with_changes && self.sidecars.has_peers();
        // The revision is read first: all changes up to it are contained in the progress that is read after it.
        let distributed = self.sidecars.distributed();
        let mut progressed = if has_peers { self.sidecars.unwritten_progress() } else { Vec::new() };
        loop {
            let (mut batch, is_all_recorded) = self.sidecars.take_batch(with_changes);
            let room = MAX_BATCH.saturating_sub(batch.len());
            batch.progressed = progressed.split_off(progressed.len().saturating_sub(room));
            let is_complete = has_peers && is_all_recorded && progressed.is_empty();
            batch.distributed = if is_complete { distributed } else { self.published };
            if batch.is_empty() && !self.is_due(batch.distributed > self.published) {
                return;
            }
            let is_last = batch.len() < MAX_BATCH && progressed.is_empty();
            if !self.write_batch(batch).await || is_last {
                return;
            }
        }
    }

    /// Whether the row of this control plane must be written again.
    fn is_due(&self, has_news: bool) -> bool {
        let interval = if has_news { NEWS_INTERVAL } else { SEEN_INTERVAL };
        let now = self.sidecars.since_boot();
        self.seen_at.is_none_or(|at| now.saturating_sub(at) >= interval)
    }

    /// Returns whether the transaction was committed.
    async fn write_batch(&mut self, batch: Batch) -> bool {
        match self.sidecars.commit(&batch).await {
            Ok(has_peers) => {
                self.seen_at = Some(self.sidecars.since_boot());
                self.published = batch.distributed;
                self.has_failed = false;
                self.sidecars.0.has_peers.store(has_peers, Ordering::SeqCst);
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
        self.unrecorded.len() + self.progressed.len() + self.ended.len() + self.forgotten.len()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Sidecars {
    /// Whether there are streams whose end is not in the database.
    fn has_streams(&self) -> bool {
        !self.streams().is_empty()
    }

    /// The streams whose progress is not in the database. A stream that has ended gets no more changes, so its progress must not
    /// remain that of an open stream.
    fn unwritten_progress(&self) -> Vec<(Arc<StreamStatus>, SidecarProgress)> {
        let streams = self.streams();
        let unwritten =
            |stream: &Arc<StreamStatus>| stream.unwritten_progress().map(|progress| (Arc::clone(stream), progress));
        streams.values().flat_map(BTreeMap::values).filter_map(unwritten).collect()
    }

    /// Takes what waits, and returns whether no other stream waits to be recorded.
    fn take_batch(&self, with_changes: bool) -> (Batch, bool) {
        let mut pending = self.pending();
        let Pending { unrecorded, ended, forgotten } = &mut *pending;
        let of_unrecorded = unrecorded.len().min(MAX_BATCH);
        let of_ended = if with_changes { ended.len().min(MAX_BATCH - of_unrecorded) } else { 0 };
        let of_forgotten = forgotten.len().min(MAX_BATCH);
        let batch = Batch {
            unrecorded: unrecorded
                .drain(..of_unrecorded)
                .map(|(stream, waiting)| {
                    let progress = stream.progress();
                    (stream, progress, waiting)
                })
                .collect(),
            progressed: Vec::new(),
            ended: ended.drain(..of_ended).collect(),
            forgotten: forgotten.drain(..of_forgotten).collect(),
            distributed: Revision::default(),
        };
        (batch, unrecorded.is_empty())
    }

    /// Writes a batch in one transaction, and that the control plane runs. Returns whether other control planes run.
    async fn commit(&self, batch: &Batch) -> Result<bool, StoreError> {
        let control_plane = &self.0.control_plane;
        let work = async |mut tx: WriteTransaction| {
            let now = tx.now();
            let conn = tx.conn();
            sidecars::record_control_plane(conn, control_plane, (now, batch.distributed)).await?;
            for (stream, progress, _) in &batch.unrecorded {
                if let Some(confirmed_at) =
                    sidecars::record(conn, self.id_of(stream), &record_of(stream, *progress)).await?
                {
                    stream.confirm(confirmed_at);
                }
            }
            for (stream, progress) in &batch.progressed {
                sidecars::update(conn, self.id_of(stream), &record_of(stream, *progress), None).await?;
            }
            for stream in &batch.ended {
                self.write_end(conn, stream, now).await?;
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

    fn id_of(&self, stream: &StreamStatus) -> StreamId<'_> {
        StreamId { control_plane: &self.0.control_plane, number: stream.number }
    }

    /// Writes the end of a stream. A sidecar that was never confirmed refuses all requests, so it is deleted, like one that has left.
    async fn write_end(&self, conn: &mut Conn, stream: &StreamStatus, now: Timestamp) -> Result<(), StoreError> {
        let id = self.id_of(stream);
        let key = stream.identity.key;
        if stream.phase() == Phase::Left || stream.confirmed_at().is_none() {
            return sidecars::delete(conn, id, key).await;
        }
        sidecars::update(conn, id, &record_of(stream, stream.progress()), Some(now)).await?;
        sidecars::merge_oldest_ended(conn, key.key, MAX_ENDED_PER_KEY).await
    }

    /// A batch was committed.
    fn finish(&self, batch: Batch) {
        let Batch { unrecorded, progressed, ended, forgotten: _, distributed: _ } = batch;
        for (stream, progress, waiting) in unrecorded {
            stream.mark_written(progress);
            if let Some(waiting) = waiting {
                // Sending fails if the stream has ended, which is no problem.
                let _ignored = waiting.send(Ok(()));
            }
        }
        for (stream, progress) in progressed {
            stream.mark_written(progress);
        }
        for stream in ended {
            self.remove(&stream);
        }
    }

    /// A batch was not committed: it is written later. A stream whose sidecar is recorded with an earlier stream may continue,
    /// because receipts count this sidecar.
    async fn keep(&self, batch: Batch) {
        let Batch { unrecorded, progressed: _, ended, forgotten, distributed: _ } = batch;
        for (stream, _, waiting) in unrecorded {
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
        let mut pending = self.pending();
        pending.ended.extend(ended);
        pending.forgotten.extend(forgotten);
    }

    async fn is_recorded(&self, stream: &StreamStatus) -> bool {
        let find = async { sidecars::is_recorded(self.0.store.read().await?.conn(), stream.identity.key).await };
        find.await.unwrap_or(false)
    }
}

fn record_of(stream: &StreamStatus, progress: SidecarProgress) -> NewRecord<'_> {
    let StreamStatus { identity, number: _, connected_at, max_staleness, .. } = stream;
    NewRecord {
        identity,
        connected_at: *connected_at,
        progress,
        confirmed_at: stream.confirmed_at(),
        max_staleness: *max_staleness,
    }
}
