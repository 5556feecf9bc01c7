//! A connection for one transaction with a deadline.
//!
//! Every statement fails at the deadline of its transaction, because a database may stop responding. We never reuse a connection in
//! an unknown state, because an unfinished statement would block its next user.

use super::{
    commit_signals::Announcement,
    connection_pool::{ConnectionPool, PooledConnection},
    failure::{StoreError, StoreFailure},
    group_commit::{GroupCommit, GroupMember, PendingCommit, Sharing},
    statements::statements,
    transaction_timer::TransactionTimer,
};
use futures_util::future::BoxFuture;
use sqlx::{
    Any, AnyConnection, Execute, Executor as _,
    any::{AnyQueryResult, AnyRow},
};
use std::{io, time::Duration};
use tokio::time::{Instant, timeout, timeout_at};

statements! { STATEMENTS:
    COMMIT = "COMMIT";
    ROLLBACK = "ROLLBACK";
    /// Reads no data. Its result shows that the previous statement of the connection has ended.
    NOTHING = "SELECT 1 AS one";
}

/// Maximum duration of a transaction, including the wait for a connection; less than the timeout of a request.
pub const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(4);

/// Maximum duration of a transaction of an offline command, which may read the whole database.
pub const INSPECT_TIMEOUT: Duration = Duration::from_hours(24);

/// Maximum duration of a rollback. If a rollback takes longer, the connection is closed.
pub(super) const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection for one transaction or statement. A transaction is rolled back if its `Conn` is dropped without [`Conn::commit`].
#[derive(Debug)]
pub struct Conn {
    /// `None` only while the transaction ends.
    access: Option<Access>,
    deadline: Instant,
    state: ConnState,
    /// False if each statement is a transaction of its own.
    has_transaction: bool,
}

/// How a transaction uses its connection.
#[derive(Debug)]
enum Access {
    /// No other transaction uses the connection.
    Own(PooledConnection),
    /// The transaction belongs to a group.
    Shared(Box<GroupMember>),
}

impl Access {
    fn connection(&mut self) -> &mut AnyConnection {
        match self {
            Self::Own(connection) => connection,
            Self::Shared(member) => member,
        }
    }
}

/// The state of a transaction and its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnState {
    /// The transaction accepts statements.
    Open,
    /// A statement is running, or was cancelled while running.
    Busy,
    /// A statement failed, so the transaction is incomplete. We must not commit: PostgreSQL would roll back without an error.
    Failed,
    /// The state of the connection is unknown, so it must not be used again.
    Broken,
    Committed,
}

impl ConnState {
    /// Fails if the transaction does not accept statements. A connection that is busy or broken has usually reached the deadline.
    fn check(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Open => Ok(()),
            Self::Failed => Err(sqlx::Error::Protocol("a statement of this transaction failed".to_owned())),
            Self::Busy | Self::Broken | Self::Committed => Err(timeout_error()),
        }
    }

    /// The state after a statement with a given result.
    fn after_statement<T>(result: &Result<T, sqlx::Error>) -> Self {
        match result {
            Err(error) if StoreError::breaks_connection(error) => Self::Broken,
            Err(sqlx::Error::Database(_)) => Self::Failed,
            Ok(_) | Err(_) => Self::Open,
        }
    }
}

/// Returns the deadline of a transaction that begins now. Uses `sleep`, because the addition of a long timeout could overflow.
pub fn deadline_after(timeout: Duration) -> Instant {
    tokio::time::sleep(timeout).deadline()
}

/// Whether a time has passed.
pub fn has_passed(time: Instant) -> bool {
    deadline_after(Duration::ZERO) >= time
}

impl Conn {
    /// Acquires a connection and begins a transaction with the statement `begin`. `timer` records the wait for the connection.
    pub async fn begin(
        pool: &ConnectionPool,
        begin: &'static str,
        deadline: Instant,
        timer: &TransactionTimer,
    ) -> Result<Self, StoreError> {
        let mut conn = Self::acquire(pool, deadline, timer).await?;
        conn.has_transaction = true;
        conn.execute(begin).await?;
        Ok(conn)
    }

    /// Waits for the turn of a write transaction on SQLite, and begins it. The transaction reads what earlier transactions of its
    /// group have written. Also returns the commit of earlier transactions: if it fails, this one must fail, too.
    pub async fn join(
        queue: &GroupCommit,
        sharing: Sharing,
        deadline: Instant,
        timer: &TransactionTimer,
    ) -> Result<(Self, Option<PendingCommit>), StoreError> {
        let joined = queue.join(sharing, deadline).await;
        timer.record_connection_wait();
        let member = joined?;
        let (begin, pending) = (member.begin_statement(), member.pending_commit());
        let access = Some(Access::Shared(Box::new(member)));
        let mut conn = Self { access, deadline, state: ConnState::Open, has_transaction: true };
        conn.execute(begin).await?;
        Ok((conn, pending))
    }

    /// Acquires a connection for one statement, which is a transaction of its own.
    pub async fn acquire(
        pool: &ConnectionPool,
        deadline: Instant,
        timer: &TransactionTimer,
    ) -> Result<Self, StoreError> {
        let acquired = pool.acquire(deadline).await;
        timer.record_connection_wait();
        Ok(Self { access: Some(Access::Own(acquired?)), deadline, state: ConnState::Open, has_transaction: false })
    }

    /// Commits the transaction, and announces the result.
    pub async fn commit(mut self, mut announcement: Announcement) -> Result<(), StoreError> {
        if matches!(self.access, Some(Access::Shared(_))) {
            self.state.check()?;
            let Some(Access::Shared(member)) = self.access.take() else { return Err(timeout_error().into()) };
            return member.commit(announcement, self.deadline).await;
        }
        let result = self.execute(COMMIT).await.map_err(StoreError::from);
        match result {
            Ok(_) => {
                self.state = ConnState::Committed;
                announcement.send();
                Ok(())
            }
            Err(error) => {
                if !error.is_transient() {
                    announcement.fail();
                }
                Err(error)
            }
        }
    }

    pub(super) async fn execute(
        &mut self,
        query: impl Execute<'static, Any> + 'static,
    ) -> Result<AnyQueryResult, sqlx::Error> {
        self.run_until_deadline(|connection| connection.execute(query)).await
    }

    /// Reads all rows of the result of a statement.
    pub(super) async fn fetch_all(
        &mut self,
        query: impl Execute<'static, Any> + 'static,
    ) -> Result<Vec<AnyRow>, sqlx::Error> {
        self.run_until_deadline(|connection| connection.fetch_all(query)).await
    }

    /// Reads the first row of the result of a statement, if there is one.
    pub(super) async fn fetch_optional(
        &mut self,
        query: impl Execute<'static, Any> + 'static,
    ) -> Result<Option<AnyRow>, sqlx::Error> {
        self.run_until_deadline(|connection| connection.fetch_optional(query)).await
    }

    /// Runs a statement and fails if it has not completed at the deadline.
    async fn run_until_deadline<'c, T>(
        &'c mut self,
        statement: impl FnOnce(&'c mut AnyConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>,
    ) -> Result<T, sqlx::Error> {
        let Self { access, deadline, state, has_transaction: _ } = self;
        let access = access.as_mut().ok_or(sqlx::Error::PoolClosed)?;
        state.check()?;
        *state = ConnState::Busy;
        let is_shared = matches!(access, Access::Shared(_));
        let result = timeout_at(*deadline, statement(access.connection())).await;
        let has_timed_out = result.is_err();
        let result = result.unwrap_or_else(|_| Err(timeout_error()));
        // Closing a connection rolls back all transactions of its group, so [`end`] first waits a little for the statement.
        *state = if has_timed_out && is_shared { ConnState::Busy } else { ConnState::after_statement(&result) };
        result
    }
}

/// The error of a database that does not respond in time.
pub fn timeout_error() -> sqlx::Error {
    sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, "the database did not respond in time"))
}

impl Drop for Conn {
    fn drop(&mut self) {
        let Some(access) = self.access.take() else { return };
        match (self.state, access) {
            (ConnState::Open, _) if !self.has_transaction => {}
            (ConnState::Broken, Access::Own(mut connection)) => connection.close_on_drop(),
            // If the connection of a group is broken, dropping this transaction closes it.
            (ConnState::Broken, Access::Shared(_)) | (ConnState::Committed, _) => {}
            (ConnState::Open | ConnState::Busy | ConnState::Failed, access) => {
                drop(tokio::spawn(end(access, self.has_transaction)));
            }
        }
    }
}

/// Ends a transaction, or a cancelled statement. Runs in a task of its own, so that whoever drops the transaction does not wait.
async fn end(access: Access, has_transaction: bool) {
    match access {
        Access::Own(connection) => end_own(connection, has_transaction).await,
        Access::Shared(member) => member.roll_back().await,
    }
}

async fn end_own(mut connection: PooledConnection, has_transaction: bool) {
    // We may get the error of a cancelled statement here. After any error, we do not know the state of the connection.
    let end =
        async { if has_transaction { connection.execute(ROLLBACK).await } else { connection.execute(NOTHING).await } };
    if !matches!(timeout(ROLLBACK_TIMEOUT, end).await, Ok(Ok(_))) {
        connection.close_on_drop();
    }
}
