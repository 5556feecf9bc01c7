//! Metrics of transactions and of the wait for a database connection.

use super::{BUCKETS, MetricFactory};
use countersign_process::label_values;
use prometheus::{HistogramVec, IntCounterVec};

/// Transactions by backend and kind, and the wait for connections.
#[derive(Clone)]
pub struct StoreMetrics {
    transactions: IntCounterVec,
    /// Duration of a transaction in seconds, including the wait for a connection.
    seconds: HistogramVec,
    connection_wait: HistogramVec,
}

label_values! {
    /// The result of a transaction.
    pub enum TransactionOutcome {
        /// A read transaction succeeded.
        Read = "read",
        /// A write transaction was committed.
        Committed = "committed",
        /// A write transaction was rolled back, intentionally or after an error without an outcome of its own.
        RolledBack = "rolled_back",
        /// A write transaction was rolled back because the disk is full or fails, or the database is read-only.
        Unwritable = "unwritable",
        /// A write transaction conflicted with another one and is repeated.
        Rerun = "rerun",
        /// The transaction could not begin.
        Failed = "failed",
    }
}

label_values! {
    /// Whether a transaction reads or writes. Read and write transactions have separate pools, so this is also the label `pool`.
    pub enum TransactionKind {
        Read = "read",
        Write = "write",
    }
}

impl TransactionOutcome {
    /// The possible outcomes of a kind of transaction.
    const fn possible_for(kind: TransactionKind) -> &'static [Self] {
        match kind {
            TransactionKind::Read => &[Self::Read, Self::Failed],
            TransactionKind::Write => &[Self::Committed, Self::RolledBack, Self::Unwritable, Self::Rerun, Self::Failed],
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
        for kind in TransactionKind::ALL.iter().copied() {
            for outcome in TransactionOutcome::possible_for(kind) {
                self.transactions.with_label_values(&[backend, kind.as_str(), outcome.as_str()]);
            }
            self.seconds.with_label_values(&[backend, kind.as_str()]);
            self.connection_wait.with_label_values(&[kind.as_str()]);
        }
    }
}
