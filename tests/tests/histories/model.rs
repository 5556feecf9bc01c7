//! What must be true: every state the deployment was ever in, and what a token is worth in each.
//!
//! Nothing is forgotten here and nothing is clever: a verdict is looked up in the state that the judge
//! should have in mind, which is the newer of what it was told and what the token was told.

use crate::step::{MAX_STALENESS, PERMISSIONS, ROLE_NAMES, Status};
use countersign_tests::VerifyOutcome;
use std::collections::{BTreeMap, BTreeSet};

/// Tolerance for `nbf` and `iat`, in seconds.
const LEEWAY: i64 = 30;

/// One state between two revisions.
#[derive(Debug, Clone, Default)]
pub struct State {
    pub revision: i64,
    /// Agents to which something happened; the others are active and never were cut off.
    pub agents: BTreeMap<usize, Condition>,
    /// By service and name, which of all roles ever made it is.
    pub roles: BTreeMap<(usize, usize), usize>,
    /// By role, also of those that are gone.
    pub permissions: BTreeMap<usize, usize>,
    /// By service, agent and role: until when, in microseconds.
    pub grants: BTreeMap<(usize, usize, usize), Option<i64>>,
    /// Of agents of whom something was said, as written in JSON.
    pub trust: BTreeMap<usize, String>,
    /// Services that take no unbound tokens.
    pub strict: BTreeSet<usize>,
    pub dead_logins: BTreeSet<usize>,
    pub dead_tokens: BTreeSet<usize>,
    /// Signing keys whose tokens are believed, in the order of their publication.
    pub keys: Vec<Key>,
    /// How many signing keys were revoked so far.
    pub emergencies: i64,
}

/// A signing key; instants in microseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    pub kid: String,
    pub published_at: i64,
    pub signs_from: Option<i64>,
}

/// What was done to an agent.
#[derive(Debug, Clone, Copy)]
pub struct Condition {
    pub status: Status,
    pub since: i64,
    pub cutoff: i64,
}

/// A role that was made once.
#[derive(Debug)]
pub struct Role {
    pub id: String,
    pub name: usize,
    pub made_at: i64,
}

/// A login.
#[derive(Debug)]
pub struct Login {
    pub agent: usize,
    pub id: String,
    pub begun_revision: i64,
    /// All its refresh tokens, the newest last.
    pub refresh: Vec<String>,
    /// Challenge and signature.
    pub answer: (String, String),
}

/// An access token.
#[derive(Debug)]
pub struct Token {
    pub text: String,
    pub id: String,
    /// The key that signed it.
    pub kid: String,
    pub agent: usize,
    pub login: usize,
    /// The service it is for; none if it is unbound.
    pub service: Option<usize>,
    pub rev: i64,
    pub issued_at: i64,
    pub expires_at: i64,
    /// The last state there was when it was handed out: its claims are of a state up to this one.
    pub handed_out: usize,
}

/// Who judges: what it was told last, the time on its clock in microseconds, and the floor of the deployment.
#[derive(Debug, Clone, Copy)]
pub struct Judge {
    pub told: usize,
    pub now: i64,
    pub floor: i64,
    /// Whether it surely knows that floor.
    pub knows_floor: bool,
}

/// All that ever was.
#[derive(Debug)]
pub struct Model {
    pub states: Vec<State>,
    pub agents: Vec<(String, String)>,
    pub roles: Vec<Role>,
    pub logins: Vec<Login>,
    pub tokens: Vec<Token>,
}

impl State {
    pub fn believes(&self, kid: &str) -> bool {
        self.keys.iter().any(|key| key.kid == kid)
    }

    pub fn condition(&self, agent: usize) -> Condition {
        self.agents.get(&agent).copied().unwrap_or(Condition { status: Status::Active, since: 0, cutoff: 0 })
    }

    /// Whether a service takes unbound tokens from now on.
    pub fn accept_unbound(&mut self, service: usize, accepted: bool) {
        self.strict.remove(&service);
        self.strict.extend((!accepted).then_some(service));
    }

    /// Roles that an agent holds at a service at an instant.
    fn held(&self, service: usize, agent: usize, now: i64) -> BTreeSet<usize> {
        let mine = self.grants.iter().filter(|((at, who, _), _)| (*at, *who) == (service, agent));
        mine.filter(|(_, until)| until.is_none_or(|end| now < end)).map(|((_, _, role), _)| *role).collect()
    }
}

impl Model {
    pub fn new(revision: i64, keys: Vec<Key>) -> Self {
        let first = State { revision, keys, strict: BTreeSet::from([1]), ..State::default() };
        Self { states: vec![first], agents: Vec::new(), roles: Vec::new(), logins: Vec::new(), tokens: Vec::new() }
    }

    pub fn newest(&self) -> usize {
        self.states.len() - 1
    }

    pub fn now(&self) -> &State {
        self.states.last().unwrap()
    }

    /// Goes on to the next state.
    pub fn become_at(&mut self, revision: i64, change: impl FnOnce(&mut State)) {
        let mut next = self.now().clone();
        next.revision = revision;
        change(&mut next);
        self.states.push(next);
    }

    /// What a judge may say of a token at a service: one verdict, or two where clocks run apart.
    pub fn verdicts(&self, token: &Token, service: usize, judge: Judge) -> Vec<VerifyOutcome> {
        let refused = |status, reason| vec![VerifyOutcome::refused(status, reason)];
        let Judge { told, now, floor, knows_floor } = judge;
        if !self.states[told].believes(&token.kid) {
            return if self.may_be_unknown(token, told) { refused(401, "token_key_unknown") } else { Vec::new() };
        }
        let seconds = |micros: i64| micros.div_euclid(1_000_000);
        if seconds(now) >= token.expires_at {
            return refused(401, "token_expired");
        }
        if token.issued_at * 1_000_000 > now + LEEWAY * 1_000_000 {
            return refused(401, "token_not_yet_valid");
        }
        match token.service {
            Some(bound) if bound != service => return refused(401, "token_audience_mismatch"),
            None if self.states[told].strict.contains(&service) => return refused(401, "token_unbound"),
            _ => {}
        }
        let mut verdicts = Vec::new();
        if token.rev < floor {
            verdicts.push(VerifyOutcome::refused(401, "token_superseded"));
            if knows_floor {
                return verdicts;
            }
        }
        match self.death(token, told) {
            Some((status, reason)) => verdicts.push(VerifyOutcome::refused(status, reason)),
            None => verdicts.extend(self.standings(token, service, told, now)),
        }
        verdicts
    }

    /// Whether the key may be one that a judge does not believe: it is gone, or a revocation let it sign at once.
    fn may_be_unknown(&self, token: &Token, told: usize) -> bool {
        let gone = self.states[..=told].iter().any(|state| state.believes(&token.kid));
        gone || self.states[token.handed_out].emergencies > self.states[told].emergencies
    }

    /// What is wrong with the key that signed a token which was just handed out, if anything is.
    pub fn early(&self, token: &Token) -> Option<String> {
        let published = self.states.iter().find(|state| state.believes(&token.kid))?;
        let key = published.keys.iter().find(|key| key.kid == token.kid)?;
        let first = self.states[0].keys.first().is_some_and(|first| first.kid == key.kid);
        let hurried = self.now().emergencies > published.emergencies;
        let early = token.issued_at * 1_000_000 < key.published_at + MAX_STALENESS * 1_000_000;
        (early && !first && !hurried).then(|| format!("{key:?} signs at {}", token.issued_at))
    }

    /// Takes over which keys are believed; one that is gone without having been revoked has no living token.
    pub fn take_keys(&mut self, revision: i64, (keys, emergencies): (Vec<Key>, i64), now: i64) -> Result<(), String> {
        let gone = self.now().keys.iter().filter(|old| !keys.iter().any(|key| key.kid == old.kid));
        let lives = |token: &&Token| now < token.expires_at * 1_000_000;
        let orphaned = gone.filter(|key| self.tokens.iter().filter(lives).any(|token| token.kid == key.kid));
        let orphaned: Vec<_> = orphaned.map(|key| key.kid.clone()).collect();
        let revoked = usize::try_from(emergencies - self.now().emergencies).unwrap();
        if orphaned.len() > revoked {
            return Err(format!(
                "tokens live under {orphaned:?}, which are gone, though only {revoked} of them revoked"
            ));
        }
        self.become_at(revision, |state| (state.keys, state.emergencies) = (keys, emergencies));
        Ok(())
    }

    fn state_of(&self, token: &Token) -> usize {
        self.states.partition_point(|state| state.revision <= token.rev) - 1
    }

    /// Why the token is dead for who was told this much.
    fn death(&self, token: &Token, told: usize) -> Option<(u16, &'static str)> {
        let state = &self.states[told];
        let Condition { status, since, cutoff } = state.condition(token.agent);
        // A status from before the token is overridden by it: who was suspended got none.
        match status {
            Status::Suspended if since > token.rev => return Some((403, "agent_suspended")),
            Status::Revoked if since > token.rev => return Some((403, "agent_revoked")),
            _ => {}
        }
        let number = self.tokens.iter().position(|other| other.id == token.id);
        let revoked = number.is_some_and(|number| state.dead_tokens.contains(&number));
        let dead = token.rev < cutoff || revoked || state.dead_logins.contains(&token.login);
        dead.then_some((401, "token_revoked"))
    }

    fn standings(&self, token: &Token, service: usize, told: usize, now: i64) -> Vec<VerifyOutcome> {
        let issued = self.state_of(token);
        let issued_at = token.issued_at * 1_000_000;
        let mut verdicts = Vec::new();
        if issued <= told {
            // A clock that is behind may see a role as live that had ended when the token was issued: the
            // claims do not name it, a record may.
            for instant in BTreeSet::from([now, now.max(issued_at)]) {
                verdicts.push(self.known(token, (told, told), &self.states[told].held(service, token.agent, instant)));
            }
        }
        if told < token.handed_out {
            // The claims may be newer than all that the judge was told, as of any state until then.
            for state in issued..=token.handed_out {
                verdicts.push(self.claimed(token, service, (state, told), now));
            }
        }
        verdicts
    }

    /// By the claims alone; and, where the token is not newer than all that the judge was told or one of its
    /// roles has ended, by the definitions that the judge was told.
    fn claimed(&self, token: &Token, service: usize, (state, told): (usize, usize), now: i64) -> VerifyOutcome {
        if token.service != Some(service) {
            return self.known(token, (state, told), &BTreeSet::new());
        }
        let claimed = self.states[state].held(service, token.agent, token.issued_at * 1_000_000);
        let at_now = self.states[state].held(service, token.agent, now);
        let live: BTreeSet<_> = claimed.intersection(&at_now).copied().collect();
        let defined = live.iter().filter_map(|role| self.states[told].roles.get(&(service, self.roles[*role].name)));
        let defined = defined.filter(|role| self.roles[**role].made_at <= token.rev).copied().collect();
        let newer = token.rev > self.states[told].revision;
        if newer && live == claimed {
            self.known(token, (state, state), &live)
        } else {
            self.known(token, (state, told), &defined)
        }
    }

    /// Somebody known, with these roles, the trust of one state and the definitions of another.
    fn known(&self, token: &Token, (state, defined): (usize, usize), roles: &BTreeSet<usize>) -> VerifyOutcome {
        let names: BTreeSet<_> = roles.iter().map(|role| ROLE_NAMES[self.roles[*role].name].to_owned()).collect();
        let permissions: BTreeSet<_> = roles
            .iter()
            .flat_map(|role| PERMISSIONS[self.states[defined].permissions[role]])
            .map(ToString::to_string)
            .collect();
        let (id, name) = self.agents[token.agent].clone();
        let (roles, permissions) = (names.into_iter().collect(), permissions.into_iter().collect());
        let trust = self.states[state].trust.get(&token.agent).map_or("50", String::as_str).to_owned();
        VerifyOutcome::Accepted { id, name, roles, permissions, trust }
    }
}
