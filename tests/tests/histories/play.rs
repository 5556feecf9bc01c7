//! Plays a history, and looks after every step whether all that is said is true.

use crate::{
    acts::{Done, KEYS, Keys, Outcome, Ready, enter_login, enter_tokens},
    environment::Environment,
    model::{Judge, Model},
    step::{Act, MAX_STALENESS, ROLE_NAMES, SERVICES, Status, Step},
};
use countersign_process::Clock;
use countersign_tests::VerifyOutcome;
use std::time::Duration;

/// Tokens that are looked at after each step besides those that are new: some of the others in turn.
const OTHERS: usize = 3;

/// A history that is being played.
struct Play {
    environment: Environment,
    model: Model,
    keys: Keys,
    /// Whether the stream can be resumed.
    connected: bool,
    /// What the sidecar was told last; nothing if it was never told anything.
    told: Option<Told>,
    /// When the sidecar was started, in microseconds: it was told nothing before.
    started: i64,
    turn: usize,
}

/// What was not true, and after which step.
#[derive(Debug)]
pub struct Untrue {
    pub at: usize,
    pub error: String,
}

/// What the sidecar knows.
#[derive(Debug, Clone, Copy)]
struct Told {
    /// Which state.
    state: usize,
    /// Between which instants this was confirmed last, in microseconds: it asks when its second comes.
    confirmed: (i64, i64),
}

/// Plays a history on the database at the URL, or on SQLite; the error says what was not true.
pub async fn play(steps: &[Step], postgres: Option<String>) -> Result<(), Untrue> {
    let environment = Environment::new(postgres).await;
    let (revision, _) = environment.position().await;
    let (keys, _) = environment.keys().await;
    let (model, started) = (Model::new(revision, keys), environment.clock.now().micros());
    let mut play = Play { environment, model, keys: Keys::new(), connected: true, told: None, started, turn: 0 };
    play.set_out().await.map_err(|error| Untrue { at: 0, error })?;
    for (number, step) in steps.iter().enumerate() {
        let said = |error| Untrue { at: number, error: format!("step {number}, {step:?}: {error}") };
        play.step(step).await.map_err(said)?;
    }
    play.finish().await.map_err(|error| Untrue { at: steps.len(), error: format!("at the end: {error}") })
}

impl Play {
    async fn step(&mut self, step: &Step) -> Result<(), String> {
        let before = self.model.tokens.len();
        self.environment.clock.advance(Duration::from_millis(1));
        match step {
            Step::Act(acts) => self.act(acts).await?,
            Step::Advance(seconds) => self.environment.clock.advance(Duration::from_secs((*seconds).into())),
            Step::Lag(seconds) => self.environment.lagging.be_behind(*seconds),
            Step::Cut if self.connected => {
                self.settle().await?;
                self.connected = false;
                self.environment.cut();
            }
            Step::Resume if !self.connected => {
                self.connected = true;
                self.environment.resume();
                return Ok(());
            }
            Step::Cut | Step::Resume => return Ok(()),
            Step::RestartSidecar => {
                (self.told, self.started) = (None, self.environment.clock.now().micros());
                self.environment.restart_sidecar().await;
                if self.connected {
                    return Ok(());
                }
            }
            Step::RestartPlane { killed, token_seconds } => {
                self.environment.restart_plane(*killed, *token_seconds, self.connected).await;
            }
        }
        self.learn_keys().await?;
        self.settle().await?;
        self.turn += 1;
        self.look(self.turn, self.model.tokens.len() - before, OTHERS).await
    }

    /// Two agents and all roles, so that something can happen from the first step.
    async fn set_out(&mut self) -> Result<(), String> {
        self.act(&[Act::Register]).await?;
        self.act(&[Act::Register]).await?;
        for (service, name) in (0..SERVICES).flat_map(|service| (0..ROLE_NAMES.len()).map(move |name| (service, name)))
        {
            self.act(&[Act::CreateRole { service, name, permissions: 0 }]).await?;
        }
        self.settle().await
    }

    async fn finish(mut self) -> Result<(), String> {
        if !self.connected {
            self.connected = true;
            self.environment.resume();
        }
        self.settle().await?;
        self.look(0, self.model.tokens.len(), 0).await
    }

    /// Keys are removed by themselves when their time has come. Says whether that was news.
    async fn learn_keys(&mut self) -> Result<bool, String> {
        let noted = self.environment.noted_since(self.model.now().revision).await;
        let news = noted.iter().rfind(|noted| noted.facet == KEYS).map(|noted| noted.revision);
        if let Some(revision) = news {
            self.model.take_keys(revision, self.environment.keys().await, self.environment.clock.now().micros())?;
        }
        Ok(news.is_some())
    }

    /// Waits until the sidecar was told everything, if it can be.
    async fn settle(&mut self) -> Result<(), String> {
        if self.connected {
            self.environment.settle().await?;
            let now = self.environment.clock.now().micros();
            // It answers, so the last confirmation is not too old; one that has just started may have had its first
            // before the clock went on.
            let earliest = self.told.map_or(self.started, |told| told.confirmed.0);
            let fresh = now - MAX_STALENESS * 1_000_000 + 1;
            self.told = Some(Told { state: self.model.newest(), confirmed: (earliest.max(fresh), now) });
        }
        Ok(())
    }

    /// Does all of them at the same time.
    async fn act(&mut self, acts: &[Act]) -> Result<(), String> {
        let mut ready = Vec::<Ready>::new();
        for act in acts {
            let next = Ready::new(act, &self.environment, &self.model);
            ready.extend(next.filter(|next| !ready.iter().any(|other| other.collides(next))));
        }
        let alone = ready.len() == 1;
        let before = self.model.now().revision;
        let (environment, model, keys) = (&self.environment, &self.model, &self.keys);
        let mut done = join_all(ready.into_iter().map(|ready| ready.send(environment, model, keys))).await;
        self.environment.await_trust_told().await;
        let noted = self.environment.noted_since(before).await;
        if let [(done, outcome)] = done.as_slice()
            && alone
        {
            self.expect(done, outcome, !noted.is_empty())?;
        }
        for noted in &noted {
            if noted.facet == KEYS {
                self.model.take_keys(
                    noted.revision,
                    self.environment.keys().await,
                    self.environment.clock.now().micros(),
                )?;
                continue;
            }
            let (done, outcome) = done
                .iter()
                .find(|(done, _)| done.made(noted))
                .ok_or_else(|| format!("nobody made the change {noted:?}"))?;
            done.apply(&mut self.model, &self.environment, outcome, noted.revision);
        }
        let known = self.model.tokens.len();
        for (done, outcome) in done.drain(..) {
            self.enter(&done, outcome)?;
        }
        self.model.tokens[known..].iter().find_map(|token| self.model.early(token)).map_or(Ok(()), Err)
    }

    /// What an act brought enters the model.
    fn enter(&mut self, done: &Done, outcome: Outcome) -> Result<(), String> {
        let (model, environment) = (&mut self.model, &self.environment);
        match outcome {
            Outcome::Registered { id, name, key } => {
                model.agents.push((id, name));
                self.keys.push(key);
            }
            Outcome::LoggedIn { answer, proof } if answer.status == 200 => {
                let Act::Login { agent, .. } = done.act else { unreachable!("only a login logs in") };
                enter_login(model, environment, agent, &answer.body, proof);
            }
            Outcome::LoggedIn { answer, .. } | Outcome::HttpResponse(answer) if answer.status >= 500 => {
                return Err(format!("answered {} {}", answer.status, answer.body));
            }
            Outcome::HttpResponse(answer) if answer.status == 200 => {
                if let Act::Refresh { login, .. } = done.act {
                    enter_tokens(model, environment, login, &answer.body);
                }
            }
            Outcome::LoggedIn { .. } | Outcome::HttpResponse(_) => {}
        }
        Ok(())
    }

    /// Whether an act that was alone was answered as it must be, and changed what it must.
    fn expect(&self, done: &Done, outcome: &Outcome, changed: bool) -> Result<(), String> {
        let (answer, model, state) = match outcome {
            Outcome::HttpResponse(answer) | Outcome::LoggedIn { answer, .. } => (answer, &self.model, self.model.now()),
            Outcome::Registered { .. } => return Ok(()),
        };
        let named = |service: usize, name: usize| state.roles.get(&(service, name));
        let (status, change) = match done.act {
            Act::CreateRole { service, name, .. } if named(service, name).is_some() => (409, false),
            Act::CreateRole { .. } => (201, true),
            Act::ChangeRole { service, name, .. } if named(service, name).is_none() => (404, false),
            Act::DeleteRole { service, name }
            | Act::Assign { service, name, .. }
            | Act::Revoke { service, name, .. }
                if named(service, name).is_none() =>
            {
                (404, false)
            }
            Act::ChangeRole { .. } | Act::DeleteRole { .. } | Act::Assign { .. } | Act::Feedback { .. } => (200, true),
            Act::Revoke { service, agent: who, name } => {
                (200, named(service, name).is_some_and(|role| state.grants.contains_key(&(service, who, *role))))
            }
            Act::SetUnbound { service, accepted } => (200, state.strict.contains(&service) == accepted),
            Act::SetStatus { agent: who, status } => match (state.condition(who).status, status) {
                (before, after) if before == after => (200, false),
                (Status::Revoked, _) => (409, false),
                _ => (200, true),
            },
            Act::Login { agent: who, .. } => (self.active_or(who, 200), false),
            Act::Refresh { login, first } => {
                let (number, login) = (login, &model.logins[login]);
                let used = first && login.refresh.len() > 1;
                let dead =
                    state.dead_logins.contains(&number) || login.begun_revision < state.condition(login.agent).cutoff;
                let active = self.active_or(login.agent, 200) == 200;
                let ends = used && active && !state.dead_logins.contains(&number);
                (self.active_or(login.agent, if used || dead { 401 } else { 200 }), ends)
            }
            Act::Replay { .. } => (401, false),
            Act::RevokeToken { .. } | Act::RevokeLogin { .. } => (200, changed),
            Act::Rotate => {
                let now = self.environment.clock.now().micros();
                let scheduled = state.keys.iter().filter_map(|key| key.signs_from).find(|start| *start > now);
                let next = state.keys.iter().find(|key| key.signs_from.is_none()).ok_or("no key is next")?;
                let due = next.published_at + (MAX_STALENESS + 5) * 1_000_000 <= now;
                (if scheduled.is_none() && due { 200 } else { 202 }, scheduled.is_none())
            }
            Act::RevokeKey { .. } => (200, answer.body["revoked"] == true),
            Act::Register => unreachable!("it has no answer"),
        };
        if (answer.status, changed) == (status, change) {
            return Ok(());
        }
        Err(format!(
            "expected {status} and change {change}, came {} {} and change {changed}",
            answer.status, answer.body
        ))
    }

    fn active_or(&self, agent: usize, otherwise: u16) -> u16 {
        if self.model.now().condition(agent).status == Status::Active { otherwise } else { 403 }
    }

    /// Asks both at every service about the tokens that are new, and about some of the others.
    async fn look(&mut self, turn: usize, new: usize, others: usize) -> Result<(), String> {
        let now = self.environment.clock.now().micros();
        let old = self.model.tokens.len() - new;
        let in_turn = (0..others.min(old)).map(|other| (turn * others + other) % old);
        for number in in_turn.chain(old..old + new) {
            for at in 0..SERVICES {
                self.ask_both(number, at, now).await?;
            }
        }
        Ok(())
    }

    async fn ask_both(&mut self, number: usize, at: usize, now: i64) -> Result<(), String> {
        loop {
            let (_, floor) = self.environment.position().await;
            let judge = Judge { told: self.model.newest(), now, floor, knows_floor: true };
            let said = match self.hear(number, at, "the API", judge).await {
                Ok(()) => self.ask_sidecar(number, at, floor).await,
                contradiction => contradiction,
            };
            // A control plane raises the floor, and removes keys, when it comes to it.
            if said.is_ok() {
                return said;
            } else if self.learn_keys().await? {
                self.settle().await?;
            } else if self.environment.position().await.1 == floor {
                return said;
            }
        }
    }

    async fn ask_sidecar(&self, number: usize, at: usize, floor: i64) -> Result<(), String> {
        let Some(Told { state, confirmed: (earliest, latest) }) = self.told else {
            return self.hear_nothing(at, "view_missing").await;
        };
        let age_since = |confirmed| self.environment.clock.now().micros() - confirmed;
        if age_since(latest) >= MAX_STALENESS * 1_000_000 {
            return self.hear_nothing(at, "view_stale").await;
        }
        let may_be_stale = age_since(earliest) >= MAX_STALENESS * 1_000_000;
        if may_be_stale && self.hear_nothing(at, "view_stale").await.is_ok() {
            return Ok(());
        }
        let now = self.environment.lagging.now().micros();
        self.hear(number, at, "the sidecar", Judge { told: state, now, floor, knows_floor: false }).await
    }

    /// Whether the sidecar refuses whatever comes, for this reason.
    async fn hear_nothing(&self, at: usize, reason: &str) -> Result<(), String> {
        let said =
            VerifyOutcome::from_check_result(&self.environment.check(&self.environment.services[at].id, None).await);
        let expected = VerifyOutcome::refused(503, reason);
        if said == expected { Ok(()) } else { Err(format!("the sidecar says {said:?}, not {expected:?}")) }
    }

    async fn hear(&self, number: usize, at: usize, who: &str, judge: Judge) -> Result<(), String> {
        let (token, service) = (&self.model.tokens[number], &self.environment.services[at]);
        let expected = self.model.verdicts(token, at, judge);
        let said = if judge.knows_floor {
            self.environment.verify(service, &token.text).await
        } else {
            VerifyOutcome::from_check_result(&self.environment.check(&service.id, Some(&token.text)).await)
        };
        if expected.contains(&said) {
            return Ok(());
        }
        let revisions: Vec<_> = self.model.states.iter().map(|state| state.revision).collect();
        Err(format!(
            "{who} says of token {number} (agent {}, service {:?}, rev {}) at service {at}: {said:?}, which is none of \
             {expected:?}; told up to {}, floor {}, revisions {revisions:?}",
            token.agent, token.service, token.rev, self.model.states[judge.told].revision, judge.floor
        ))
    }
}

async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    futures_util::future::join_all(futures).await
}
