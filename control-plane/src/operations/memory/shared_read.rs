//! A read of the database that concurrent requests share.
//!
//! Invariant: a caller gets the result of a read that began after its call, so the result is never older than the request. One
//! read runs at a time, and all callers that wait meanwhile share the next one, so the number of reads and of connections does not
//! grow with the number of callers.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use tokio::sync::Mutex;

/// The timeout of a shared read, for which all its requests wait. If a connection is dead, the next read has another one, within the time
/// limit of the requests that wait.
pub(in crate::operations) const SHARED_READ_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs reads, one at a time.
pub(in crate::operations) struct SharedRead<T> {
    /// The number of reads that have begun.
    begun: AtomicU64,
    /// The number and the result of the last successful read. Locked while a read runs.
    latest: Mutex<Option<(u64, T)>>,
}

impl<T> Default for SharedRead<T> {
    fn default() -> Self {
        Self { begun: AtomicU64::new(0), latest: Mutex::new(None) }
    }
}

impl<T: Clone> SharedRead<T> {
    /// Returns the result of `read`, or of the read of another caller that began after this call. Failures are not shared.
    pub(in crate::operations) async fn run<E>(&self, read: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let begun_before = self.begun.load(Ordering::SeqCst);
        let mut latest = self.latest.lock().await;
        if let Some((number, value)) = latest.as_ref()
            && *number > begun_before
        {
            return Ok(value.clone());
        }
        // Other tasks run first, so that their calls share this read: on a busy processor, a read costs as much as several requests.
        tokio::task::yield_now().await;
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let value = read.await?;
        *latest = Some((number, value.clone()));
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{FutureExt as _, future::join_all};
    use tokio::sync::Notify;

    #[tokio::test]
    async fn callers_that_wait_share_one_read_that_began_after_their_call() {
        let (shared, reads, end_of_first) = (SharedRead::default(), AtomicU64::new(0), Notify::new());
        let read = async || Ok::<_, ()>(reads.fetch_add(1, Ordering::SeqCst) + 1);
        let mut first = Box::pin(shared.run(async {
            end_of_first.notified().await;
            read().await
        }));
        assert!(first.as_mut().now_or_never().is_none());
        // The first read has not begun yet.
        let mut joining = Box::pin(join_all((0..100).map(|_| shared.run(read()))));
        assert!(joining.as_mut().now_or_never().is_none());
        assert!(first.as_mut().now_or_never().is_none());
        let mut waiting = Box::pin(join_all((0..100).map(|_| shared.run(read()))));
        assert!(waiting.as_mut().now_or_never().is_none());
        end_of_first.notify_one();
        assert_eq!(first.await, Ok(1));
        assert_eq!(joining.await, vec![Ok(1); 100]);
        assert_eq!(waiting.await, vec![Ok(2); 100]);
        assert_eq!(shared.run(read()).await, Ok(3));
    }

    #[tokio::test]
    async fn failed_and_abandoned_reads_do_not_block_the_next() {
        let shared = SharedRead::default();
        assert_eq!(shared.run(async { Err::<u8, _>("failed") }).await, Err("failed"));
        assert!(shared.run(std::future::pending::<Result<u8, &str>>()).now_or_never().is_none());
        assert_eq!(shared.run(async { Ok::<_, &str>(7) }).await, Ok(7));
    }
}
