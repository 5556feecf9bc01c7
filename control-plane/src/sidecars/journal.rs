//! Records the streams of this control plane in the database.
//!
//! A new stream is recorded at once, many in one transaction, because its sidecar waits. Ends of streams follow within
//! [`INTERVAL`]. The progress of open streams is written only while other control planes run, which read it from there. Invariant: the
//! row of this control plane states a distributed revision only together with the progress of all its streams at this revision, so
//! that the database never shows a stream without a change that is in its queue.

use super::{NotRecorded, Pending, Recording, Sidecars, StreamStatus, Waiting, peers::Peers, streams::Phase};
use crate::{
    domain::sidecar::SidecarProgress,
    store::{
        Conn, StoreError, WriteTransaction,
        sidecars::{self, EndedProcess, NewRecord, Peer, Recorded, StreamId},
    },
};
use countersign_identity::{Revision, Timestamp};
use countersign_process::Shutdown;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
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

/// How many streams of a killed control plane are ended at once.
const ENDED_PER_TRANSACTION: i64 = 500;

/// How many sidecars without a stream are kept for a service. The oldest of more become one row.
const MAX_ENDED_PER_SERVICE: i64 = 5000;

/// The longest time for the last transactions of a control plane that stops.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// The task that writes to the database.
pub struct Journal {
    sidecars: Sidecars,
    /// Whether the row of this control plane was written.
    is_registered: bool,
    /// When the process last wrote that it runs, since boot.
    seen_at: Option<Duration>,
    /// The distributed revision in the database.
    published: Revision,
    peers: Peers,
    has_failed: bool,
}

/// What one transaction writes.
#[derive(Default)]
struct Batch {
    unrecorded: Vec<(Arc<StreamStatus>, SidecarProgress, Option<Waiting>)>,
    progressed: Vec<(Arc<StreamStatus>, SidecarProgress)>,
    ended: Vec<Arc<StreamStatus>>,
    forgotten: Vec<(EndedProcess, Duration)>,
    distributed: Revision,
}

/// What a transaction has written.
enum Written {
    /// Others took this control plane for killed, so nothing was written.
    Nothing,
    /// Everything.
    Batch {
        /// The effect on each of the unrecorded streams.
        recorded: Vec<Recorded>,
        /// Whether each of the processes to forget is gone.
        are_forgotten: Vec<bool>,
        peers: Vec<Peer>,
    },
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
        Self {
            sidecars,
            is_registered: false,
            seen_at: None,
            published: Revision::default(),
            peers: Peers::default(),
            has_failed: false,
        }
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
    pub(super) async fn stop(&mut self) {
        while self.sidecars.has_streams() {
            self.write(true).await;
            sleep(INTERVAL / 10).await;
        }
        if let Err(error) = self.end_earlier_name().await {
            tracing::warn!(%error, "the rows under an earlier name of this control plane are ended later");
        }
        let control_plane = self.sidecars.control_plane();
        let work = async |mut tx: WriteTransaction| {
            sidecars::delete_control_plane(tx.conn(), &control_plane).await?;
            tx.commit(()).await
        };
        if let Err(error) = self.sidecars.0.store.write::<_, StoreError, _, _>("delete_control_plane", work).await {
            tracing::warn!(%error, "the row of this control plane could not be deleted");
        }
    }

    /// Writes everything that waits, a batch per transaction. Ends and progress are written only `with_changes`.
    pub(super) async fn write(&mut self, with_changes: bool) {
        let mut with_forgotten = with_changes;
        let has_peers = with_changes && self.sidecars.has_peers();
        // The revision is read first: all changes up to it are contained in the progress that is read after it.
        let distributed = self.sidecars.distributed();
        let mut progressed = if has_peers { self.sidecars.unwritten_progress() } else { Vec::new() };
        loop {
            let (mut batch, is_all_recorded) = self.sidecars.take_batch(with_changes, with_forgotten);
            with_forgotten = false;
            let room = MAX_BATCH.saturating_sub(batch.len());
            batch.progressed = progressed.split_off(progressed.len().saturating_sub(room));
            let is_complete = has_peers && is_all_recorded && progressed.is_empty();
            batch.distributed = if is_complete { distributed } else { self.published };
            if batch.len() == 0 && batch.forgotten.is_empty() && !self.is_due(batch.distributed > self.published) {
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
        self.peers.killed(now).next().is_some() || self.seen_at.is_none_or(|at| now.saturating_sub(at) >= interval)
    }

    /// Returns whether the batch was written.
    async fn write_batch(&mut self, batch: Batch) -> bool {
        match self.commit(&batch).await {
            Ok(Written::Batch { recorded, are_forgotten, peers }) => {
                let now = self.sidecars.since_boot();
                (self.seen_at, self.is_registered, self.has_failed) = (Some(now), true, false);
                self.published = batch.distributed;
                let has_peers = peers.iter().any(|peer| !peer.is_killed);
                self.sidecars.0.has_peers.store(has_peers, Ordering::SeqCst);
                self.peers.read(peers, now);
                self.sidecars.finish(batch, recorded, are_forgotten);
                true
            }
            Ok(Written::Nothing) => {
                tracing::warn!("another control plane took this one for killed; all sync streams are recorded again");
                self.sidecars.return_waiting(batch);
                self.take_new_name();
                false
            }
            Err(failure) => {
                if !self.has_failed {
                    tracing::warn!(error = %failure.error, "sync streams cannot be recorded; trying again");
                }
                self.has_failed = true;
                if failure.is_unknown {
                    tracing::warn!("it is not known what was recorded; all sync streams are recorded again");
                    self.sidecars.return_waiting(batch);
                    let earlier = self.take_new_name();
                    self.sidecars.pending().earlier_name = Some(earlier);
                } else {
                    self.sidecars.keep(batch).await;
                }
                false
            }
        }
    }

    pub(super) fn take_new_name(&mut self) -> Arc<str> {
        (self.is_registered, self.seen_at, self.published) = (false, None, Revision::default());
        self.sidecars.take_new_name()
    }

    /// Marks an earlier name as killed, so that all rows under it are ended, also those of a transaction that is still being committed.
    async fn end_earlier_name(&self) -> Result<(), StoreError> {
        let Some(earlier) = self.sidecars.pending().earlier_name.clone() else { return Ok(()) };
        let work = async |mut tx: WriteTransaction| {
            sidecars::end_control_plane(tx.conn(), &earlier, self.sidecars.wall()).await?;
            tx.commit(()).await
        };
        self.sidecars.0.store.write::<_, StoreError, _, _>("end_control_plane", work).await?;
        self.sidecars.pending().earlier_name = None;
        Ok(())
    }

    /// Writes a batch, and the time at which this control plane last ran, in one transaction.
    async fn commit(&self, batch: &Batch) -> Result<Written, Failure> {
        self.end_earlier_name().await.map_err(|error| Failure { error, is_unknown: false })?;
        let Self { sidecars: journaled, is_registered, .. } = self;
        let begins_commit = AtomicBool::new(false);
        let control_plane = journaled.control_plane();
        let killed: Vec<_> = self.peers.killed(journaled.since_boot()).collect();
        let work = async |mut tx: WriteTransaction| {
            begins_commit.store(false, Ordering::SeqCst);
            // Others compare this time with their wall clocks.
            let now = journaled.wall();
            let conn = tx.conn();
            let name = (&*control_plane, !*is_registered);
            if !sidecars::record_control_plane(conn, name, (now, batch.distributed)).await? {
                return tx.commit(Written::Nothing).await;
            }
            let id_of = |stream: &StreamStatus| StreamId { control_plane: &control_plane, number: stream.number };
            let mut recorded = Vec::new();
            for (stream, progress, _) in &batch.unrecorded {
                recorded.push(sidecars::record(conn, id_of(stream), &record_of(stream, *progress)).await?);
            }
            for (stream, progress) in &batch.progressed {
                sidecars::update(conn, id_of(stream), &record_of(stream, *progress)).await?;
            }
            for stream in &batch.ended {
                write_end(conn, id_of(stream), stream, now).await?;
            }
            let services: BTreeSet<_> = batch.ended.iter().map(|stream| stream.identity.service).collect();
            for service in services {
                sidecars::merge_oldest_ended(conn, service, MAX_ENDED_PER_SERVICE).await?;
            }
            let mut are_forgotten = Vec::new();
            for (process, _) in &batch.forgotten {
                are_forgotten.push(sidecars::forget(conn, process).await?);
            }
            for peer in &killed {
                if peer.is_killed {
                    sidecars::end_streams_of_killed(conn, &peer.id, now, ENDED_PER_TRANSACTION).await?;
                } else {
                    sidecars::mark_killed(conn, peer, now).await?;
                }
            }
            let peers = sidecars::peers(conn, &control_plane).await?;
            begins_commit.store(true, Ordering::SeqCst);
            tx.commit(Written::Batch { recorded, are_forgotten, peers }).await
        };
        let result = journaled.0.store.write_alone("record_sidecars", work).await;
        result.map_err(|error: StoreError| {
            let is_unknown = begins_commit.load(Ordering::SeqCst) && error.leaves_outcome_unknown();
            Failure { error, is_unknown }
        })
    }
}

/// Writes the end of a stream. A sidecar that was never confirmed refuses all requests, so it is deleted, like one that has left.
async fn write_end(conn: &mut Conn, id: StreamId<'_>, stream: &StreamStatus, now: Timestamp) -> Result<(), StoreError> {
    if stream.phase() == Phase::Left || stream.confirmed_at().is_none() {
        return sidecars::delete(conn, id, &stream.identity).await;
    }
    sidecars::update(conn, id, &record_of(stream, stream.progress())).await?;
    sidecars::end(conn, id, &stream.identity, now).await
}

impl Batch {
    /// The number of streams.
    fn len(&self) -> usize {
        self.unrecorded.len() + self.progressed.len() + self.ended.len()
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
    fn take_batch(&self, with_changes: bool, with_forgotten: bool) -> (Batch, bool) {
        let mut pending = self.pending();
        let Pending { waiting, unrecorded, ended, forgotten, earlier_name: _ } = &mut *pending;
        let of_waiting = waiting.len().min(MAX_BATCH);
        let of_unrecorded = unrecorded.len().min(MAX_BATCH - of_waiting);
        let of_ended = if with_changes { ended.len().min(MAX_BATCH - of_waiting - of_unrecorded) } else { 0 };
        let waiting_streams = waiting.drain(..of_waiting).map(|(stream, waiting)| (stream, Some(waiting)));
        let streams = waiting_streams.chain(unrecorded.drain(..of_unrecorded).map(|stream| (stream, None)));
        let begin = |(stream, waiting): (Arc<StreamStatus>, _)| {
            let progress = stream.begin_recording()?;
            Some((stream, progress, waiting))
        };
        let mut batch = Batch {
            unrecorded: streams.filter_map(begin).collect(),
            progressed: Vec::new(),
            ended: ended.drain(..of_ended).collect(),
            forgotten: if with_forgotten { take_forgotten(forgotten) } else { Vec::new() },
            distributed: Revision::default(),
        };
        let is_all_recorded = waiting.is_empty() && unrecorded.is_empty();
        drop(pending);
        // The row has a later stream of the sidecar, or will have it.
        batch.ended.retain(|stream| self.is_newest(stream));
        (batch, is_all_recorded)
    }

    /// A batch was committed.
    fn finish(&self, batch: Batch, recorded: Vec<Recorded>, are_forgotten: Vec<bool>) {
        let Batch { unrecorded, progressed, ended, forgotten, distributed: _ } = batch;
        for ((stream, progress, waiting), recorded) in unrecorded.into_iter().zip(recorded) {
            let result = match recorded {
                Recorded::Confirmed(confirmed_at) => {
                    if let Some(confirmed_at) = confirmed_at {
                        stream.confirm(confirmed_at);
                    }
                    stream.mark_written(progress);
                    stream.set_recording(Recording::Done);
                    self.insert(&stream);
                    Ok(())
                }
                Recorded::Superseded => {
                    stream.set_recording(Recording::Replaced);
                    self.remove(&stream);
                    Err(NotRecorded)
                }
            };
            answer(waiting, result);
        }
        for (stream, progress) in progressed {
            stream.mark_written(progress);
        }
        for stream in ended {
            self.remove(&stream);
        }
        let now = self.since_boot();
        let remaining = forgotten.into_iter().zip(are_forgotten);
        let remaining = remaining.filter(|((_, until), is_forgotten)| !is_forgotten && now < *until);
        self.pending().forgotten.extend(remaining.map(|(process, _)| process));
    }

    /// A batch was not committed: it is written later. A stream may continue if its sidecar has an open stream of this control plane
    /// in the database, because receipts count it, and nobody else ends it.
    async fn keep(&self, batch: Batch) {
        let Batch { unrecorded, progressed: _, ended, forgotten, distributed: _ } = batch;
        let open = self.with_open_rows(&unrecorded).await;
        let mut kept = Vec::new();
        for ((stream, _, waiting), is_open) in unrecorded.into_iter().zip(open) {
            if stream.is_replaced() {
                // A later stream of the sidecar was accepted just now.
                answer(waiting, Err(NotRecorded));
            } else if stream.recording() == Recording::Accepted {
                kept.push(stream);
            } else if is_open {
                stream.set_recording(Recording::Accepted);
                self.insert(&stream);
                answer(waiting, Ok(()));
                kept.push(stream);
            } else {
                stream.set_recording(Recording::Missing);
                match waiting {
                    // The stream ends, and is never recorded.
                    Some(waiting) => answer(Some(waiting), Err(NotRecorded)),
                    None => kept.push(stream),
                }
            }
        }
        let mut pending = self.pending();
        pending.unrecorded.extend(kept);
        // Only the newest stream of a sidecar is recorded when the database accepts writes again.
        pending.unrecorded.retain(|stream| !stream.is_replaced());
        pending.ended.extend(ended);
        pending.ended.retain(|stream| !stream.is_replaced());
        let now = self.since_boot();
        pending.forgotten.extend(forgotten.into_iter().filter(|(_, until)| now < *until));
    }

    /// Nothing of a batch counts, because this control plane takes another name. Others, or this one, end all rows under the name
    /// before.
    fn return_waiting(&self, batch: Batch) {
        let mut pending = self.pending();
        for (stream, _, waiting) in batch.unrecorded {
            stream.set_recording(Recording::Missing);
            match waiting {
                Some(waiting) => pending.waiting.push((stream, waiting)),
                None => pending.unrecorded.push(stream),
            }
        }
        pending.forgotten.extend(batch.forgotten);
    }

    /// Whether the sidecar of each stream has an open row of this control plane. After the first failure, none has, because each read of
    /// a database that does not respond takes seconds.
    async fn with_open_rows(&self, streams: &[(Arc<StreamStatus>, SidecarProgress, Option<Waiting>)]) -> Vec<bool> {
        let control_plane = self.control_plane();
        let mut read = self.0.store.read().await.ok();
        let mut open = Vec::new();
        for (stream, _, _) in streams {
            let found = match &mut read {
                Some(read) => sidecars::is_open_at(read.conn(), &control_plane, &stream.identity).await,
                None => Ok(false),
            };
            open.push(found.unwrap_or_else(|_| {
                read = None;
                false
            }));
        }
        open
    }
}

/// Takes up to [`MAX_BATCH`] processes to forget.
fn take_forgotten(forgotten: &mut HashMap<EndedProcess, Duration>) -> Vec<(EndedProcess, Duration)> {
    let taken: Vec<_> = forgotten.iter().map(|(process, until)| (*process, *until)).take(MAX_BATCH).collect();
    for (process, _) in &taken {
        forgotten.remove(process);
    }
    taken
}

/// Tells who waits for it whether a stream was recorded.
fn answer(waiting: Option<Waiting>, result: Result<(), NotRecorded>) {
    if let Some(waiting) = waiting {
        // Sending fails if the stream has ended, which is no problem.
        let _ignored = waiting.send(result);
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
