//! Shares a fixed number of places among strangers, for example connections to the database. Each key, which is the owner or the
//! client for whom a place is taken, has at most a part of the places.
//!
//! A caller that finds no free place first waits in the queue of its own key, then in the queue of all keys. So a key that asks
//! often hardly delays other keys.

use std::{
    collections::HashMap,
    future::pending,
    hash::Hash,
    panic::resume_unwind,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places, with a cap for each key.
pub struct Places<K> {
    all: Arc<Semaphore>,
    per_key: usize,
    /// For each key that has or awaits a place: how many more places it may take.
    by_key: Arc<Mutex<HashMap<K, Arc<Semaphore>>>>,
}

impl<K> Clone for Places<K> {
    fn clone(&self) -> Self {
        Self { all: Arc::clone(&self.all), per_key: self.per_key, by_key: Arc::clone(&self.by_key) }
    }
}

/// A place that is taken until this is dropped.
pub struct Place<K: Eq + Hash> {
    of_key: KeyPlace<K>,
    in_all: Option<OwnedSemaphorePermit>,
}

/// A place of a key, or the wait for one. When the last place of a key, or the last wait, is dropped, the key leaves the map.
struct KeyPlace<K: Eq + Hash> {
    places: Places<K>,
    key: K,
    permit: Option<OwnedSemaphorePermit>,
    /// `None` only while this is dropped.
    free: Option<Arc<Semaphore>>,
}

/// Why there is no free place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoPlace {
    /// The key has all places that it may have.
    OfKey,
    /// All places are taken.
    AtAll,
}

impl<K: Clone + Eq + Hash> Places<K> {
    /// `total` places, of which each key may have `per_key`.
    pub fn new(total: usize, per_key: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(total)), per_key, by_key: Arc::default() }
    }

    /// Waits for a place: first in the queue of this key, then in the queue of all keys.
    pub async fn enter(&self, key: K) -> Place<K> {
        let mut of_key = self.of_key(key);
        // The semaphores are never closed, so there are permits.
        if let Some(free) = of_key.free.clone() {
            of_key.permit = free.acquire_owned().await.ok();
        }
        let in_all = Arc::clone(&self.all).acquire_owned().await.ok();
        Place { of_key, in_all }
    }

    /// Takes a free place.
    pub fn try_enter(&self, key: K) -> Result<Place<K>, NoPlace> {
        self.try_enter_many(key, 1)
    }

    /// Takes `count` free places at once, or none.
    pub fn try_enter_many(&self, key: K, count: u32) -> Result<Place<K>, NoPlace> {
        let mut place = Place { of_key: self.of_key(key), in_all: None };
        place.grow(count)?;
        Ok(place)
    }

    /// Waits for a place, and does some work in it, like [`Place::run`].
    pub fn run<T: Send + 'static>(
        &self,
        key: K,
        work: impl Future<Output = T> + Send + 'static,
    ) -> impl Future<Output = T> + Send
    where
        K: Send + 'static,
    {
        let (places, work) = (self.clone(), Box::pin(work));
        async move { places.enter(key).await.run(work).await }
    }

    fn of_key(&self, key: K) -> KeyPlace<K> {
        let mut by_key = self.lock();
        let free = by_key.entry(key.clone()).or_insert_with(|| Arc::new(Semaphore::new(self.per_key)));
        let free = Some(Arc::clone(free));
        KeyPlace { places: self.clone(), key, permit: None, free }
    }
}

impl<K: Eq + Hash> Place<K> {
    /// Does some work in a task, and frees the place when the work ends. If the caller is dropped earlier, the work continues and keeps
    /// the place, because the database or the operating system would continue anyway. If the work panics, the caller panics too.
    pub async fn run<T: Send + 'static>(self, work: impl Future<Output = T> + Send + 'static) -> T
    where
        K: Send + 'static,
    {
        let work = tokio::spawn(async move {
            let result = work.await;
            drop(self);
            result
        });
        match work.await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // The runtime has cancelled the task, because the process ends.
                Err(_) => pending().await,
            },
        }
    }

    /// Takes more free places, which are freed together with this one.
    pub fn grow(&mut self, count: u32) -> Result<(), NoPlace> {
        let KeyPlace { places, permit, free, .. } = &mut self.of_key;
        let of_key = free.clone().and_then(|free| free.try_acquire_many_owned(count).ok()).ok_or(NoPlace::OfKey)?;
        let in_all = Arc::clone(&places.all).try_acquire_many_owned(count).map_err(|_| NoPlace::AtAll)?;
        join(permit, of_key);
        join(&mut self.in_all, in_all);
        Ok(())
    }
}

fn join(permit: &mut Option<OwnedSemaphorePermit>, other: OwnedSemaphorePermit) {
    match permit {
        Some(permit) => permit.merge(other),
        None => *permit = Some(other),
    }
}

impl<K> Places<K> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, Arc<Semaphore>>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash> Drop for KeyPlace<K> {
    fn drop(&mut self) {
        let mut by_key = self.places.lock();
        drop((self.permit.take(), self.free.take()));
        // Semaphores are shared and dropped only under the lock. If only the map refers to this one, nobody has or awaits a place.
        if by_key.get(&self.key).is_some_and(|free| Arc::strong_count(free) == 1) {
            by_key.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn key_waits_behind_itself_and_leaves_nothing_behind() {
        let places = Places::new(3, 2);
        let greedy = [places.enter(1).await, places.enter(1).await];
        let mut waiting = Box::pin(places.enter(1));
        assert!(waiting.as_mut().now_or_never().is_none());
        let other = places.enter(2).now_or_never().unwrap();
        let mut behind_all = Box::pin(places.enter(3));
        assert!(behind_all.as_mut().now_or_never().is_none());
        assert_eq!(places.try_enter(1).err(), Some(NoPlace::OfKey));
        assert_eq!(places.try_enter(4).err(), Some(NoPlace::AtAll));
        assert_eq!(places.try_enter_many(5, 2).err(), Some(NoPlace::AtAll));
        drop(greedy);
        drop((waiting.now_or_never().unwrap(), behind_all.now_or_never().unwrap(), other));
        assert!(places.lock().is_empty());
        let mut two = places.try_enter_many(1, 1).unwrap();
        assert_eq!(two.grow(2).err(), Some(NoPlace::OfKey));
        assert!(two.grow(1).is_ok() && places.try_enter_many(2, 2).is_err() && places.try_enter(2).is_ok());
        drop(two);
        assert_eq!(places.all.available_permits(), 3);
    }

    #[tokio::test]
    async fn work_keeps_its_place_when_its_caller_is_dropped() {
        let (places, (end, ended)) = (Places::new(1, 1), oneshot::channel::<()>());
        let mut work = Box::pin(places.run(1, ended));
        assert!(work.as_mut().now_or_never().is_none());
        drop(work);
        assert!(places.enter(2).now_or_never().is_none());
        end.send(()).unwrap();
        assert_eq!(places.run(1, async { 7 }).await, 7);
        assert!(places.lock().is_empty());
    }
}
