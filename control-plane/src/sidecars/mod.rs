//! The sidecars that follow this deployment: which there are, and which revision is in force at each.
//!
//! [`Sidecars`] has the streams of this control plane in memory, and `journal` records them in the database, so that every control
//! plane knows the streams of all, and a restart forgets none. `sync` reports what its streams do, and `operations` asks for receipts.
//! This module depends on `domain` and `store`. Invariant: a stream is recorded before its sidecar gets a first confirmation, and
//! remains until the sidecar refuses all requests by itself, or until nobody decides with its data any more.

mod journal;
mod streams;

pub use journal::Journal;
pub use streams::{NewStream, NotSent, OpenStream, StreamHandle, StreamStatus};

use crate::{
    domain::{
        page::{ListPage, Page},
        sidecar::{Enforcement, Sidecar, SidecarKey},
    },
    store::{Store, StoreError, sidecars},
};
use countersign_identity::{Revision, ServiceId, Timestamp};
use countersign_process::{Clock, Rng};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Notify, oneshot};

/// How many rows of other control planes are read at once.
const ROWS_PER_READ: i64 = 1000;

/// The streams of this control plane, by service.
type Streams = HashMap<ServiceId, BTreeMap<SidecarKey, Arc<StreamStatus>>>;

/// The sidecars of all control planes.
#[derive(Clone)]
pub struct Sidecars(Arc<Inner>);

struct Inner {
    store: Store,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    /// Identifies this process of the control plane.
    control_plane: String,
    /// The streams in use, until the database contains their end.
    streams: Mutex<Streams>,
    /// All changes up to this revision are in the queues of the streams that they concern.
    distributed: AtomicI64,
    /// The number of streams that were ever opened.
    opened: AtomicI64,
    /// Whether other control planes run, which read the progress of streams from the database.
    has_peers: AtomicBool,
    pending: Mutex<Pending>,
    /// Wakes the journal.
    wakeup: Notify,
}

/// A stream cannot be recorded, because the database accepts no writes, or because the control plane stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotRecorded;

/// Who waits until a stream is recorded.
type Waiting = oneshot::Sender<Result<(), NotRecorded>>;

/// What must be written to the database.
#[derive(Default)]
struct Pending {
    /// Streams that are not recorded, and who waits for it.
    unrecorded: Vec<(Arc<StreamStatus>, Option<Waiting>)>,
    /// Streams that have ended.
    ended: Vec<Arc<StreamStatus>>,
    /// Sidecars that have ended for certain.
    forgotten: Vec<SidecarKey>,
}

impl Sidecars {
    /// No streams are open.
    pub fn new(store: Store, clock: Arc<dyn Clock>, rng: Arc<dyn Rng>) -> Self {
        let mut id = [0; 16];
        rng.fill(&mut id);
        Self(Arc::new(Inner {
            store,
            clock,
            rng,
            control_plane: hex::encode(id),
            streams: Mutex::default(),
            distributed: AtomicI64::new(0),
            opened: AtomicI64::new(0),
            has_peers: AtomicBool::new(false),
            pending: Mutex::default(),
            wakeup: Notify::new(),
        }))
    }

    /// States that all changes up to a revision are in the queues of the streams that they concern.
    pub fn set_distributed(&self, revision: Revision) {
        self.0.distributed.store(revision.number(), Ordering::SeqCst);
    }

    fn distributed(&self) -> Revision {
        Revision::new(self.0.distributed.load(Ordering::SeqCst))
    }

    /// The number of sidecars of a service that are connected to this control plane.
    pub fn count_here(&self, service: ServiceId) -> u32 {
        self.streams().get(&service).map_or(0, |streams| u32::try_from(streams.len()).unwrap_or(u32::MAX))
    }

    /// Whether a revision is in force at all sidecars of a service, or of all services, that are connected to this control plane.
    pub fn is_in_force_here(&self, service: Option<ServiceId>, revision: Revision) -> bool {
        // The revision is read first: all changes up to it are required by the streams that are read after it.
        let (distributed, now) = (self.distributed(), self.now());
        let is_in_force = |stream: &Arc<StreamStatus>| {
            let in_force = stream.in_force(distributed);
            !stream.may_decide(now) || in_force.is_none_or(|in_force| in_force >= revision)
        };
        distributed >= revision && in_scope(&self.streams(), service).all(is_in_force)
    }

    /// The receipt of a revision at the sidecars of a service, or of all services.
    pub async fn enforcement(&self, service: Option<ServiceId>, revision: Revision) -> Result<Enforcement, StoreError> {
        let elsewhere = self.sidecars_elsewhere(service).await?;
        let mut receipt = Enforcement::new(revision, self.now());
        let mut counted = BTreeSet::new();
        for sidecar in elsewhere {
            counted.insert(sidecar.identity.key);
            receipt.add(sidecar);
        }
        let distributed = self.distributed();
        let streams = self.streams();
        for stream in in_scope(&streams, service).filter(|stream| stream.counts()) {
            if !counted.contains(&stream.identity.key) {
                receipt.add(stream.sidecar(distributed));
            }
        }
        Ok(receipt)
    }

    /// A page of the sidecars of a service that may decide.
    pub async fn list(
        &self,
        service: ServiceId,
        page: Page<SidecarKey>,
    ) -> Result<ListPage<Sidecar, SidecarKey>, StoreError> {
        let now = self.now();
        let mut read = self.0.store.read().await?;
        let ListPage { items, total, next } = sidecars::list(read.conn(), (service, now), page).await?;
        let distributed = self.distributed();
        let streams = self.streams();
        let of_service = streams.get(&service);
        let current = |recorded: sidecars::RecordedSidecar| {
            let here = of_service.and_then(|streams| streams.get(&recorded.identity.key));
            match here.filter(|_| recorded.control_plane == self.0.control_plane) {
                Some(stream) => stream.sidecar(distributed),
                None => recorded.into_sidecar(now),
            }
        };
        Ok(ListPage { items: items.into_iter().map(current).collect(), total, next })
    }

    /// The sidecars with streams at other control planes, and those whose streams have ended.
    async fn sidecars_elsewhere(&self, service: Option<ServiceId>) -> Result<Vec<Sidecar>, StoreError> {
        let (now, mut after, mut found) = (self.now(), None, Vec::new());
        loop {
            let mut read = self.0.store.read().await?;
            let rows =
                sidecars::list_elsewhere(read.conn(), (service, &self.0.control_plane), after, ROWS_PER_READ).await?;
            let is_last = i64::try_from(rows.len()).is_ok_and(|count| count < ROWS_PER_READ);
            after = rows.last().map(|row| row.identity.key);
            found.extend(rows.into_iter().map(|row| row.into_sidecar(now)));
            if is_last {
                return Ok(found);
            }
        }
    }

    fn now(&self) -> Timestamp {
        self.0.clock.now()
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

    /// Puts a stream into use, in place of an earlier one of the same sidecar.
    fn put_into_use(&self, stream: &Arc<StreamStatus>) {
        let (service, key) = (stream.identity.service, stream.identity.key);
        let replaced = self.streams().entry(service).or_default().insert(key, Arc::clone(stream));
        if let Some(confirmed_at) = replaced.and_then(|replaced| replaced.confirmed_at()) {
            stream.confirm(confirmed_at);
        }
    }

    /// Removes a stream if it is still the one in use. Its end is in the database.
    fn remove(&self, stream: &Arc<StreamStatus>) {
        self.remove_if(stream.identity.service, stream.identity.key, |current| Arc::ptr_eq(current, stream));
    }

    /// Removes the stream in use of a sidecar under a condition.
    fn remove_if(&self, service: ServiceId, key: SidecarKey, condition: impl FnOnce(&Arc<StreamStatus>) -> bool) {
        let mut streams = self.streams();
        let Some(of_service) = streams.get_mut(&service) else { return };
        if of_service.get(&key).is_some_and(condition) {
            of_service.remove(&key);
            if of_service.is_empty() {
                streams.remove(&service);
            }
        }
    }

    /// Has a stream recorded. The result is sent to `waiting`.
    fn request_record(&self, stream: &Arc<StreamStatus>, waiting: Option<Waiting>) {
        self.pending().unrecorded.push((Arc::clone(stream), waiting));
        self.0.wakeup.notify_one();
    }

    /// Has the end of a stream written.
    fn request_end(&self, stream: &Arc<StreamStatus>) {
        self.pending().ended.push(Arc::clone(stream));
    }

    /// Forgets a sidecar that has ended for certain.
    fn forget(&self, service: ServiceId, key: SidecarKey) {
        self.remove_if(service, key, |_| true);
        self.pending().forgotten.push(key);
    }

    fn has_peers(&self) -> bool {
        self.0.has_peers.load(Ordering::SeqCst)
    }
}

/// The streams of a service, or of all services.
fn in_scope(streams: &Streams, service: Option<ServiceId>) -> impl Iterator<Item = &Arc<StreamStatus>> {
    let of_service = service.map(|service| streams.get(&service));
    let of_all = of_service.is_none().then(|| streams.values());
    of_service.flatten().into_iter().chain(of_all.into_iter().flatten()).flat_map(BTreeMap::values)
}
