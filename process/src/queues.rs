//! Fair queues by key: whoever asks often waits behind itself, and not before others.

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
    queue: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
}

impl<K: Copy + Eq + Hash> Queues<K> {
    /// `places` for each key.
    pub fn with_places(places: usize) -> Self {
        Self { places, by_key: Arc::default() }
    }

    /// Waits for a place. The error cannot occur, because the queue is not closed.
    pub async fn enter(&self, key: K) -> Result<QueuePlace<K>, AcquireError> {
        let queue = Arc::clone(self.lock().entry(key).or_insert_with(|| Arc::new(Semaphore::new(self.places))));
        let mut place = QueuePlace { queues: self.clone(), key, queue, permit: None };
        place.permit = Some(Arc::clone(&place.queue).acquire_owned().await?);
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
        drop(self.permit.take());
        let mut by_key = self.queues.lock();
        // One reference in the map and one in this place; a permit has another one.
        if Arc::strong_count(&self.queue) <= 2 {
            by_key.remove(&self.key);
        }
    }
}
