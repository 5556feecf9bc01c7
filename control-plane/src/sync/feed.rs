//! Reads each new change once, and distributes it to the sync streams of this process that it concerns.
//!
//! A change wakes only the streams that it concerns, so its cost does not depend on the number of other streams. A slow stream
//! keeps only changes of its own service in memory, and few of them.

use super::change_batch::{self, ChangeBatch, Changes};
use crate::{
    metrics::{Metrics, timestamp_value},
    sidecars::{Sidecars, StreamStatus},
    store::{Store, StoreError, feed},
};
use countersign_identity::{Revision, ServiceId};
use countersign_process::Shutdown;
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

/// Maximum number of batches that wait for a follower (the stream to one sidecar). With more, its stream ends, and the sidecar
/// reconnects.
const MAX_LAG: usize = 1024;

/// Maximum size in bytes of the batches that wait for a follower. A batch that alone is larger may wait if no other does.
const MAX_WAITING_SIZE: u32 = 4 * 1024 * 1024;

/// While a batch is smaller than this size in bytes, the next batch in the queue is added to it.
const MAX_COALESCED_SIZE: usize = 16 * 1024;

/// Default interval at which the change feed is polled for changes that other processes committed.
pub const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// A revocation must take effect within a second, as README promises, also at replicas without Redis, which only poll.
const _: () = assert!(POLL_INTERVAL.as_millis() <= 500);

/// Distributes batches of changes to subscribers.
#[derive(Clone)]
pub struct ChangeFeed(Arc<FeedState>);

struct FeedState {
    subscribers: Mutex<Subscribers>,
    /// All changes up to this revision are in the queues of the subscribers that they concern.
    distributed: watch::Sender<Revision>,
}

struct Subscribers {
    by_service: HashMap<ServiceId, Vec<Subscriber>>,
    /// All batches up to this revision are in the queues, or will be before the lock is released.
    queued: Revision,
}

struct Subscriber {
    batches: mpsc::Sender<ServiceBatch>,
    /// The size in bytes of the batches that may still be put into the queue.
    space: Arc<Semaphore>,
    receives_unbound: Arc<AtomicBool>,
    status: Arc<StreamStatus>,
}

/// The changes of a batch that concern a service. All streams of the service share them.
pub(super) struct ServiceBatch {
    /// The batch contains all changes up to this revision.
    pub(super) revision: Revision,
    /// The newest revision when the content was read.
    read_at: Revision,
    all_services: Arc<Changes>,
    /// Changes that concern unbound tokens; `None` if the stream did not receive these when the batch was distributed.
    unbound_tokens: Option<Arc<Changes>>,
    /// Changes for this service alone.
    own: Option<Arc<Changes>>,
    /// The share of the batch in [`MAX_WAITING_SIZE`], which is free again when the batch is dropped.
    space: OwnedSemaphorePermit,
}

/// The changes of consecutive batches. If the same data changed several times, only its last state is left.
pub(super) struct CoalescedBatches {
    /// All changes up to this revision are contained.
    pub(super) revision: Revision,
    /// The revision of the first batch.
    pub(super) oldest: Revision,
    /// The newest revision when the content of the last batch was read.
    pub(super) read_at: Revision,
    /// The changes that the follower sends.
    pub(super) changes: Arc<Changes>,
    /// The share of the batches in [`MAX_WAITING_SIZE`].
    space: OwnedSemaphorePermit,
}

impl CoalescedBatches {
    fn new(batch: ServiceBatch, includes_unbound: bool) -> Self {
        let ServiceBatch { revision, read_at, all_services, unbound_tokens, own, space } = batch;
        let mut changes = all_services;
        for part in unbound_tokens.into_iter().filter(|_| includes_unbound).chain(own) {
            merge(&mut changes, part);
        }
        Self { revision, oldest: revision, read_at, changes, space }
    }

    fn add(&mut self, batch: ServiceBatch, includes_unbound: bool) {
        let later = Self::new(batch, includes_unbound);
        merge(&mut self.changes, later.changes);
        self.space.merge(later.space);
        (self.revision, self.read_at) = (later.revision, later.read_at);
    }

    /// Whether later batches may be added. After a batch with new settings, no other may be added, because the settings decide what
    /// else the sidecar receives. The size is limited so that the changes fit into one message, which the sidecar applies at once.
    fn may_grow(&self) -> bool {
        self.changes.settings.is_none() && !self.changes.is_deleted && self.changes.size() < MAX_COALESCED_SIZE
    }
}

/// Adds later changes to `changes`. Copies them only if neither is empty, because other streams share them.
fn merge(changes: &mut Arc<Changes>, later: Arc<Changes>) {
    if changes.is_empty() {
        *changes = later;
    } else if !later.is_empty() {
        Arc::make_mut(changes).merge(&later);
    }
}

/// A part of a batch, and its size in bytes.
struct BatchPart {
    changes: Arc<Changes>,
    size: usize,
}

impl BatchPart {
    fn new(changes: Changes) -> Self {
        Self { size: changes.size(), changes: Arc::new(changes) }
    }
}

/// The parts of a batch that concern several services.
struct SharedParts {
    revision: Revision,
    read_at: Revision,
    all_services: BatchPart,
    unbound_tokens: BatchPart,
}

impl SharedParts {
    /// Puts a batch into the queues of the subscribers of a service. Removes the subscribers whose queues are full.
    fn enqueue(&self, own: Option<&BatchPart>, subscribers: &mut Vec<Subscriber>) {
        let concerns_service = own.is_some() || !self.all_services.changes.is_empty();
        subscribers.retain(|subscriber| {
            let receives_unbound = subscriber.receives_unbound.load(Ordering::SeqCst);
            let unbound_tokens = Some(&self.unbound_tokens).filter(|_| receives_unbound);
            if !concerns_service && unbound_tokens.is_none_or(|part| part.changes.is_empty()) {
                return true;
            }
            subscriber.status.queues(self.revision);
            let parts = [Some(&self.all_services), unbound_tokens, own].into_iter().flatten();
            let size = parts.map(|part| part.size).sum::<usize>();
            let size = u32::try_from(size).map_or(MAX_WAITING_SIZE, |size| size.min(MAX_WAITING_SIZE));
            let Ok(space) = Arc::clone(&subscriber.space).try_acquire_many_owned(size) else { return false };
            let batch = ServiceBatch {
                revision: self.revision,
                read_at: self.read_at,
                all_services: Arc::clone(&self.all_services.changes),
                unbound_tokens: unbound_tokens.map(|part| Arc::clone(&part.changes)),
                own: own.map(|part| Arc::clone(&part.changes)),
                space,
            };
            subscriber.batches.try_send(batch).is_ok()
        });
    }
}

/// The queue of batches for one follower. Dropping it ends the subscription.
pub(super) struct Subscription {
    feed: ChangeFeed,
    service: ServiceId,
    /// The queue contains all changes above this revision that concern the service. The follower must read earlier ones itself.
    pub(super) start: Revision,
    /// The batches that concern the service. Closed if the follower is too slow, or if changes were deleted before they were read.
    pub(super) batches: mpsc::Receiver<ServiceBatch>,
    /// All changes up to this revision that concern the service were put into the queue.
    pub(super) distributed: watch::Receiver<Revision>,
    receives_unbound: Arc<AtomicBool>,
    status: Arc<StreamStatus>,
}

impl Subscription {
    /// Sets whether the stream receives changes that concern unbound tokens. A stream that begins to receive them needs a snapshot
    /// and a new subscription, because its queue lacks the earlier changes of this kind.
    pub(super) fn set_receives_unbound(&self, receives_unbound: bool) {
        self.receives_unbound.store(receives_unbound, Ordering::SeqCst);
    }

    /// Combines a batch from the queue with the batches that wait behind it. They wait if the sidecar is slow.
    pub(super) fn coalesce(&mut self, batch: ServiceBatch, includes_unbound: bool) -> CoalescedBatches {
        let mut coalesced = CoalescedBatches::new(batch, includes_unbound);
        // Usually the queue is empty, and then we do not compute the size of the changes.
        while !self.batches.is_empty()
            && coalesced.may_grow()
            && let Ok(batch) = self.batches.try_recv()
        {
            coalesced.add(batch, includes_unbound);
        }
        coalesced
    }

    /// Call this when the follower has sent everything up to `start`, so that the sidecar lacks only changes in the queue. Does
    /// nothing if the feed has already removed the subscriber.
    pub(super) fn mark_caught_up(&self) {
        let subscribers = self.feed.subscribers();
        let mut of_service = subscribers.by_service.get(&self.service).into_iter().flatten();
        if of_service.any(|subscriber| self.is(subscriber)) {
            self.status.catches_up();
        }
    }

    /// Whether a subscriber belongs to this subscription: only then do both share `receives_unbound`.
    fn is(&self, subscriber: &Subscriber) -> bool {
        Arc::ptr_eq(&subscriber.receives_unbound, &self.receives_unbound)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.status.falls_behind();
        let mut subscribers = self.feed.subscribers();
        if let Some(list) = subscribers.by_service.get_mut(&self.service) {
            list.retain(|subscriber| !self.is(subscriber));
            if list.is_empty() {
                subscribers.by_service.remove(&self.service);
            }
        }
    }
}

impl ChangeFeed {
    fn new(revision: Revision) -> Self {
        let subscribers = Mutex::new(Subscribers { by_service: HashMap::new(), queued: revision });
        Self(Arc::new(FeedState { subscribers, distributed: watch::Sender::new(revision) }))
    }

    fn subscribers(&self) -> MutexGuard<'_, Subscribers> {
        self.0.subscribers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Subscribes to all batches that concern the service, above the revision `start` of the subscription.
    ///
    /// No change is missed: we read `start` under the lock under which batches are put into queues. So a batch either was distributed
    /// before, and ends at or below `start`, or it is above `start` and comes into the queue.
    pub(super) fn subscribe(
        &self,
        service: ServiceId,
        receives_unbound: bool,
        status: Arc<StreamStatus>,
    ) -> Subscription {
        let (sender, batches) = mpsc::channel(MAX_LAG);
        let receives_unbound = Arc::new(AtomicBool::new(receives_unbound));
        let space = Arc::new(Semaphore::new(MAX_WAITING_SIZE as usize));
        let subscriber = Subscriber {
            batches: sender,
            space,
            receives_unbound: Arc::clone(&receives_unbound),
            status: Arc::clone(&status),
        };
        let mut subscribers = self.subscribers();
        subscribers.by_service.entry(service).or_default().push(subscriber);
        let start = subscribers.queued;
        drop(subscribers);
        Subscription {
            feed: self.clone(),
            service,
            start,
            batches,
            distributed: self.0.distributed.subscribe(),
            receives_unbound,
            status,
        }
    }

    /// Puts a batch, the changes above `since`, into the queues of the subscribers that it concerns. If changes were deleted before
    /// they were read, removes all subscribers instead, so that the sidecars reconnect and resume from their revisions.
    fn distribute(&self, batch: ChangeBatch, since: Revision) {
        let ChangeBatch { range, read_at, all_services, unbound_tokens, by_service } = batch;
        let (all_services, unbound_tokens) = (BatchPart::new(all_services), BatchPart::new(unbound_tokens));
        let shared = SharedParts { revision: range.until, read_at, all_services, unbound_tokens };
        let mut subscribers = self.subscribers();
        subscribers.queued = range.until;
        if range.since > since {
            tracing::warn!("changes were deleted before they were read; all sync streams resume");
            for subscriber in subscribers.by_service.values().flatten() {
                subscriber.status.falls_behind();
            }
            subscribers.by_service.clear();
        }
        let subscribers = &mut subscribers.by_service;
        // If no change concerns all services, visit only those with changes of their own.
        if shared.all_services.changes.is_empty() && shared.unbound_tokens.changes.is_empty() {
            for (service, own) in by_service {
                if let Some(list) = subscribers.get_mut(&service) {
                    shared.enqueue(Some(&BatchPart::new(own)), list);
                }
            }
        } else {
            let mut by_service = by_service;
            for (service, list) in subscribers.iter_mut() {
                let own = by_service.remove(service).map(BatchPart::new);
                shared.enqueue(own.as_ref(), list);
            }
        }
    }
}

/// Reads the change feed for all followers (streams to sidecars) of the process.
pub struct FeedReader {
    feed: ChangeFeed,
    store: Store,
    committed: watch::Receiver<Revision>,
    poll_interval: Duration,
    sidecars: Sidecars,
    /// Changes up to this revision are distributed, or are older than this reader.
    distributed: Revision,
}

impl FeedReader {
    /// A reader that starts at the newest revision in the database. Subscribers receive all later changes.
    pub async fn open(store: Store, poll_interval: Duration, sidecars: Sidecars) -> Result<Self, StoreError> {
        let committed = store.committed_revision();
        let distributed = feed::position(store.read().await?.conn()).await?.revision;
        sidecars.set_distributed(distributed);
        Ok(Self { feed: ChangeFeed::new(distributed), store, committed, poll_interval, sidecars, distributed })
    }

    pub fn feed(&self) -> ChangeFeed {
        self.feed.clone()
    }

    /// Reads and distributes changes until shutdown is requested.
    pub async fn run(mut self, metrics: Metrics, shutdown: Shutdown) {
        loop {
            tokio::select! {
                () = shutdown.requested() => return,
                _ = self.committed.changed() => {}
                () = tokio::time::sleep(self.poll_interval) => {}
            }
            // Mark all commits so far as seen, because the following reads contain them.
            self.committed.borrow_and_update();
            loop {
                let has_more = tokio::select! {
                    () = shutdown.requested() => return,
                    has_more = self.distribute_changes(&metrics) => has_more,
                };
                if !has_more {
                    break;
                }
            }
        }
    }

    /// Reads and distributes one batch. Returns whether there may be more changes.
    async fn distribute_changes(&mut self, metrics: &Metrics) -> bool {
        let result = change_batch::read_all(&self.store, self.distributed).await;
        if result.is_ok() {
            metrics.sync.feed_last_read.set(timestamp_value(Some(self.store.now())));
        }
        match result {
            Ok(batch) if batch.range.until > self.distributed => {
                let (revision, is_complete) = (batch.range.until, batch.range.until == batch.read_at);
                self.feed.distribute(batch, self.distributed);
                self.distributed = revision;
                metrics.sync.feed_revision.set(revision.number());
                // Publish the revision only now: a follower that sees it must find all batches up to it in its queue.
                self.sidecars.set_distributed(revision);
                self.feed.0.distributed.send_replace(revision);
                !is_complete
            }
            Ok(_) => false,
            Err(error) => {
                tracing::warn!(%error, "cannot read the change feed; retrying");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests;
