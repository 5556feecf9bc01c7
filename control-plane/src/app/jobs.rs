//! The background tasks: periodic jobs, and tasks that run until shutdown.

use super::{AppError, database, database_outage, servers::Tasks};
use crate::{
    domain::signing_key::KeyStatus,
    ephemeral::RedisClient,
    http::AppState,
    metrics::{Metrics, timestamp_value},
    operations::{
        Context, ContextParts, EnforcementStatus, OperationError, check_database_write, confirm_changes,
        correct_totals, emit_role_revoked_events, flush_suppressed_bursts, publish_trust_changes, purge_deleted,
        rotate_signing_keys_if_due, run_housekeeping,
    },
    store::{Store, StoreError, master_keys},
    webhooks::{DispatcherHealth, WebhookDispatcher, fan_out_events},
};
use countersign_process::{Readiness, ReadinessGuard, file_reload::FileReloader};
use futures_util::FutureExt as _;
use std::{io, pin::Pin, sync::Arc, time::Duration};
use tokio::time::{sleep, timeout};

/// Interval at which the server checks that its database has not been replaced.
const DATABASE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Interval at which the backlog of webhook deliveries is measured.
const BACKLOG_INTERVAL: Duration = Duration::from_secs(5);

/// A job that runs repeatedly until shutdown.
struct Job {
    /// Identifies the job in the log.
    name: &'static str,
    schedule: Schedule,
    run: for<'a> fn(&'a AppState) -> JobFuture<'a>,
}

type JobFuture<'a> = Pin<Box<dyn Future<Output = Result<(), OperationError>> + Send + 'a>>;

/// When a job runs again after it has finished.
#[derive(Clone, Copy)]
enum Schedule {
    Every(Duration),
    /// After this pause, or already after [`READ_ONLY_PAUSE`] while the database rejects writes, so that the job soon notices when
    /// writes work again.
    SoonerIfReadOnly(Duration),
    /// As soon as this process changes a trust score, but not before [`TRUST_PAUSE`] has passed. Without such a change, after twice
    /// the pause, because nobody tells us about changes by other replicas.
    OnTrustChange,
}

const READ_ONLY_PAUSE: Duration = Duration::from_secs(5);

const TRUST_PAUSE: Duration = Duration::from_millis(500);

const JOBS: [Job; 8] = [
    Job {
        name: "write check",
        schedule: Schedule::SoonerIfReadOnly(Duration::from_secs(10)),
        run: |state| Box::pin(check_database_write(&state.context)),
    },
    Job {
        name: "housekeeping",
        schedule: Schedule::SoonerIfReadOnly(Duration::from_mins(1)),
        run: |state| Box::pin(run_housekeeping(&state.context)),
    },
    Job {
        name: "confirmation of changes",
        schedule: Schedule::Every(Duration::from_secs(1)),
        run: |state| Box::pin(confirm_changes_and_count(state)),
    },
    Job {
        name: "totals",
        schedule: Schedule::Every(Duration::from_hours(6)),
        run: |state| Box::pin(correct_totals(&state.context)),
    },
    Job {
        name: "signing key maintenance",
        schedule: Schedule::Every(Duration::from_secs(5)),
        run: |state| Box::pin(maintain_signing_keys(state)),
    },
    Job {
        name: "publication of trust changes",
        schedule: Schedule::OnTrustChange,
        run: |state| Box::pin(publish_trust_changes(&state.context)),
    },
    Job {
        name: "role expiry events",
        schedule: Schedule::Every(Duration::from_secs(1)),
        run: |state| Box::pin(emit_role_revoked_events(&state.context)),
    },
    Job {
        name: "removal of rows of deleted services, agents and roles",
        schedule: Schedule::Every(Duration::from_secs(1)),
        run: |state| Box::pin(purge_deleted(&state.context)),
    },
];

const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// Starts the periodic [`JOBS`].
pub(super) fn spawn_periodic(tasks: &mut Tasks, state: &AppState) {
    // Creates the series of each status, so that the metric exists before the first run of the job.
    for status in LIVE_STATUSES {
        state.metrics.signing_keys.with_label_values(&[status.as_str()]);
    }
    for job in JOBS {
        let state = state.clone();
        tasks.spawn_until_shutdown(async move {
            loop {
                log_error(job.name, (job.run)(&state).await);
                job.schedule.wait(&state.context).await;
            }
        });
    }
}

/// Starts the job that stores the counts of failed logins: after the first ones of an agent, further failed logins are only counted
/// in memory. A shutdown waits for a run in progress. Otherwise it could end the run just after the commit, when the counts are
/// still in memory, and `write_and_close` in `app.rs` would store them again.
pub(super) fn spawn_flush_of_bursts(tasks: &mut Tasks, state: &AppState) {
    let (context, shutdown) = (state.context.clone(), tasks.shutdown.clone());
    tasks.spawn(async move {
        while !shutdown.is_requested() {
            log_error("failed login events", flush_suppressed_bursts(&context).await);
            shutdown.run_until_requested(sleep(FLUSH_INTERVAL)).await;
        }
        Ok(())
    });
}

fn log_error(job: &str, result: Result<(), OperationError>) {
    if let Err(error) = result {
        tracing::warn!(job, %error, "a background job failed and will run again");
    }
}

impl Schedule {
    async fn wait(self, context: &Context) {
        match self {
            Self::Every(pause) => sleep(pause).await,
            Self::SoonerIfReadOnly(pause) => {
                let (began_at, mut remaining) = (context.since_boot(), pause);
                while !remaining.is_zero() {
                    sleep(READ_ONLY_PAUSE).await;
                    // A sleep does not count the time in which the machine is suspended, so look at the clock.
                    let elapsed = context.since_boot().saturating_sub(began_at);
                    if elapsed >= pause || !context.database_is_writable() {
                        return;
                    }
                    remaining = remaining.saturating_sub(READ_ONLY_PAUSE);
                }
            }
            Self::OnTrustChange => {
                sleep(TRUST_PAUSE).await;
                let _elapsed = timeout(TRUST_PAUSE, context.wait_for_trust_change()).await;
            }
        }
    }
}

/// The statuses of signing keys whose tokens are accepted.
const LIVE_STATUSES: [KeyStatus; 3] = [KeyStatus::Next, KeyStatus::Signing, KeyStatus::Retired];

async fn maintain_signing_keys(state: &AppState) -> Result<(), OperationError> {
    let ring = rotate_signing_keys_if_due(&state.context).await?;
    let (metrics, now) = (&state.metrics, state.context.now());
    for status in LIVE_STATUSES {
        let count = ring.live_keys().filter(|key| key.status(now) == status).count();
        metrics.signing_keys.with_label_values(&[status.as_str()]).set(i64::try_from(count).unwrap_or(i64::MAX));
    }
    let start = ring.signing_key(now).and_then(|key| key.signs_from);
    metrics.signing_key_start.set(timestamp_value(start));
    Ok(())
}

async fn confirm_changes_and_count(state: &AppState) -> Result<(), OperationError> {
    if let Some(EnforcementStatus { oldest_change, silent_sidecars }) = confirm_changes(&state.context).await? {
        state.metrics.sync.oldest_unconfirmed_change.set(timestamp_value(oldest_change));
        state.metrics.sync.silent_sidecars.set(silent_sidecars);
    }
    Ok(())
}

/// Starts a task for each reloader, so that a file system that does not respond delays only the reloader of its own files.
pub(super) fn spawn_file_reloads(tasks: &mut Tasks, reloaders: Vec<FileReloader>, interval: Duration) {
    for reloader in reloaders {
        tasks.spawn_until_shutdown(reloader.run(interval));
    }
}

/// Logs why there is no connection to the database.
pub(super) fn spawn_outage_log(tasks: &mut Tasks, store: Store) {
    tasks.spawn_until_shutdown(database_outage::log_outages(store));
}

/// Stops the server when its database is replaced with another one, in which revoked credentials may be valid.
pub(super) fn spawn_database_check(tasks: &mut Tasks, store: Store) {
    let shutdown = tasks.shutdown.requested_owned();
    let check = async move {
        loop {
            sleep(DATABASE_CHECK_INTERVAL).await;
            // We stop only for a database that must not be used. If the database is merely unavailable, `database_outage` and the
            // affected requests report it.
            if let Err(AppError::DatabaseRejected(reason)) = database::refuse_quarantined(&store).await {
                return reason;
            }
        }
    };
    tasks.spawn(async move {
        tokio::select! {
            () = shutdown => Ok(()),
            reason = check => Err(io::Error::other(reason)),
        }
    });
}

/// Makes the process unready while it lacks the current master key of the database, because another process has rotated the key.
pub(super) fn spawn_master_key_check(tasks: &mut Tasks, parts: &ContextParts, readiness: Readiness) {
    let (store, keyring) = (parts.store.clone(), parts.keyring.clone());
    tasks.spawn_until_shutdown(async move {
        let mut missing: Option<(String, ReadinessGuard)> = None;
        loop {
            // While the database is unavailable, the process stays as ready as it was at the last successful check.
            if let Ok(current) = find_current_master_key(&store).await {
                if keyring.check_current_master_key(&current) {
                    missing = None;
                } else if missing.as_ref().is_none_or(|(reported, _)| *reported != current) {
                    tracing::error!(
                        fingerprint = %current,
                        "the database uses a new master key, which is not configured: set secrets.master_key to it and \
                         secrets.previous_master_keys to the old key, and restart this control plane"
                    );
                    let condition = format!(
                        "the master key with the fingerprint {current}: set secrets.master_key to it and restart"
                    );
                    missing = Some((current, readiness.register(condition)));
                }
            }
            sleep(DATABASE_CHECK_INTERVAL).await;
        }
    });
}

async fn find_current_master_key(store: &Store) -> Result<String, StoreError> {
    Ok(master_keys::find(store.read().await?.conn()).await?.current)
}

/// If Redis is configured, starts the tasks that reconnect to it and exchange notifications of changes with other replicas.
pub(super) fn spawn_redis_tasks(tasks: &mut Tasks, client: Option<&Arc<RedisClient>>, store: &Store) {
    let Some(client) = client else { return };
    let (connection, publisher, subscriber) = (client.clone(), client.clone(), client.clone());
    let (committed, notified_store) = (store.committed_revision(), store.clone());
    tasks.spawn_until_shutdown(async move { connection.maintain_connection().await });
    tasks.spawn_until_shutdown(async move { publisher.publish_changes(committed).await });
    tasks.spawn_until_shutdown(async move { subscriber.receive_changes(|| notified_store.wake_followers()).await });
}

/// Starts the tasks that deliver webhook events and measure their backlog. At shutdown, deliveries in progress may finish.
pub(super) fn spawn_webhook_delivery(
    tasks: &mut Tasks,
    parts: &ContextParts,
    metrics: &Metrics,
    dispatcher: WebhookDispatcher,
    health: Arc<DispatcherHealth>,
) {
    let (store, metrics) = (parts.store.clone(), metrics.webhooks.clone());
    let fanout = fan_out_events(store.clone(), parts.dispatcher_wakeup.clone(), tasks.shutdown.clone());
    tasks.spawn(fanout.map(Ok));
    tasks.spawn(dispatcher.run(tasks.shutdown.clone()).map(Ok));
    tasks.spawn_until_shutdown(async move {
        loop {
            if let Err(error) = health.measure_backlog(&store, &metrics).await {
                tracing::warn!(%error, "the backlog of webhook deliveries could not be measured");
            }
            sleep(BACKLOG_INTERVAL).await;
        }
    });
}
