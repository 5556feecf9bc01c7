//! Divides database reads fairly among services and their owners: at most one read per service and two per owner run or wait for a
//! connection. So a service with hundreds of streams delays another service by one read only, and a person with hundreds of services
//! delays those of others by two reads.

use super::{
    context::{database_unavailable, shutting_down},
    page_reader::StreamGroup,
};
use crate::{domain::agent::Owner, store::StoreError};
use countersign_identity::ServiceId;
use countersign_process::{QueuePlace, Queues};
use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, LazyLock},
};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tonic::Status;

/// Maximum number of reads at the same time. When many sidecars connect at once, their reads must not use all database
/// connections.
const MAX_READS: usize = 2;

/// Names an owner of services. Two owners may have the same hash; they then share their turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnerHash(u64);

impl OwnerHash {
    pub(super) fn of(owner: &Owner) -> Self {
        static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        Self(HASHER.hash_one(owner))
    }
}

/// The reads that run and wait.
#[derive(Clone)]
pub(super) struct ReadTurns {
    reads: Arc<Semaphore>,
    by_owner: Queues<OwnerHash>,
    by_service: Queues<ServiceId>,
}

/// The permission to read. Dropping it ends the turn.
struct ReadTurn {
    _read: OwnedSemaphorePermit,
    _of_owner: QueuePlace<OwnerHash>,
    _of_service: QueuePlace<ServiceId>,
}

impl ReadTurns {
    pub(super) fn new() -> Self {
        Self {
            reads: Arc::new(Semaphore::new(MAX_READS)),
            by_owner: Queues::with_places(MAX_READS),
            by_service: Queues::with_places(1),
        }
    }

    /// Waits until data of the service may be read, and reads it. The turn belongs to the read and not to the caller: a stream that
    /// ends does not end its read in the database, which still uses a connection.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        group: StreamGroup,
        read: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, Status> {
        let turn = self.acquire(group).await.map_err(|_| shutting_down())?;
        let read = tokio::spawn(async move {
            let result = read.await;
            drop(turn);
            result
        });
        // The task fails if the read panics, which is logged, or at the end of the process.
        let result = read.await.map_err(|_| Status::internal("the read has failed"))?;
        result.map_err(|error| database_unavailable(&error))
    }

    /// Waits until data of the service may be read.
    async fn acquire(&self, group: StreamGroup) -> Result<ReadTurn, AcquireError> {
        let of_service = self.by_service.enter(group.service).await?;
        // Semaphores are fair. Each service waits here at most once, so the services of an owner take turns.
        let of_owner = self.by_owner.enter(group.owner).await?;
        // Each owner waits here at most as often as reads run, so the owners take turns.
        let read = Arc::clone(&self.reads).acquire_owned().await?;
        Ok(ReadTurn { _read: read, _of_owner: of_owner, _of_service: of_service })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::{
        sync::{mpsc, oneshot},
        time::{sleep, timeout},
    };

    const fn group(owner: u64, service: u128) -> StreamGroup {
        StreamGroup { service: ServiceId::from_bits(service), owner: OwnerHash(owner), names_by_hash: true }
    }

    /// Begins reads of these groups in this order. Returns the order in which they had their turns.
    async fn turns_of(groups: Vec<StreamGroup>) -> Vec<StreamGroup> {
        let (turns, (sender, mut order)) = (ReadTurns::new(), mpsc::unbounded_channel());
        for group in groups {
            let (turns, sender) = (turns.clone(), sender.clone());
            tokio::spawn(async move {
                let turn = turns.acquire(group).await.unwrap();
                sender.send(group).unwrap();
                sleep(Duration::from_millis(1)).await;
                drop(turn);
            });
            tokio::task::yield_now().await;
        }
        drop(sender);
        let mut finished = Vec::new();
        while let Some(group) = order.recv().await {
            finished.push(group);
        }
        assert!(turns.by_service.is_empty() && turns.by_owner.is_empty());
        finished
    }

    #[tokio::test]
    async fn services_take_turns_and_leave_nothing_behind() {
        let finished = turns_of([vec![group(1, 1); 50], vec![group(1, 2), group(1, 3)]].concat()).await;
        assert_eq!(finished.len(), 52);
        let last_other = finished.iter().rposition(|group| group.service != ServiceId::from_bits(1)).unwrap();
        assert!(last_other < 6, "{finished:?}");
    }

    #[tokio::test]
    async fn owners_take_turns() {
        let of_greedy_owner: Vec<_> = (0..50).map(|service| group(1, service)).collect();
        let finished = turns_of([of_greedy_owner, vec![group(2, 100), group(3, 101)]].concat()).await;
        assert_eq!(finished.len(), 52);
        let last_other = finished.iter().rposition(|group| group.owner != OwnerHash(1)).unwrap();
        assert!(last_other < 8, "{finished:?}");
    }

    #[tokio::test]
    async fn turn_lasts_until_the_read_ends_also_without_its_stream() {
        let (turns, (sender, receiver)) = (ReadTurns::new(), oneshot::channel());
        let read = async {
            let _closed: Result<(), _> = receiver.await;
            Ok(())
        };
        timeout(Duration::from_millis(20), turns.read(group(1, 1), read)).await.err().unwrap();
        timeout(Duration::from_millis(20), turns.acquire(group(1, 1))).await.err().unwrap();
        drop(sender);
        turns.read(group(1, 1), async { Ok(()) }).await.unwrap();
        while !turns.by_service.is_empty() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn cancelled_reads_leave_nothing_behind() {
        let (turns, group) = (ReadTurns::new(), group(1, 1));
        let running = turns.acquire(group).await.unwrap();
        timeout(Duration::from_millis(1), turns.acquire(group)).await.err().unwrap();
        assert_eq!((turns.by_service.len(), turns.by_owner.len()), (1, 1));
        drop(running);
        assert!(turns.by_service.is_empty() && turns.by_owner.is_empty());
    }
}
