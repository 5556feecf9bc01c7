//! Receipts of two control planes with one database, while writes fail, processes are killed or suspended, and clocks jump.

use super::{Journal, NewStream, OpenStream, Sidecars};
use crate::{
    domain::{
        agent::OwnerHash,
        page::Page,
        sidecar::{Enforcement, LastConfirmation, Sidecar, SidecarInstance},
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
    /// How far the wall clock is ahead, in seconds.
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

    /// A control plane on the same machine.
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

    /// Opens a stream of the process that resumes at a revision, and begins to record it.
    async fn open(&mut self, number: i64, resumed: Option<Revision>) -> OpenStream {
        let stream = self.open_of(PROCESS, number, resumed);
        let (recorded, ()) = tokio::join!(stream.record(), self.write());
        assert_eq!(recorded.is_ok(), stream.may_be_confirmed());
        stream
    }

    /// A stream of a process that is not recorded.
    fn open_of(&self, process: SidecarInstance, number: i64, resumed: Option<Revision>) -> OpenStream {
        let revision = resumed.unwrap_or_default();
        let new = NewStream {
            number,
            revision,
            applied: revision,
            max_staleness: Duration::from_secs(STALENESS.unsigned_abs()),
            ..NewStream::for_tests(process)
        };
        let stream = self.sidecars.open(new);
        if let Some(revision) = resumed {
            stream.status().resumes_at(revision);
            stream.status().sends(revision);
            stream.status().catches_up();
        }
        stream
    }

    /// Whether the sidecar of a stream gets an answer to a ping.
    async fn confirms(&self, stream: &OpenStream) -> bool {
        let mut read = self.sidecars.0.store.read().await.unwrap();
        let confirms = self.sidecars.is_registered(&mut read).await.unwrap() && stream.may_be_confirmed();
        if confirms {
            stream.status().expects_confirmation();
            stream.status().confirm(self.clock.now());
        }
        confirms
    }

    async fn receipt(&self, revision: Revision) -> Enforcement {
        self.sidecars.enforcement_for(OwnerHash::for_tests(1), SERVICE, revision).await.unwrap()
    }

    async fn list(&self) -> Vec<Sidecar> {
        let listed = self.sidecars.list(SERVICE, Page { limit: 9, offset: 0, after: None }).await.unwrap().items;
        listed.into_iter().map(|listed| listed.sidecar).collect()
    }
}

/// The sidecar has the revision at 0 s and not the one at 1 s.
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
    assert!(!first.sidecars.is_newest(&earlier.status()), "its row belongs to the other control plane");
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
async fn stream_that_was_given_up_before_it_was_recorded_is_not_recorded() {
    let deployment = Deployment::new().await;
    let mut control_plane = deployment.start();
    control_plane.write().await;
    let outage = deployment.store.lock_writes().await;
    let refused = control_plane.open(1, None).await;
    assert!(!refused.may_be_confirmed());
    let waiting = control_plane.sidecars.open(NewStream { number: 2, ..NewStream::for_tests(PROCESS) });
    let record = tokio::time::timeout(Duration::from_millis(1), waiting.record()).await;
    assert!(record.is_err());
    drop((refused, waiting, outage));
    control_plane.write().await;
    assert_eq!(control_plane.list().await, []);
    assert!(control_plane.sidecars.streams().is_empty());
}

/// Its sidecars were confirmed until it was killed, although it could not write that.
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
    for _ in 0..5 {
        next.write().await;
        deployment.advance(11);
    }
    assert!(!next.list().await[0].is_connected);
    let receipt = next.receipt(revision(1000)).await;
    assert_is_awaited(&receipt);
    assert_eq!(receipt.refuses_by, Some(at(1000 + STALENESS)));
    deployment.advance(11);
    let receipt = next.receipt(revision(1000)).await;
    assert_eq!((receipt.expired, receipt.is_complete()), (1, true), "{receipt:?}");
}

/// The stream of a suspended control plane is ended by another one, and is recorded again before it is confirmed.
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
    stream.handle().report(revision(66)).unwrap_err();
    stream.status().sends(revision(66));
    stream.handle().report(revision(66)).unwrap();
    assert!(suspended.receipt(revision(66)).await.is_complete());
    suspended.write().await;
    assert!(other.receipt(revision(66)).await.is_complete());
}

/// Only the clock of the process that reads tells how long another one has written nothing.
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

#[tokio::test(flavor = "multi_thread")]
async fn jump_of_the_wall_clock_does_not_make_a_sidecar_refuse() {
    let deployment = Deployment::new().await;
    let mut control_plane = deployment.start();
    let stream = control_plane.open(1, Some(revision(0))).await;
    deployment.advance(1);
    stream.status().queues(revision(1));
    control_plane.distribute(revision(1));
    deployment.clock.ahead.store(3600, Ordering::SeqCst);
    assert_is_awaited(&control_plane.receipt(revision(1)).await);
    drop(stream);
    control_plane.write().await;
    assert_is_awaited(&control_plane.receipt(revision(1)).await);
    deployment.advance(STALENESS);
    let receipt = control_plane.receipt(revision(1)).await;
    assert_eq!((receipt.expired, receipt.is_complete()), (1, true), "{receipt:?}");
}

/// A sidecar with an earlier stream of this control plane may continue during an outage, and a restart forgets it not too early.
#[tokio::test(flavor = "multi_thread")]
async fn stream_that_is_accepted_in_an_outage_is_recorded_and_ended_later() {
    let deployment = Deployment::new().await;
    let mut control_plane = deployment.start();
    let first = control_plane.open(1, Some(revision(0))).await;
    let outage = deployment.store.lock_writes().await;
    drop(first);
    let second = control_plane.open(2, Some(revision(0))).await;
    assert!(control_plane.confirms(&second).await);
    deployment.advance(1000);
    assert!(control_plane.confirms(&second).await);
    drop((second, outage));
    control_plane.write().await;
    control_plane.write().await;
    let [sidecar] = &control_plane.list().await[..] else { panic!("there is one sidecar") };
    let now = control_plane.sidecars.now();
    assert_eq!(sidecar.decides_until(now, Duration::ZERO), Some(at(1000 + STALENESS)));
    assert!(control_plane.sidecars.streams().is_empty());
}

/// A transaction of unknown outcome may have left rows under the earlier name, and may be committed later.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_transaction_of_unknown_outcome_are_ended() {
    let deployment = Deployment::new().await;
    let mut control_plane = deployment.start();
    let stream = control_plane.open(1, Some(revision(0))).await;
    assert!(control_plane.confirms(&stream).await);
    let lost = control_plane.open_of(SidecarInstance::from_bytes([2; 16]), 1, Some(revision(0)));
    let (recorded, ()) = tokio::join!(lost.record(), control_plane.write());
    recorded.unwrap();
    let status = lost.status();
    let earlier = control_plane.journal.take_new_name();
    control_plane.sidecars.pending().earlier_name = Some(earlier);
    // The process never learned that the stream was recorded.
    drop(lost);
    assert!(!control_plane.confirms(&stream).await);
    for _ in 0..4 {
        control_plane.write().await;
    }
    assert!(control_plane.confirms(&stream).await);
    let listed = control_plane.list().await;
    let ended = listed.iter().find(|sidecar| sidecar.identity == status.identity).unwrap();
    assert!(!ended.is_connected && ended.confirmed == LastConfirmation::By(at(0)), "{ended:?}");
    assert_eq!(listed.len(), 2);
    let mut read = control_plane.sidecars.0.store.read().await.unwrap();
    let name = control_plane.sidecars.control_plane();
    assert_eq!(crate::store::sidecars::peers(read.conn(), &name).await.unwrap(), []);
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
    let open = |control_plane: &ControlPlane, numbers: std::ops::Range<u16>, stream| {
        let opened = numbers.map(|number| control_plane.open_of(process(number), stream, Some(revision(0))));
        opened.collect::<Vec<_>>()
    };
    let record = async |control_plane: &mut ControlPlane, streams: &[OpenStream]| {
        let recorded = futures_util::future::join_all(streams.iter().map(OpenStream::record));
        let (recorded, ()) = tokio::join!(recorded, async {
            control_plane.write().await;
            control_plane.write().await;
        });
        recorded.iter().filter(|recorded| recorded.is_ok()).count()
    };
    let first = open(&control_plane, 0..300, 1);
    assert_eq!(record(&mut control_plane, &first).await, 300);
    let outage = deployment.store.lock_writes().await;
    drop(first);
    let early = open(&control_plane, 0..250, 2);
    assert_eq!(record(&mut control_plane, &early).await, 250);
    let late = open(&control_plane, 250..300, 2);
    assert_eq!(record(&mut control_plane, &late).await, 50);
    drop(outage);
    for _ in 0..3 {
        control_plane.write().await;
    }
    assert_eq!(control_plane.sidecars.pending().unrecorded.len(), 0);
    let receipt = control_plane.receipt(revision(0)).await;
    assert_eq!((receipt.sidecars, receipt.enforced), (300, 300));
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_can_reconnect_again_and_again_in_an_outage() {
    let deployment = Deployment::new().await;
    let mut control_plane = deployment.start();
    drop(control_plane.open(1, Some(revision(0))).await);
    let outage = deployment.store.lock_writes().await;
    for number in 2..6 {
        let stream = control_plane.open(number, Some(revision(0))).await;
        assert!(control_plane.confirms(&stream).await, "{number}");
        assert_eq!(control_plane.sidecars.pending().unrecorded.len(), 1, "only the newest stream is recorded later");
    }
    drop(outage);
    control_plane.write().await;
    control_plane.write().await;
    let [sidecar] = &control_plane.list().await[..] else { panic!("there is one sidecar") };
    assert!(!sidecar.is_connected && matches!(sidecar.confirmed, LastConfirmation::By(_)), "{sidecar:?}");
    assert!(control_plane.sidecars.pending().ended.is_empty());
}

/// A revision can be ahead of all clocks, after a restore or a jump.
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

/// The clock of the process stays behind after the jump, and other processes do not know that.
#[tokio::test(flavor = "multi_thread")]
async fn end_of_a_stream_after_a_jump_of_the_wall_clock_holds_for_other_processes() {
    let deployment = Deployment::new().await;
    let mut jumped = deployment.start();
    let stream = jumped.open(1, Some(revision(0))).await;
    deployment.clock.ahead.store(3600, Ordering::SeqCst);
    assert!(jumped.confirms(&stream).await);
    let change = revision(3600);
    deployment.advance(1);
    stream.status().queues(change);
    jumped.distribute(change);
    let receipt = jumped.receipt(change).await;
    assert_is_awaited(&receipt);
    assert_eq!(receipt.refuses_by, Some(at(3601 + STALENESS)), "by the wall clock");
    drop(stream);
    jumped.write().await;
    jumped.journal.stop().await;
    let other = deployment.start();
    assert_is_awaited(&other.receipt(change).await);
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
    stream.status().expects_confirmation();
    assert_is_awaited(&control_plane.receipt(revision(1)).await);
}
