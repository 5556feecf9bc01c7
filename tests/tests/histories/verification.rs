//! Sends tokens to API and sidecars, and compares the answers with the model.

use crate::{
    model::Verifier,
    operation::{RULE_SETS, SERVICES},
    rules::{RuleOutcome, ruled_request},
    run::Run,
    sidecar_state::{MAX_AGE, SidecarState},
    sidecars::SIDECARS,
};
use countersign_process::Clock;
use countersign_tests::VerifyOutcome;

/// The answers that a sidecar may give.
struct Allowed {
    outcomes: Vec<VerifyOutcome>,
    /// Why these outcomes are allowed, for error messages.
    basis: String,
}

impl Run {
    /// Verifies the new tokens, and some of the older tokens, with API and sidecars at every service.
    pub async fn verify_tokens(&mut self, round: usize, new: usize, others: usize) -> Result<(), String> {
        let now = self.environment.clock.now().micros();
        let old = self.model.tokens.len() - new;
        let old_numbers = (0..others.min(old)).map(|other| (round * others + other) % old);
        for number in old_numbers.chain(old..old + new) {
            for service in 0..SERVICES {
                self.verify_with_all(number, service, now).await?;
            }
        }
        Ok(())
    }

    /// Verifies the newest tokens at a service with the sidecars that decide with the newest state, without waiting for them.
    pub async fn verify_with_deciding_sidecars(&mut self, service: usize, new_from: usize) -> Result<(), String> {
        let newest = self.model.newest();
        let decides =
            |sidecar: &usize| self.sidecars.of(*sidecar, service).is_some_and(|state| state.states == (newest, newest));
        let (_, floor) = self.environment.feed_position().await;
        for sidecar in SIDECARS.into_iter().filter(decides) {
            let first = new_from.saturating_sub(TOKENS_AFTER_RECEIPT);
            for number in first..self.model.tokens.len() {
                let outcome = self.verify_with_sidecar(sidecar, number, service, floor).await;
                // The control plane may meanwhile have changed the feed without a request. Then another outcome may be right.
                if outcome.is_err() && self.model.now().revision == self.environment.feed_position().await.0 {
                    return outcome.map_err(|error| format!("after the receipt: {error}"));
                }
            }
        }
        Ok(())
    }

    async fn verify_with_all(&mut self, number: usize, service: usize, now: i64) -> Result<(), String> {
        loop {
            let (_, floor) = self.environment.feed_position().await;
            let verifier = Verifier { known_state: self.model.newest(), now, floor, knows_floor: true };
            let mut outcome = self.verify_with_api(number, service, verifier).await;
            for sidecar in SIDECARS {
                if outcome.is_ok() {
                    outcome = self.verify_with_sidecar(sidecar, number, service, floor).await;
                }
            }
            // Repeats the verification if the control plane has meanwhile removed keys or raised the revision floor
            // (oldest revision from which a sidecar can resume).
            if outcome.is_ok() {
                return outcome;
            } else if self.update_keys().await? {
                self.wait_for_sidecars().await?;
            } else if self.environment.feed_position().await.1 == floor {
                return outcome;
            }
        }
    }

    async fn verify_with_api(&self, number: usize, service: usize, verifier: Verifier) -> Result<(), String> {
        let token = &self.model.tokens[number];
        let outcomes = self.model.allowed_outcomes(token, service, verifier);
        let basis = format!("known state up to {}", self.model.states[verifier.known_state].revision);
        let outcome = self.environment.verify(&self.environment.services[service], &token.text).await;
        if outcomes.contains(&outcome) {
            return Ok(());
        }
        Err(self.unexpected(
            ("the API", &format!("{outcome:?}")),
            (number, service),
            &Allowed { outcomes, basis },
            verifier.floor,
        ))
    }

    /// Verifies a token with a sidecar on a route without requirements, or, in turn, on one to which a rule applies.
    async fn verify_with_sidecar(
        &self,
        sidecar: usize,
        number: usize,
        service: usize,
        floor: i64,
    ) -> Result<(), String> {
        let text = &self.model.tokens[number].text;
        let id = &self.environment.services[service].id;
        let allowed = self.allowed_by_sidecar(sidecar, number, service, floor);
        let outcome = VerifyOutcome::from_check_result(&self.environment.check(sidecar, id, Some(text)).await);
        let name = format!("sidecar {sidecar}");
        if !allowed.outcomes.contains(&outcome) {
            return Err(self.unexpected((&name, &format!("{outcome:?}")), (number, service), &allowed, floor));
        }
        let result = self.environment.sidecars.check(sidecar, ruled_request(service, text)).await;
        let outcome = RuleOutcome::from_check_result(&result);
        let scope = &self.model.tokens[number].scope;
        if allowed.outcomes.iter().any(|base| RULE_SETS[self.rules].may_have_outcome(base, scope, &outcome)) {
            return Ok(());
        }
        let outcome = format!("{outcome:?} by the rule set {}", self.rules);
        Err(self.unexpected((&name, &outcome), (number, service), &allowed, floor))
    }

    /// The answers that a sidecar may give on a route without requirements.
    fn allowed_by_sidecar(&self, sidecar: usize, number: usize, service: usize, floor: i64) -> Allowed {
        let unavailable = |reason| vec![VerifyOutcome::refused(503, reason)];
        let Some(SidecarState { states: (oldest, newest), confirmed: (earliest, latest) }) =
            self.sidecars.of(sidecar, service)
        else {
            return Allowed { outcomes: unavailable("view_missing"), basis: "no data".to_owned() };
        };
        // The sidecar decides by the time of the control plane, whatever its own clock says.
        let now = self.environment.clock.now().micros();
        if now - latest >= MAX_AGE {
            return Allowed { outcomes: unavailable("view_stale"), basis: "old data".to_owned() };
        }
        let mut outcomes = if now - earliest >= MAX_AGE { unavailable("view_stale") } else { Vec::new() };
        let token = &self.model.tokens[number];
        for known_state in oldest..=newest {
            let verifier = Verifier { known_state, now, floor, knows_floor: false };
            outcomes.extend(self.model.allowed_outcomes(token, service, verifier));
        }
        let revision = |state: usize| self.model.states[state].revision;
        Allowed { outcomes, basis: format!("known state up to {} to {}", revision(oldest), revision(newest)) }
    }

    fn unexpected(
        &self,
        (name, outcome): (&str, &str),
        (number, service): (usize, usize),
        allowed: &Allowed,
        floor: i64,
    ) -> String {
        let token = &self.model.tokens[number];
        let revisions: Vec<_> = self.model.states.iter().map(|state| state.revision).collect();
        let Allowed { outcomes, basis } = allowed;
        format!(
            "{name} returned {outcome} for token {number} (agent {}, service {:?}, rev {}) at service {service}, expected one of \
             {outcomes:?}; {basis}, floor {floor}, revisions {revisions:?}",
            token.agent, token.service, token.rev
        )
    }
}

/// How many older tokens are verified after a receipt.
const TOKENS_AFTER_RECEIPT: usize = 4;
