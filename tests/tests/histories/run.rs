//! Runs a history and compares API and sidecar with the model after every operation.

use crate::{
    environment::Environment,
    expected_response::expected_response,
    model::{Model, Verifier},
    model_updates::{record_login, record_tokens},
    operation::{MAX_STALENESS, Operation, ROLE_NAMES, Request, SERVICES},
    requests::{KEYS, Keys, Outcome, PreparedRequest, SentRequest},
};
use countersign_process::Clock;
use countersign_tests::VerifyOutcome;
use std::time::Duration;

/// Number of older tokens that are verified after each operation in addition to the new tokens.
const OLD_TOKENS_PER_OPERATION: usize = 3;

/// A running history.
struct Run {
    environment: Environment,
    model: Model,
    keys: Keys,
    /// Whether the sync stream can connect.
    connected: bool,
    /// The state that the sidecar received last, if any.
    sidecar_state: Option<SidecarState>,
    /// Start of the sidecar in microseconds. The sidecar's view of the control plane's data cannot be older.
    sidecar_started_at: i64,
    round: usize,
}

/// A mismatch between servers and model, and the index of the operation that caused it.
#[derive(Debug)]
pub struct Violation {
    pub operation_index: usize,
    pub error: String,
}

/// The state of the control plane that the sidecar has received.
#[derive(Debug, Clone, Copy)]
struct SidecarState {
    /// Index of the state in the model.
    state: usize,
    /// The sidecar's data was last confirmed between these two times, in microseconds. The exact time of the
    /// confirmation is unknown, because the sidecar pings at its own interval.
    confirmed: (i64, i64),
}

/// Runs a history on this PostgreSQL database, or on SQLite.
pub async fn run(operations: &[Operation], postgres: Option<String>) -> Result<(), Violation> {
    let environment = Environment::new(postgres).await;
    let (revision, _) = environment.feed_position().await;
    let (keys, _) = environment.keys().await;
    let (model, sidecar_started_at) = (Model::new(revision, keys), environment.clock.now().micros());
    let mut run = Run {
        environment,
        model,
        keys: Keys::new(),
        connected: true,
        sidecar_state: None,
        sidecar_started_at,
        round: 0,
    };
    run.set_up().await.map_err(|error| Violation { operation_index: 0, error })?;
    for (number, operation) in operations.iter().enumerate() {
        let violation =
            |error| Violation { operation_index: number, error: format!("operation {number}, {operation:?}: {error}") };
        run.operation(operation).await.map_err(violation)?;
    }
    run.finish()
        .await
        .map_err(|error| Violation { operation_index: operations.len(), error: format!("at the end: {error}") })
}

impl Run {
    async fn operation(&mut self, operation: &Operation) -> Result<(), String> {
        let before = self.model.tokens.len();
        self.environment.clock.advance(Duration::from_millis(1));
        match operation {
            Operation::Requests(requests) => self.send(requests).await?,
            Operation::Advance(seconds) => self.environment.clock.advance(Duration::from_secs((*seconds).into())),
            Operation::Lag(seconds) => self.environment.sidecar_clock.set_lag(*seconds),
            Operation::Disconnect if self.connected => {
                self.wait_for_sidecar().await?;
                self.connected = false;
                self.environment.disconnect();
            }
            Operation::Reconnect if !self.connected => {
                self.connected = true;
                self.environment.reconnect();
                return Ok(());
            }
            Operation::Disconnect | Operation::Reconnect => return Ok(()),
            Operation::RestartSidecar => {
                (self.sidecar_state, self.sidecar_started_at) = (None, self.environment.clock.now().micros());
                self.environment.restart_sidecar().await;
                if self.connected {
                    return Ok(());
                }
            }
            Operation::RestartControlPlane { killed, token_seconds } => {
                self.environment.restart_control_plane(*killed, *token_seconds, self.connected).await;
            }
        }
        self.update_keys().await?;
        self.wait_for_sidecar().await?;
        self.round += 1;
        self.verify_tokens(self.round, self.model.tokens.len() - before, OLD_TOKENS_PER_OPERATION).await
    }

    /// Creates two agents and all roles, so that operations have an effect from the start.
    async fn set_up(&mut self) -> Result<(), String> {
        self.send(&[Request::Register]).await?;
        self.send(&[Request::Register]).await?;
        for (service, name) in (0..SERVICES).flat_map(|service| (0..ROLE_NAMES.len()).map(move |name| (service, name)))
        {
            self.send(&[Request::CreateRole { service, name, permissions: 0 }]).await?;
        }
        self.wait_for_sidecar().await
    }

    async fn finish(mut self) -> Result<(), String> {
        if !self.connected {
            self.connected = true;
            self.environment.reconnect();
        }
        self.wait_for_sidecar().await?;
        self.verify_tokens(0, self.model.tokens.len(), 0).await
    }

    /// Updates the keys of the model, because the control plane also removes keys without a request. Returns whether
    /// the signing keys changed.
    async fn update_keys(&mut self) -> Result<bool, String> {
        let change = self.environment.changes_since(self.model.now().revision).await;
        let key_revision = change.iter().rfind(|change| change.facet == KEYS).map(|change| change.revision);
        if let Some(revision) = key_revision {
            self.model.set_keys(revision, self.environment.keys().await, self.environment.clock.now().micros())?;
        }
        Ok(key_revision.is_some())
    }

    /// Waits until the sidecar has the newest state, if it is connected.
    async fn wait_for_sidecar(&mut self) -> Result<(), String> {
        if self.connected {
            self.environment.wait_for_sidecar().await?;
            let now = self.environment.clock.now().micros();
            // The sidecar responds, so the last confirmation of its data is not too old. A sidecar that has just
            // started may have received its first confirmation of the data before the clock advanced.
            let earliest =
                self.sidecar_state.map_or(self.sidecar_started_at, |sidecar_state| sidecar_state.confirmed.0);
            let oldest_valid = now - MAX_STALENESS * 1_000_000 + 1;
            self.sidecar_state =
                Some(SidecarState { state: self.model.newest(), confirmed: (earliest.max(oldest_valid), now) });
        }
        Ok(())
    }

    /// Sends the requests concurrently.
    async fn send(&mut self, requests: &[Request]) -> Result<(), String> {
        let mut prepared = Vec::<PreparedRequest>::new();
        for request in requests {
            let next = PreparedRequest::new(request, &self.environment, &self.model);
            prepared.extend(next.filter(|next| !prepared.iter().any(|other| other.causes_same_change_as(next))));
        }
        let is_single = prepared.len() == 1;
        let before = self.model.now().revision;
        let (environment, model, keys) = (&self.environment, &self.model, &self.keys);
        let mut sent = join_all(prepared.into_iter().map(|prepared| prepared.send(environment, model, keys))).await;
        self.environment.wait_for_trust_publication().await;
        let change = self.environment.changes_since(before).await;
        if let [(sent, outcome)] = sent.as_slice()
            && is_single
        {
            // The control plane also removes expired signing keys without a request.
            let is_about_keys = matches!(sent.request, Request::Rotate | Request::RevokeKey { .. });
            let changed = change.iter().any(|change| is_about_keys || change.facet != KEYS);
            self.check_response(sent, outcome, changed)?;
        }
        for change in &change {
            if change.facet == KEYS {
                self.model.set_keys(
                    change.revision,
                    self.environment.keys().await,
                    self.environment.clock.now().micros(),
                )?;
                continue;
            }
            let (sent, outcome) = sent
                .iter()
                .find(|(sent, _)| sent.caused(change))
                .ok_or_else(|| format!("no request caused the change {change:?}"))?;
            sent.apply(&mut self.model, &self.environment, outcome, change.revision);
        }
        let known_tokens = self.model.tokens.len();
        for (sent, outcome) in sent.drain(..) {
            self.record(&sent, outcome)?;
        }
        self.model.tokens[known_tokens..]
            .iter()
            .find_map(|token| self.model.premature_key_use(token))
            .map_or(Ok(()), Err)
    }

    /// Adds the created entities of a response to the model.
    fn record(&mut self, sent: &SentRequest, outcome: Outcome) -> Result<(), String> {
        let (model, environment) = (&mut self.model, &self.environment);
        match outcome {
            Outcome::Registered { id, name, key } => {
                model.agents.push((id, name));
                self.keys.push(key);
            }
            Outcome::LoggedIn { response, signed_challenge } if response.status == 200 => {
                let Request::Login { agent, .. } = sent.request else { unreachable!("only a login logs in") };
                record_login(model, environment, agent, &response.body, signed_challenge);
            }
            Outcome::LoggedIn { response, .. } | Outcome::Response(response) if response.status >= 500 => {
                return Err(format!("the server responded {} {}", response.status, response.body));
            }
            Outcome::Response(response) if response.status == 200 => {
                if let Request::Refresh { login, .. } = sent.request {
                    record_tokens(model, environment, login, &response.body);
                }
            }
            Outcome::LoggedIn { .. } | Outcome::Response(_) => {}
        }
        Ok(())
    }

    /// Checks the status and the change of a request that ran without concurrent requests.
    fn check_response(&self, sent: &SentRequest, outcome: &Outcome, changed: bool) -> Result<(), String> {
        let (Outcome::Response(response) | Outcome::LoggedIn { response, .. }) = outcome else {
            // The code that registers an agent checks the response itself.
            return Ok(());
        };
        let now = self.environment.clock.now().micros();
        let (status, change) = expected_response(&sent.request, &self.model, now, response, changed)?;
        if (response.status, changed) == (status, change) {
            return Ok(());
        }
        Err(format!(
            "expected {status} and change {change}, received {} {} and change {changed}",
            response.status, response.body
        ))
    }

    /// Verifies the new tokens, and some of the older tokens, with API and sidecar at every service.
    async fn verify_tokens(&mut self, round: usize, new: usize, others: usize) -> Result<(), String> {
        let now = self.environment.clock.now().micros();
        let old = self.model.tokens.len() - new;
        let old_numbers = (0..others.min(old)).map(|other| (round * others + other) % old);
        for number in old_numbers.chain(old..old + new) {
            for service_index in 0..SERVICES {
                self.verify_with_both(number, service_index, now).await?;
            }
        }
        Ok(())
    }

    async fn verify_with_both(&mut self, number: usize, service_index: usize, now: i64) -> Result<(), String> {
        loop {
            let (_, floor) = self.environment.feed_position().await;
            let verifier = Verifier { known_state: self.model.newest(), now, floor, knows_floor: true };
            let outcome = match self.expect_outcome(number, service_index, "the API", verifier).await {
                Ok(()) => self.verify_with_sidecar(number, service_index, floor).await,
                failure => failure,
            };
            // Repeats the verification if the control plane has meanwhile removed keys or raised the revision floor
            // (oldest revision from which a sidecar can resume).
            if outcome.is_ok() {
                return outcome;
            } else if self.update_keys().await? {
                self.wait_for_sidecar().await?;
            } else if self.environment.feed_position().await.1 == floor {
                return outcome;
            }
        }
    }

    async fn verify_with_sidecar(&self, number: usize, service_index: usize, floor: i64) -> Result<(), String> {
        let Some(SidecarState { state, confirmed: (earliest, latest) }) = self.sidecar_state else {
            return self.expect_unavailable(service_index, "view_missing").await;
        };
        let age_since = |confirmed| self.environment.clock.now().micros() - confirmed;
        if age_since(latest) >= MAX_STALENESS * 1_000_000 {
            return self.expect_unavailable(service_index, "view_stale").await;
        }
        let may_be_stale = age_since(earliest) >= MAX_STALENESS * 1_000_000;
        if may_be_stale && self.expect_unavailable(service_index, "view_stale").await.is_ok() {
            return Ok(());
        }
        // The sidecar decides by the time of the control plane, whatever its own clock says.
        let now = self.environment.clock.now().micros();
        self.expect_outcome(
            number,
            service_index,
            "the sidecar",
            Verifier { known_state: state, now, floor, knows_floor: false },
        )
        .await
    }

    /// Checks that the sidecar refuses every request for this reason.
    async fn expect_unavailable(&self, service_index: usize, reason: &str) -> Result<(), String> {
        let outcome = VerifyOutcome::from_check_result(
            &self.environment.check(&self.environment.services[service_index].id, None).await,
        );
        let expected = VerifyOutcome::refused(503, reason);
        if outcome == expected {
            Ok(())
        } else {
            Err(format!("the sidecar returned {outcome:?}, expected {expected:?}"))
        }
    }

    async fn expect_outcome(
        &self,
        number: usize,
        service_index: usize,
        name: &str,
        verifier: Verifier,
    ) -> Result<(), String> {
        let (token, service) = (&self.model.tokens[number], &self.environment.services[service_index]);
        let expected = self.model.allowed_outcomes(token, service_index, verifier);
        let outcome = if verifier.knows_floor {
            self.environment.verify(service, &token.text).await
        } else {
            VerifyOutcome::from_check_result(&self.environment.check(&service.id, Some(&token.text)).await)
        };
        if expected.contains(&outcome) {
            return Ok(());
        }
        let revisions: Vec<_> = self.model.states.iter().map(|state| state.revision).collect();
        Err(format!(
            "{name} returned {outcome:?} for token {number} (agent {}, service {:?}, rev {}) at service {service_index}, expected one of \
             {expected:?}; known state up to {}, floor {}, revisions {revisions:?}",
            token.agent, token.service, token.rev, self.model.states[verifier.known_state].revision, verifier.floor
        ))
    }
}

async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    futures_util::future::join_all(futures).await
}
