//! A pool that keeps its connections, and counts the failures to get one.
//!
//! sqlx has a pool too, but it sends a message to the database before and after each use of a connection. A login would wait as
//! long for these messages as for its statements. So here, the pool of sqlx only opens and closes connections. sqlx also counts
//! connections that it is still opening as used, so its counts could not tell a busy pool from a database that does not respond.

use super::conn::{deadline_after, has_passed, timeout_error};
use crate::metrics::{PoolStatus, TransactionKind};
use sqlx::{Any, AnyConnection, AnyPool, Connection as _, any::AnyConnectOptions, pool::PoolConnection};
use std::{
    ops::{Deref, DerefMut},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout, timeout_at},
};

/// If nobody has used a connection for this time, we test it before we use it: the database may have been restarted.
const TEST_AFTER: Duration = Duration::from_secs(1);

/// Maximum duration of a test. A connection that does not answer is closed.
const TEST_TIMEOUT: Duration = Duration::from_millis(500);

/// A pool of connections to the database.
#[derive(Debug, Clone)]
pub struct ConnectionPool {
    pool: AnyPool,
    /// One permit for each connection. The caller who has waited longest gets the next one.
    permits: Arc<Semaphore>,
    state: Arc<PoolState>,
}

#[derive(Debug, Default)]
struct PoolState {
    /// The connections that nobody uses, each with the time from which on we must test it. The most recently used one is at the end.
    idle: Mutex<Vec<(PoolConnection<Any>, Instant)>>,
    in_use: AtomicU32,
    failures: AtomicU64,
    /// Whether the last attempt to get a connection failed.
    is_failing: AtomicBool,
}

/// Closes the connection when it is dropped, unless somebody has taken it. Otherwise, it would return to the pool of sqlx, which
/// waits for an answer of the database first.
struct ClosedOnDrop(Option<PoolConnection<Any>>);

impl Drop for ClosedOnDrop {
    fn drop(&mut self) {
        if let Some(connection) = &mut self.0 {
            connection.close_on_drop();
        }
    }
}

impl PoolState {
    fn close_idle(&self) {
        for (connection, _) in self.idle().drain(..) {
            drop(ClosedOnDrop(Some(connection)));
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(PoolConnection<Any>, Instant)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The failures to get a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionFailures {
    /// The number of failures since the start.
    pub count: u64,
    /// Whether the last attempt failed.
    pub is_failing: bool,
}

/// A connection of a pool. It returns to the pool when it is dropped.
#[derive(Debug)]
pub struct PooledConnection {
    /// `None` only while it is dropped.
    connection: Option<PoolConnection<Any>>,
    is_reusable: bool,
    state: Arc<PoolState>,
    /// Dropped after the connection has returned to the pool, so that the next caller finds the connection.
    _permit: OwnedSemaphorePermit,
}

impl ConnectionPool {
    pub fn new(pool: AnyPool) -> Self {
        let permits = Semaphore::new(max_connections(&pool) as usize);
        Self { pool, permits: Arc::new(permits), state: Arc::default() }
    }

    /// Waits for a connection until the deadline.
    pub async fn acquire(&self, deadline: Instant) -> Result<PooledConnection, sqlx::Error> {
        let acquired = timeout_at(deadline, self.acquire_tested()).await.unwrap_or_else(|_| Err(timeout_error()));
        let connection = acquired.map_err(|error| self.record_failure(error))?;
        self.state.is_failing.store(false, Ordering::Relaxed);
        Ok(connection)
    }

    async fn acquire_tested(&self) -> Result<PooledConnection, sqlx::Error> {
        let permit = self.permits.clone().acquire_owned().await.map_err(|_| sqlx::Error::PoolClosed)?;
        let connection = match self.find_idle().await {
            Some(connection) => connection,
            None => Box::pin(self.pool.acquire()).await?,
        };
        let (connection, state) = (Some(connection), Arc::clone(&self.state));
        state.in_use.fetch_add(1, Ordering::Relaxed);
        Ok(PooledConnection { connection, is_reusable: true, state, _permit: permit })
    }

    /// Takes the most recently used connection. If it fails its test, closes all idle ones: they have been idle for even longer.
    async fn find_idle(&self) -> Option<PoolConnection<Any>> {
        let (connection, test_from) = self.state.idle().pop()?;
        if !has_passed(test_from) {
            return Some(connection);
        }
        let mut tested = ClosedOnDrop(Some(connection));
        if let Some(connection) = &mut tested.0
            && matches!(timeout(TEST_TIMEOUT, Box::pin(connection.ping())).await, Ok(Ok(())))
        {
            return tested.0.take();
        }
        self.state.close_idle();
        None
    }

    /// Counts a failure to get a connection, and returns its error.
    pub fn record_failure(&self, error: sqlx::Error) -> sqlx::Error {
        self.state.is_failing.store(true, Ordering::Relaxed);
        self.state.failures.fetch_add(1, Ordering::Relaxed);
        error
    }

    /// The failures of [`Self::acquire`].
    pub fn failures(&self) -> ConnectionFailures {
        let PoolState { failures, is_failing, .. } = &*self.state;
        ConnectionFailures { count: failures.load(Ordering::Relaxed), is_failing: is_failing.load(Ordering::Relaxed) }
    }

    /// The numbers of connections.
    pub fn status(&self, kind: TransactionKind) -> PoolStatus {
        let max = max_connections(&self.pool);
        let idle = u32::try_from(self.state.idle().len()).unwrap_or(max);
        PoolStatus { kind, in_use: self.state.in_use.load(Ordering::Relaxed), idle, max }
    }

    /// How the pool opens connections.
    pub fn connect_options(&self) -> Arc<AnyConnectOptions> {
        self.pool.connect_options()
    }

    /// Waits for the connections in use, and closes all connections.
    pub async fn close(&self) {
        let all = self.permits.acquire_many(max_connections(&self.pool)).await;
        self.permits.close();
        drop(all);
        self.state.close_idle();
        self.pool.close().await;
    }
}

fn max_connections(pool: &AnyPool) -> u32 {
    pool.options().get_max_connections()
}

impl PooledConnection {
    /// Closes the connection when it is dropped, instead of returning it to the pool.
    pub const fn close_on_drop(&mut self) {
        self.is_reusable = false;
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        self.state.in_use.fetch_sub(1, Ordering::Relaxed);
        if self.is_reusable {
            self.state.idle().push((connection, deadline_after(TEST_AFTER)));
        } else {
            drop(ClosedOnDrop(Some(connection)));
        }
    }
}

impl Deref for PooledConnection {
    type Target = AnyConnection;

    #[expect(clippy::expect_used, reason = "`connection` is `None` only while it is dropped")]
    fn deref(&self) -> &AnyConnection {
        self.connection.as_ref().expect("the connection is there until it is dropped")
    }
}

impl DerefMut for PooledConnection {
    #[expect(clippy::expect_used, reason = "`connection` is `None` only while it is dropped")]
    fn deref_mut(&mut self) -> &mut AnyConnection {
        self.connection.as_mut().expect("the connection is there until it is dropped")
    }
}
