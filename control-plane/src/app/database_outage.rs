//! Logs why transactions get no connection to the database, and when they get one again.
//!
//! The errors of transactions do not have the cause, because the pools retry to connect until a timeout. So this task opens a
//! connection of its own when transactions have failed.

use crate::store::{ConnectionFailures, Store};
use countersign_process::{Clock, SystemClock};
use std::{convert::Infallible, time::Duration};
use tokio::time::sleep;

/// Interval at which the failures of transactions are read.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Minimum time between two log lines with a cause.
const MIN_LINE_INTERVAL: Duration = Duration::from_mins(1);

/// Logs outages until the task is dropped. The background jobs begin transactions without requests too, so that the end of an
/// outage is noticed.
pub(super) async fn log_outages(store: Store) -> Infallible {
    let (mut known, mut logged_at, mut is_reported) = (store.connection_failures().count, None, false);
    loop {
        sleep(CHECK_INTERVAL).await;
        let ConnectionFailures { count, is_failing } = store.connection_failures();
        let has_failed = count > known || is_failing;
        known = count;
        if !has_failed {
            if std::mem::take(&mut is_reported) {
                tracing::info!("transactions get connections to the database again");
            }
            continue;
        }
        let now = SystemClock.since_boot();
        if logged_at.is_none_or(|logged_at| now.saturating_sub(logged_at) >= MIN_LINE_INTERVAL) {
            (logged_at, is_reported) = (Some(now), true);
            log_cause(&store).await;
        }
    }
}

async fn log_cause(store: &Store) {
    if let Err(error) = store.try_connection().await {
        tracing::warn!(%error, "transactions get no connection to the database");
    } else {
        tracing::warn!(
            "transactions wait too long for a connection to the database, although it accepts connections: probably all \
             connections of the pool are in use (countersign_store_connections)"
        );
    }
}
