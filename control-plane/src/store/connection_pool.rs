//! A pool that counts the connections in use, and the failures to get one.
//!
//! The size of the pool of sqlx includes the connections that it is opening, so that it cannot tell a pool in use from a database
//! that does not respond.

use super::conn::timeout_error;
use crate::metrics::{PoolStatus, TransactionKind};
use sqlx::{Any, AnyConnection, AnyPool, any::AnyConnectOptions, pool::PoolConnection};
use std::{
    ops::{Add, Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};
use tokio::time::{Instant, timeout_at};

/// A pool of connections to the database.
#[derive(Debug, Clone)]
pub struct ConnectionPool {
    pool: AnyPool,
    usage: Arc<Usage>,
}

#[derive(Debug, Default)]
struct Usage {
    in_use: AtomicU32,
    failures: AtomicU64,
    /// Whether the last attempt to get a connection failed.
    is_failing: AtomicBool,
}

/// The failures to get a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionFailures {
    /// The number of failures since the start.
    pub count: u64,
    /// Whether the last attempt failed.
    pub is_failing: bool,
}

impl Add for ConnectionFailures {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { count: self.count + other.count, is_failing: self.is_failing || other.is_failing }
    }
}

/// A connection of a pool, counted as in use until it is dropped.
#[derive(Debug)]
pub struct PooledConnection {
    // Declared first, so that the connection is dropped first.
    connection: PoolConnection<Any>,
    _counted: CountedUse,
}

#[derive(Debug)]
struct CountedUse(Arc<Usage>);

impl CountedUse {
    fn begin(usage: &Arc<Usage>) -> Self {
        usage.in_use.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(usage))
    }
}

impl Drop for CountedUse {
    fn drop(&mut self) {
        self.0.in_use.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ConnectionPool {
    /// The pool without connections in use.
    pub fn new(pool: AnyPool) -> Self {
        Self { pool, usage: Arc::default() }
    }

    /// Waits for a connection until the deadline.
    pub async fn acquire(&self, deadline: Instant) -> Result<PooledConnection, sqlx::Error> {
        let acquired = timeout_at(deadline, self.pool.acquire()).await.unwrap_or_else(|_| Err(timeout_error()));
        let connection = acquired.map_err(|error| self.record_failure(error))?;
        self.usage.is_failing.store(false, Ordering::Relaxed);
        Ok(PooledConnection { connection, _counted: CountedUse::begin(&self.usage) })
    }

    /// Counts a failure to get a connection.
    pub fn record_failure(&self, error: sqlx::Error) -> sqlx::Error {
        self.usage.is_failing.store(true, Ordering::Relaxed);
        self.usage.failures.fetch_add(1, Ordering::Relaxed);
        error
    }

    /// The failures of [`Self::acquire`].
    pub fn failures(&self) -> ConnectionFailures {
        let Usage { in_use: _, failures, is_failing } = &*self.usage;
        ConnectionFailures { count: failures.load(Ordering::Relaxed), is_failing: is_failing.load(Ordering::Relaxed) }
    }

    /// The numbers of connections.
    pub fn status(&self, kind: TransactionKind) -> PoolStatus {
        PoolStatus {
            kind,
            in_use: self.usage.in_use.load(Ordering::Relaxed),
            idle: u32::try_from(self.pool.num_idle()).unwrap_or(u32::MAX),
            max: self.pool.options().get_max_connections(),
        }
    }

    /// How the pool opens connections.
    pub fn connect_options(&self) -> Arc<AnyConnectOptions> {
        self.pool.connect_options()
    }

    /// Waits for the connections in use, and closes all connections.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

impl PooledConnection {
    /// Closes the connection when it is dropped, instead of returning it to the pool.
    pub fn close_on_drop(&mut self) {
        self.connection.close_on_drop();
    }
}

impl Deref for PooledConnection {
    type Target = AnyConnection;

    fn deref(&self) -> &AnyConnection {
        &self.connection
    }
}

impl DerefMut for PooledConnection {
    fn deref_mut(&mut self) -> &mut AnyConnection {
        &mut self.connection
    }
}
