//! The sidecars that follow this deployment: which there are, and which revision is in force at each.
//!
//! [`Sidecars`] has the streams of this control plane in memory. [`Journal`] records them in the database, so that every control
//! plane knows the streams of all others, and no stream is lost in a restart. `sync` reports what its streams do, and `operations`
//! asks for receipts: at which sidecars a change is in force. This module depends on `domain` and `store`.
//!
//! We *confirm* a sidecar by answering its ping. It *may decide* until its last confirmation is `max_staleness` old. With the
//! following rules, the rows alone tell how long sidecars may decide. The streams in memory also tell with which data.
//! - Each process of a sidecar that may decide has a row in the database. The row is *open* while the process may have a stream.
//! - We confirm a process only while its row is open under our name. If other control planes conclude that we were killed, they end
//!   our rows and delete our name. So we read whether the name is still there before we confirm.
//! - An ended row stays until the sidecar refuses all requests by itself, or until we know that no process decides with its data.

mod journal;
mod peers;
mod rows;
mod streams;

pub use journal::Journal;
pub use streams::{NewStream, NotSent, OpenStream, StreamStatus};

use crate::{
    domain::{
        agent::OwnerHash,
        page::{ListPage, Page},
        sidecar::{CLOCK_MARGIN, Enforcement, Sidecar, SidecarInstance},
    },
    store::{
        ReadTransaction, Store, StoreError,
        sidecars::{self, RecordedSidecar},
    },
};
use countersign_identity::{Revision, ServiceId};
use countersign_process::{Clock, Places, Rng};
use rows::Streams;
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicI64, Ordering},
};
use tokio::sync::Notify;

/// How many rows we read at once.
const ROWS_PER_READ: i64 = 1000;

/// How many receipts we compute at the same time. Each owner of services gets only one at a time.
const MAX_RECEIPTS: usize = 2;

/// The sidecars of all control planes.
#[derive(Clone)]
pub struct Sidecars(Arc<Inner>);

struct Inner {
    store: Store,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    /// Our name in the database. We take another one if other control planes conclude that we were killed.
    name: Mutex<Arc<str>>,
    streams: Mutex<Streams>,
    /// All changes up to this revision are in the queues of the streams that they concern.
    distributed: AtomicI64,
    /// Whether other control planes run: they read the progress of our streams from the database.
    has_peers: AtomicBool,
    /// Wakes the journal.
    wakeup: Notify,
    receipts: Places<Option<OwnerHash>>,
}

impl Sidecars {
    pub fn new(store: Store, clock: Arc<dyn Clock>, rng: Arc<dyn Rng>) -> Self {
        let name = Mutex::new(random_name(&*rng));
        Self(Arc::new(Inner {
            store,
            clock,
            rng,
            name,
            streams: Mutex::default(),
            distributed: AtomicI64::new(0),
            has_peers: AtomicBool::new(false),
            wakeup: Notify::new(),
            receipts: Places::new(MAX_RECEIPTS, 1),
        }))
    }

    /// Call when all changes up to a revision are in the queues of the streams that they concern.
    pub fn set_distributed(&self, revision: Revision) {
        self.0.distributed.store(revision.number(), Ordering::SeqCst);
    }

    fn distributed(&self) -> Revision {
        Revision::new(self.0.distributed.load(Ordering::SeqCst))
    }

    /// The number of sidecars of a service that are connected to this control plane, or were until recently and may still decide.
    pub fn count_here(&self, service: ServiceId) -> u32 {
        u32::try_from(self.streams().of_service(service).count()).unwrap_or(u32::MAX)
    }

    /// Whether a revision is in force at all sidecars of a service that have an open stream at this control plane.
    pub fn is_in_force_here(&self, service: ServiceId, revision: Revision) -> bool {
        // Read the distributed revision before the streams, which then account for all changes up to this revision.
        let distributed = self.distributed();
        distributed >= revision
            && !self.streams().of_service(service).any(|stream| stream.may_lack(revision, distributed))
    }

    /// The receipt of a revision at the sidecars of a service. Without a service, goes through all services, and stops at the first with a
    /// sidecar that may decide without the revision. Each `owner` gets one receipt at a time; `None` stands for our background jobs.
    pub async fn enforcement(
        &self,
        owner: Option<OwnerHash>,
        service: Option<ServiceId>,
        revision: Revision,
    ) -> Result<Enforcement, StoreError> {
        let _place = self.0.receipts.enter(owner).await;
        let mut receipt = Enforcement::new(revision, self.0.clock.now());
        let mut next = match service {
            Some(service) => Some(service),
            None => sidecars::next_service(self.0.store.read().await?.conn(), None).await?,
        };
        while let Some(current) = next {
            // A transaction for each service is enough, because a process takes over the copy only of a process of its own service.
            let mut read = self.0.store.read().await?;
            self.add_sidecars(&mut read, current, &mut receipt).await?;
            next = if service.is_none() && receipt.is_complete() {
                sidecars::next_service(read.conn(), Some(current)).await?
            } else {
                None
            };
        }
        Ok(receipt)
    }

    /// Adds the sidecars of a service to a receipt.
    async fn add_sidecars(
        &self,
        read: &mut ReadTransaction,
        service: ServiceId,
        receipt: &mut Enforcement,
    ) -> Result<(), StoreError> {
        let (since, mut after) = (receipt.concerned_since(), None);
        loop {
            let rows = sidecars::recorded_after(read.conn(), service, since, after, ROWS_PER_READ).await?;
            let is_last = i64::try_from(rows.len()).is_ok_and(|count| count < ROWS_PER_READ);
            after = rows.last().map(|row| row.identity.instance);
            for row in rows {
                receipt.add(self.describe(row));
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Describes the sidecar of a row by the state of its stream, if this control plane has the stream, and else by the row.
    fn describe(&self, row: RecordedSidecar) -> Sidecar {
        // Read the distributed revision before the stream, which then accounts for all changes up to this revision.
        let distributed = self.distributed();
        let stream = self.streams().of_row(&row, &self.name());
        let RecordedSidecar { identity, connected_at, progress, confirmed_at, ended_at, max_staleness, .. } = row;
        let mut sidecar = Sidecar {
            identity,
            connected_at,
            is_connected: false,
            in_force: progress.applied,
            applied_at: progress.applied_at,
            last_known_confirmation: confirmed_at,
            refuses_by: None,
            max_staleness,
        };
        match (stream, ended_at) {
            (Some(stream), _) => stream.describe(&mut sidecar, distributed),
            (None, Some(ended_at)) => {
                sidecar.refuses_by = Some(ended_at.saturating_add(max_staleness).saturating_add(CLOCK_MARGIN));
            }
            (None, None) => {
                // Another control plane may confirm the sidecar at any time. `row.distributed` is `None` if that one was killed.
                sidecar.is_connected = row.distributed.is_some();
                sidecar.in_force = progress.in_force(row.distributed.unwrap_or_default());
                sidecar.refuses_by = Some(self.0.clock.now().saturating_add(max_staleness));
            }
        }
        sidecar
    }

    /// A page of the sidecars of a service that may decide.
    pub async fn list(
        &self,
        service: ServiceId,
        page: Page<SidecarInstance>,
    ) -> Result<ListPage<Sidecar, SidecarInstance>, StoreError> {
        let since = self.0.clock.now().saturating_sub(CLOCK_MARGIN);
        let mut read = self.0.store.read().await?;
        let ListPage { items, total, next } = sidecars::list(read.conn(), service, since, page).await?;
        Ok(ListPage { items: items.into_iter().map(|row| self.describe(row)).collect(), total, next })
    }

    /// Counts, up to `limit`, the sidecars of all services that have no stream and may still decide.
    pub async fn count_silent(&self, limit: i64) -> Result<i64, StoreError> {
        let since = self.0.clock.now().saturating_sub(CLOCK_MARGIN);
        sidecars::count_silent(self.0.store.read().await?.conn(), since, limit).await
    }

    /// Whether the database has our name. If not, the caller must not confirm sidecars, and this wakes the journal, which records
    /// our streams. Either we have not written our name yet, or others have concluded that we were killed, and we need a new name.
    pub async fn is_registered(&self, read: &mut ReadTransaction) -> Result<bool, StoreError> {
        let is_registered = sidecars::is_registered(read.conn(), &self.name()).await?;
        if !is_registered {
            self.0.wakeup.notify_one();
        }
        Ok(is_registered)
    }

    fn name(&self) -> Arc<str> {
        Arc::clone(&self.0.name.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Call when other control planes have deleted our name. We confirm no sidecar until its stream is recorded under the new name.
    fn take_new_name(&self) {
        *self.0.name.lock().unwrap_or_else(PoisonError::into_inner) = random_name(&*self.0.rng);
    }

    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.0.streams.lock().unwrap_or_else(PoisonError::into_inner)
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

#[cfg(test)]
mod tests;
