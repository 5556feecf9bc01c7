//! The queues of changes of assignments.
//!
//! A change locks its service until its commit, so the changes of one service follow each other. While one transaction is under way,
//! the others wait in the queue of the service, and the next transaction makes all of them together, with about as many statements
//! as for one.

use super::batch::{self, AssignmentChange};
use crate::{
    domain::change::Changed,
    operations::{Context, OperationError},
    store::{Store, deadline_after},
};
use countersign_identity::ServiceId;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::oneshot, time::Instant};
use tracing::Instrument as _;

/// Maximum number of changes that one transaction makes.
const MAX_BATCH: usize = 32;

/// The time before its deadline in which a change is not begun any more: it would take the time from the other changes of its
/// transaction.
const MIN_TIME: Duration = Duration::from_millis(500);

/// The changes that wait, by service. A service has a queue while its changes are under way.
#[derive(Debug, Default)]
pub struct AssignmentQueues(Mutex<BTreeMap<ServiceId, VecDeque<Waiting>>>);

/// A change that waits. The reply is whether an assignment was removed, or has been made.
#[derive(Debug)]
struct Waiting {
    change: AssignmentChange,
    /// The caller waits until then. The change is not committed later, unless the commit was sent already.
    deadline: Instant,
    reply: oneshot::Sender<Reply>,
}

type Reply = Result<Changed<bool>, OperationError>;

/// Makes a change together with those that wait at the same service. If the caller goes away before its turn, nothing is changed.
/// Returns whether there was something to change: always true for an assignment.
pub async fn change(context: &Arc<Context>, service: ServiceId, change: AssignmentChange) -> Reply {
    let (reply, replied) = oneshot::channel();
    let deadline = context.store.deadline();
    if context.assignment_queues.push(service, Waiting { change, deadline, reply }) {
        let changes = make_changes(Arc::clone(context), service);
        // In a task, because other callers depend on it.
        drop(tokio::spawn(changes.instrument(tracing::info_span!("role changes", %service))));
    }
    Store::receive(replied, deadline).await?
}

/// Makes all changes that wait at a service.
async fn make_changes(context: Arc<Context>, service: ServiceId) {
    let mut queue = OpenQueue { queues: &context.assignment_queues, service, is_open: true };
    while let Some(batch) = queue.take_batch() {
        let deadline = batch.iter().map(|waiting| waiting.deadline).min().unwrap_or_else(|| context.store.deadline());
        let (changes, replies): (Vec<_>, Vec<_>) = batch.into_iter().map(|it| (it.change, it.reply)).unzip();
        let results: Vec<Reply> = match batch::make_changes(&context, service, &changes, deadline).await {
            Ok(Changed { value: results, revision }) => {
                results.into_iter().map(|result| result.map(|value| Changed { value, revision })).collect()
            }
            Err(error) => error.of_each(replies.len()).into_iter().map(Err).collect(),
        };
        for (reply, result) in replies.into_iter().zip(results) {
            // The caller may have gone away.
            drop(reply.send(result));
        }
    }
}

impl AssignmentQueues {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ServiceId, VecDeque<Waiting>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a change. Returns whether it opens the queue, so that the caller must have its changes made.
    fn push(&self, service: ServiceId, waiting: Waiting) -> bool {
        let mut queues = self.lock();
        let opens = !queues.contains_key(&service);
        queues.entry(service).or_default().push_back(waiting);
        opens
    }
}

/// The queue of a service, which one task serves. Dropping it removes the queue, so that a panic does not close the service for ever.
struct OpenQueue<'a> {
    queues: &'a AssignmentQueues,
    service: ServiceId,
    is_open: bool,
}

impl OpenQueue<'_> {
    /// Takes the next changes, at most one of each agent, so that they do not depend on each other. Removes the queue if it is empty.
    fn take_batch(&mut self) -> Option<Vec<Waiting>> {
        let mut queues = self.queues.lock();
        let queue = queues.get_mut(&self.service)?;
        let (batch, later) = split(std::mem::take(queue), deadline_after(MIN_TIME));
        if batch.is_empty() {
            queues.remove(&self.service);
            self.is_open = false;
            return None;
        }
        *queue = later;
        Some(batch)
    }
}

impl Drop for OpenQueue<'_> {
    fn drop(&mut self) {
        if self.is_open {
            self.queues.lock().remove(&self.service);
        }
    }
}

/// Splits the changes of the next batch off. The changes of one agent stay in their order. Changes without a caller are dropped, and
/// those with an earlier deadline than `min_deadline`.
fn split(queue: VecDeque<Waiting>, min_deadline: Instant) -> (Vec<Waiting>, VecDeque<Waiting>) {
    let (mut agents, mut batch, mut later) = (BTreeSet::new(), Vec::new(), VecDeque::new());
    let is_awaited = |waiting: &Waiting| !waiting.reply.is_closed() && waiting.deadline >= min_deadline;
    for waiting in queue.into_iter().filter(is_awaited) {
        if batch.len() < MAX_BATCH && agents.insert(waiting.change.agent) {
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
    use crate::{domain::audit::Initiator, operations::roles::assignments::batch::NewState};
    use countersign_identity::{AgentId, EventId, RoleId};

    const SERVICE: ServiceId = ServiceId::from_bits(1);

    fn waiting(agent: u128, role: u128) -> (Waiting, oneshot::Receiver<Reply>) {
        let (agent, role, new) = (AgentId::from_bits(agent), RoleId::from_bits(role), NewState::Revoked);
        let (event, deadline) = (EventId::from_bits(1), deadline_after(Duration::from_hours(1)));
        let (reply, replied) = oneshot::channel();
        let change = AssignmentChange { initiator: Initiator::SYSTEM, agent, role, new, event };
        (Waiting { change, deadline, reply }, replied)
    }

    /// The agents and roles of the next batch.
    fn next(queue: &mut OpenQueue<'_>) -> Option<Vec<(u128, u128)>> {
        let batch = queue.take_batch()?;
        Some(batch.iter().map(|it| (it.change.agent.bits(), it.change.role.bits())).collect())
    }

    #[tokio::test]
    async fn a_batch_contains_each_agent_once_and_keeps_the_order() {
        let queues = AssignmentQueues::default();
        let (mut callers, mut opened) = (Vec::new(), Vec::new());
        for (agent, role) in [(1, 1), (2, 1), (1, 2), (3, 1), (1, 3), (2, 2)] {
            let (waiting, caller) = waiting(agent, role);
            opened.push(queues.push(SERVICE, waiting));
            callers.push(caller);
        }
        assert_eq!(opened, [true, false, false, false, false, false]);
        let mut queue = OpenQueue { queues: &queues, service: SERVICE, is_open: true };
        assert_eq!(next(&mut queue), Some(vec![(1, 1), (2, 1), (3, 1)]));
        assert_eq!(next(&mut queue), Some(vec![(1, 2), (2, 2)]));
        assert!(!queues.push(SERVICE, waiting(4, 1).0), "the queue is open");
        assert_eq!(next(&mut queue), Some(vec![(1, 3)]), "the caller of the other change has gone away");
        assert_eq!(next(&mut queue), None);
        assert!(queues.push(SERVICE, waiting(4, 1).0), "the queue was removed");
        drop(queue);
        assert!(!queues.push(SERVICE, waiting(5, 1).0), "the end of a task does not remove the queue of the next one");
    }

    #[tokio::test]
    async fn a_change_is_not_begun_shortly_before_its_deadline() {
        let queues = AssignmentQueues::default();
        let (mut late, mut caller) = waiting(1, 1);
        late.deadline = deadline_after(MIN_TIME / 2);
        queues.push(SERVICE, late);
        let (in_time, _caller) = waiting(2, 1);
        queues.push(SERVICE, in_time);
        let mut queue = OpenQueue { queues: &queues, service: SERVICE, is_open: true };
        assert_eq!(next(&mut queue), Some(vec![(2, 1)]));
        assert!(matches!(caller.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
    }

    #[tokio::test]
    async fn a_batch_is_bounded() {
        let queues = AssignmentQueues::default();
        let callers: Vec<_> = (0..80)
            .map(|agent| {
                let (waiting, caller) = waiting(agent, 1);
                queues.push(SERVICE, waiting);
                caller
            })
            .collect();
        let mut queue = OpenQueue { queues: &queues, service: SERVICE, is_open: true };
        let sizes: Vec<_> = std::iter::from_fn(|| next(&mut queue)).map(|batch| batch.len()).collect();
        assert_eq!(sizes, [MAX_BATCH, MAX_BATCH, 80 - 2 * MAX_BATCH]);
        drop(callers);
    }

    #[tokio::test]
    async fn a_task_that_panics_leaves_no_queue() {
        let queues = AssignmentQueues::default();
        let (change, mut caller) = waiting(1, 1);
        queues.push(SERVICE, change);
        drop(OpenQueue { queues: &queues, service: SERVICE, is_open: true });
        assert!(matches!(caller.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
        assert!(queues.push(SERVICE, waiting(2, 1).0));
    }
}
