//! Runs a history, and compares API and sidecars with the model after every operation.

use crate::{
    environment::Environment,
    expected_response::expected_response,
    model::{Model, Scope},
    model_updates::{record_login, record_tokens},
    network_operations::Next,
    operation::{Operation, ROLE_NAMES, Request, SERVICES},
    requests::{KEYS, Keys, Outcome, PreparedRequest, SentRequest},
    sidecar_state::SidecarStates,
    sidecars::{Network, SIDECARS},
};
use countersign_process::Clock;
use countersign_tests::HttpResponse;
use futures_util::future::join_all;
use std::time::Duration;

/// Number of older tokens that are verified after each operation in addition to the new tokens.
const OLD_TOKENS_PER_OPERATION: usize = 3;

/// A running history.
pub struct Run {
    pub environment: Environment,
    pub model: Model,
    keys: Keys,
    pub sidecars: SidecarStates,
    /// The rule set in use.
    pub rules: usize,
    /// The revision of the backup.
    pub backup_revision: i64,
    pub round: usize,
}

/// A mismatch between servers and model, and the index of the operation that caused it.
#[derive(Debug)]
pub struct Violation {
    pub operation_index: usize,
    pub error: String,
}

/// Runs a history on this PostgreSQL database, or on SQLite.
pub async fn run(operations: &[Operation], postgres: Option<String>) -> Result<(), Violation> {
    let environment = Environment::new(postgres).await;
    let (revision, _) = environment.feed_position().await;
    let (keys, _) = environment.keys().await;
    let (model, sidecars) = (Model::new(revision, keys), SidecarStates::new(environment.clock.now().micros()));
    let mut run = Run { environment, model, keys: Keys::new(), sidecars, rules: 0, backup_revision: 0, round: 0 };
    let needs_backup = operations.contains(&Operation::OldAddress);
    run.set_up(needs_backup).await.map_err(|error| Violation { operation_index: 0, error })?;
    for (number, operation) in operations.iter().enumerate() {
        let violation =
            |error| Violation { operation_index: number, error: format!("operation {number}, {operation:?}: {error}") };
        run.operation(operation).await.map_err(violation)?;
    }
    let violation = |error| Violation { operation_index: operations.len(), error: format!("at the end: {error}") };
    run.finish().await.map_err(violation)
}

impl Run {
    async fn operation(&mut self, operation: &Operation) -> Result<(), String> {
        let before = self.model.tokens.len();
        self.environment.clock.advance(Duration::from_millis(1));
        match operation {
            Operation::Requests(requests) => self.send(requests).await?,
            Operation::Advance(seconds) => {
                self.environment.clock.advance(Duration::from_secs((*seconds).into()));
                self.sidecars.reports_are_prompt = false;
            }
            Operation::Lag(seconds) => self.environment.sidecar_clock.set_lag(*seconds),
            Operation::Disconnect
            | Operation::Reconnect
            | Operation::Freeze
            | Operation::CutAddress(_)
            | Operation::RestoreAddress(_) => {
                if self.change_network(operation).await? == Next::Continue {
                    return Ok(());
                }
            }
            Operation::OldAddress => {
                if self.offer_old_data().await? == Next::Continue {
                    return Ok(());
                }
            }
            Operation::RestartSidecar => {
                for sidecar in SIDECARS {
                    self.restart_sidecar(sidecar).await?;
                }
                if SIDECARS.iter().all(|sidecar| self.environment.network.reaches(*sidecar)) {
                    return Ok(());
                }
            }
            Operation::ChangeRules { set, invalid_first } => {
                self.wait_for_sidecars().await?;
                self.change_rules(*set, *invalid_first).await?;
            }
            Operation::Receipt { service, requests, crash } => {
                self.requests_with_receipt(*service, requests, *crash).await?;
            }
            Operation::RestartControlPlane { killed, token_seconds } => {
                self.environment.restart_control_plane(*killed, *token_seconds).await;
            }
        }
        self.update_keys().await?;
        self.wait_for_sidecars().await?;
        self.expect_in_force().await?;
        self.round += 1;
        self.verify_tokens(self.round, self.model.tokens.len() - before, OLD_TOKENS_PER_OPERATION).await
    }

    /// Creates two agents and all roles, so that operations have an effect from the start.
    async fn set_up(&mut self, needs_backup: bool) -> Result<(), String> {
        self.send(&[Request::Register]).await?;
        self.send(&[Request::Register]).await?;
        for (service, name) in (0..SERVICES).flat_map(|service| (0..ROLE_NAMES.len()).map(move |name| (service, name)))
        {
            self.send(&[Request::CreateRole { service, name, permissions: 0 }]).await?;
        }
        self.wait_for_sidecars().await?;
        self.environment.sidecars.wait_for_copies().await;
        if needs_backup {
            self.backup_revision = self.model.now().revision;
            self.environment.back_up().await;
        }
        Ok(())
    }

    async fn finish(mut self) -> Result<(), String> {
        self.environment.network = Network::new();
        self.environment.apply_network();
        self.wait_for_sidecars().await?;
        self.verify_tokens(0, self.model.tokens.len(), 0).await
    }

    /// Updates the keys of the model, because the control plane also removes keys without a request. Returns whether
    /// the signing keys changed.
    pub async fn update_keys(&mut self) -> Result<bool, String> {
        let change = self.environment.changes_since(self.model.now().revision).await;
        let key_revision = change.iter().rfind(|change| change.facet == KEYS).map(|change| change.revision);
        if let Some(revision) = key_revision {
            self.model.set_keys(revision, self.environment.keys().await, self.environment.clock.now().micros())?;
        }
        Ok(key_revision.is_some())
    }

    /// Waits until the sidecars that reach the control plane have the newest state.
    pub async fn wait_for_sidecars(&mut self) -> Result<(), String> {
        for sidecar in SIDECARS.into_iter().filter(|sidecar| self.environment.network.reaches(*sidecar)) {
            self.environment.wait_for_sidecar(sidecar).await?;
            let now = self.environment.clock.now().micros();
            for service in 0..SERVICES {
                self.sidecars.decides_with(sidecar, service, self.model.newest(), now);
            }
        }
        Ok(())
    }

    /// Sends the requests concurrently.
    pub async fn send(&mut self, requests: &[Request]) -> Result<(), String> {
        // The control plane also removes expired signing keys without a request.
        self.update_keys().await?;
        let mut prepared = Vec::<PreparedRequest>::new();
        for request in requests {
            let next = PreparedRequest::new(request, &self.environment, &self.model);
            prepared.extend(next.filter(|next| !prepared.iter().any(|other| other.causes_same_change_as(next))));
        }
        let is_single = prepared.len() == 1;
        let before = self.model.now().revision;
        let (environment, model, keys) = (&self.environment, &self.model, &self.keys);
        let sent = join_all(prepared.into_iter().map(|prepared| prepared.send(environment, model, keys))).await;
        self.environment.wait_for_trust_publication().await;
        let change = self.environment.changes_since(before).await;
        if let [(sent, outcome)] = sent.as_slice()
            && is_single
        {
            let is_about_keys = matches!(sent.request, Request::Rotate | Request::RevokeKey { .. });
            let changed = change.iter().any(|change| is_about_keys || change.facet != KEYS);
            self.check_response(sent, outcome, changed)?;
        }
        for change in &change {
            if change.facet == KEYS {
                let (keys, now) = (self.environment.keys().await, self.environment.clock.now().micros());
                self.model.set_keys(change.revision, keys, now)?;
                continue;
            }
            let cause = sent.iter().find(|(sent, _)| sent.caused(change));
            let (sent, outcome) = cause.ok_or_else(|| format!("no request caused the change {change:?}"))?;
            sent.apply(&mut self.model, &self.environment, outcome, change.revision);
        }
        let known_tokens = self.model.tokens.len();
        for (sent, outcome) in sent {
            self.record(&sent, outcome)?;
        }
        let mut new = self.model.tokens[known_tokens..].iter();
        new.find_map(|token| self.model.premature_key_use(token)).map_or(Ok(()), Err)
    }

    /// Adds the created entities of a response to the model.
    fn record(&mut self, sent: &SentRequest, outcome: Outcome) -> Result<(), String> {
        let (model, environment) = (&mut self.model, &self.environment);
        match outcome {
            Outcome::Registered { id, name, key } => {
                model.agents.push((id, name));
                self.keys.push(key);
            }
            Outcome::LoggedIn { response, proof } if response.status == 200 => {
                let Request::Login { agent, scope, .. } = sent.request else { unreachable!("only a login logs in") };
                record_login(model, environment, (agent, Scope::requested(scope)), &response.body, proof);
            }
            Outcome::LoggedIn { response, .. } | Outcome::Response(response) if response.status >= 500 => {
                return Err(format!("the server responded {} {}", response.status, response.body));
            }
            Outcome::Response(response) if response.status == 200 => {
                if let Request::Refresh { login, scope, .. } = sent.request {
                    let scope = model.logins[login].scope.narrowed_to(&Scope::requested(scope));
                    record_tokens(model, environment, (login, scope), &response.body);
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
        let HttpResponse { status: received, body, .. } = response;
        Err(format!("expected {status} and change {change}, received {received} {body} and change {changed}"))
    }
}
