//! Divides database reads fairly among services: at most one read per service runs or waits for a connection, so a service
//! with hundreds of streams delays another service by one read only.

use countersign_identity::ServiceId;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// Maximum number of reads at the same time. When many sidecars connect at once, their reads must not use all database
/// connections.
const MAX_READS: usize = 2;

/// The reads that run and wait.
#[derive(Clone)]
pub(super) struct ReadTurns {
    reads: Arc<Semaphore>,
    /// The services with a read that runs or waits.
    by_service: Arc<Mutex<HashMap<ServiceId, Arc<Semaphore>>>>,
}

/// The permission to read. Dropping it ends the turn.
pub(super) struct ReadTurn {
    _read: OwnedSemaphorePermit,
    _queue: ServiceQueue,
}

/// The reads of one service. The last one to leave removes the queue.
struct ServiceQueue {
    turns: ReadTurns,
    service: ServiceId,
    queue: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
}

impl ReadTurns {
    pub(super) fn new() -> Self {
        Self { reads: Arc::new(Semaphore::new(MAX_READS)), by_service: Arc::default() }
    }

    /// Waits until data of the service may be read.
    pub(super) async fn acquire(&self, service: ServiceId) -> Result<ReadTurn, AcquireError> {
        let mut queue = self.queue_of(service);
        queue.permit = Some(Arc::clone(&queue.queue).acquire_owned().await?);
        // Semaphores are fair, and each service waits here at most once, so the services take turns.
        let read = Arc::clone(&self.reads).acquire_owned().await?;
        Ok(ReadTurn { _read: read, _queue: queue })
    }

    fn queue_of(&self, service: ServiceId) -> ServiceQueue {
        let queue = Arc::clone(self.lock().entry(service).or_insert_with(|| Arc::new(Semaphore::new(1))));
        ServiceQueue { turns: self.clone(), service, queue, permit: None }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ServiceId, Arc<Semaphore>>> {
        self.by_service.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ServiceQueue {
    fn drop(&mut self) {
        drop(self.permit.take());
        let mut by_service = self.turns.lock();
        // One reference in the map and one in this queue; a permit has another one.
        if Arc::strong_count(&self.queue) <= 2 {
            by_service.remove(&self.service);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::{sync::mpsc, time::sleep};

    #[tokio::test]
    async fn services_take_turns_and_leave_nothing_behind() {
        let (turns, (sender, mut order)) = (ReadTurns::new(), mpsc::unbounded_channel());
        let services: Vec<u128> = [vec![1; 50], vec![2, 3]].concat();
        for service in services {
            let (turns, sender) = (turns.clone(), sender.clone());
            tokio::spawn(async move {
                let turn = turns.acquire(ServiceId::from_bits(service)).await.unwrap();
                sender.send(service).unwrap();
                sleep(Duration::from_millis(1)).await;
                drop(turn);
            });
            tokio::task::yield_now().await;
        }
        drop(sender);
        let mut finished = Vec::new();
        while let Some(service) = order.recv().await {
            finished.push(service);
        }
        assert_eq!(finished.len(), 52);
        let last_other = finished.iter().rposition(|service| *service != 1).unwrap();
        assert!(last_other < 6, "{finished:?}");
        assert!(turns.lock().is_empty());
    }

    #[tokio::test]
    async fn cancelled_reads_leave_nothing_behind() {
        let (turns, service) = (ReadTurns::new(), ServiceId::from_bits(1));
        let running = turns.acquire(service).await.unwrap();
        tokio::time::timeout(Duration::from_millis(1), turns.acquire(service)).await.err().unwrap();
        assert_eq!(turns.lock().len(), 1);
        drop(running);
        assert!(turns.lock().is_empty());
    }
}
