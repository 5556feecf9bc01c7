//! Runs delivery attempts concurrently, each in its own task.

use super::http_sender::{HttpSender, OutgoingRequest, SendOutcome};
use crate::{
    domain::webhook::{TargetOwner, secret::WebhookSecret, url::TargetUrl},
    metrics::WebhookMetrics,
    store::deliveries::LeasedDelivery,
};
use countersign_identity::{Timestamp, WebhookId};
use countersign_process::{Clock, Place};
use std::{collections::HashMap, sync::Arc, time::Duration};
use tokio::task::{JoinError, JoinSet};

/// Minimum time between the timeout of an attempt and the end of its lease, for storing the outcome.
const RECORD_MARGIN: Duration = Duration::from_secs(5);

/// The URL, the owner and the secrets of a target at the time when its deliveries were leased.
pub(super) struct Endpoint {
    pub url: TargetUrl,
    pub owner: TargetOwner,
    pub secrets: Vec<WebhookSecret>,
}

/// The result of a completed attempt.
pub(super) struct AttemptResult {
    pub delivery: LeasedDelivery,
    pub endpoint: Arc<Endpoint>,
    /// Start of the attempt on the boot-time clock.
    pub started_at: Duration,
    pub ended_at: Timestamp,
    pub outcome: SendOutcome,
}

/// Sends leased deliveries concurrently.
pub(super) struct Attempts {
    sender: Arc<HttpSender>,
    clock: Arc<dyn Clock>,
    /// Maximum duration of an attempt.
    timeout: Duration,
    metrics: WebhookMetrics,
    endpoints: HashMap<WebhookId, Arc<Endpoint>>,
    in_flight: JoinSet<AttemptResult>,
}

impl Attempts {
    pub(super) fn new(
        sender: Arc<HttpSender>,
        clock: Arc<dyn Clock>,
        timeout: Duration,
        metrics: WebhookMetrics,
    ) -> Self {
        Self { sender, clock, timeout, metrics, endpoints: HashMap::new(), in_flight: JoinSet::new() }
    }

    /// Sets the URL and the secrets for later attempts of a target.
    pub(super) fn set_endpoint(&mut self, target: WebhookId, endpoint: Endpoint) {
        self.endpoints.insert(target, Arc::new(endpoint));
    }

    /// Drops the endpoints of all targets for which `keep` returns false.
    pub(super) fn retain_endpoints(&mut self, keep: impl Fn(WebhookId) -> bool) {
        self.endpoints.retain(|target, _| keep(*target));
    }

    /// Starts an attempt in a place of the owner. Returns the delivery if its lease may end before the attempt, because another process could then send
    /// the delivery too.
    pub(super) fn start(&mut self, delivery: LeasedDelivery, place: Place<TargetOwner>) -> Result<(), LeasedDelivery> {
        let (clock, now) = (self.clock.clone(), self.clock.now());
        let ends_in_time = now.saturating_add(self.timeout + RECORD_MARGIN) <= delivery.leased_until;
        let Some(endpoint) = self.endpoints.get(&delivery.target).filter(|_| ends_in_time).cloned() else {
            return Err(delivery);
        };
        let sender = self.sender.clone();
        let seconds = self.metrics.seconds.clone();
        self.in_flight.spawn(async move {
            let started_at = clock.since_boot();
            let Endpoint { url, owner, secrets } = endpoint.as_ref();
            let request =
                OutgoingRequest { event: delivery.event, now, started_at, owner, body: &delivery.body, secrets };
            let outcome = sender.send(url, request).await;
            drop(place);
            seconds.observe(clock.since_boot().saturating_sub(started_at).as_secs_f64());
            AttemptResult { delivery, endpoint, started_at, ended_at: clock.now(), outcome }
        });
        Ok(())
    }

    /// Waits for the result of an attempt; `None` if no attempt is in flight. Cancel safe.
    pub(super) async fn next_result(&mut self) -> Option<Result<AttemptResult, JoinError>> {
        self.in_flight.join_next().await
    }

    /// The result of an attempt that has already completed.
    pub(super) fn try_next_result(&mut self) -> Option<Result<AttemptResult, JoinError>> {
        self.in_flight.try_join_next()
    }
}
