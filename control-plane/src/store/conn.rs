//! A connection of a pool for one transaction with a deadline.
//!
//! Every statement fails at the deadline of its transaction, because a database may stop responding. A connection in an unknown
//! state is closed, not reused, because an unfinished statement would block the next user of the connection.

use super::{
    connection_pool::{ConnectionPool, PooledConnection},
    failure::StoreError,
    statements::statements,
    transaction_timer::TransactionTimer,
};
use futures_util::{
    StreamExt, TryStreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use sqlx::{
    Any, AnyConnection, Describe, Either, Execute, Executor, SqlStr,
    any::{AnyQueryResult, AnyRow, AnyStatement, AnyTypeInfo},
};
use std::{io, time::Duration};
use tokio::time::{Instant, timeout, timeout_at};

statements! { STATEMENTS:
    COMMIT = "COMMIT";
    ROLLBACK = "ROLLBACK";
    /// Returns when the previous statement of the connection has ended.
    NOTHING = "SELECT 1 AS one";
}

/// Maximum duration of a transaction, including the wait for a connection; less than the timeout of a request.
pub const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(4);

/// Maximum duration of a transaction of an offline command, which may read the whole database.
pub const INSPECT_TIMEOUT: Duration = Duration::from_hours(24);

/// Maximum duration of a rollback. If a rollback takes longer, the connection is closed.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection with an open transaction. The transaction is rolled back if the `Conn` is dropped without [`Conn::commit`].
#[derive(Debug)]
pub struct Conn {
    /// `None` only while the connection is dropped.
    connection: Option<PooledConnection>,
    deadline: Instant,
    state: ConnState,
    /// Whether a transaction was begun. Otherwise, each statement is a transaction of its own.
    has_transaction: bool,
}

/// The state of a transaction and its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnState {
    /// The transaction accepts statements.
    Open,
    /// A statement is running, or was cancelled while running.
    Busy,
    /// A statement failed, so the transaction is incomplete. On `COMMIT` after a failed statement, PostgreSQL would roll back
    /// without an error.
    Failed,
    /// The connection must not be used again.
    Broken,
    /// The transaction is committed.
    Committed,
}

impl ConnState {
    /// The state after a statement with a given result.
    fn after_statement<T>(result: &Result<T, sqlx::Error>) -> Self {
        match result {
            Err(error) if StoreError::breaks_connection(error) => Self::Broken,
            Err(sqlx::Error::Database(_)) => Self::Failed,
            Ok(_) | Err(_) => Self::Open,
        }
    }
}

/// Returns the deadline of a transaction that begins now.
pub fn deadline_after(timeout: Duration) -> Instant {
    tokio::time::sleep(timeout).deadline()
}

impl Conn {
    /// Acquires a connection and begins a transaction with the statement `begin`. `timer` records the wait for the
    /// connection.
    pub async fn begin(
        pool: &ConnectionPool,
        begin: &'static str,
        deadline: Instant,
        timer: &TransactionTimer,
    ) -> Result<Self, StoreError> {
        let mut conn = Self::acquire(pool, deadline, timer).await?;
        conn.has_transaction = true;
        (&mut conn).execute(begin).await?;
        Ok(conn)
    }

    /// Acquires a connection for one statement, which is a transaction of its own.
    pub async fn acquire(
        pool: &ConnectionPool,
        deadline: Instant,
        timer: &TransactionTimer,
    ) -> Result<Self, StoreError> {
        let acquired = pool.acquire(deadline).await;
        timer.record_connection_wait();
        Ok(Self { connection: Some(acquired?), deadline, state: ConnState::Open, has_transaction: false })
    }

    /// Commits the transaction.
    pub async fn commit(mut self) -> Result<(), StoreError> {
        (&mut self).execute(COMMIT).await?;
        self.state = ConnState::Committed;
        Ok(())
    }

    /// Runs a statement and fails if it has not completed at the deadline.
    async fn run_until_deadline<'c, T>(
        &'c mut self,
        statement: impl FnOnce(&'c mut AnyConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>,
    ) -> Result<T, sqlx::Error> {
        let Self { connection, deadline, state, has_transaction: _ } = self;
        let connection = connection.as_mut().ok_or(sqlx::Error::PoolClosed)?;
        match *state {
            ConnState::Open => {}
            ConnState::Failed => {
                return Err(sqlx::Error::Protocol("a statement of this transaction failed".to_owned()));
            }
            ConnState::Busy | ConnState::Broken | ConnState::Committed => return Err(timeout_error()),
        }
        *state = ConnState::Busy;
        let result = timeout_at(*deadline, statement(connection)).await.unwrap_or_else(|_| Err(timeout_error()));
        *state = ConnState::after_statement(&result);
        result
    }
}

/// The error of a database that does not respond in time.
pub fn timeout_error() -> sqlx::Error {
    sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, "the database did not respond in time"))
}

impl Drop for Conn {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        match self.state {
            ConnState::Committed => {}
            ConnState::Open if !self.has_transaction => {}
            ConnState::Broken => connection.close_on_drop(),
            ConnState::Open | ConnState::Busy | ConnState::Failed => {
                drop(tokio::spawn(end(connection, self.has_transaction)));
            }
        }
    }
}

/// Ends a transaction, or a statement that was cancelled. Runs in a separate task, so that the code that drops the transaction does not
/// wait.
async fn end(mut connection: PooledConnection, has_transaction: bool) {
    // If a cancelled statement failed, its error may be returned for this one. After any error, the state of the connection is unknown.
    let end =
        async { if has_transaction { connection.execute(ROLLBACK).await } else { connection.execute(NOTHING).await } };
    if !matches!(timeout(ROLLBACK_TIMEOUT, end).await, Ok(Ok(_))) {
        connection.close_on_drop();
    }
}

impl<'c> Executor<'c> for &'c mut Conn {
    type Database = Any;

    fn execute<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<AnyQueryResult, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Any>,
    {
        Box::pin(self.run_until_deadline(|connection| connection.execute(query)))
    }

    fn fetch_all<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Vec<AnyRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Any>,
    {
        Box::pin(self.run_until_deadline(|connection| connection.fetch_all(query)))
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<AnyRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Any>,
    {
        Box::pin(self.run_until_deadline(|connection| connection.fetch_optional(query)))
    }

    /// Reads all rows before it returns the first row, because the deadline applies to the whole statement. No caller streams
    /// rows.
    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Either<AnyQueryResult, AnyRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Any>,
    {
        let all = self.run_until_deadline(|connection| Box::pin(connection.fetch_many(query).try_collect::<Vec<_>>()));
        stream::once(all)
            .flat_map(|all| match all {
                Ok(items) => stream::iter(items).map(Ok).left_stream(),
                Err(error) => stream::iter([Err(error)]).right_stream(),
            })
            .boxed()
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [AnyTypeInfo],
    ) -> BoxFuture<'e, Result<AnyStatement, sqlx::Error>>
    where
        'c: 'e,
    {
        Box::pin(self.run_until_deadline(|connection| connection.prepare_with(sql, parameters)))
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<Describe<Any>, sqlx::Error>>
    where
        'c: 'e,
    {
        Box::pin(self.run_until_deadline(|connection| connection.describe(sql)))
    }
}
