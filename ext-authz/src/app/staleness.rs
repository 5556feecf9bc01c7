//! Makes the sidecar not ready while checks for a service are denied because its view is stale or not confirmed. The control plane
//! confirms a view by answering a ping. A view is stale when its last confirmation is `max_staleness` old.
//!
//! - The sidecar is ready until checks are denied, because a view that is nearly stale still decides. Otherwise load balancers
//!   would drop all sidecars early if the control plane is down.
//! - The sidecar is ready again after two confirmations in a row, so that readiness does not flap if the control plane rarely
//!   answers.

use crate::view::{ViewConfirmation, Views};
use countersign_identity::ServiceId;
use countersign_process::{Clock, Readiness, ReadinessGuard};
use std::{collections::HashMap, convert::Infallible, sync::Arc, time::Duration};

/// How often the ages of views are compared with their limits.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Compares the ages of views with their limits, and sets readiness.
pub struct StalenessMonitor {
    views: Arc<Views>,
    readiness: Readiness,
    clock: Arc<dyn Clock>,
    /// The services that have had a confirmed view.
    services: HashMap<ServiceId, ServiceState>,
}

/// Whether checks for a service can be decided.
enum ServiceState {
    Ready,
    /// The view was stale, and has been confirmed at most once since: at `first_confirmation`. `guard` keeps the sidecar from being
    /// ready; `None` while the service does not affect readiness.
    Stale {
        guard: Option<ReadinessGuard>,
        first_confirmation: Option<Duration>,
    },
}

impl StalenessMonitor {
    pub fn new(views: Arc<Views>, readiness: Readiness, clock: Arc<dyn Clock>) -> Self {
        Self { views, readiness, clock, services: HashMap::new() }
    }

    /// Updates readiness; never returns.
    pub async fn run(mut self) -> Infallible {
        loop {
            self.update();
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn update(&mut self) {
        let now = self.clock.since_boot();
        let confirmations = self.views.confirmations();
        let is_served =
            |it: &ViewConfirmation| !it.is_refused && age(it, now).is_some_and(|age| age < it.max_staleness);
        let serves_any = confirmations.iter().any(is_served);
        // A service whose API key was removed keeps nothing from being ready.
        self.services.retain(|service, _| confirmations.iter().any(|it| it.service == *service));
        for confirmation in confirmations {
            // If one service is deleted or its key is revoked, the sidecar stays ready for the others.
            let affects_readiness = !(confirmation.is_refused && serves_any);
            self.update_service(&confirmation, affects_readiness, now);
        }
    }

    fn update_service(&mut self, confirmation: &ViewConfirmation, affects_readiness: bool, now: Duration) {
        let ViewConfirmation { service, confirmed_at, max_staleness, .. } = confirmation;
        let age = age(confirmation, now);
        let is_current = age.is_some_and(|age| age < *max_staleness);
        let Some(state) = self.services.get_mut(service) else {
            // Until the first confirmation, the sync client of the API key keeps the sidecar from being ready.
            if is_current {
                self.services.insert(*service, ServiceState::Ready);
            }
            return;
        };
        match state {
            ServiceState::Ready if is_current => {}
            ServiceState::Ready => {
                let condition = condition(confirmation, age);
                tracing::warn!(%service, affects_readiness, "not ready: checks are denied, waiting for {condition}");
                let guard = affects_readiness.then(|| self.readiness.register(condition));
                *state = ServiceState::Stale { guard, first_confirmation: None };
            }
            ServiceState::Stale { first_confirmation: Some(first), .. }
                if is_current && *confirmed_at > Some(*first) =>
            {
                tracing::info!(%service, "the view is confirmed again: the service no longer keeps the sidecar from being ready");
                *state = ServiceState::Ready;
            }
            ServiceState::Stale { guard, first_confirmation } => {
                // If the view is stale again, we forget the first confirmation: readiness needs two in a row.
                let confirmed = confirmed_at.filter(|_| is_current);
                *first_confirmation = confirmed.map(|at| first_confirmation.unwrap_or(at));
                match guard {
                    Some(guard) if affects_readiness => guard.set_condition(condition(confirmation, age)),
                    Some(_) => *guard = None,
                    None => *guard = affects_readiness.then(|| self.readiness.register(condition(confirmation, age))),
                }
            }
        }
    }
}

/// The age of the latest confirmation; `None` if the view is not confirmed.
fn age(confirmation: &ViewConfirmation, now: Duration) -> Option<Duration> {
    confirmation.confirmed_at.map(|at| now.saturating_sub(at))
}

/// What readiness waits for, as `/readyz` reports it.
fn condition(confirmation: &ViewConfirmation, age: Option<Duration>) -> String {
    let ViewConfirmation { service, keys, is_refused, max_staleness, confirmed_at: _ } = confirmation;
    let keys: Vec<_> = keys.iter().map(|key| format!("sync.keys[{}]", key.0)).collect();
    let keys = keys.join(" and ");
    let refused = if *is_refused { ", which the control plane refuses" } else { "" };
    let limit = max_staleness.as_secs();
    match age {
        None => format!("a confirmation of the view of service {service} ({keys}{refused})"),
        Some(age) if age < *max_staleness => {
            format!("a second confirmation of the view of service {service} ({keys}{refused})")
        }
        Some(age) => format!(
            "a confirmation of the view of service {service} ({keys}{refused}): the last one is {} s old, the limit is {limit} s",
            age.as_secs()
        ),
    }
}

#[cfg(test)]
mod tests;
