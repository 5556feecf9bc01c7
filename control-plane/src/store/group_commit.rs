//! Group commit on SQLite: write transactions that wait for each other share one commit, and with it one flush to the disk.
//!
//! Write transactions run one after the other on the only connection for writing. The first one of a group begins the transaction
//! of the engine, and each later one is a savepoint in it. If nobody waits when the first one is complete, we commit it at once.
//! Otherwise, a task queues behind the waiting transactions, and then commits the group. No transaction of a group succeeds before
//! this commit. If the commit fails, they all fail and run again alone. PostgreSQL shares flushes by itself.

use super::{
    StoreError,
    commit_signals::Announcement,
    conn::{ROLLBACK_TIMEOUT, deadline_after, has_passed, timeout_error},
    connection_pool::{ConnectionPool, PooledConnection},
    statements::statements,
};
use sqlx::{AnyConnection, Executor};
use std::{
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Mutex, OwnedMutexGuard, watch},
    time::{Instant, timeout, timeout_at},
};

statements! { SQLITE_STATEMENTS:
    /// Takes the write lock at once, so that no later statement fails because of a conflict.
    BEGIN_GROUP = "BEGIN IMMEDIATE";
    BEGIN_MEMBER = "SAVEPOINT member";
    COMPLETE_MEMBER = "RELEASE member";
    ROLL_BACK_MEMBER = "ROLLBACK TO member";
    COMMIT_GROUP = "COMMIT";
    ROLL_BACK_GROUP = "ROLLBACK";
}

/// Maximum number of transactions in a group.
pub(super) const MAX_MEMBERS: usize = 32;

/// How long the first transaction of a group waits for others. Then the group commits when its running transaction ends.
const MAX_WAIT: Duration = Duration::from_millis(50);

/// When a complete transaction has only this much time left, its group stops waiting for others.
const TIME_TO_COMMIT: Duration = Duration::from_millis(500);

/// The connection for writing to SQLite, with the queue of write transactions.
#[derive(Debug, Clone)]
pub struct GroupCommit {
    pool: ConnectionPool,
    /// The open group, if any. Only the transaction that holds this lock may run.
    open: Arc<Mutex<Option<Group>>>,
    pub(super) waiting: Arc<AtomicUsize>,
    /// [`MAX_WAIT`], except in tests.
    pub(super) max_wait: Duration,
    /// [`ROLLBACK_TIMEOUT`], except in tests.
    pub(super) rollback_timeout: Duration,
}

/// Transactions that we commit together. Dropping a group closes its connection, unless the group has ended.
#[derive(Debug)]
struct Group {
    connection: PooledConnection,
    rollback_timeout: Duration,
    complete_members: usize,
    /// From this time on, the group takes no further transaction. `None` before the first one is complete.
    closes_at: Option<Instant>,
    announcement: Announcement,
    /// Closed without a result if the group was rolled back.
    result: watch::Sender<Option<CommitResult>>,
    /// Whether the transaction of the engine has ended, so that the connection can be used again.
    has_ended: bool,
}

type CommitResult = Result<(), Arc<sqlx::Error>>;

/// The running transaction of a group. The next one waits until this is dropped.
#[derive(Debug)]
pub struct GroupMember {
    group: Group,
    turn: OwnedMutexGuard<Option<Group>>,
    queue: GroupCommit,
    is_first: bool,
    sharing: Sharing,
}

/// The future commit of a group. Its transactions depend on it: each may have read what earlier ones have written.
pub struct PendingCommit(watch::Receiver<Option<CommitResult>>);

/// Whether a transaction shares its commit with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// The transaction shares its commit.
    Group,
    /// The transaction may be long, so no complete transaction must wait for it.
    Alone,
}

impl GroupCommit {
    /// The queue of a pool with one connection.
    pub fn new(pool: ConnectionPool) -> Self {
        Self {
            pool,
            open: Arc::default(),
            waiting: Arc::default(),
            max_wait: MAX_WAIT,
            rollback_timeout: ROLLBACK_TIMEOUT,
        }
    }

    /// Waits for the turn of the transaction. The caller must then run [`GroupMember::begin_statement`].
    pub async fn join(&self, sharing: Sharing, deadline: Instant) -> Result<GroupMember, sqlx::Error> {
        let waiting = Waiting::begin(&self.waiting);
        let mut turn = self.take_turn(deadline).await?;
        if sharing == Sharing::Alone
            && let Some(group) = turn.take()
        {
            // We commit in a task, so that the commit goes on if the caller is dropped.
            let commit = tokio::spawn(async move {
                group.commit().await;
                turn
            });
            let next_turn = timeout_at(deadline, commit).await.ok().and_then(Result::ok);
            turn = next_turn.ok_or_else(|| self.pool.record_failure(timeout_error()))?;
        }
        drop(waiting);
        let (group, is_first) = match turn.take() {
            Some(group) => (group, false),
            None => (Group::new(self.pool.acquire(deadline).await?, self.rollback_timeout), true),
        };
        Ok(GroupMember { group, turn, queue: self.clone(), is_first, sharing })
    }

    async fn take_turn(&self, deadline: Instant) -> Result<OwnedMutexGuard<Option<Group>>, sqlx::Error> {
        let turn = timeout_at(deadline, Arc::clone(&self.open).lock_owned()).await;
        // A transaction that has no time left would only delay others, so it does not run.
        let turn = turn.ok().filter(|_| !has_passed(deadline));
        turn.ok_or_else(|| self.pool.record_failure(timeout_error()))
    }

    /// Queues behind the transactions that already wait, and commits the group unless somebody has committed it meanwhile.
    async fn commit_in_turn(self, group: PendingCommit) {
        let mut turn = self.open.lock().await;
        if let Some(open) = turn.take_if(|open| open.result.subscribe().same_channel(&group.0)) {
            open.commit().await;
        }
    }
}

/// While this exists, `waiting` counts a transaction that waits for its turn.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn begin(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Group {
    fn new(connection: PooledConnection, rollback_timeout: Duration) -> Self {
        Self {
            connection,
            rollback_timeout,
            complete_members: 0,
            closes_at: None,
            announcement: Announcement::default(),
            result: watch::Sender::new(None),
            has_ended: false,
        }
    }

    /// Commits all members. There is no timeout: the members stop waiting at their deadlines, and we also announce a late commit.
    async fn commit(mut self) {
        let result = match self.connection.execute(COMMIT_GROUP).await {
            Ok(_) => {
                self.has_ended = true;
                self.announcement.send();
                Ok(())
            }
            Err(error) => {
                self.has_ended = self.run(ROLL_BACK_GROUP).await;
                self.announcement.fail();
                Err(Arc::new(error))
            }
        };
        self.result.send_replace(Some(result));
    }

    /// Adds a complete transaction, whose deadline the commit of the group must meet.
    fn add(&mut self, announcement: Announcement, max_wait: Duration, deadline: Instant) {
        self.complete_members += 1;
        self.announcement.add(announcement);
        let closes_at = self.closes_at.unwrap_or_else(|| deadline_after(max_wait));
        self.closes_at = Some(deadline.checked_sub(TIME_TO_COMMIT).map_or(closes_at, |latest| closes_at.min(latest)));
    }

    /// Whether the group must commit before it takes another transaction.
    fn is_full(&self) -> bool {
        self.complete_members >= MAX_MEMBERS || self.closes_at.is_some_and(has_passed)
    }

    /// Runs a statement that ends a transaction. Returns false if we do not know the state of the connection afterwards.
    async fn run(&mut self, sql: &'static str) -> bool {
        matches!(timeout(self.rollback_timeout, self.connection.execute(sql)).await, Ok(Ok(_)))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.has_ended {
            self.connection.close_on_drop();
        }
    }
}

impl GroupMember {
    pub const fn begin_statement(&self) -> &'static str {
        if self.is_first { BEGIN_GROUP } else { BEGIN_MEMBER }
    }

    /// The commit that earlier transactions of this group wait for; `None` for the first transaction.
    pub fn pending_commit(&self) -> Option<PendingCommit> {
        (!self.is_first).then(|| self.pending())
    }

    /// Completes the transaction, and waits until it is committed, at most until the deadline.
    pub async fn commit(self, announcement: Announcement, deadline: Instant) -> Result<(), StoreError> {
        let (pending, writable) = (self.pending(), announcement.writable());
        // We complete it in a task: if the caller is dropped, the other transactions of the group still need the commit.
        drop(tokio::spawn(self.complete(announcement, deadline)));
        let result = pending.wait(deadline).await;
        if matches!(result, Err(StoreError::Engine(_)))
            && let Some(writable) = writable
        {
            // The deadline has passed, so the commit hangs: we report that the database accepts no writes.
            writable.store(false, Ordering::Relaxed);
        }
        result
    }

    fn pending(&self) -> PendingCommit {
        PendingCommit(self.group.result.subscribe())
    }

    async fn complete(mut self, announcement: Announcement, deadline: Instant) {
        // If this fails, we drop the group, which rolls back all of its transactions.
        if !self.is_first && !self.group.run(COMPLETE_MEMBER).await {
            return;
        }
        self.group.add(announcement, self.queue.max_wait, deadline);
        let others_wait = self.queue.waiting.load(Ordering::Relaxed) > 0;
        if self.is_first && (self.sharing == Sharing::Alone || !others_wait) {
            let Self { group, turn, .. } = self;
            group.commit().await;
            return drop(turn);
        }
        if self.is_first {
            drop(tokio::spawn(self.queue.clone().commit_in_turn(self.pending())));
        }
        self.go_on().await;
    }

    /// Commits the group if it is full. Otherwise, lets the next transaction run.
    async fn go_on(self) {
        let Self { group, mut turn, .. } = self;
        if group.is_full() {
            group.commit().await;
        } else {
            *turn = Some(group);
        }
    }

    /// Rolls the transaction back. If that fails, all transactions of the group are rolled back.
    pub async fn roll_back(mut self) {
        if self.is_first {
            self.group.has_ended = self.group.run(ROLL_BACK_GROUP).await;
        } else if self.group.run(ROLL_BACK_MEMBER).await && self.group.run(COMPLETE_MEMBER).await {
            self.go_on().await;
        }
    }
}

impl Deref for GroupMember {
    type Target = AnyConnection;

    fn deref(&self) -> &AnyConnection {
        &self.group.connection
    }
}

impl DerefMut for GroupMember {
    fn deref_mut(&mut self) -> &mut AnyConnection {
        &mut self.group.connection
    }
}

impl PendingCommit {
    /// Waits until the group is committed.
    pub async fn wait(mut self, deadline: Instant) -> Result<(), StoreError> {
        match timeout_at(deadline, self.0.wait_for(Option::is_some)).await {
            Ok(Ok(result)) => match &*result {
                Some(Err(error)) => Err(StoreError::GroupCommit(Arc::clone(error))),
                Some(Ok(())) | None => Ok(()),
            },
            Ok(Err(_)) => Err(StoreError::GroupRolledBack),
            Err(_) => Err(timeout_error().into()),
        }
    }
}
