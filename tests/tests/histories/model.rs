//! Predicts the outcome of a verification from all states that the Countersign deployment was ever in.
//!
//! The model stores every state and looks outcomes up: the relevant state is the newer of the state that the verifier
//! received last and the state at which the token was issued.

use crate::operation::{MAX_STALENESS, PERMISSIONS, ROLE_NAMES, SCOPES, Status};
use countersign_tests::VerifyOutcome;
use std::collections::{BTreeMap, BTreeSet};

/// Tolerance for `nbf` and `iat`, in seconds.
const LEEWAY: i64 = 30;

/// The trust score of an agent without feedback, as JSON text.
pub const INITIAL_TRUST: &str = "50";

/// The state after a revision.
#[derive(Debug, Clone, Default)]
pub struct State {
    pub revision: i64,
    /// Agents whose status was set; all other agents are active and have no cutoff revision.
    pub agents: BTreeMap<usize, AgentState>,
    /// The current role by service and name, as an index into [`Model::roles`].
    pub roles: BTreeMap<(usize, usize), usize>,
    /// Permissions by role, including deleted roles.
    pub permissions: BTreeMap<usize, usize>,
    /// Expiry in microseconds by service, agent and role.
    pub grants: BTreeMap<(usize, usize, usize), Option<i64>>,
    /// Revision of the latest role assignment or revocation by service and agent.
    pub roles_changed: BTreeMap<(usize, usize), i64>,
    /// Trust scores as JSON text, for agents with feedback.
    pub trust: BTreeMap<usize, String>,
    /// Services that reject unbound tokens.
    pub rejecting_unbound: BTreeSet<usize>,
    /// When a request ended the session of each login, in microseconds.
    pub revoked_logins: BTreeMap<usize, i64>,
    pub revoked_tokens: BTreeSet<usize>,
    /// Signing keys that verify tokens, in order of publication.
    pub keys: Vec<Key>,
    /// Number of signing keys revoked so far.
    pub key_revocations: i64,
}

/// A signing key; times in microseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    pub kid: String,
    pub published_at: i64,
    pub signs_from: Option<i64>,
}

/// Status and cutoff revision of an agent, with the revision of the last status change.
#[derive(Debug, Clone, Copy)]
pub struct AgentState {
    pub status: Status,
    pub since: i64,
    pub cutoff: i64,
}

/// A role, current or deleted.
#[derive(Debug)]
pub struct Role {
    pub id: String,
    pub name: usize,
    pub created_at: i64,
}

/// A login and its session.
#[derive(Debug)]
pub struct Login {
    pub agent: usize,
    pub id: String,
    pub start_revision: i64,
    /// All refresh tokens of the session, newest last.
    pub refresh: Vec<String>,
    pub proof: Proof,
    /// The scope of the session.
    pub scope: Scope,
}

/// What an agent has logged in with.
#[derive(Debug)]
pub enum Proof {
    /// The id of a challenge, and the signature of its nonce.
    Challenge(String, String),
    /// A client assertion.
    Assertion(String),
}

/// The permissions that a token may grant at most; `None` if its scope sets no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope(Option<BTreeSet<&'static str>>);

impl Scope {
    /// One of the scopes that OAuth clients ask for.
    pub fn requested(number: Option<usize>) -> Self {
        Self(number.map(|number| SCOPES[number]).filter(|text| !text.is_empty()).map(|text| text.split(' ').collect()))
    }

    /// What remains of a scope if a refresh asks for another one.
    pub fn narrowed_to(&self, other: &Self) -> Self {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Self(Some(one.intersection(other).copied().collect())),
            (one, other) => Self(one.clone().or_else(|| other.clone())),
        }
    }

    /// Whether a token with this scope may grant a permission.
    pub fn contains(&self, permission: &str) -> bool {
        self.0.as_ref().is_none_or(|scope| scope.contains(permission))
    }
}

/// An access token.
#[derive(Debug)]
pub struct Token {
    pub text: String,
    pub id: String,
    /// The key that signed the token.
    pub kid: String,
    pub agent: usize,
    pub login: usize,
    /// The service in `aud`; none if the token is unbound.
    pub service: Option<usize>,
    pub scope: Scope,
    pub rev: i64,
    pub issued_at: i64,
    pub expires_at: i64,
    /// The newest state when the token was returned. The claims of the token come from this state or an earlier state.
    pub latest_state_at_issue: usize,
}

/// The verifier's knowledge: the state that it received last, its clock in microseconds, and the revision floor (oldest
/// revision from which a sidecar can resume) of the Countersign deployment.
#[derive(Debug, Clone, Copy)]
pub struct Verifier {
    pub known_state: usize,
    pub now: i64,
    pub floor: i64,
    /// Whether the verifier certainly has the revision floor `floor`, which a sidecar may receive later than the API.
    pub knows_floor: bool,
}

/// Everything created so far, and all states.
#[derive(Debug)]
pub struct Model {
    pub states: Vec<State>,
    pub agents: Vec<(String, String)>,
    pub roles: Vec<Role>,
    pub logins: Vec<Login>,
    pub tokens: Vec<Token>,
}

impl State {
    pub fn trusts_key(&self, kid: &str) -> bool {
        self.keys.iter().any(|key| key.kid == kid)
    }

    pub fn agent_state(&self, agent: usize) -> AgentState {
        self.agents.get(&agent).copied().unwrap_or(AgentState { status: Status::Active, since: 0, cutoff: 0 })
    }

    /// Sets whether a service accepts unbound tokens.
    pub fn accept_unbound(&mut self, service: usize, accepted: bool) {
        self.rejecting_unbound.remove(&service);
        self.rejecting_unbound.extend((!accepted).then_some(service));
    }

    /// Roles that an agent holds at a service at a time.
    fn roles_of(&self, service: usize, agent: usize, now: i64) -> BTreeSet<usize> {
        let mine = self.grants.iter().filter(|((at, holder, _), _)| (*at, *holder) == (service, agent));
        mine.filter(|(_, until)| until.is_none_or(|end| now < end)).map(|((_, _, role), _)| *role).collect()
    }
}

impl Model {
    pub fn new(revision: i64, keys: Vec<Key>) -> Self {
        let first = State { revision, keys, rejecting_unbound: BTreeSet::from([1]), ..State::default() };
        Self { states: vec![first], agents: Vec::new(), roles: Vec::new(), logins: Vec::new(), tokens: Vec::new() }
    }

    pub fn newest(&self) -> usize {
        self.states.len() - 1
    }

    pub fn now(&self) -> &State {
        self.states.last().unwrap()
    }

    /// Appends a state.
    pub fn push_state(&mut self, revision: i64, change: impl FnOnce(&mut State)) {
        let mut next = self.now().clone();
        next.revision = revision;
        change(&mut next);
        self.states.push(next);
    }

    /// The possible outcomes of a verification: several where the sidecar may lag behind.
    pub fn allowed_outcomes(&self, token: &Token, service: usize, verifier: Verifier) -> Vec<VerifyOutcome> {
        let refused = |status, reason| vec![VerifyOutcome::refused(status, reason)];
        let Verifier { known_state, now, floor, knows_floor } = verifier;
        if !self.states[known_state].trusts_key(&token.kid) {
            let may_be_unknown = self.key_may_be_unknown(token, known_state);
            return if may_be_unknown { refused(401, "token_key_unknown") } else { Vec::new() };
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
            None if self.states[known_state].rejecting_unbound.contains(&service) => {
                return refused(401, "token_unbound");
            }
            _ => {}
        }
        let mut outcomes = Vec::new();
        if token.rev < floor {
            outcomes.push(VerifyOutcome::refused(401, "token_superseded"));
            if knows_floor {
                return outcomes;
            }
        }
        match self.rejection(token, known_state) {
            Some((status, reason)) => outcomes.push(VerifyOutcome::refused(status, reason)),
            None => outcomes.extend(self.accepted_outcomes(token, service, known_state, now)),
        }
        outcomes
    }

    /// Whether a verifier possibly lacks the key: the key was removed, or a revocation let the next key sign before the
    /// verifier received it.
    fn key_may_be_unknown(&self, token: &Token, known_state: usize) -> bool {
        let gone = self.states[..=known_state].iter().any(|state| state.trusts_key(&token.kid));
        gone || self.states[token.latest_state_at_issue].key_revocations > self.states[known_state].key_revocations
    }

    /// An error if the key signed before all verifiers could have received it.
    pub fn premature_key_use(&self, token: &Token) -> Option<String> {
        let published = self.states.iter().find(|state| state.trusts_key(&token.kid))?;
        let key = published.keys.iter().find(|key| key.kid == token.kid)?;
        let first = self.states[0].keys.first().is_some_and(|first| first.kid == key.kid);
        let revoked_since = self.now().key_revocations > published.key_revocations;
        let early = token.issued_at * 1_000_000 < key.published_at + MAX_STALENESS * 1_000_000;
        (early && !first && !revoked_since).then(|| format!("{key:?} signs at {}", token.issued_at))
    }

    /// Sets the signing keys. A key may only be removed if it was revoked or all its tokens have expired.
    pub fn set_keys(
        &mut self,
        revision: i64,
        (keys, key_revocations): (Vec<Key>, i64),
        now: i64,
    ) -> Result<(), String> {
        let gone = self.now().keys.iter().filter(|old| !keys.iter().any(|key| key.kid == old.kid));
        let lives = |token: &&Token| now < token.expires_at * 1_000_000;
        let orphaned = gone.filter(|key| self.tokens.iter().filter(lives).any(|token| token.kid == key.kid));
        let orphaned: Vec<_> = orphaned.map(|key| key.kid.clone()).collect();
        let revoked = usize::try_from(key_revocations - self.now().key_revocations).unwrap();
        if orphaned.len() > revoked {
            return Err(format!(
                "keys {orphaned:?} are removed, whose tokens are valid, but only {revoked} were revoked"
            ));
        }
        self.push_state(revision, |state| (state.keys, state.key_revocations) = (keys, key_revocations));
        Ok(())
    }

    /// Index of the newest state up to a revision.
    pub fn state_at(&self, revision: i64) -> usize {
        self.states.partition_point(|state| state.revision <= revision).saturating_sub(1)
    }

    /// The reason for which a verifier with this state rejects the token, apart from its claims.
    fn rejection(&self, token: &Token, known_state: usize) -> Option<(u16, &'static str)> {
        let state = &self.states[known_state];
        let AgentState { status, since, cutoff } = state.agent_state(token.agent);
        // A token proves that its agent was active after all older status changes, because a suspended agent receives no token.
        match status {
            Status::Suspended if since > token.rev => return Some((403, "agent_suspended")),
            Status::Revoked if since > token.rev => return Some((403, "agent_revoked")),
            _ => {}
        }
        let number = self.tokens.iter().position(|other| other.id == token.id);
        let revoked = number.is_some_and(|number| state.revoked_tokens.contains(&number));
        let dead = token.rev < cutoff || revoked || state.revoked_logins.contains_key(&token.login);
        dead.then_some((401, "token_revoked"))
    }

    fn accepted_outcomes(&self, token: &Token, service: usize, known_state: usize, now: i64) -> Vec<VerifyOutcome> {
        let issued = self.state_at(token.rev);
        let issued_at = token.issued_at * 1_000_000;
        let mut outcomes = Vec::new();
        if issued <= known_state {
            // If the sidecar's clock lags, a role that had expired when the token was issued may still be valid for the sidecar:
            // the claims do not contain such a role, but the sidecar's data may.
            let state = &self.states[known_state];
            let changed_at = state.roles_changed.get(&(service, token.agent));
            let is_changed = changed_at.is_some_and(|revision| *revision > token.rev);
            let may_have_roles =
                if is_changed { BTreeSet::from([true]) } else { self.may_contain_roles(token, service) };
            for time in BTreeSet::from([now, now.max(issued_at)]) {
                for has_roles in &may_have_roles {
                    let roles = if *has_roles { state.roles_of(service, token.agent, time) } else { BTreeSet::new() };
                    outcomes.push(self.accepted(token, (known_state, known_state), &roles));
                }
            }
        }
        if known_state < token.latest_state_at_issue {
            // The claims may be newer than the sidecar's view of the data, because claims come from any state between
            // the issue and the return of the token.
            let latest = token.latest_state_at_issue;
            for (state, trust) in (issued..=latest).flat_map(|state| (state..=latest).map(move |trust| (state, trust)))
            {
                if token.service.is_some() {
                    outcomes.push(self.outcome_by_claims(token, service, (state, trust, known_state), now));
                } else {
                    let roles = self.roles_by_grants(token, service, (state, known_state), now);
                    for has_roles in self.may_contain_roles(token, service) {
                        let roles = if has_roles { roles.clone() } else { BTreeSet::new() };
                        outcomes.push(self.accepted(token, (trust, known_state), &roles));
                    }
                }
            }
        }
        outcomes
    }

    /// Whether the token contains the roles of its agent at a service. An unbound token contains them if the service accepted unbound
    /// tokens when it was issued, and the setting may have changed meanwhile.
    fn may_contain_roles(&self, token: &Token, service: usize) -> BTreeSet<bool> {
        let issued = self.state_at(token.rev)..=token.latest_state_at_issue;
        let accepted = |state: usize| !self.states[state].rejecting_unbound.contains(&service);
        issued.map(|state| token.service.is_some() || accepted(state)).collect()
    }

    /// The roles of an unbound token whose grants come from a state. A verifier finds only the roles that it knows.
    fn roles_by_grants(
        &self,
        token: &Token,
        service: usize,
        (state, known_state): (usize, usize),
        now: i64,
    ) -> BTreeSet<usize> {
        let granted = self.states[state].roles_of(service, token.agent, now.max(token.issued_at * 1_000_000));
        let known = &self.states[known_state].roles;
        let is_known = |role: &usize| known.get(&(service, self.roles[*role].name)) == Some(role);
        granted.into_iter().filter(is_known).collect()
    }

    /// The outcome according to the claims. If the token is not newer than the sidecar's view of the data, or one of
    /// its roles has expired, permissions come from the view. The trust score of a token may be newer than its roles,
    /// because the score changes before its revision is published, and a token is issued in several statements.
    fn outcome_by_claims(
        &self,
        token: &Token,
        service: usize,
        (state, trust, known_state): (usize, usize, usize),
        now: i64,
    ) -> VerifyOutcome {
        let claimed = self.states[state].roles_of(service, token.agent, token.issued_at * 1_000_000);
        let at_now = self.states[state].roles_of(service, token.agent, now);
        let live: BTreeSet<_> = claimed.intersection(&at_now).copied().collect();
        let defined =
            live.iter().filter_map(|role| self.states[known_state].roles.get(&(service, self.roles[*role].name)));
        let defined = defined.filter(|role| self.roles[**role].created_at <= token.rev).copied().collect();
        let newer = token.rev > self.states[known_state].revision;
        if newer && live == claimed {
            self.accepted(token, (trust, state), &live)
        } else {
            self.accepted(token, (trust, known_state), &defined)
        }
    }

    /// The token is accepted: with these roles, the trust score of the state `trust`, and the permissions of the state `defined`.
    fn accepted(&self, token: &Token, (trust, defined): (usize, usize), roles: &BTreeSet<usize>) -> VerifyOutcome {
        let names: BTreeSet<_> = roles.iter().map(|role| ROLE_NAMES[self.roles[*role].name].to_owned()).collect();
        let permissions: BTreeSet<_> = roles
            .iter()
            .flat_map(|role| PERMISSIONS[self.states[defined].permissions[role]])
            .filter(|permission| token.scope.contains(permission))
            .map(ToString::to_string)
            .collect();
        let (id, name) = self.agents[token.agent].clone();
        let (roles, permissions) = (names.into_iter().collect(), permissions.into_iter().collect());
        let trust = self.states[trust].trust.get(&token.agent).map_or(INITIAL_TRUST, String::as_str).to_owned();
        VerifyOutcome::Accepted { id, name, roles, permissions, trust }
    }
}
