//! Tests receipts: after a receipt says that a change is in force everywhere, no sidecar may ever decide without the change.

use crate::{
    operation::{Request, SERVICES},
    run::Run,
    sidecar_state::{MAX_AGE, SidecarState},
    sidecars::{COPYING, SIDECARS},
};
use countersign_process::Clock;
use std::time::Duration;

/// The interval at which a receipt is read.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// How often a receipt is read while all sidecars are connected.
const POLLS: usize = 40;

/// How often the test reads a receipt, at most, until it must be complete. A sidecar may have to reconnect on a busy machine.
const POLLS_UNTIL_COMPLETE: usize = 4000;

impl Run {
    /// Sends requests, and asks at once for the receipt of the newest revision. Then verifies tokens with the
    /// sidecars that decide with the newest state.
    pub async fn requests_with_receipt(
        &mut self,
        service: usize,
        requests: &[Request],
        crash: bool,
    ) -> Result<(), String> {
        let before = self.model.tokens.len();
        self.send(requests).await?;
        self.update_keys().await?;
        self.ask_for_receipt(service).await?;
        if crash && self.environment.network.reaches(COPYING) {
            self.crash().await?;
        }
        self.expect_in_force().await?;
        self.verify_with_deciding_sidecars(service, before).await
    }

    async fn ask_for_receipt(&mut self, service: usize) -> Result<(), String> {
        let network = self.environment.network;
        let all_reach = SIDECARS.iter().all(|sidecar| network.reaches(*sidecar));
        let must_complete = all_reach && self.sidecars.reports_are_prompt;
        let (state, revision) = (self.model.newest(), self.model.now().revision);
        let of_service = &self.environment.services[service];
        let polls = match (must_complete, all_reach) {
            (true, _) => POLLS_UNTIL_COMPLETE,
            (false, true) => POLLS,
            (false, false) => 1,
        };
        let mut receipt = self.environment.receipt(of_service, revision).await;
        for _ in 1..polls {
            if receipt["enforced"] == true {
                break;
            }
            // After a slow write of a copy, the sidecar delays the next write until this clock has advanced.
            self.environment.clock.advance(Duration::from_millis(1));
            tokio::time::sleep(POLL_INTERVAL).await;
            receipt = self.environment.receipt(of_service, revision).await;
        }
        if receipt["enforced"] != true {
            return if must_complete { Err(format!("the receipt is not complete: {receipt}")) } else { Ok(()) };
        }
        let now = self.environment.clock.now().micros();
        if let Some(change) = self.environment.newest_change_until(&of_service.id, revision).await {
            self.sidecars.in_force[service] = self.sidecars.in_force[service].max(change);
        }
        for sidecar in SIDECARS {
            if self.environment.check(sidecar, &self.environment.services[service].id, None).await.status != 503 {
                self.sidecars.decides_with(sidecar, service, state, now);
            }
        }
        Ok(())
    }

    /// Checks that no sidecar decides with data that is older than a complete receipt allows.
    pub async fn expect_in_force(&self) -> Result<(), String> {
        for (sidecar, number) in
            SIDECARS.into_iter().flat_map(|sidecar| (0..SERVICES).map(move |number| (sidecar, number)))
        {
            let (service, in_force) = (&self.environment.services[number].id, self.sidecars.in_force[number]);
            let revision = self.environment.sidecars.view_revision(sidecar, service).await;
            if revision < in_force && self.environment.check(sidecar, service, None).await.status != 503 {
                // Read again for the error message: the sidecar may have received newer data between the two requests.
                let later = self.environment.sidecars.view_revision(sidecar, service).await;
                return Err(format!(
                    "a receipt says that {in_force} is in force at service {number}, but sidecar {sidecar} decides with {revision} (then {later})"
                ));
            }
        }
        Ok(())
    }

    /// Kills the sidecar with a copy at once, and starts it again while it reaches no address.
    async fn crash(&mut self) -> Result<(), String> {
        self.environment.network.cut = [true; 2];
        self.environment.apply_network();
        let now = self.environment.clock.now().micros();
        let states = self.sidecars.restart(COPYING, now).map(|state| {
            let oldest = state.map_or(0, |state| state.states.0);
            Some(SidecarState { states: (oldest, self.model.newest()), confirmed: (now, now) })
        });
        self.start_from_copy(states).await
    }

    /// Restarts a sidecar. Waits until it decides with its copy, if it has one and reaches no address.
    pub async fn restart_sidecar(&mut self, sidecar: usize) -> Result<(), String> {
        let states = self.sidecars.restart(sidecar, self.environment.clock.now().micros());
        if sidecar == COPYING && !self.environment.network.reaches(sidecar) {
            return self.start_from_copy(states).await;
        }
        self.environment.sidecars.restart(sidecar).await;
        Ok(())
    }

    /// Starts the sidecar with a copy while it reaches no address. `before` is what the test knew about its states before the stop.
    async fn start_from_copy(&mut self, before: [Option<SidecarState>; SERVICES]) -> Result<(), String> {
        self.environment.sidecars.restart(COPYING).await;
        let now = self.environment.clock.now().micros();
        let revisions = self.environment.wait_for_start_from_copy().await;
        for (service, (revision, before)) in revisions.into_iter().zip(before).enumerate() {
            let earliest = self.sidecars.earliest[COPYING];
            let state = match (revision, before) {
                (Some(revision), Some(SidecarState { states: (_, newest), confirmed: (_, latest) }))
                    if now - latest < MAX_AGE =>
                {
                    let oldest = self.model.state_at(revision);
                    if oldest > newest {
                        return Err(format!(
                            "the copy of service {service} has the revision {revision}, which it cannot have received"
                        ));
                    }
                    Some(SidecarState { states: (oldest, newest), confirmed: (earliest, latest) })
                }
                (Some(_), _) => return Err(format!("a copy of service {service} is used that is too old")),
                (None, _) if now - earliest >= MAX_AGE => None,
                (None, _) => return Err(format!("the copy of service {service} is not used")),
            };
            self.sidecars.set(COPYING, service, state);
        }
        Ok(())
    }
}
