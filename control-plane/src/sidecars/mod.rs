//! The sidecars that follow this deployment: which there are, and which revision is in force at each.
//!
//! [`Sidecars`] has the streams of this control plane in memory, and `journal` records them in the database, so that every control
//! plane knows the streams of all, and a restart forgets none. `sync` reports what its streams do, and `operations` asks for receipts.
//! This module depends on `domain` and `store`.
//!
//! Invariants, on which receipts rely: each process of a sidecar that may decide has a row. It gets confirmations only while this row
//! is open, and names this control plane: a control plane whose streams others have ended reads so before it confirms. A row ends
//! only after that, and remains until the sidecar refuses all requests by itself, or until nobody decides with its data any more.
//! So the rows alone tell how long sidecars may decide, and the streams in memory only add with which data they do.

mod journal;
mod open_streams;
mod peers;
mod streams;
mod times;

pub use journal::Journal;
pub use open_streams::{OpenStream, StreamHandle};
pub use streams::{NewStream, NotSent, StreamStatus};

use crate::{
    domain::{
        agent::OwnerHash,
        page::{ListPage, Page},
        sidecar::{Enforcement, ListedSidecar, ReceiptTimes, Sidecar, SidecarKey},
    },
    store::{
        ReadTransaction, Store, StoreError,
        sidecars::{self, EndedProcess, RecordedSidecar},
    },
};
use countersign_identity::{Revision, ServiceId, Timestamp};
use countersign_process::{Clock, Places, Rng};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};
use streams::Recording;
use times::{CLOCK_MARGIN, KnownRevisions, SteadyClock};
use tokio::sync::{Notify, oneshot};

/// How many rows are read at once.
const ROWS_PER_READ: i64 = 1000;

/// How many receipts are read at the same time, at most one of them for each owner of services.
const MAX_RECEIPTS: usize = 2;

/// For how long it is tried to forget an earlier process of a sidecar, whose stream another control plane may just be ending.
const FORGET_TIMEOUT: Duration = Duration::from_secs(10);

/// The streams of this control plane, by service.
type Streams = HashMap<ServiceId, BTreeMap<SidecarKey, Arc<StreamStatus>>>;

/// The sidecars of all control planes.
#[derive(Clone)]
pub struct Sidecars(Arc<Inner>);

struct Inner {
    store: Store,
    clock: SteadyClock,
    rng: Arc<dyn Rng>,
    /// Identifies this process of the control plane, until others take it for killed.
    control_plane: Mutex<Arc<str>>,
    /// The newest stream of each sidecar that the database has, until it contains the end.
    streams: Mutex<Streams>,
    /// All changes up to this revision are in the queues of the streams that they concern.
    distributed: AtomicI64,
    known: KnownRevisions,
    /// Whether other control planes run, which read the progress of streams from the database.
    has_peers: AtomicBool,
    pending: Mutex<Pending>,
    /// Wakes the journal.
    wakeup: Notify,
    receipts: Places<Option<OwnerHash>>,
}

/// How much of a receipt is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReceiptScope {
    /// All sidecars.
    Whole,
    /// The sidecars up to the first that has not confirmed the revision.
    UntilUnconfirmed,
}

/// A stream cannot be recorded, because the database accepts no writes, or because the control plane stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotRecorded;

/// Who waits until a stream is recorded.
type Waiting = oneshot::Sender<Result<(), NotRecorded>>;

/// What must be written to the database.
#[derive(Default)]
struct Pending {
    /// Streams whose sidecars wait until they are recorded.
    waiting: Vec<(Arc<StreamStatus>, Waiting)>,
    /// Other streams that are not recorded.
    unrecorded: Vec<Arc<StreamStatus>>,
    /// Streams that have ended.
    ended: Vec<Arc<StreamStatus>>,
    /// Processes that have ended, and until when it is tried to forget them, since boot.
    forgotten: HashMap<EndedProcess, Duration>,
    /// An earlier name of this control plane. Transactions under it may still be committed, so it must be marked as killed.
    earlier_name: Option<Arc<str>>,
}

impl Sidecars {
    /// No streams are open.
    pub fn new(store: Store, clock: Arc<dyn Clock>, rng: Arc<dyn Rng>) -> Self {
        let control_plane = Mutex::new(random_name(&*rng));
        Self(Arc::new(Inner {
            store,
            clock: SteadyClock::new(clock),
            rng,
            control_plane,
            streams: Mutex::default(),
            distributed: AtomicI64::new(0),
            known: KnownRevisions::default(),
            has_peers: AtomicBool::new(false),
            pending: Mutex::default(),
            wakeup: Notify::new(),
            receipts: Places::new(MAX_RECEIPTS, 1),
        }))
    }

    /// States that all changes up to a revision are in the queues of the streams that they concern.
    pub fn set_distributed(&self, revision: Revision) {
        self.0.known.record(revision, self.since_boot());
        self.0.distributed.store(revision.number(), Ordering::SeqCst);
    }

    fn distributed(&self) -> Revision {
        Revision::new(self.0.distributed.load(Ordering::SeqCst))
    }

    /// The number of sidecars of a service that are connected to this control plane.
    pub fn count_here(&self, service: ServiceId) -> u32 {
        self.streams().get(&service).map_or(0, |streams| u32::try_from(streams.len()).unwrap_or(u32::MAX))
    }

    /// Whether a revision is in force at all sidecars of a service, or of all services, with an open stream at this control plane.
    pub fn is_in_force_here(&self, service: Option<ServiceId>, revision: Revision) -> bool {
        // The revision is read first: all changes up to it are required by the streams that are read after it.
        let distributed = self.distributed();
        distributed >= revision
            && !in_scope(&self.streams(), service).any(|stream| stream.may_lack(revision, distributed))
    }

    /// The receipt of a revision at all sidecars of a service, for its owner.
    pub async fn enforcement_for(
        &self,
        owner: OwnerHash,
        service: ServiceId,
        revision: Revision,
    ) -> Result<Enforcement, StoreError> {
        let _place = self.0.receipts.enter(Some(owner)).await;
        self.read_enforcement(Some(service), revision, ReceiptScope::Whole).await
    }

    /// The receipt of a revision at the sidecars of a service, or of all services, for the control plane itself: only as far as to
    /// tell whether it is complete.
    pub async fn enforcement(&self, service: Option<ServiceId>, revision: Revision) -> Result<Enforcement, StoreError> {
        let _place = self.0.receipts.enter(None).await;
        self.read_enforcement(service, revision, ReceiptScope::UntilUnconfirmed).await
    }

    async fn read_enforcement(
        &self,
        service: Option<ServiceId>,
        revision: Revision,
        scope: ReceiptScope,
    ) -> Result<Enforcement, StoreError> {
        let now = self.now();
        let age = self.0.known.age(revision, self.since_boot());
        let last_confirmation_without = times::last_confirmation_without(revision, age, now);
        let times = ReceiptTimes { now, last_confirmation_without, skew: CLOCK_MARGIN, lag: self.0.clock.lag() };
        let mut receipt = Enforcement::new(revision, times);
        let mut next = match service {
            Some(service) => Some(service),
            None => sidecars::next_service(self.0.store.read().await?.conn(), None).await?,
        };
        while let Some(current) = next {
            // An earlier process is forgotten in favor of another one of the same service, so one instant tells all.
            let mut read = self.0.store.read().await?;
            self.add_sidecars(&mut read, current, (&mut receipt, scope)).await?;
            // The walk over all services reads these rows as those of a service.
            if service.is_some() {
                self.add_sidecars(&mut read, sidecars::OF_ANY_SERVICE, (&mut receipt, scope)).await?;
            }
            if service.is_some() || (scope == ReceiptScope::UntilUnconfirmed && !receipt.is_complete()) {
                break;
            }
            next = sidecars::next_service(read.conn(), Some(current)).await?;
        }
        Ok(receipt.by_wall_clock())
    }

    /// Adds the sidecars of a service to a receipt.
    async fn add_sidecars(
        &self,
        read: &mut ReadTransaction,
        service: ServiceId,
        (receipt, scope): (&mut Enforcement, ReceiptScope),
    ) -> Result<(), StoreError> {
        // A sidecar that has refused all requests since before the change is not concerned. A revision can be ahead of all clocks.
        let changed_at = Timestamp::from_micros(receipt.revision.number()).min(self.now());
        let since = changed_at.saturating_sub(CLOCK_MARGIN);
        let (control_plane, mut after) = (self.control_plane(), None);
        loop {
            let rows = sidecars::recorded_after(read.conn(), (service, since), after, ROWS_PER_READ).await?;
            let is_last = i64::try_from(rows.len()).is_ok_and(|count| count < ROWS_PER_READ);
            after = rows.last().map(|row| row.identity.key);
            for row in rows {
                receipt.add(self.describe(row, &control_plane));
            }
            if is_last || (scope == ReceiptScope::UntilUnconfirmed && !receipt.is_complete()) {
                return Ok(());
            }
        }
    }

    /// A recorded sidecar, with what the streams of this control plane know of it.
    fn describe(&self, row: RecordedSidecar, control_plane: &str) -> Sidecar {
        let (key, number) = (row.identity.key, row.stream);
        let is_open_here = row.is_open() && *row.control_plane == *control_plane;
        let mut sidecar = row.into_sidecar();
        // The revision is read first: all changes up to it are required by the stream that is read after it.
        let distributed = self.distributed();
        if let Some(stream) = self.streams().get(&sidecar.identity.service).and_then(|streams| streams.get(&key)) {
            stream.describe(&mut sidecar, is_open_here && stream.number == number, distributed);
        }
        sidecar
    }

    /// A page of the sidecars of a service that may decide.
    pub async fn list(
        &self,
        service: ServiceId,
        page: Page<SidecarKey>,
    ) -> Result<ListPage<ListedSidecar, SidecarKey>, StoreError> {
        let mut read = self.0.store.read().await?;
        let since = self.now().saturating_sub(CLOCK_MARGIN);
        let ListPage { items, total, next } = sidecars::list(read.conn(), (service, since), page).await?;
        let control_plane = self.control_plane();
        let items = items.into_iter().map(|row| self.listed(self.describe(row, &control_plane))).collect();
        Ok(ListPage { items, total, next })
    }

    fn listed(&self, sidecar: Sidecar) -> ListedSidecar {
        let refuses_by = sidecar.decides_until(self.now(), CLOCK_MARGIN).filter(|_| !sidecar.is_connected);
        ListedSidecar { refuses_by: refuses_by.map(|time| time.saturating_add(self.0.clock.lag())), sidecar }
    }

    /// The number of sidecars of all services without a stream that may still decide, up to `limit`.
    pub async fn count_silent(&self, limit: i64) -> Result<i64, StoreError> {
        sidecars::count_silent(self.0.store.read().await?.conn(), self.now(), limit).await
    }

    /// Whether the database has the name of this control plane, and nobody took it for killed. Sidecars must not be confirmed otherwise.
    pub async fn is_registered(&self, read: &mut ReadTransaction) -> Result<bool, StoreError> {
        let is_registered = sidecars::is_registered(read.conn(), &self.control_plane()).await?;
        if !is_registered {
            self.0.wakeup.notify_one();
        }
        Ok(is_registered)
    }

    /// The name of this process of the control plane in the database.
    fn control_plane(&self) -> Arc<str> {
        Arc::clone(&self.0.control_plane.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The rows under the name of this control plane are ended: it takes another name, and all open streams are recorded again before
    /// their sidecars are confirmed.
    fn take_new_name(&self) -> Arc<str> {
        let mut streams = self.streams();
        let mut pending = self.pending();
        for stream in streams.drain().flat_map(|(_, of_service)| of_service.into_values()) {
            stream.set_recording(Recording::Missing);
            pending.unrecorded.push(stream);
        }
        pending.ended.clear();
        let mut name = self.0.control_plane.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *name, random_name(&*self.0.rng))
    }

    /// The current time, which is never ahead of the wall clock.
    pub fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    /// The time of the wall clock.
    fn wall(&self) -> Timestamp {
        self.0.clock.wall()
    }

    fn since_boot(&self) -> Duration {
        self.0.clock.since_boot()
    }

    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.0.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.0.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The database has the sidecar with a stream, in place of an earlier one.
    fn insert(&self, stream: &Arc<StreamStatus>) {
        let (service, key) = (stream.identity.service, stream.identity.key);
        let replaced = self.streams().entry(service).or_default().insert(key, Arc::clone(stream));
        if let Some(replaced) = replaced.filter(|replaced| !Arc::ptr_eq(replaced, stream)) {
            // Its sidecar must have closed it.
            replaced.set_recording(Recording::Replaced);
        }
    }

    /// Removes a stream. Its end is in the database, or need not be.
    fn remove(&self, stream: &Arc<StreamStatus>) {
        let mut streams = self.streams();
        let Some(of_service) = streams.get_mut(&stream.identity.service) else { return };
        if of_service.get(&stream.identity.key).is_some_and(|current| Arc::ptr_eq(current, stream)) {
            of_service.remove(&stream.identity.key);
            if of_service.is_empty() {
                streams.remove(&stream.identity.service);
            }
        }
    }

    /// Whether a stream is the newest one of its sidecar at this control plane.
    fn is_newest(&self, stream: &Arc<StreamStatus>) -> bool {
        let streams = self.streams();
        let newest = streams.get(&stream.identity.service).and_then(|streams| streams.get(&stream.identity.key));
        newest.is_some_and(|newest| Arc::ptr_eq(newest, stream))
    }

    /// Has a stream recorded. The result is sent to `waiting`.
    fn request_record(&self, stream: &Arc<StreamStatus>, waiting: Waiting) {
        self.pending().waiting.push((Arc::clone(stream), waiting));
        self.0.wakeup.notify_one();
    }

    /// Has the end of a stream written.
    fn request_end(&self, stream: &Arc<StreamStatus>) {
        self.pending().ended.push(Arc::clone(stream));
    }

    /// Forgets a process as soon as its stream has ended.
    fn forget(&self, process: EndedProcess) {
        let until = self.since_boot() + FORGET_TIMEOUT;
        self.pending().forgotten.insert(process, until);
    }

    fn has_peers(&self) -> bool {
        self.0.has_peers.load(Ordering::SeqCst)
    }
}

fn random_name(rng: &dyn Rng) -> Arc<str> {
    let mut bytes = [0; 16];
    rng.fill(&mut bytes);
    hex::encode(bytes).into()
}

/// The streams of a service, or of all services.
fn in_scope(streams: &Streams, service: Option<ServiceId>) -> impl Iterator<Item = &Arc<StreamStatus>> {
    let of_service = service.map(|service| streams.get(&service));
    let of_all = of_service.is_none().then(|| streams.values());
    of_service.flatten().into_iter().chain(of_all.into_iter().flatten()).flat_map(BTreeMap::values)
}

#[cfg(test)]
mod tests;
