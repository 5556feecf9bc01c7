//! Leases due deliveries, sends them, and stores the results, in one loop that never waits for a receiver.
//!
//! Each iteration runs one transaction, which stores the results of completed attempts and leases due deliveries. A lease reserves a
//! delivery for one process, until the process releases it or until the lease expires. If a process dies, its leases expire, and
//! another process sends the leased deliveries.

use super::{
    DispatcherHealth,
    delivery_queue::{AttemptRecord, DeliveryQueue, LeasedBatch},
    http_sender::{HttpSender, OutgoingRequest, SendOutcome},
    scheduler::{ConcurrencyLimits, LeasePlan, Scheduler},
    target_queue::AttemptSummary,
};
use crate::{
    domain::webhook::{
        DueTarget, TargetOwner,
        delivery::{Attempt, AttemptFailure, DeliveryState, DeliveryStatus, RetrySchedule},
        secret::WebhookSecret,
        url::TargetUrl,
    },
    keyring::Keyring,
    metrics::WebhookMetrics,
    store::{Store, StoreError, deliveries::LeasedDelivery},
};
use countersign_identity::{Timestamp, WebhookId};
use countersign_process::{Clock, Place, Rng, Shutdown};
use futures_util::FutureExt;
use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc, time::Duration};
use tokio::{sync::Notify, task::JoinSet};

/// Interval at which the delivery queue is polled for deliveries that other processes stored.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Minimum time between two iterations, so that the results of attempts which end together share a transaction.
const MIN_PAUSE: Duration = Duration::from_millis(5);

/// Maximum pause before the next page of targets is read.
const PAGE_PAUSE: Duration = Duration::from_millis(20);

/// Pause after a database error.
const ERROR_PAUSE: Duration = Duration::from_secs(1);

/// A lease lasts this much longer than the timeout of an attempt. During this time, the delivery may wait until its attempt starts,
/// and we store the outcome of the attempt.
const LEASE_MARGIN: Duration = Duration::from_secs(20);

/// Minimum time between the timeout of an attempt and the end of its lease, for storing the outcome.
const RECORD_MARGIN: Duration = Duration::from_secs(5);

/// Maximum time that the shutdown waits for attempts in flight.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// Sends all deliveries. Each replica may run a dispatcher on the same database.
pub struct WebhookDispatcher {
    pub store: Store,
    pub keyring: Arc<Keyring>,
    pub sender: Arc<HttpSender>,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    /// The pauses between the attempts of a delivery.
    pub schedule: RetrySchedule,
    pub attempt_timeout: Duration,
    pub limits: ConcurrencyLimits,
    /// Notified when deliveries become due.
    pub wakeup: Arc<Notify>,
    pub health: Arc<DispatcherHealth>,
    pub metrics: WebhookMetrics,
}

struct DispatchLoop {
    parts: WebhookDispatcher,
    queue: DeliveryQueue,
    scheduler: Scheduler,
    endpoints: HashMap<WebhookId, Arc<Endpoint>>,
    in_flight: JoinSet<AttemptResult>,
    /// The target after which the next page of targets begins; `None` for the first page.
    after: Option<WebhookId>,
    /// Results of attempts that are not stored yet.
    unrecorded: Vec<AttemptRecord>,
    /// Leased deliveries that the next transaction releases.
    released: Vec<LeasedDelivery>,
}

/// The URL, the owner and the secrets of a target at the time when its deliveries were leased.
struct Endpoint {
    url: TargetUrl,
    owner: TargetOwner,
    secrets: Vec<WebhookSecret>,
}

struct AttemptResult {
    delivery: LeasedDelivery,
    endpoint: Arc<Endpoint>,
    /// Start of the attempt on the boot-time clock.
    started_at: Duration,
    /// End of the attempt, as wall-clock time.
    at: Timestamp,
    outcome: SendOutcome,
}

impl WebhookDispatcher {
    /// Runs until shutdown is requested.
    pub async fn run(self, shutdown: Shutdown) {
        let (store, keyring, wakeup) = (self.store.clone(), self.keyring.clone(), self.wakeup.clone());
        let mut dispatch = DispatchLoop {
            queue: DeliveryQueue { store, keyring },
            scheduler: Scheduler::new(self.limits),
            endpoints: HashMap::new(),
            in_flight: JoinSet::new(),
            parts: self,
            after: None,
            unrecorded: Vec::new(),
            released: Vec::new(),
        };
        loop {
            let mut pause = dispatch.poll_delay();
            if let Err(error) = dispatch.run_iteration().await {
                tracing::warn!(%error, "cannot lease webhook deliveries; retrying in one second");
                pause = ERROR_PAUSE;
            } else if dispatch.after.is_some() {
                pause = pause.min(PAGE_PAUSE);
            }
            tokio::select! {
                () = shutdown.requested() => break,
                () = wakeup.notified() => {}
                Some(Ok(result)) = dispatch.in_flight.join_next() => dispatch.process_result(result),
                () = tokio::time::sleep(pause) => {}
            }
            tokio::time::sleep(MIN_PAUSE).await;
            while let Some(Ok(result)) = dispatch.in_flight.try_join_next() {
                dispatch.process_result(result);
            }
        }
        dispatch.stop().await;
    }
}

impl DispatchLoop {
    /// Stores the results of attempts, leases due deliveries, and starts attempts. Results stay in memory until they are stored.
    async fn run_iteration(&mut self) -> Result<(), StoreError> {
        let (now, since_boot) = (self.parts.clock.now(), self.parts.clock.since_boot());
        let work = self.queue.find_due(self.after, self.scheduler.targets_with_unsent(), now).await?;
        self.after = work.next;
        let LeasePlan { requests, released } = self.scheduler.plan_leases(work, since_boot);
        self.released.extend(released);
        if !requests.is_empty() || !self.unrecorded.is_empty() || !self.released.is_empty() {
            let now = self.parts.clock.now();
            let until = now.saturating_add(self.parts.attempt_timeout + LEASE_MARGIN);
            let (completed, released) = (self.unrecorded.as_slice(), self.released.as_slice());
            let batches = self.queue.store_outcomes_and_lease(completed, released, &requests, now, until).await?;
            self.unrecorded.clear();
            self.released.clear();
            for LeasedBatch { due, secrets, deliveries } in batches {
                let DueTarget { id, url, updated_at: _, failing_since: _, owner } = due;
                self.endpoints.insert(id, Arc::new(Endpoint { url, owner: owner.clone(), secrets }));
                self.scheduler.push(id, owner, deliveries);
            }
        }
        self.parts.health.mark_polled();
        self.start_attempts();
        Ok(())
    }

    fn start_attempts(&mut self) {
        let Self { parts, scheduler, endpoints, in_flight, .. } = self;
        scheduler.start_attempts(parts.clock.since_boot(), |delivery, place| {
            let endpoint = endpoints.get(&delivery.target).cloned();
            start_attempt(parts, endpoint, in_flight, delivery, place)
        });
        endpoints.retain(|target, _| scheduler.has_target(*target));
    }

    /// Decides the next state of a delivery after an attempt. The next iteration stores it.
    fn process_result(&mut self, result: AttemptResult) {
        let AttemptResult { delivery, endpoint, started_at, at, outcome } = result;
        let SendOutcome { response, failure, retry_after } = outcome;
        let jitter = self.jitter();
        let retry = || self.parts.schedule.next_attempt(delivery.attempts + 1, at, retry_after, jitter);
        let state = match failure {
            None => DeliveryState::Delivered,
            Some(AttemptFailure::Gone) => DeliveryState::Dead,
            Some(_) if delivery.is_test => DeliveryState::Dead,
            Some(_) => retry().map_or(DeliveryState::Dead, DeliveryState::Pending),
        };
        let is_final = state.status() != DeliveryStatus::Pending;
        self.parts.metrics.record_attempt(failure.map(AttemptFailure::as_str), is_final);
        let ended_at = self.parts.clock.since_boot();
        let attempt = AttemptSummary { started_at, ended_at, failure, retry_after, jitter };
        let recorded = self.scheduler.record(&delivery, &attempt);
        self.released.extend(recorded.released);
        let (attempt, url) = (Attempt { at, response, failure }, endpoint.url.clone());
        self.unrecorded.push(AttemptRecord { delivery, attempt, state, url, was_failing: recorded.was_failing });
    }

    fn jitter(&self) -> u32 {
        let mut bytes = [0; 4];
        self.parts.rng.fill(&mut bytes);
        u32::from_ne_bytes(bytes)
    }

    /// How long to wait for the next poll, unless something wakes the dispatcher earlier. When deliveries to a target may continue
    /// after a pause, nothing wakes the dispatcher, so it polls then at the latest.
    fn poll_delay(&self) -> Duration {
        let since_boot = self.parts.clock.since_boot();
        self.scheduler
            .next_backoff_end(since_boot)
            .map_or(POLL_INTERVAL, |backoff_end| backoff_end.saturating_sub(since_boot).min(POLL_INTERVAL))
    }

    /// Waits briefly for attempts in flight, stores their results, and releases the leases of all unsent deliveries.
    async fn stop(mut self) {
        let drain = async {
            while let Some(Ok(result)) = self.in_flight.join_next().await {
                self.process_result(result);
            }
        };
        // After the timeout, we abort the attempts. Their deliveries are sent again later.
        let _elapsed = tokio::time::timeout(DRAIN_TIMEOUT, drain).await;
        self.released.extend(self.scheduler.drain_unsent());
        let now = self.parts.clock.now();
        let stored = self.queue.store_outcomes_and_lease(&self.unrecorded, &self.released, &[], now, now).await;
        if let Err(error) = stored {
            tracing::warn!(%error, "cannot store the results of the last webhook attempts; their deliveries will be sent again");
        }
    }
}

/// Starts an attempt in a task of its own, which keeps `place` until the attempt ends. A panic counts as a failure. Returns the
/// delivery without sending it if its lease may end before the attempt does, because another process could then send it too. Also
/// returns a delivery whose target is unknown.
fn start_attempt(
    parts: &WebhookDispatcher,
    endpoint: Option<Arc<Endpoint>>,
    in_flight: &mut JoinSet<AttemptResult>,
    delivery: LeasedDelivery,
    place: Place<TargetOwner>,
) -> Result<(), LeasedDelivery> {
    let (clock, now) = (parts.clock.clone(), parts.clock.now());
    let ends_in_time = now.saturating_add(parts.attempt_timeout + RECORD_MARGIN) <= delivery.leased_until;
    let Some(endpoint) = endpoint.filter(|_| ends_in_time) else { return Err(delivery) };
    let (sender, seconds) = (parts.sender.clone(), parts.metrics.seconds.clone());
    in_flight.spawn(async move {
        let started_at = clock.since_boot();
        let Endpoint { url, owner, secrets } = endpoint.as_ref();
        let request = OutgoingRequest { event: delivery.event, now, started_at, owner, body: &delivery.body, secrets };
        let sent = AssertUnwindSafe(sender.send(url, request)).catch_unwind().await;
        let outcome = sent.unwrap_or_else(|_| SendOutcome::without_response(AttemptFailure::Connection));
        drop(place);
        seconds.observe(clock.since_boot().saturating_sub(started_at).as_secs_f64());
        AttemptResult { delivery, endpoint, started_at, at: clock.now(), outcome }
    });
    Ok(())
}
