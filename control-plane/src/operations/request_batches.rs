//! Requests that one transaction fulfills together.
//!
//! While the transaction of a queue is under way, further requests wait, and the next transaction fulfills all of them, with about as
//! many statements as for one. So a database that is slow, or busy, makes the batches larger instead of the queue longer.

use super::{Context, OperationError};
use crate::{
    keyring::KeyringError,
    store::{Store, StoreError, StoreFailure, deadline_after},
};
use countersign_identity::AgentId;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::oneshot, time::Instant};
use tracing::{Instrument as _, Span};

/// Maximum number of requests that one transaction fulfills.
const MAX_BATCH: usize = 32;

/// The time before its deadline in which a request is not begun any more: it would take the time from the other requests of its
/// transaction.
const MIN_TIME: Duration = Duration::from_millis(500);

/// A request that can be fulfilled together with others.
pub(super) trait BatchedRequest: Sized + Send + Sync + 'static {
    /// Requests with the same key wait in one queue.
    type Key: Copy + Ord + Send + Sync + 'static;

    /// What the caller gets.
    type Output: Send + 'static;

    /// The queues of these requests.
    fn queues(context: &Context) -> &RequestQueues<Self>;

    /// The span of the log lines of a queue.
    fn span(key: Self::Key) -> Span;

    /// The agent whose other requests must wait for the next batch. `None` if requests of the same agent do not depend on each other.
    fn exclusive_agent(&self) -> Option<AgentId>;

    /// Fulfills requests of one queue, each of another exclusive agent, until the deadline. Returns their results in the same order.
    fn fulfill(
        context: &Context,
        key: Self::Key,
        requests: &[Self],
        deadline: Instant,
    ) -> impl Future<Output = Result<Vec<RequestResult<Self>>, BatchError>> + Send;
}

/// The result of a request.
pub(super) type RequestResult<R> = Result<<R as BatchedRequest>::Output, OperationError>;

/// Why no request of a batch is fulfilled.
pub(super) enum BatchError {
    /// All requests are refused, for these reasons.
    Refused(Vec<OperationError>),
    /// The database failed.
    Store(StoreError),
    /// The keyring failed.
    Keyring(Arc<KeyringError>),
}

impl From<StoreError> for BatchError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<KeyringError> for BatchError {
    fn from(error: KeyringError) -> Self {
        match error {
            KeyringError::Store(error) => Self::Store(error),
            error @ (KeyringError::Undecryptable(_) | KeyringError::NoKey | KeyringError::Crypto) => {
                Self::Keyring(Arc::new(error))
            }
        }
    }
}

impl StoreFailure for BatchError {
    fn store_error(&self) -> Option<&StoreError> {
        match self {
            Self::Refused(_) | Self::Keyring(_) => None,
            Self::Store(error) => Some(error),
        }
    }
}

impl BatchError {
    /// The error of each of so many requests.
    fn of_each(self, requests: usize) -> Vec<OperationError> {
        match self {
            Self::Refused(refusals) => refusals,
            Self::Store(error) => error.shared().take(requests).map(OperationError::from).collect(),
            Self::Keyring(error) => (0..requests).map(|_| OperationError::Keyring(Arc::clone(&error))).collect(),
        }
    }
}

/// The requests that wait. A key has a queue while its requests are under way.
pub(super) struct RequestQueues<R: BatchedRequest>(Mutex<BTreeMap<R::Key, VecDeque<Waiting<R>>>>);

impl<R: BatchedRequest> Default for RequestQueues<R> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// A request that waits.
struct Waiting<R: BatchedRequest> {
    request: R,
    /// The caller waits until then. The request is not committed later, unless the commit was sent already.
    deadline: Instant,
    reply: oneshot::Sender<RequestResult<R>>,
}

/// Fulfills a request together with those that wait in the same queue. If the caller goes away before its turn, nothing happens.
pub(super) async fn fulfill<R: BatchedRequest>(context: &Arc<Context>, key: R::Key, request: R) -> RequestResult<R> {
    let (reply, replied) = oneshot::channel();
    let deadline = context.store.deadline();
    if R::queues(context).push(key, Waiting { request, deadline, reply }) {
        let batches = fulfill_waiting::<R>(Arc::clone(context), key);
        // In a task, because other callers depend on it.
        drop(tokio::spawn(batches.instrument(R::span(key))));
    }
    Store::receive(replied, deadline).await?
}

/// Fulfills all requests that wait in a queue.
async fn fulfill_waiting<R: BatchedRequest>(context: Arc<Context>, key: R::Key) {
    let mut queue = OpenQueue { queues: R::queues(&context), key, is_open: true };
    while let Some(batch) = queue.take_batch() {
        let deadline = batch.iter().map(|waiting| waiting.deadline).min().unwrap_or_else(|| context.store.deadline());
        let (requests, replies): (Vec<_>, Vec<_>) = batch.into_iter().map(|it| (it.request, it.reply)).unzip();
        let results = match R::fulfill(&context, key, &requests, deadline).await {
            Ok(results) => results,
            Err(error) => error.of_each(replies.len()).into_iter().map(Err).collect(),
        };
        for (reply, result) in replies.into_iter().zip(results) {
            // The caller may have gone away.
            drop(reply.send(result));
        }
    }
}

impl<R: BatchedRequest> RequestQueues<R> {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<R::Key, VecDeque<Waiting<R>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request. Returns whether it opens the queue, so that the caller must have its requests fulfilled.
    fn push(&self, key: R::Key, waiting: Waiting<R>) -> bool {
        let mut queues = self.lock();
        let opens = !queues.contains_key(&key);
        queues.entry(key).or_default().push_back(waiting);
        opens
    }
}

/// The queue of a key, which one task serves. Dropping it removes the queue, so that a panic does not close the queue for ever.
struct OpenQueue<'a, R: BatchedRequest> {
    queues: &'a RequestQueues<R>,
    key: R::Key,
    is_open: bool,
}

impl<R: BatchedRequest> OpenQueue<'_, R> {
    /// Takes the next requests, at most one of each exclusive agent, so that they do not depend on each other. Removes the queue if it is empty.
    fn take_batch(&mut self) -> Option<Vec<Waiting<R>>> {
        let mut queues = self.queues.lock();
        let queue = queues.get_mut(&self.key)?;
        let (batch, later) = split(std::mem::take(queue), deadline_after(MIN_TIME));
        if batch.is_empty() {
            queues.remove(&self.key);
            self.is_open = false;
            return None;
        }
        *queue = later;
        Some(batch)
    }
}

impl<R: BatchedRequest> Drop for OpenQueue<'_, R> {
    fn drop(&mut self) {
        if self.is_open {
            self.queues.lock().remove(&self.key);
        }
    }
}

/// Splits the requests of the next batch off. The requests of one agent stay in their order. Requests without a caller are dropped,
/// and those with an earlier deadline than `min_deadline`.
fn split<R: BatchedRequest>(
    queue: VecDeque<Waiting<R>>,
    min_deadline: Instant,
) -> (Vec<Waiting<R>>, VecDeque<Waiting<R>>) {
    let (mut agents, mut batch, mut later) = (BTreeSet::new(), Vec::new(), VecDeque::new());
    let is_awaited = |waiting: &Waiting<R>| !waiting.reply.is_closed() && waiting.deadline >= min_deadline;
    for waiting in queue.into_iter().filter(is_awaited) {
        if batch.len() < MAX_BATCH && waiting.request.exclusive_agent().is_none_or(|agent| agents.insert(agent)) {
            batch.push(waiting);
        } else {
            later.push_back(waiting);
        }
    }
    (batch, later)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request of an agent, with a number of its own.
    struct TestRequest {
        agent: AgentId,
        number: u32,
    }

    impl BatchedRequest for TestRequest {
        type Key = ();
        type Output = ();

        fn queues(_context: &Context) -> &RequestQueues<Self> {
            unreachable!("the tests serve their queues themselves")
        }

        fn span((): ()) -> Span {
            Span::none()
        }

        fn exclusive_agent(&self) -> Option<AgentId> {
            Some(self.agent)
        }

        async fn fulfill(
            _context: &Context,
            (): (),
            requests: &[Self],
            _deadline: Instant,
        ) -> Result<Vec<RequestResult<Self>>, BatchError> {
            Ok(requests.iter().map(|_| Ok(())).collect())
        }
    }

    type Caller = oneshot::Receiver<RequestResult<TestRequest>>;

    fn waiting(agent: u128, number: u32) -> (Waiting<TestRequest>, Caller) {
        let deadline = deadline_after(Duration::from_hours(1));
        let (reply, replied) = oneshot::channel();
        let request = TestRequest { agent: AgentId::from_bits(agent), number };
        (Waiting { request, deadline, reply }, replied)
    }

    fn open(queues: &RequestQueues<TestRequest>) -> OpenQueue<'_, TestRequest> {
        OpenQueue { queues, key: (), is_open: true }
    }

    /// The agents and numbers of the requests in the next batch.
    fn next(queue: &mut OpenQueue<'_, TestRequest>) -> Option<Vec<(u128, u32)>> {
        let batch = queue.take_batch()?;
        Some(batch.iter().map(|it| (it.request.agent.bits(), it.request.number)).collect())
    }

    #[tokio::test]
    async fn a_batch_contains_each_agent_once_and_keeps_the_order() {
        let queues = RequestQueues::default();
        let (mut callers, mut opened) = (Vec::new(), Vec::new());
        for (agent, number) in [(1, 1), (2, 1), (1, 2), (3, 1), (1, 3), (2, 2)] {
            let (waiting, caller) = waiting(agent, number);
            opened.push(queues.push((), waiting));
            callers.push(caller);
        }
        assert_eq!(opened, [true, false, false, false, false, false]);
        let mut queue = open(&queues);
        assert_eq!(next(&mut queue), Some(vec![(1, 1), (2, 1), (3, 1)]));
        assert_eq!(next(&mut queue), Some(vec![(1, 2), (2, 2)]));
        assert!(!queues.push((), waiting(4, 1).0), "the queue is open");
        assert_eq!(next(&mut queue), Some(vec![(1, 3)]), "the caller of the other request has gone away");
        assert_eq!(next(&mut queue), None);
        assert!(queues.push((), waiting(4, 1).0), "the queue was removed");
        drop(queue);
        assert!(!queues.push((), waiting(5, 1).0), "the end of a task does not remove the queue of the next one");
    }

    #[tokio::test]
    async fn a_request_is_not_begun_shortly_before_its_deadline() {
        let queues = RequestQueues::default();
        let (mut late, mut caller) = waiting(1, 1);
        late.deadline = deadline_after(MIN_TIME / 2);
        queues.push((), late);
        let (in_time, _caller) = waiting(2, 1);
        queues.push((), in_time);
        assert_eq!(next(&mut open(&queues)), Some(vec![(2, 1)]));
        assert!(matches!(caller.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
    }

    #[tokio::test]
    async fn a_batch_is_bounded() {
        let queues = RequestQueues::default();
        let callers: Vec<_> = (0..80)
            .map(|agent| {
                let (waiting, caller) = waiting(agent, 1);
                queues.push((), waiting);
                caller
            })
            .collect();
        let mut queue = open(&queues);
        let sizes: Vec<_> = std::iter::from_fn(|| next(&mut queue)).map(|batch| batch.len()).collect();
        assert_eq!(sizes, [MAX_BATCH, MAX_BATCH, 80 - 2 * MAX_BATCH]);
        drop(callers);
    }

    #[tokio::test]
    async fn a_task_that_panics_leaves_no_queue() {
        let queues = RequestQueues::default();
        let (request, mut caller) = waiting(1, 1);
        queues.push((), request);
        drop(open(&queues));
        assert!(matches!(caller.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
        assert!(queues.push((), waiting(2, 1).0));
    }
}
