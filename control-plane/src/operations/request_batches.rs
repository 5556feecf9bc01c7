//! Requests that one transaction fulfills together.
//!
//! While the transaction of a queue is under way, further requests wait, and the next transaction fulfills all of them, with about as
//! many statements as for one. So a database that is slow, or busy, makes the batches larger instead of the queue longer.

use super::{Context, OperationError};
use crate::store::{Store, StoreError, StoreFailure, deadline_after};
use countersign_identity::AgentId;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{Semaphore, oneshot},
    time::Instant,
};
use tracing::{Instrument as _, Span};

/// Maximum number of requests that one transaction fulfills.
const MAX_BATCH: usize = 32;

/// The time before its deadline in which a request is not begun any more: it would take the time from the other requests of its
/// transaction.
const MIN_TIME: Duration = Duration::from_millis(500);

/// Requests that are fulfilled alone at the same time. Each can hold a connection to the database while it waits for the lock of a row,
/// and others must find free connections.
const MAX_ALONE: usize = 2;

/// Requests of one transaction arrived within this time of each other: the first one sets the deadline of all.
const MAX_AGE_DIFFERENCE: Duration = Duration::from_secs(1);

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

    /// Fulfills requests of one queue, each of another exclusive agent. Returns their results in the same order; `None` for a request
    /// that would have to wait, and is to be fulfilled alone.
    fn fulfill(
        context: &Context,
        key: Self::Key,
        requests: &[Self],
        attempt: Attempt,
    ) -> impl Future<Output = Result<Vec<Option<RequestResult<Self>>>, BatchError>> + Send;
}

/// A transaction that fulfills requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempt {
    /// The transaction must end until then.
    pub deadline: Instant,
    /// Whether the request is fulfilled alone. Then no other request waits for it, so it may wait for other transactions.
    pub is_alone: bool,
}

/// The result of a request.
pub(super) type RequestResult<R> = Result<<R as BatchedRequest>::Output, OperationError>;

/// Why no request of a batch is fulfilled.
pub(super) enum BatchError {
    /// All requests are refused, for these reasons. `None` for a request that is to be fulfilled alone.
    Refused(Vec<Option<OperationError>>),
    /// The database failed.
    Store(StoreError),
}

impl From<StoreError> for BatchError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl StoreFailure for BatchError {
    fn store_error(&self) -> Option<&StoreError> {
        match self {
            Self::Refused(_) => None,
            Self::Store(error) => Some(error),
        }
    }
}

impl BatchError {
    /// The error of each of so many requests. `None` for a request that is to be fulfilled alone.
    fn of_each(self, requests: usize) -> Vec<Option<OperationError>> {
        match self {
            Self::Refused(refusals) => refusals,
            // One request must not make the others fail.
            Self::Store(error) if requests > 1 && error.may_concern_one_request() => {
                tracing::warn!(%error, requests, "requests are fulfilled one by one after an error of their transaction");
                (0..requests).map(|_| None).collect()
            }
            Self::Store(error) => error.shared().take(requests).map(|error| Some(error.into())).collect(),
        }
    }
}

/// The requests that wait. A key has a queue while its requests are under way.
pub(super) struct RequestQueues<R: BatchedRequest> {
    by_key: Mutex<BTreeMap<R::Key, VecDeque<Waiting<R>>>>,
    /// The places of requests that are fulfilled alone.
    alone: Semaphore,
}

impl<R: BatchedRequest> Default for RequestQueues<R> {
    fn default() -> Self {
        Self { by_key: Mutex::default(), alone: Semaphore::new(MAX_ALONE) }
    }
}

/// A request that waits.
struct Waiting<R: BatchedRequest> {
    request: R,
    caller: Caller<R>,
}

/// Who waits for the result of a request.
struct Caller<R: BatchedRequest> {
    /// The caller waits until then. The request is not committed later, unless the commit was sent already.
    deadline: Instant,
    reply: oneshot::Sender<RequestResult<R>>,
}

impl<R: BatchedRequest> Caller<R> {
    fn send(self, result: RequestResult<R>) {
        // The caller may have gone away.
        drop(self.reply.send(result));
    }
}

/// Fulfills a request together with those that wait in the same queue. If the caller goes away before its turn, nothing happens.
pub(super) async fn fulfill<R: BatchedRequest>(context: &Arc<Context>, key: R::Key, request: R) -> RequestResult<R> {
    let (reply, replied) = oneshot::channel();
    let deadline = context.store.deadline();
    if R::queues(context).push(key, Waiting { request, caller: Caller { deadline, reply } }) {
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
        for waiting in fulfill_batch(&context, key, batch, false).await {
            let alone = fulfill_alone(Arc::clone(&context), key, waiting);
            drop(tokio::spawn(alone.instrument(R::span(key))));
        }
    }
}

/// Fulfills requests together. Returns those that are to be fulfilled alone.
async fn fulfill_batch<R: BatchedRequest>(
    context: &Context,
    key: R::Key,
    batch: Vec<Waiting<R>>,
    is_alone: bool,
) -> Vec<Waiting<R>> {
    let deadline =
        batch.iter().map(|waiting| waiting.caller.deadline).min().unwrap_or_else(|| context.store.deadline());
    let (requests, callers): (Vec<_>, Vec<_>) = batch.into_iter().map(|it| (it.request, it.caller)).unzip();
    let results = match R::fulfill(context, key, &requests, Attempt { deadline, is_alone }).await {
        Ok(results) => results,
        Err(error) => error.of_each(requests.len()).into_iter().map(|error| error.map(Err)).collect(),
    };
    let mut left = Vec::new();
    for ((request, caller), result) in requests.into_iter().zip(callers).zip(results) {
        match result {
            Some(result) => caller.send(result),
            None => left.push(Waiting { request, caller }),
        }
    }
    left
}

/// Fulfills a request in a transaction of its own, when there is a place for it.
async fn fulfill_alone<R: BatchedRequest>(context: Arc<Context>, key: R::Key, waiting: Waiting<R>) {
    let _place = R::queues(&context).alone.acquire().await;
    if waiting.caller.reply.is_closed() || waiting.caller.deadline < deadline_after(MIN_TIME) {
        return;
    }
    // A caller whose request is left over again gets no answer, as after its deadline.
    drop(fulfill_batch(&context, key, vec![waiting], true).await);
}

impl<R: BatchedRequest> RequestQueues<R> {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<R::Key, VecDeque<Waiting<R>>>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// Takes the next requests, at most one of each exclusive agent, so that they do not depend on each other. Removes the queue if it is
    /// empty.
    fn take_batch(&mut self) -> Option<Vec<Waiting<R>>> {
        let mut queues = self.queues.lock();
        let queue = queues.get_mut(&self.key)?;
        let (batch, later) = split_off_batch(std::mem::take(queue), deadline_after(MIN_TIME));
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
/// and those with an earlier deadline than `min_deadline`. A request that is too young for this batch begins the next one, so that an
/// agent with many old requests does not keep the others waiting.
fn split_off_batch<R: BatchedRequest>(
    queue: VecDeque<Waiting<R>>,
    min_deadline: Instant,
) -> (Vec<Waiting<R>>, VecDeque<Waiting<R>>) {
    let (mut agents, mut batch) = (BTreeSet::new(), Vec::new());
    let (mut too_young, mut later) = (VecDeque::new(), VecDeque::new());
    let is_awaited =
        |waiting: &Waiting<R>| !waiting.caller.reply.is_closed() && waiting.caller.deadline >= min_deadline;
    let mut max_deadline = None;
    for waiting in queue.into_iter().filter(is_awaited) {
        let (agent, deadline) = (waiting.request.exclusive_agent(), waiting.caller.deadline);
        let has_similar_deadline = deadline <= *max_deadline.get_or_insert(deadline + MAX_AGE_DIFFERENCE);
        if agent.is_some_and(|agent| agents.contains(&agent)) {
            later.push_back(waiting);
            continue;
        }
        if !has_similar_deadline {
            too_young.push_back(waiting);
            continue;
        }
        agents.extend(agent);
        if batch.len() < MAX_BATCH { batch.push(waiting) } else { later.push_back(waiting) }
    }
    too_young.append(&mut later);
    (batch, too_young)
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
            _attempt: Attempt,
        ) -> Result<Vec<Option<RequestResult<Self>>>, BatchError> {
            Ok(requests.iter().map(|_| Some(Ok(()))).collect())
        }
    }

    type Reply = oneshot::Receiver<RequestResult<TestRequest>>;

    fn waiting(agent: u128, number: u32) -> (Waiting<TestRequest>, Reply) {
        let deadline = deadline_after(Duration::from_hours(1));
        let (reply, replied) = oneshot::channel();
        let request = TestRequest { agent: AgentId::from_bits(agent), number };
        (Waiting { request, caller: Caller { deadline, reply } }, replied)
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
        late.caller.deadline = deadline_after(MIN_TIME / 2);
        queues.push((), late);
        let (in_time, _caller) = waiting(2, 1);
        queues.push((), in_time);
        assert_eq!(next(&mut open(&queues)), Some(vec![(2, 1)]));
        assert!(matches!(caller.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
    }

    #[tokio::test]
    async fn requests_of_a_batch_have_similar_deadlines() {
        let queues = RequestQueues::default();
        let (mut old, _caller) = waiting(1, 1);
        old.caller.deadline = deadline_after(MIN_TIME * 2);
        queues.push((), old);
        let (new, _caller) = waiting(2, 1);
        queues.push((), new);
        let mut queue = open(&queues);
        assert_eq!(next(&mut queue), Some(vec![(1, 1)]));
        assert_eq!(next(&mut queue), Some(vec![(2, 1)]));
    }

    #[tokio::test]
    async fn an_agent_with_many_old_requests_does_not_keep_others_waiting() {
        let queues = RequestQueues::default();
        let mut callers = Vec::new();
        let mut push = |agent, number, age: Duration| {
            let (mut waiting, caller) = waiting(agent, number);
            waiting.caller.deadline = deadline_after(Duration::from_hours(1).saturating_sub(age));
            queues.push((), waiting);
            callers.push(caller);
        };
        let old = MAX_AGE_DIFFERENCE * 2;
        for number in 1..=3 {
            push(1, number, old);
        }
        for (agent, number) in [(2, 1), (2, 2), (1, 4)] {
            push(agent, number, Duration::ZERO);
        }
        let mut queue = open(&queues);
        assert_eq!(next(&mut queue), Some(vec![(1, 1)]));
        assert_eq!(next(&mut queue), Some(vec![(2, 1), (1, 2)]), "the other agent does not wait for all of them");
        assert_eq!(next(&mut queue), Some(vec![(2, 2), (1, 3)]));
        assert_eq!(next(&mut queue), Some(vec![(1, 4)]), "the requests of an agent stay in their order");
        assert_eq!(next(&mut queue), None);
    }

    #[test]
    fn an_error_that_one_request_may_have_caused_fails_no_other() {
        let each = |error: StoreError, requests| BatchError::from(error).of_each(requests);
        assert!(each(StoreError::Corrupt("name"), 3).iter().all(Option::is_none));
        assert!(each(StoreError::Corrupt("name"), 1).iter().all(Option::is_some));
        let lost = || StoreError::Engine(sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into()));
        assert!(each(lost(), 3).iter().all(Option::is_some), "the outcome is not known");
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
