//! Applies the changes that requests cause to the model, and adds the entities in responses to it.

use crate::{
    environment::Environment,
    model::{AgentState, Login, Model, Proof, Role, Scope, State, Token},
    operation::{Request, Status},
    requests::{Outcome, SentRequest},
};
use countersign_process::Clock;
use countersign_tests::{control_plane::text, jwt};
use serde_json::Value;

impl SentRequest {
    /// Appends the state after the change that the request caused to the model.
    pub fn apply(&self, model: &mut Model, environment: &Environment, outcome: &Outcome, revision: i64) {
        let role_number = |service: usize, name: usize| model.now().roles.get(&(service, name)).copied();
        let change: Box<dyn FnOnce(&mut State)> = match self.request {
            Request::CreateRole { service, name, permissions } => {
                let number = add_role(model, name, outcome, revision);
                Box::new(move |state| {
                    state.roles.insert((service, name), number);
                    state.permissions.insert(number, permissions);
                })
            }
            Request::ChangeRole { service, name, permissions } => {
                let number = role_number(service, name).unwrap();
                Box::new(move |state| state.permissions.extend([(number, permissions)]))
            }
            Request::DeleteRole { service, name } => {
                let number = role_number(service, name).unwrap();
                Box::new(move |state| {
                    state.roles.remove(&(service, name));
                    state.grants.retain(|(_, _, role), _| *role != number);
                })
            }
            Request::SetAcceptsUnbound { service, accepted } => {
                Box::new(move |state| state.accept_unbound(service, accepted))
            }
            Request::Assign { service, agent, name, seconds } => {
                let role = role_number(service, name);
                let until = seconds.map(|seconds| role_expiry(environment, seconds));
                Box::new(move |state| {
                    role.map(|role| state.grants.insert((service, agent, role), until));
                    state.roles_changed.insert((service, agent), revision);
                })
            }
            Request::Revoke { service, agent, name } => {
                let role = role_number(service, name);
                Box::new(move |state| {
                    role.map(|role| state.grants.remove(&(service, agent, role)));
                    state.roles_changed.insert((service, agent), revision);
                })
            }
            Request::SetStatus { agent, status } => Box::new(move |state| {
                let cutoff = if status == Status::Active { state.agent_state(agent).cutoff } else { revision };
                state.agents.insert(agent, AgentState { status, since: revision, cutoff });
            }),
            Request::Feedback { agent, .. } => {
                let Outcome::Response(response) = outcome else { unreachable!("feedback has a single response") };
                let trust = response.body["newTrustScore"].to_string();
                Box::new(move |state| drop(state.trust.insert(agent, trust)))
            }
            Request::RevokeToken { token } => Box::new(move |state| state.revoked_tokens.extend([token])),
            Request::RevokeLogin { login } | Request::Refresh { login, .. } => {
                let now = environment.clock.now().micros();
                Box::new(move |state| state.revoked_logins.extend([(login, now)]))
            }
            // The model reads signing keys from the database.
            Request::Rotate
            | Request::RevokeKey { .. }
            | Request::Register
            | Request::Login { .. }
            | Request::Replay { .. } => return,
        };
        model.push_state(revision, change);
    }
}

/// Adds the role of a response to the model, and returns its number.
fn add_role(model: &mut Model, name: usize, outcome: &Outcome, revision: i64) -> usize {
    let Outcome::Response(response) = outcome else { unreachable!("the creation of a role has a single response") };
    model.roles.push(Role { id: response.text("/roleId").to_owned(), name, created_at: revision });
    model.roles.len() - 1
}

/// Adds the tokens of a response to the model.
pub fn record_tokens(model: &mut Model, environment: &Environment, (login, scope): (usize, Scope), body: &Value) {
    let text = text(&body["accessToken"]);
    let claims = jwt::claims(&text);
    let number = |name: &str| claims[name].as_i64().unwrap();
    let audience = &claims["aud"];
    let token = Token {
        id: self::text(&claims["jti"]),
        kid: self::text(&jwt::header(&text)["kid"]),
        agent: model.logins[login].agent,
        login,
        service: environment.services.iter().position(|service| *audience == service.id),
        scope,
        rev: number("rev"),
        issued_at: number("iat"),
        expires_at: number("exp"),
        latest_state_at_issue: model.newest(),
        text,
    };
    model.tokens.push(token);
    model.logins[login].refresh.push(self::text(&body["refreshToken"]));
}

pub fn record_login(
    model: &mut Model,
    environment: &Environment,
    (agent, scope): (usize, Scope),
    body: &Value,
    proof: Proof,
) {
    let claims = jwt::claims(&text(&body["accessToken"]));
    let (id, start_revision) = (text(&claims["sid"]), claims["rev"].as_i64().unwrap());
    model.logins.push(Login { agent, id, start_revision, refresh: Vec::new(), proof, scope: scope.clone() });
    record_tokens(model, environment, (model.logins.len() - 1, scope), body);
}

/// Expiry of a role assigned now, in microseconds.
pub fn role_expiry(environment: &Environment, seconds: u32) -> i64 {
    (environment.clock.now().seconds() + i64::from(seconds)) * 1_000_000
}
