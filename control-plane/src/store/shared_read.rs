//! A read of the database that many callers share: concurrent requests, or the pings of many streams.
//!
//! Invariant: a caller gets the result of a read that began after its call, so the result is never older than the request. One
//! read runs at a time, and all callers that wait meanwhile share the next one, so the number of reads and of connections does not
//! grow with the number of callers.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::OnceCell;

/// The timeout of a shared read. If its connection is dead, the next read uses another connection, still within the time limit
/// of the requests that wait.
pub const SHARED_READ_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs reads, one at a time. `Q` is what each caller asks for.
pub struct SharedRead<T, Q = ()> {
    /// The callers of the next read.
    next: Mutex<Arc<Batch<T, Q>>>,
    /// Locked while a read runs.
    turn: tokio::sync::Mutex<()>,
}

/// The callers that share a read, and its result.
struct Batch<T, Q> {
    questions: Mutex<Vec<Q>>,
    result: OnceCell<T>,
}

impl<T, Q> Default for Batch<T, Q> {
    fn default() -> Self {
        Self { questions: Mutex::default(), result: OnceCell::new() }
    }
}

impl<T, Q> Default for SharedRead<T, Q> {
    fn default() -> Self {
        Self { next: Mutex::default(), turn: tokio::sync::Mutex::default() }
    }
}

impl<T: Clone> SharedRead<T> {
    /// Returns the result of `read`, or of the read of another caller that began after this call. Failures are not shared.
    pub async fn run<E>(&self, read: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        self.ask((), |_| read).await
    }
}

impl<T: Clone, Q: Clone> SharedRead<T, Q> {
    /// Reads like [`Self::run`], but each caller adds a question. `read` gets the questions of all callers that share it.
    pub async fn ask<E, F>(&self, question: Q, read: impl FnOnce(Vec<Q>) -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let batch = {
            let next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            next.questions.lock().unwrap_or_else(PoisonError::into_inner).push(question);
            Arc::clone(&next)
        };
        let read_for_all = async || {
            let _turn = self.turn.lock().await;
            // Other tasks run first, so that their calls share this read: on a busy processor, a read costs as much as several requests.
            tokio::task::yield_now().await;
            {
                // From now on, callers share the next read. If this is a retry after a failure, they already do.
                let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
                if Arc::ptr_eq(&next, &batch) {
                    *next = Arc::default();
                }
            }
            let questions = batch.questions.lock().unwrap_or_else(PoisonError::into_inner).clone();
            read(questions).await
        };
        batch.result.get_or_try_init(read_for_all).await.cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{FutureExt as _, future::join_all};
    use std::sync::atomic::{AtomicU64, Ordering};
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
        // The first read has not begun yet, so these callers join it.
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
    async fn read_gets_the_questions_of_all_callers_that_share_it() {
        let (shared, reads) = (SharedRead::default(), AtomicU64::new(0));
        let ask = |question: u8| {
            shared.ask(question, async |questions| Ok::<_, ()>((reads.fetch_add(1, Ordering::SeqCst), questions)))
        };
        assert_eq!(ask(1).await, Ok((0, vec![1])));
        let together = Ok((1, vec![2, 3, 4]));
        assert_eq!(join_all([ask(2), ask(3), ask(4)]).await, vec![together; 3]);
    }

    #[tokio::test]
    async fn failed_and_abandoned_reads_do_not_block_the_next() {
        let shared = SharedRead::default();
        assert_eq!(shared.run(async { Err::<u8, _>("failed") }).await, Err("failed"));
        assert!(shared.run(std::future::pending::<Result<u8, &str>>()).now_or_never().is_none());
        assert_eq!(shared.run(async { Ok::<_, &str>(7) }).await, Ok(7));
    }
}
