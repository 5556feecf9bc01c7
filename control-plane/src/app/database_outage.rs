//! Logs why transactions get no connection to the database, and when they get one again.
//!
//! The pools try to connect until a timeout, so the errors of transactions do not say what is wrong. When transactions have failed,
//! this task opens a connection of its own to learn the cause.

use crate::store::{ConnectionFailures, Store};
use countersign_process::{Clock, SystemClock};
use std::{convert::Infallible, time::Duration};
use tokio::time::sleep;

/// How often we check whether transactions got no connection.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Minimum time between two log lines that name the cause of an outage.
const MIN_LINE_INTERVAL: Duration = Duration::from_mins(1);

/// An outage is over if no transaction has failed for this time, which is longer than a transaction waits for a connection.
const RECOVERY_TIME: Duration = Duration::from_secs(6);

/// Logs outages until the task is dropped. Background jobs begin transactions, so we notice the end even without requests.
pub(super) async fn log_outages(store: Store) -> Infallible {
    let mut known = store.connection_failures().count;
    let (mut failed_at, mut logged_at, mut is_reported) = (None, None, false);
    loop {
        sleep(CHECK_INTERVAL).await;
        let ConnectionFailures { count, is_failing } = store.connection_failures();
        let now = SystemClock.since_boot();
        let has_passed = |time, since: Option<Duration>| since.is_none_or(|since| now.saturating_sub(since) >= time);
        if count > known || is_failing {
            (known, failed_at) = (count, Some(now));
        }
        if has_passed(RECOVERY_TIME, failed_at) {
            failed_at = None;
            if std::mem::take(&mut is_reported) {
                tracing::info!("transactions get connections to the database again");
            }
        } else if has_passed(MIN_LINE_INTERVAL, logged_at) {
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
            "transactions wait too long for a connection to the database, although it accepts connections: either all connections \
             of a pool are in use (countersign_store_connections), or the database was unavailable for a short time"
        );
    }
}
