//! Metrics of transactions and of the wait for a database connection.

use super::{BUCKETS, MetricFactory};
use prometheus::{HistogramVec, IntCounterVec};

/// Transactions by backend and kind, and the wait for connections.
#[derive(Clone)]
pub struct StoreMetrics {
    transactions: IntCounterVec,
    /// Duration of a transaction in seconds, including the wait for a connection.
    seconds: HistogramVec,
    connection_wait: HistogramVec,
}

/// The result of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionOutcome {
    /// A read transaction succeeded.
    Read,
    /// A write transaction was committed.
    Committed,
    /// A write transaction was rolled back, intentionally or after another error.
    RolledBack,
    /// A write transaction was rolled back because the disk is full or fails, or the database is read-only.
    Unwritable,
    /// A write transaction conflicted with another one and is repeated.
    Rerun,
    /// The transaction could not begin.
    Failed,
}

impl TransactionOutcome {
    /// The label `result`.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Committed => "committed",
            Self::RolledBack => "rolled_back",
            Self::Unwritable => "unwritable",
            Self::Rerun => "rerun",
            Self::Failed => "failed",
        }
    }

    /// The possible outcomes of a kind of transaction.
    const fn possible_for(kind: TransactionKind) -> &'static [Self] {
        match kind {
            TransactionKind::Read => &[Self::Read, Self::Failed],
            TransactionKind::Write => &[Self::Committed, Self::RolledBack, Self::Unwritable, Self::Rerun, Self::Failed],
        }
    }
}

/// Whether a transaction reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionKind {
    /// A read transaction.
    Read,
    /// A write transaction.
    Write,
}

impl TransactionKind {
    /// The labels `kind` and `pool`: read and write transactions have separate pools.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

impl StoreMetrics {
    pub(super) fn new(factory: &MetricFactory) -> prometheus::Result<Self> {
        let labels = ["backend", "kind", "result"];
        let (seconds, wait) =
            ("Seconds of a transaction, including the wait for a connection", "Seconds of the wait for a connection");
        Ok(Self {
            transactions: factory.counter_vec(
                "store_transactions_total",
                "Transactions by backend, kind and result",
                &labels,
            )?,
            seconds: factory.histogram_vec("store_transaction_duration_seconds", seconds, &labels[..2], &BUCKETS)?,
            connection_wait: factory.histogram_vec("store_connection_wait_seconds", wait, &["pool"], &BUCKETS)?,
        })
    }

    /// Records the end of a transaction.
    pub fn record(&self, backend: &str, kind: TransactionKind, outcome: TransactionOutcome, seconds: f64) {
        self.transactions.with_label_values(&[backend, kind.as_str(), outcome.as_str()]).inc();
        self.seconds.with_label_values(&[backend, kind.as_str()]).observe(seconds);
    }

    /// Records the time that a transaction waited for a connection, successfully or not.
    pub fn record_connection_wait(&self, kind: TransactionKind, seconds: f64) {
        self.connection_wait.with_label_values(&[kind.as_str()]).observe(seconds);
    }

    /// Creates the series of a backend.
    pub fn initialize(&self, backend: &str) {
        for kind in [TransactionKind::Read, TransactionKind::Write] {
            for outcome in TransactionOutcome::possible_for(kind) {
                self.transactions.with_label_values(&[backend, kind.as_str(), outcome.as_str()]);
            }
            self.seconds.with_label_values(&[backend, kind.as_str()]);
            self.connection_wait.with_label_values(&[kind.as_str()]);
        }
    }
}
