//! Receipts of two control planes with one database, while writes fail, processes are killed or suspended, and clocks jump.

use super::{
    Journal, NewStream, OpenStream, Sidecars,
    rows::{Selection, Streams},
};
use crate::{
    domain::{
        page::Page,
        sidecar::{CLOCK_MARGIN, Enforcement, Sidecar, SidecarInstance},
    },
    store::{OpenMode, Store, StoreOptions},
};
use countersign_identity::{Revision, ServiceId, Timestamp};
use countersign_process::{Clock, SystemRng};
use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};
use tempfile::TempDir;
use tokio::time::timeout;

const SERVICE: ServiceId = ServiceId::from_bits(1);

/// The maximum staleness of the sidecars.
const STALENESS: i64 = 60;

/// The wall clock of the start, in seconds.
const START: i64 = 1_000_000;

const PROCESS: SidecarInstance = SidecarInstance::from_bytes([1; 16]);

/// A machine whose wall clock can differ from the time since boot.
#[derive(Default)]
struct MachineClock {
    seconds: AtomicI64,
    /// How many seconds the wall clock is ahead of the time since boot.
    ahead: AtomicI64,
}

impl Clock for MachineClock {
    fn now(&self) -> Timestamp {
        at(self.seconds.load(Ordering::SeqCst) + self.ahead.load(Ordering::SeqCst))
    }

    fn since_boot(&self) -> Duration {
        Duration::from_secs(self.seconds.load(Ordering::SeqCst).unsigned_abs())
    }
}

/// A time, in seconds after the start.
const fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros((START + seconds) * 1_000_000)
}

/// The revision of a change at this time.
const fn revision(seconds: i64) -> Revision {
    Revision::new(at(seconds).micros())
}

/// The control planes of a deployment, whose journals write when a test says so.
struct Deployment {
    _folder: TempDir,
    clock: Arc<MachineClock>,
    store: Store,
}

struct ControlPlane {
    sidecars: Sidecars,
    journal: Journal,
    clock: Arc<MachineClock>,
}

impl Deployment {
    async fn new() -> Self {
        let (folder, clock) = (tempfile::tempdir().unwrap(), Arc::new(MachineClock::default()));
        let options = StoreOptions::for_tests(Arc::clone(&clock) as Arc<dyn Clock>, "ours");
        let store = Store::open_sqlite(OpenMode::Serve, &folder.path().join("countersign.db"), options).await.unwrap();
        Self { _folder: folder, clock, store }
    }

    /// Starts a control plane with the clock of the deployment.
    fn start(&self) -> ControlPlane {
        self.start_at(&self.clock)
    }

    fn start_at(&self, clock: &Arc<MachineClock>) -> ControlPlane {
        let sidecars = Sidecars::new(self.store.clone(), Arc::clone(clock) as Arc<dyn Clock>, Arc::new(SystemRng));
        let control_plane =
            ControlPlane { journal: Journal::new(sidecars.clone()), sidecars, clock: Arc::clone(clock) };
        control_plane.distribute(revision(control_plane.seconds()));
        control_plane
    }

    fn advance(&self, seconds: i64) {
        self.clock.seconds.fetch_add(seconds, Ordering::SeqCst);
    }
}

impl ControlPlane {
    fn seconds(&self) -> i64 {
        self.clock.seconds.load(Ordering::SeqCst)
    }

    fn distribute(&self, revision: Revision) {
        self.sidecars.set_distributed(revision);
    }

    async fn write(&mut self) {
        self.journal.write(true).await;
    }

    /// Opens a stream of [`PROCESS`], which resumes at the revision `resumed`, and begins to record it.
    async fn open(&mut self, number: i64, resumed: Option<Revision>) -> OpenStream {
        let stream = self.open_of(PROCESS, number, resumed);
        self.record(std::slice::from_ref(&stream)).await;
        stream
    }

    /// Begins to record streams.
    async fn record(&mut self, streams: &[OpenStream]) {
        let records = futures_util::future::join_all(streams.iter().map(OpenStream::record));
        let (_recorded, ()) = tokio::join!(timeout(Duration::from_millis(1), records), self.write());
    }

    /// Opens a stream, but does not record it. The sidecar has reported the data with which it resumes.
    fn open_of(&self, process: SidecarInstance, number: i64, resumed: Option<Revision>) -> OpenStream {
        let max_staleness = Duration::from_secs(STALENESS.unsigned_abs());
        let new = NewStream { number, has_view: resumed.is_some(), max_staleness, ..NewStream::for_tests(process) };
        let stream = self.sidecars.open(new);
        if let Some(revision) = resumed {
            let status = stream.status();
            status.resumes_at(revision);
            status.sends(revision);
            status.catches_up();
            status.report(revision).unwrap();
        }
        stream
    }

    /// Whether the sidecar of a stream gets an answer to a ping.
    async fn confirms(&self, stream: &OpenStream) -> bool {
        stream.status().will_confirm();
        let mut read = self.sidecars.0.store.read().await.unwrap();
        self.sidecars.is_registered(&mut read).await.unwrap() && stream.may_be_confirmed()
    }

    async fn receipt(&self, revision: Revision) -> Enforcement {
        self.sidecars.enforcement(None, Some(SERVICE), revision).await.unwrap()
    }

    async fn list(&self) -> Vec<Sidecar> {
        self.sidecars.list(SERVICE, Page { limit: 9, offset: 0, after: None }).await.unwrap().items
    }
}

/// For how many seconds after the end of its stream, or after the change, a receipt counts a sidecar at most.
fn longest_wait() -> i64 {
    STALENESS + i64::try_from(CLOCK_MARGIN.as_secs()).unwrap()
}

/// Asserts that the receipt counts one sidecar, which may decide without the revision.
fn assert_is_awaited(receipt: &Enforcement) {
    assert_eq!((receipt.sidecars, receipt.is_complete()), (1, false), "{receipt:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn earlier_stream_that_is_recorded_late_does_not_replace_a_later_one() {
    let deployment = Deployment::new().await;
    let (mut first, mut second) = (deployment.start(), deployment.start());
    let earlier = first.open(1, Some(revision(0))).await;
    assert!(first.confirms(&earlier).await);
    let outage = deployment.store.lock_writes().await;
    // The sidecar reconnects while the first control plane cannot write.
    drop(earlier);
    let earlier = first.open(2, Some(revision(0))).await;
    drop(outage);
    let later = second.open(3, Some(revision(0))).await;
    assert!(second.confirms(&later).await);
    first.write().await;
    assert!(!earlier.may_be_confirmed(), "its row belongs to the other control plane");
    drop(earlier);
    first.write().await;
    deployment.advance(1);
    later.status().queues(revision(1));
    for control_plane in [&mut first, &mut second] {
        control_plane.distribute(revision(1));
        control_plane.write().await;
    }
    for control_plane in [&first, &second] {
        assert_is_awaited(&control_plane.receipt(revision(1)).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_that_was_given_up_before_it_was_recorded_leaves_no_row() {
    let deployment = Deployment::new().await;
    let mut control_plane = deployment.start();
    control_plane.write().await;
    let outage = deployment.store.lock_writes().await;
    let refused = control_plane.open(1, None).await;
    assert!(!refused.may_be_confirmed());
    drop((refused, outage));
    control_plane.write().await;
    assert_eq!(control_plane.list().await, []);
    assert!(control_plane.sidecars.streams().have_ended());
}

/// A control plane confirms its sidecars until it is killed, even while the database accepts no writes.
#[tokio::test(flavor = "multi_thread")]
async fn sidecar_counts_since_its_control_plane_was_found_killed() {
    let deployment = Deployment::new().await;
    let mut killed = deployment.start();
    let stream = killed.open(1, Some(revision(0))).await;
    let outage = deployment.store.lock_writes().await;
    deployment.advance(1000);
    killed.write().await;
    assert!(killed.confirms(&stream).await, "nobody else runs");
    std::mem::forget(stream);
    drop((killed, outage));
    let mut next = deployment.start();
    for _ in 0..3 {
        next.write().await;
        assert!(next.list().await[0].is_connected);
        deployment.advance(10);
    }
    next.write().await;
    assert!(!next.list().await[0].is_connected, "it is found after 30 s");
    let receipt = next.receipt(revision(1030)).await;
    assert_is_awaited(&receipt);
    assert_eq!(receipt.refuses_by, Some(at(1030 + longest_wait())));
    deployment.advance(longest_wait() - 1);
    assert_is_awaited(&next.receipt(revision(1030)).await);
    deployment.advance(1);
    let receipt = next.receipt(revision(1030)).await;
    assert_eq!((receipt.expired, receipt.is_complete()), (1, true), "{receipt:?}");
}

/// When the sidecar reconnects, the next control plane records it at once, although its row still names the killed control plane.
#[tokio::test(flavor = "multi_thread")]
async fn receipt_is_complete_when_the_sidecar_of_a_killed_control_plane_reconnects() {
    let deployment = Deployment::new().await;
    let mut killed = deployment.start();
    std::mem::forget(killed.open(1, Some(revision(0))).await);
    drop(killed);
    let mut next = deployment.start();
    assert_is_awaited(&next.receipt(revision(1)).await);
    let stream = next.open(2, Some(revision(1))).await;
    next.distribute(revision(1));
    assert!(next.confirms(&stream).await);
    let receipt = next.receipt(revision(1)).await;
    assert_eq!((receipt.sidecars, receipt.is_complete()), (1, true), "{receipt:?}");
}

/// A process that takes over a copy on disk names the previous process, whose stream may still be open at another control plane.
#[tokio::test(flavor = "multi_thread")]
async fn earlier_process_is_forgotten_when_its_stream_has_ended() {
    let deployment = Deployment::new().await;
    let mut control_plane = deployment.start();
    let earlier = control_plane.open(1, Some(revision(0))).await;
    let new = NewStream { previous: Some(PROCESS), ..NewStream::for_tests(SidecarInstance::from_bytes([2; 16])) };
    let heir = control_plane.sidecars.open(new);
    control_plane.record(std::slice::from_ref(&heir)).await;
    heir.status().sends(revision(0));
    heir.status().report(revision(0)).unwrap();
    control_plane.write().await;
    assert_eq!(control_plane.list().await.len(), 2, "the process runs, whatever another one says");
    drop(earlier);
    control_plane.write().await;
    control_plane.write().await;
    assert_eq!(control_plane.list().await.len(), 1);
}

/// Another control plane ends the stream of a suspended one, which must record it again before it confirms the sidecar.
#[tokio::test(flavor = "multi_thread")]
async fn suspended_control_plane_confirms_nothing_until_it_has_recorded_its_streams_again() {
    let deployment = Deployment::new().await;
    let (mut suspended, mut other) = (deployment.start(), deployment.start());
    let stream = suspended.open(1, Some(revision(0))).await;
    for _ in 0..6 {
        other.write().await;
        deployment.advance(11);
    }
    assert!(!other.list().await[0].is_connected);
    assert!(!suspended.confirms(&stream).await);
    suspended.write().await;
    assert!(!suspended.confirms(&stream).await, "the stream is not recorded again");
    suspended.write().await;
    assert!(suspended.confirms(&stream).await);
    other.write().await;
    assert!(other.list().await[0].is_connected);
    stream.status().queues(revision(66));
    for control_plane in [&mut suspended, &mut other] {
        control_plane.distribute(revision(66));
        control_plane.write().await;
    }
    for control_plane in [&suspended, &other] {
        assert_is_awaited(&control_plane.receipt(revision(66)).await);
    }
    stream.status().sends(revision(66));
    stream.status().report(revision(66)).unwrap();
    assert!(suspended.receipt(revision(66)).await.is_complete());
    suspended.write().await;
    assert!(other.receipt(revision(66)).await.is_complete());
}

/// A control plane measures with its own clock for how long another one has written nothing.
#[tokio::test(flavor = "multi_thread")]
async fn control_plane_with_another_clock_is_not_taken_for_killed() {
    let deployment = Deployment::new().await;
    for ahead in [-3600, 3600] {
        let other_clock = Arc::new(MachineClock::default());
        other_clock.ahead.store(ahead, Ordering::SeqCst);
        let (mut first, mut other) = (deployment.start(), deployment.start_at(&other_clock));
        let stream = other.open(ahead + 5000, Some(revision(0))).await;
        for _ in 0..10 {
            first.write().await;
            other.write().await;
            deployment.advance(11);
            other_clock.seconds.fetch_add(11, Ordering::SeqCst);
        }
        assert!(other.confirms(&stream).await, "{ahead}");
        assert!(first.list().await[0].is_connected, "{ahead}");
    }
}

/// The age of a confirmation is measured since boot, so a jump of the wall clock does not matter.
#[tokio::test(flavor = "multi_thread")]
async fn jump_of_the_wall_clock_does_not_make_a_connected_sidecar_refuse() {
    let deployment = Deployment::new().await;
    let mut control_plane = deployment.start();
    let stream = control_plane.open(1, Some(revision(0))).await;
    deployment.advance(1);
    stream.status().queues(revision(1));
    control_plane.distribute(revision(1));
    deployment.clock.ahead.store(i64::try_from(CLOCK_MARGIN.as_secs()).unwrap(), Ordering::SeqCst);
    assert_is_awaited(&control_plane.receipt(revision(1)).await);
    deployment.advance(STALENESS);
    let receipt = control_plane.receipt(revision(1)).await;
    assert_eq!((receipt.expired, receipt.is_complete()), (1, true), "{receipt:?}");
}

/// A sidecar that had a stream to the control plane before is still confirmed in an outage; after a restart, its row still counts.
#[tokio::test(flavor = "multi_thread")]
async fn sidecar_that_reconnects_in_an_outage_continues_and_is_recorded_later() {
    let deployment = Deployment::new().await;
    let mut control_plane = deployment.start();
    drop(control_plane.open(1, Some(revision(0))).await);
    let outage = deployment.store.lock_writes().await;
    for number in 2..6 {
        let stream = control_plane.open(number, Some(revision(0))).await;
        deployment.advance(200);
        assert!(control_plane.confirms(&stream).await, "{number}");
    }
    let elsewhere = control_plane.open(7, Some(revision(0))).await;
    assert!(!elsewhere.may_be_confirmed(), "another control plane may have ended its row");
    drop((elsewhere, outage));
    control_plane.write().await;
    assert_is_awaited(&control_plane.receipt(revision(799)).await);
    let refuses_by = async |control_plane: &ControlPlane| {
        let [sidecar] = &control_plane.list().await[..] else { panic!("there is one sidecar") };
        assert!(!sidecar.is_connected);
        sidecar.refuses_by
    };
    assert_eq!(refuses_by(&control_plane).await, Some(at(800 + STALENESS)), "the last stream was opened then");
    assert_eq!(refuses_by(&deployment.start()).await, Some(at(800 + longest_wait())), "by the row alone");
    assert!(control_plane.sidecars.streams().have_ended());
}

#[tokio::test(flavor = "multi_thread")]
async fn all_recorded_sidecars_continue_in_an_outage_however_many_there_are() {
    let deployment = Deployment::new().await;
    let mut control_plane = deployment.start();
    let process = |number: u16| {
        let mut bytes = [7; 16];
        bytes[..2].copy_from_slice(&number.to_be_bytes());
        SidecarInstance::from_bytes(bytes)
    };
    let open = |control_plane: &ControlPlane, stream| {
        (0..300).map(|number| control_plane.open_of(process(number), stream, Some(revision(0)))).collect::<Vec<_>>()
    };
    let first = open(&control_plane, 1);
    control_plane.record(&first).await;
    let outage = deployment.store.lock_writes().await;
    drop(first);
    let second = open(&control_plane, 2);
    control_plane.record(&second).await;
    assert!(second.iter().all(OpenStream::may_be_confirmed));
    drop(outage);
    control_plane.write().await;
    let receipt = control_plane.receipt(revision(0)).await;
    assert_eq!((receipt.sidecars, receipt.enforced), (300, 300));
}

/// A revision can be ahead of all clocks, after a restore or after a clock was set back.
#[tokio::test(flavor = "multi_thread")]
async fn sidecar_that_decides_is_not_left_out_if_the_revision_is_ahead() {
    let deployment = Deployment::new().await;
    let mut control_plane = deployment.start();
    let stream = control_plane.open(1, Some(revision(0))).await;
    deployment.advance(1);
    let ahead = revision(3600);
    stream.status().queues(ahead);
    control_plane.distribute(ahead);
    drop(stream);
    control_plane.write().await;
    assert_is_awaited(&control_plane.receipt(ahead).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_whose_first_confirmation_is_under_way_counts() {
    let deployment = Deployment::new().await;
    let mut control_plane = deployment.start();
    let stream = control_plane.open(1, None).await;
    deployment.advance(1);
    stream.status().queues(revision(1));
    control_plane.distribute(revision(1));
    assert_eq!(control_plane.receipt(revision(1)).await.sidecars, 0, "it was never confirmed");
    stream.status().will_confirm();
    assert_is_awaited(&control_plane.receipt(revision(1)).await);
}

/// Writes what must be written, in a transaction with this outcome: `Some(true)` succeeded, `Some(false)` failed, `None` unknown.
fn write(streams: &mut Streams, name: &Arc<str>, outcome: Option<bool>) -> usize {
    let unwritten = streams.take_unwritten(name, Selection { with_ends: true, with_progress: false });
    let count = unwritten.len();
    for stream in unwritten {
        match outcome {
            Some(true) => streams.written(&stream, name, true),
            Some(false) => streams.not_written(stream),
            None => {}
        }
    }
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn next_stream_is_confirmed_without_a_write_only_if_the_row_is_certainly_open() {
    let (deployment, name) = (Deployment::new().await, Arc::from("name"));
    let control_plane = deployment.start();
    for (end, is_open) in [(Some(true), false), (Some(false), true), (None, false)] {
        let mut streams = Streams::default();
        let first = control_plane.open_of(PROCESS, 1, None);
        streams.insert(first.status());
        assert!(!streams.may_be_confirmed(&first.status(), &name));
        assert_eq!(write(&mut streams, &name, Some(true)), 1);
        assert!(streams.may_be_confirmed(&first.status(), &name));
        assert!(!streams.may_be_confirmed(&first.status(), &Arc::from("other")), "it took another name");
        let status = first.status();
        status.will_confirm();
        drop(first);
        assert_eq!(write(&mut streams, &name, end), 1);
        let second = control_plane.open_of(PROCESS, 2, None);
        streams.insert(second.status());
        assert_eq!(streams.may_be_confirmed(&second.status(), &name), is_open, "{end:?}");
        assert!(!streams.may_be_confirmed(&status, &name));
        assert_eq!(write(&mut streams, &name, Some(true)), 1);
        assert!(streams.may_be_confirmed(&second.status(), &name));
        assert_eq!(write(&mut streams, &name, Some(true)), 0);
    }
}
