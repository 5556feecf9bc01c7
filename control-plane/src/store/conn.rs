//! A connection for one transaction, which has to end in time.
//!
//! An engine that hangs says nothing, and a connection on which something was left unfinished would hang whoever gets it
//! next. So every statement ends when the time of its transaction is over, and such a connection goes back to nobody.

use super::{failure::StoreError, watch::Watch};
use futures_util::{
    StreamExt, TryStreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use sqlx::{
    Any, AnyConnection, AnyPool, Describe, Either, Execute, Executor, SqlStr,
    any::{AnyQueryResult, AnyRow, AnyStatement, AnyTypeInfo},
    pool::PoolConnection,
};
use std::{io, time::Duration};
use tokio::time::{Instant, timeout, timeout_at};

/// How long a transaction may take, the wait for a connection included: less than a request may.
pub const PATIENCE: Duration = Duration::from_secs(4);

/// How long whoever looks at a whole database may take: nobody waits for it but the operator.
pub const LEISURE: Duration = Duration::from_hours(24);

/// How long a connection may take to end what was left on it, before it is closed.
const REST: Duration = Duration::from_secs(1);

/// A connection with a transaction on it. Dropped without [`Conn::commit`], it leaves no trace.
#[derive(Debug)]
pub struct Conn {
    /// There until it is dropped.
    pooled: Option<PoolConnection<Any>>,
    ends: Instant,
    state: State,
}

/// What is going on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A transaction that waits for the next statement.
    Open,
    /// A statement that has not ended: whoever waited for it may be gone.
    Busy,
    /// The engine refused a statement: what was to be done as a whole is not, and PostgreSQL would answer `COMMIT` with a
    /// rollback that looks like success.
    Failed,
    /// Nobody shall use the connection any more.
    Broken,
    /// Nothing.
    Ended,
}

impl State {
    /// After a statement that ended so.
    fn after<T>(done: &Result<T, sqlx::Error>) -> Self {
        match done {
            Err(error) if StoreError::breaks(error) => Self::Broken,
            Err(sqlx::Error::Database(_)) => Self::Failed,
            Ok(_) | Err(_) => Self::Open,
        }
    }
}

/// When a transaction that begins now has to be over.
pub fn end_of(patience: Duration) -> Instant {
    tokio::time::sleep(patience).deadline()
}

impl Conn {
    /// Takes a connection and begins a transaction on it.
    pub async fn begin(pool: &AnyPool, begin: &'static str, ends: Instant, watch: &Watch) -> Result<Self, StoreError> {
        let acquired = timeout_at(ends, pool.acquire()).await;
        watch.connection_acquired();
        let pooled = acquired.map_err(|_| too_late())??;
        let mut conn = Self { pooled: Some(pooled), ends, state: State::Open };
        (&mut conn).execute(begin).await?;
        Ok(conn)
    }

    /// Makes what was written stay.
    pub async fn commit(mut self) -> Result<(), StoreError> {
        (&mut self).execute("COMMIT").await?;
        self.state = State::Ended;
        Ok(())
    }

    /// Runs a statement until the time is over.
    async fn bounded<'c, T>(
        &'c mut self,
        statement: impl FnOnce(&'c mut AnyConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>,
    ) -> Result<T, sqlx::Error> {
        let Self { pooled, ends, state } = self;
        let pooled = pooled.as_mut().ok_or(sqlx::Error::PoolClosed)?;
        match *state {
            State::Open => {}
            State::Failed => return Err(sqlx::Error::Protocol("a statement of this transaction failed".to_owned())),
            State::Busy | State::Broken | State::Ended => return Err(too_late()),
        }
        *state = State::Busy;
        let done = timeout_at(*ends, statement(pooled)).await.unwrap_or_else(|_| Err(too_late()));
        *state = State::after(&done);
        done
    }
}

fn too_late() -> sqlx::Error {
    sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"))
}

impl Drop for Conn {
    fn drop(&mut self) {
        let Some(mut pooled) = self.pooled.take() else { return };
        match self.state {
            State::Ended => {}
            State::Broken => pooled.close_on_drop(),
            State::Open | State::Busy | State::Failed => drop(tokio::spawn(roll_back(pooled))),
        }
    }
}

/// Behind whoever did not end the transaction, so that nobody waits for it.
async fn roll_back(mut pooled: PoolConnection<Any>) {
    // What was left unfinished may have failed by now, and then that is what is said: nobody knows what was done.
    if !matches!(timeout(REST, pooled.execute("ROLLBACK")).await, Ok(Ok(_))) {
        pooled.close_on_drop();
    }
}

impl<'c> Executor<'c> for &'c mut Conn {
    type Database = Any;

    fn execute<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<AnyQueryResult, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Any>,
    {
        Box::pin(self.bounded(|pooled| pooled.execute(query)))
    }

    fn fetch_all<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Vec<AnyRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Any>,
    {
        Box::pin(self.bounded(|pooled| pooled.fetch_all(query)))
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<AnyRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Any>,
    {
        Box::pin(self.bounded(|pooled| pooled.fetch_optional(query)))
    }

    /// All at once, whatever else is asked for: nobody in this house reads row by row.
    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Either<AnyQueryResult, AnyRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Any>,
    {
        let all = self.bounded(|pooled| Box::pin(pooled.fetch_many(query).try_collect::<Vec<_>>()));
        stream::once(all)
            .flat_map(|all| match all {
                Ok(steps) => stream::iter(steps).map(Ok).left_stream(),
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
        Box::pin(self.bounded(|pooled| pooled.prepare_with(sql, parameters)))
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<Describe<Any>, sqlx::Error>>
    where
        'c: 'e,
    {
        Box::pin(self.bounded(|pooled| pooled.describe(sql)))
    }
}
