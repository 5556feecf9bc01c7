//! Fair queues by key: whoever asks often waits behind itself, and not before others. Fair turns, with two levels of such queues.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// A queue with some places for each key, as long as one is occupied or awaited.
pub struct Queues<K> {
    places: usize,
    by_key: Arc<Mutex<HashMap<K, Arc<Semaphore>>>>,
}

impl<K> Clone for Queues<K> {
    fn clone(&self) -> Self {
        Self { places: self.places, by_key: Arc::clone(&self.by_key) }
    }
}

/// An occupied place. The last one to leave removes the queue.
pub struct QueuePlace<K: Eq + Hash> {
    queues: Queues<K>,
    key: K,
    /// Refers to the queue, too.
    permit: Option<OwnedSemaphorePermit>,
    /// `None` only while the place is dropped.
    queue: Option<Arc<Semaphore>>,
}

impl<K: Copy + Eq + Hash> Queues<K> {
    /// `places` for each key.
    pub fn with_places(places: usize) -> Self {
        Self { places, by_key: Arc::default() }
    }

    /// Waits for a place. The error cannot occur, because the queue is not closed.
    pub async fn enter(&self, key: K) -> Result<QueuePlace<K>, AcquireError> {
        let queue = Arc::clone(self.lock().entry(key).or_insert_with(|| Arc::new(Semaphore::new(self.places))));
        let mut place = QueuePlace { queues: self.clone(), key, permit: None, queue: Some(Arc::clone(&queue)) };
        place.permit = Some(queue.acquire_owned().await?);
        Ok(place)
    }
}

impl<K> Queues<K> {
    /// The number of keys with occupied or awaited places.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether no place is occupied or awaited.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, Arc<Semaphore>>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash> Drop for QueuePlace<K> {
    fn drop(&mut self) {
        let mut by_key = self.queues.lock();
        drop((self.permit.take(), self.queue.take()));
        // References are added and removed under the lock, so the map has the last one if nobody else has or awaits a place.
        if by_key.get(&self.key).is_some_and(|queue| Arc::strong_count(queue) == 1) {
            by_key.remove(&self.key);
        }
    }
}

/// Divides turns fairly among owners, and among the items of each owner. At most one turn of an item, and as many turns of an owner as
/// there are in all, run or wait behind others. So an owner with hundreds of items delays the others by few turns.
pub struct FairTurns<O, I> {
    turns: Arc<Semaphore>,
    by_owner: Queues<O>,
    by_item: Queues<I>,
}

impl<O, I> Clone for FairTurns<O, I> {
    fn clone(&self) -> Self {
        let Self { turns, by_owner, by_item } = self;
        Self { turns: Arc::clone(turns), by_owner: by_owner.clone(), by_item: by_item.clone() }
    }
}

/// A turn. Dropping it ends the turn.
pub struct FairTurn<O: Eq + Hash, I: Eq + Hash> {
    _turn: OwnedSemaphorePermit,
    _of_owner: Option<(QueuePlace<O>, QueuePlace<I>)>,
}

impl<O: Copy + Eq + Hash, I: Copy + Eq + Hash> FairTurns<O, I> {
    /// `count` turns at the same time.
    pub fn new(count: usize) -> Self {
        let (by_owner, by_item) = (Queues::with_places(count), Queues::with_places(1));
        Self { turns: Arc::new(Semaphore::new(count)), by_owner, by_item }
    }

    /// Waits for a turn of an item. The error cannot occur, because the queues are not closed.
    pub async fn take(&self, owner: O, item: I) -> Result<FairTurn<O, I>, AcquireError> {
        let of_item = self.by_item.enter(item).await?;
        // Semaphores are fair. Each item waits here at most once, so the items of an owner take turns.
        let of_owner = self.by_owner.enter(owner).await?;
        // Each owner waits here at most as often as turns run, so the owners take turns.
        let turn = Arc::clone(&self.turns).acquire_owned().await?;
        Ok(FairTurn { _turn: turn, _of_owner: Some((of_owner, of_item)) })
    }

    /// Waits for a turn that belongs to no owner, as [`Self::take`] does.
    pub async fn take_unowned(&self) -> Result<FairTurn<O, I>, AcquireError> {
        Ok(FairTurn { _turn: Arc::clone(&self.turns).acquire_owned().await?, _of_owner: None })
    }
}

impl<O, I> FairTurns<O, I> {
    /// Whether no turn of an owner runs or is awaited.
    pub fn is_empty(&self) -> bool {
        self.by_owner.is_empty() && self.by_item.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::{
        sync::mpsc,
        time::{sleep, timeout},
    };

    /// Waits for turns of these owners and items in this order. Returns the order in which they had their turns.
    async fn turns_of(waiting: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
        let (turns, (sender, mut order)) = (FairTurns::new(2), mpsc::unbounded_channel());
        for (owner, item) in waiting {
            let (turns, sender) = (turns.clone(), sender.clone());
            tokio::spawn(async move {
                let turn = turns.take(owner, item).await.unwrap();
                sender.send((owner, item)).unwrap();
                sleep(Duration::from_millis(1)).await;
                drop(turn);
            });
            tokio::task::yield_now().await;
        }
        drop(sender);
        let mut finished = Vec::new();
        while let Some(turn) = order.recv().await {
            finished.push(turn);
        }
        assert!(turns.is_empty());
        finished
    }

    #[tokio::test]
    async fn items_take_turns_and_leave_nothing_behind() {
        let finished = turns_of([vec![(1, 1); 50], vec![(1, 2), (1, 3)]].concat()).await;
        assert_eq!(finished.len(), 52);
        let last_other = finished.iter().rposition(|(_, item)| *item != 1).unwrap();
        assert!(last_other < 6, "{finished:?}");
    }

    #[tokio::test]
    async fn owners_take_turns() {
        let of_greedy_owner: Vec<_> = (0..50).map(|item| (1, item)).collect();
        let finished = turns_of([of_greedy_owner, vec![(2, 100), (3, 101)]].concat()).await;
        assert_eq!(finished.len(), 52);
        let last_other = finished.iter().rposition(|(owner, _)| *owner != 1).unwrap();
        assert!(last_other < 8, "{finished:?}");
    }

    #[tokio::test]
    async fn turns_of_nobody_wait_for_the_running_turns_only() {
        let turns = FairTurns::new(2);
        let running = [turns.take(1, 1).await.unwrap(), turns.take(1, 2).await.unwrap()];
        // A third turn of the owner waits in the queue of the owner.
        timeout(Duration::from_millis(1), turns.take(1, 3)).await.err().unwrap();
        timeout(Duration::from_millis(1), turns.take_unowned()).await.err().unwrap();
        drop(running);
        let _turn = turns.take_unowned().await.unwrap();
    }

    #[tokio::test]
    async fn cancelled_waits_leave_nothing_behind() {
        let turns = FairTurns::new(2);
        let running = turns.take(1, 1).await.unwrap();
        timeout(Duration::from_millis(1), turns.take(1, 1)).await.err().unwrap();
        assert_eq!((turns.by_owner.len(), turns.by_item.len()), (1, 1));
        drop(running);
        assert!(turns.is_empty());
    }
}
