//! Runs a history and compares API and sidecar with the model after every operation.

use crate::{
    environment::Environment,
    model::{Model, Verifier},
    operation::{MAX_STALENESS, Operation, ROLE_NAMES, Request, SERVICES, Status},
    requests::{KEYS, Keys, Outcome, PreparedRequest, SentRequest, record_login, record_tokens},
};
use countersign_process::Clock;
use countersign_tests::VerifyOutcome;
use std::time::Duration;

/// Older tokens that are verified after each operation, in turn, besides the new ones.
const OTHERS: usize = 3;

/// A running history.
struct Run {
    environment: Environment,
    model: Model,
    keys: Keys,
    /// Whether the sync stream can connect.
    connected: bool,
    /// The state that the sidecar received last, if any.
    sidecar_state: Option<SidecarState>,
    /// Start of the sidecar in microseconds. It received nothing before.
    started: i64,
    turn: usize,
}

/// A mismatch and the index of its operation.
#[derive(Debug)]
pub struct Violation {
    pub at: usize,
    pub error: String,
}

/// The knowledge of the sidecar.
#[derive(Debug, Clone, Copy)]
struct SidecarState {
    /// Index of the state.
    state: usize,
    /// The last confirmation lies between these times, in microseconds, because the sidecar pings at its own
    /// interval.
    confirmed: (i64, i64),
}

/// Runs a history on this PostgreSQL database, or on SQLite.
pub async fn run(operations: &[Operation], postgres: Option<String>) -> Result<(), Violation> {
    let environment = Environment::new(postgres).await;
    let (revision, _) = environment.feed_position().await;
    let (keys, _) = environment.keys().await;
    let (model, started) = (Model::new(revision, keys), environment.clock.now().micros());
    let mut run = Run { environment, model, keys: Keys::new(), connected: true, sidecar_state: None, started, turn: 0 };
    run.set_up().await.map_err(|error| Violation { at: 0, error })?;
    for (number, operation) in operations.iter().enumerate() {
        let violation = |error| Violation { at: number, error: format!("operation {number}, {operation:?}: {error}") };
        run.operation(operation).await.map_err(violation)?;
    }
    run.finish().await.map_err(|error| Violation { at: operations.len(), error: format!("at the end: {error}") })
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
                (self.sidecar_state, self.started) = (None, self.environment.clock.now().micros());
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
        self.turn += 1;
        self.verify_tokens(self.turn, self.model.tokens.len() - before, OTHERS).await
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

    /// The control plane removes keys by itself. Returns whether keys changed.
    async fn update_keys(&mut self) -> Result<bool, String> {
        let change = self.environment.changes_since(self.model.now().revision).await;
        let news = change.iter().rfind(|change| change.facet == KEYS).map(|change| change.revision);
        if let Some(revision) = news {
            self.model.set_keys(revision, self.environment.keys().await, self.environment.clock.now().micros())?;
        }
        Ok(news.is_some())
    }

    /// Waits until the sidecar has the newest state, if it is connected.
    async fn wait_for_sidecar(&mut self) -> Result<(), String> {
        if self.connected {
            self.environment.wait_for_sidecar().await?;
            let now = self.environment.clock.now().micros();
            // It answers, so its confirmation is not too old. A sidecar that has just started may have received its
            // first confirmation before the clock advanced.
            let earliest = self.sidecar_state.map_or(self.started, |sidecar_state| sidecar_state.confirmed.0);
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
            prepared.extend(next.filter(|next| !prepared.iter().any(|other| other.collides(next))));
        }
        let alone = prepared.len() == 1;
        let before = self.model.now().revision;
        let (environment, model, keys) = (&self.environment, &self.model, &self.keys);
        let mut sent = join_all(prepared.into_iter().map(|prepared| prepared.send(environment, model, keys))).await;
        self.environment.wait_for_trust_publication().await;
        let change = self.environment.changes_since(before).await;
        if let [(sent, outcome)] = sent.as_slice()
            && alone
        {
            self.check_response(sent, outcome, !change.is_empty())?;
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
        let known = self.model.tokens.len();
        for (sent, outcome) in sent.drain(..) {
            self.record(&sent, outcome)?;
        }
        self.model.tokens[known..].iter().find_map(|token| self.model.premature_key_use(token)).map_or(Ok(()), Err)
    }

    /// Adds the created entities of a response to the model.
    fn record(&mut self, sent: &SentRequest, outcome: Outcome) -> Result<(), String> {
        let (model, environment) = (&mut self.model, &self.environment);
        match outcome {
            Outcome::Registered { id, name, key } => {
                model.agents.push((id, name));
                self.keys.push(key);
            }
            Outcome::LoggedIn { answer, challenge_answer } if answer.status == 200 => {
                let Request::Login { agent, .. } = sent.request else { unreachable!("only a login logs in") };
                record_login(model, environment, agent, &answer.body, challenge_answer);
            }
            Outcome::LoggedIn { answer, .. } | Outcome::Response(answer) if answer.status >= 500 => {
                return Err(format!("answered {} {}", answer.status, answer.body));
            }
            Outcome::Response(answer) if answer.status == 200 => {
                if let Request::Refresh { login, .. } = sent.request {
                    record_tokens(model, environment, login, &answer.body);
                }
            }
            Outcome::LoggedIn { .. } | Outcome::Response(_) => {}
        }
        Ok(())
    }

    /// Checks status and change of a request that ran alone.
    fn check_response(&self, sent: &SentRequest, outcome: &Outcome, changed: bool) -> Result<(), String> {
        let (answer, model, state) = match outcome {
            Outcome::Response(answer) | Outcome::LoggedIn { answer, .. } => (answer, &self.model, self.model.now()),
            Outcome::Registered { .. } => return Ok(()),
        };
        let named = |service: usize, name: usize| state.roles.get(&(service, name));
        let (status, change) = match sent.request {
            Request::CreateRole { service, name, .. } if named(service, name).is_some() => (409, false),
            Request::CreateRole { .. } => (201, true),
            Request::ChangeRole { service, name, .. } if named(service, name).is_none() => (404, false),
            Request::DeleteRole { service, name }
            | Request::Assign { service, name, .. }
            | Request::Revoke { service, name, .. }
                if named(service, name).is_none() =>
            {
                (404, false)
            }
            Request::ChangeRole { .. }
            | Request::DeleteRole { .. }
            | Request::Assign { .. }
            | Request::Feedback { .. } => (200, true),
            Request::Revoke { service, agent, name } => {
                (200, named(service, name).is_some_and(|role| state.grants.contains_key(&(service, agent, *role))))
            }
            Request::SetAcceptsUnbound { service, accepted } => {
                (200, state.rejecting_unbound.contains(&service) == accepted)
            }
            Request::SetStatus { agent, status } => match (state.agent_state(agent).status, status) {
                (before, after) if before == after => (200, false),
                (Status::Revoked, _) => (409, false),
                _ => (200, true),
            },
            Request::Login { agent, .. } => (self.active_or(agent, 200), false),
            Request::Refresh { login, first } => {
                let (number, login) = (login, &model.logins[login]);
                let used = first && login.refresh.len() > 1;
                let dead = state.revoked_logins.contains(&number)
                    || login.start_revision < state.agent_state(login.agent).cutoff;
                let active = self.active_or(login.agent, 200) == 200;
                let ends = used && active && !state.revoked_logins.contains(&number);
                (self.active_or(login.agent, if used || dead { 401 } else { 200 }), ends)
            }
            Request::Replay { .. } => (401, false),
            Request::RevokeToken { .. } | Request::RevokeLogin { .. } => (200, changed),
            Request::Rotate => {
                let now = self.environment.clock.now().micros();
                let scheduled = state.keys.iter().filter_map(|key| key.signs_from).find(|start| *start > now);
                let next = state.keys.iter().find(|key| key.signs_from.is_none()).ok_or("no key is next")?;
                let due = next.published_at + (MAX_STALENESS + 5) * 1_000_000 <= now;
                (if scheduled.is_none() && due { 200 } else { 202 }, scheduled.is_none())
            }
            Request::RevokeKey { .. } => (200, answer.body["revoked"] == true),
            Request::Register => unreachable!("it has no answer"),
        };
        if (answer.status, changed) == (status, change) {
            return Ok(());
        }
        Err(format!(
            "expected {status} and change {change}, received {} {} and change {changed}",
            answer.status, answer.body
        ))
    }

    fn active_or(&self, agent: usize, otherwise: u16) -> u16 {
        if self.model.now().agent_state(agent).status == Status::Active { otherwise } else { 403 }
    }

    /// Verifies the new tokens, and some of the others, with both verifiers at every service.
    async fn verify_tokens(&mut self, turn: usize, new: usize, others: usize) -> Result<(), String> {
        let now = self.environment.clock.now().micros();
        let old = self.model.tokens.len() - new;
        let in_turn = (0..others.min(old)).map(|other| (turn * others + other) % old);
        for number in in_turn.chain(old..old + new) {
            for at in 0..SERVICES {
                self.verify_with_both(number, at, now).await?;
            }
        }
        Ok(())
    }

    async fn verify_with_both(&mut self, number: usize, at: usize, now: i64) -> Result<(), String> {
        loop {
            let (_, floor) = self.environment.feed_position().await;
            let verifier = Verifier { known_state: self.model.newest(), now, floor, knows_floor: true };
            let outcome = match self.expect_outcome(number, at, "the API", verifier).await {
                Ok(()) => self.verify_with_sidecar(number, at, floor).await,
                contradiction => contradiction,
            };
            // The control plane may have raised the floor or removed keys meanwhile: then the verification is
            // repeated.
            if outcome.is_ok() {
                return outcome;
            } else if self.update_keys().await? {
                self.wait_for_sidecar().await?;
            } else if self.environment.feed_position().await.1 == floor {
                return outcome;
            }
        }
    }

    async fn verify_with_sidecar(&self, number: usize, at: usize, floor: i64) -> Result<(), String> {
        let Some(SidecarState { state, confirmed: (earliest, latest) }) = self.sidecar_state else {
            return self.expect_unavailable(at, "view_missing").await;
        };
        let age_since = |confirmed| self.environment.clock.now().micros() - confirmed;
        if age_since(latest) >= MAX_STALENESS * 1_000_000 {
            return self.expect_unavailable(at, "view_stale").await;
        }
        let may_be_stale = age_since(earliest) >= MAX_STALENESS * 1_000_000;
        if may_be_stale && self.expect_unavailable(at, "view_stale").await.is_ok() {
            return Ok(());
        }
        let now = self.environment.sidecar_clock.now().micros();
        self.expect_outcome(number, at, "the sidecar", Verifier { known_state: state, now, floor, knows_floor: false })
            .await
    }

    /// Checks that the sidecar refuses every request for this reason.
    async fn expect_unavailable(&self, at: usize, reason: &str) -> Result<(), String> {
        let outcome =
            VerifyOutcome::from_check_result(&self.environment.check(&self.environment.services[at].id, None).await);
        let expected = VerifyOutcome::refused(503, reason);
        if outcome == expected { Ok(()) } else { Err(format!("the sidecar says {outcome:?}, not {expected:?}")) }
    }

    async fn expect_outcome(&self, number: usize, at: usize, name: &str, verifier: Verifier) -> Result<(), String> {
        let (token, service) = (&self.model.tokens[number], &self.environment.services[at]);
        let expected = self.model.allowed_outcomes(token, at, verifier);
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
            "{name} says of token {number} (agent {}, service {:?}, rev {}) at service {at}: {outcome:?}, which is none of \
             {expected:?}; sidecar_state up to {}, floor {}, revisions {revisions:?}",
            token.agent, token.service, token.rev, self.model.states[verifier.known_state].revision, verifier.floor
        ))
    }
}

async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    futures_util::future::join_all(futures).await
}
