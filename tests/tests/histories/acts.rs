//! Requests: how each is sent, and what it does to the model by what the feed says of it.

use crate::{
    environment::{Environment, Noted},
    model::{Condition, Login, Model, Role, State, Token},
    step::{Act, MOST_AGENTS, PERMISSIONS, ROLE_NAMES, Status},
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use countersign_client::PrivateKey;
use countersign_process::Clock;
use countersign_tests::HttpResponse;
use reqwest::RequestBuilder;
use serde_json::{Value, json};

/// A role id that no role has.
const NO_ROLE: &str = "role_00000000000000000000000000";

/// Facet, subject and service of a change, as the feed has them.
type Note = (&'static str, String, Option<String>);

/// What the feed says of a change of the signing keys, whoever made it.
pub const KEYS: &str = "keys";

const fn keys_note() -> Note {
    (KEYS, String::new(), None)
}

/// An act with everything looked up, ready to be sent.
pub struct Ready {
    act: Act,
    /// The change that it makes, if it makes one.
    note: Option<Note>,
    kind: Kind,
}

enum Kind {
    Send(Box<RequestBuilder>),
    Register { key: PrivateKey, name: String },
    Login { agent: usize, service: Option<usize> },
}

/// What came of it.
pub enum Outcome {
    HttpResponse(HttpResponse),
    Registered { id: String, name: String, key: PrivateKey },
    LoggedIn { answer: HttpResponse, proof: (String, String) },
}

/// The keys of the agents, by number.
pub type Keys = Vec<PrivateKey>;

/// The act with indices of what exists now; nothing if it has nothing to act on yet, or would make one agent
/// too many.
fn resolve(act: &Act, model: &Model) -> Option<Act> {
    let agents = model.agents.len();
    let index = |number: usize, count: usize| number.checked_rem(count);
    Some(match act.clone() {
        Act::Register if agents >= MOST_AGENTS => return None,
        Act::Assign { service, agent, name, seconds } => {
            Act::Assign { service, agent: index(agent, agents)?, name, seconds }
        }
        Act::Revoke { service, agent, name } => Act::Revoke { service, agent: index(agent, agents)?, name },
        Act::SetStatus { agent, status } => Act::SetStatus { agent: index(agent, agents)?, status },
        Act::Login { agent, service } => Act::Login { agent: index(agent, agents)?, service },
        Act::Feedback { service, agent, score } => Act::Feedback { service, agent: index(agent, agents)?, score },
        Act::Refresh { login, first } => Act::Refresh { login: index(login, model.logins.len())?, first },
        Act::Replay { login } => Act::Replay { login: index(login, model.logins.len())? },
        Act::RevokeToken { token } => Act::RevokeToken { token: index(token, model.tokens.len())? },
        Act::RevokeLogin { login } => Act::RevokeLogin { login: index(login, model.logins.len())? },
        Act::RevokeKey { key } => Act::RevokeKey { key: index(key, model.now().keys.len())? },
        act @ (Act::Register
        | Act::CreateRole { .. }
        | Act::ChangeRole { .. }
        | Act::DeleteRole { .. }
        | Act::SetUnbound { .. }
        | Act::Rotate) => act,
    })
}

impl Ready {
    /// Looks everything up; nothing if there is nothing to act on.
    pub fn new(act: &Act, environment: &Environment, model: &Model) -> Option<Self> {
        let act = resolve(act, model)?;
        let (note, kind) = match &act {
            Act::Register => {
                (None, Kind::Register { key: PrivateKey::generate(), name: format!("agent {}", model.agents.len()) })
            }
            Act::Login { agent, service } => (None, Kind::Login { agent: *agent, service: *service }),
            Act::Refresh { .. } | Act::Replay { .. } | Act::RevokeToken { .. } | Act::RevokeLogin { .. } => {
                with_credential(&act, environment, model)
            }
            Act::CreateRole { .. }
            | Act::ChangeRole { .. }
            | Act::DeleteRole { .. }
            | Act::SetUnbound { .. }
            | Act::Assign { .. }
            | Act::Revoke { .. }
            | Act::Feedback { .. }
            | Act::SetStatus { .. }
            | Act::Rotate
            | Act::RevokeKey { .. } => by_manager(&act, environment, model),
        };
        Some(Self { act, note, kind })
    }

    /// Whether both may make the same change, so that the feed could not tell which did.
    pub fn collides(&self, other: &Self) -> bool {
        self.note.is_some() && self.note == other.note
    }

    pub async fn send(self, environment: &Environment, model: &Model, keys: &Keys) -> (Done, Outcome) {
        let done = Done { act: self.act, note: self.note };
        let outcome = match self.kind {
            Kind::Send(request) => Outcome::HttpResponse(HttpResponse::send(*request).await),
            Kind::Register { key, name } => {
                let body = json!({ "email": "o@example.org", "name": name, "publicKey": key.public_pem().unwrap() });
                let made = environment.api.post("/auth/register", body).await.expect(201);
                Outcome::Registered { id: text(&made["agentId"]), name, key }
            }
            Kind::Login { agent, service } => {
                let service = service.map(|service| &environment.services[service].id);
                let asked = json!({ "agentId": model.agents[agent].0, "serviceId": service });
                let challenge = environment.api.post("/auth/challenge", asked).await;
                if challenge.status != 200 {
                    return (done, Outcome::HttpResponse(challenge));
                }
                let proof = (challenge.text("/challengeId").to_owned(), keys[agent].sign(challenge.text("/nonce")));
                let body = json!({ "challengeId": proof.0, "signature": proof.1 });
                let answer = environment.api.post("/auth/authenticate", body).await;
                Outcome::LoggedIn { answer, proof }
            }
        };
        (done, outcome)
    }
}

/// What an agent asks, or whoever has its token.
fn with_credential(act: &Act, environment: &Environment, model: &Model) -> (Option<Note>, Kind) {
    let post = |path: &str, body: Value| Kind::Send(Box::new(environment.api.request("POST", path).json(&body)));
    let session = |login: usize| Some(("session", model.logins[login].id.clone(), None));
    match act {
        Act::Refresh { login, first } => {
            let all = &model.logins[*login].refresh;
            let token = if *first { all.first() } else { all.last() };
            (session(*login), post("/auth/refresh", json!({ "refreshToken": token })))
        }
        Act::Replay { login } => {
            let (challenge, signature) = &model.logins[*login].answer;
            (None, post("/auth/authenticate", json!({ "challengeId": challenge, "signature": signature })))
        }
        Act::RevokeToken { token } => {
            let token = &model.tokens[*token];
            (Some(("token", token.id.clone(), None)), post("/auth/revoke", json!({ "token": token.text })))
        }
        Act::RevokeLogin { login } => {
            let token = model.logins[*login].refresh.last();
            (session(*login), post("/auth/revoke", json!({ "token": token })))
        }
        other => unreachable!("{other:?} is no agent's"),
    }
}

/// What a service asks, or the person who owns an agent.
fn by_manager(act: &Act, environment: &Environment, model: &Model) -> (Option<Note>, Kind) {
    let send = |method: &str, path: String, bearer: &str, body: Option<Value>| {
        let request = environment.api.request(method, &path).bearer_auth(bearer);
        Kind::Send(Box::new(if let Some(body) = body { request.json(&body) } else { request }))
    };
    let role = |at: usize, name: usize| {
        let found = model.now().roles.get(&(at, name)).map(|role| model.roles[*role].id.clone());
        found.unwrap_or_else(|| NO_ROLE.to_owned())
    };
    let service = |number: &usize| &environment.services[*number];
    let definitions = |number| Some(("definitions", service(number).id.clone(), Some(service(number).id.clone())));
    match act {
        Act::CreateRole { service: number, name, permissions } => {
            let (at, body) =
                (service(number), json!({ "name": ROLE_NAMES[*name], "permissions": PERMISSIONS[*permissions] }));
            (definitions(number), send("POST", format!("/services/{}/roles", at.id), &at.key, Some(body)))
        }
        Act::ChangeRole { service: number, name, permissions } => {
            let (at, role) = (service(number), role(*number, *name));
            let body = json!({ "permissions": PERMISSIONS[*permissions] });
            (definitions(number), send("PATCH", format!("/services/{}/roles/{role}", at.id), &at.key, Some(body)))
        }
        Act::DeleteRole { service: number, name } => {
            let (at, role) = (service(number), role(*number, *name));
            (definitions(number), send("DELETE", format!("/services/{}/roles/{role}", at.id), &at.key, None))
        }
        Act::SetUnbound { service: number, accepted } => {
            let id = &service(number).id;
            let body = json!({ "acceptsUnboundTokens": accepted });
            let kind = send("PATCH", format!("/services/{id}"), &environment.human, Some(body));
            (Some(("terms", id.clone(), Some(id.clone()))), kind)
        }
        Act::Assign { service: number, agent, name, seconds } => {
            let (at, agent) = (service(number), &model.agents[*agent].0);
            let until = seconds.map(|seconds| instant(until(environment, seconds)));
            let body = json!({ "roleId": role(*number, *name), "expiresAt": until });
            let path = format!("/services/{}/agents/{agent}/roles", at.id);
            (Some(("roles", agent.clone(), Some(at.id.clone()))), send("POST", path, &at.key, Some(body)))
        }
        Act::Revoke { service: number, agent, name } => {
            let (at, agent) = (service(number), &model.agents[*agent].0);
            let path = format!("/services/{}/agents/{agent}/roles/{}", at.id, role(*number, *name));
            (Some(("roles", agent.clone(), Some(at.id.clone()))), send("DELETE", path, &at.key, None))
        }
        Act::SetStatus { agent, status } => {
            let (agent, body) = (&model.agents[*agent].0, json!({ "status": word(*status) }));
            let kind = send("PUT", format!("/agents/{agent}/status"), &environment.human, Some(body));
            (Some(("status", agent.clone(), None)), kind)
        }
        Act::Feedback { service: number, agent, score } => {
            let (key, agent) = (&service(number).key, &model.agents[*agent].0);
            let body = json!({ "agentId": agent, "score": score });
            (Some(("trust", agent.clone(), None)), send("POST", "/trust/feedback".to_owned(), key, Some(body)))
        }
        Act::Rotate => (Some(keys_note()), send("POST", "/signing-keys/rotate".to_owned(), &environment.human, None)),
        Act::RevokeKey { key } => {
            let path = format!("/signing-keys/{}", model.now().keys[*key].kid);
            (Some(keys_note()), send("DELETE", path, &environment.human, None))
        }
        other => unreachable!("{other:?} is no manager's"),
    }
}

/// An act that was sent.
pub struct Done {
    pub act: Act,
    note: Option<Note>,
}

impl Done {
    /// Whether this is the change that it makes.
    pub fn made(&self, noted: &Noted) -> bool {
        let own = self.note.as_ref().map(|(facet, subject, service)| (*facet, subject, service));
        own == Some((noted.facet.as_str(), &noted.subject, &noted.service))
    }

    /// The next state, by a change that it made.
    pub fn apply(&self, model: &mut Model, environment: &Environment, outcome: &Outcome, revision: i64) {
        let named = |at: usize, name: usize| model.now().roles.get(&(at, name)).copied();
        let change: Box<dyn FnOnce(&mut State)> = match self.act {
            Act::CreateRole { service, name, permissions } => {
                let Outcome::HttpResponse(answer) = outcome else { unreachable!("a role is made by one request") };
                let id = answer.text("/roleId").to_owned();
                let number = model.roles.len();
                model.roles.push(Role { id, name, made_at: revision });
                Box::new(move |state| {
                    state.roles.insert((service, name), number);
                    state.permissions.insert(number, permissions);
                })
            }
            Act::ChangeRole { service, name, permissions } => {
                let number = named(service, name).unwrap();
                Box::new(move |state| {
                    state.permissions.insert(number, permissions);
                })
            }
            Act::DeleteRole { service, name } => {
                let number = named(service, name).unwrap();
                Box::new(move |state| {
                    state.roles.remove(&(service, name));
                    state.grants.retain(|(_, _, role), _| *role != number);
                })
            }
            Act::SetUnbound { service, accepted } => Box::new(move |state| state.accept_unbound(service, accepted)),
            Act::Assign { service, agent: who, name, seconds } => {
                let role = named(service, name);
                let until = seconds.map(|seconds| until(environment, seconds));
                Box::new(move |state| {
                    role.map(|role| state.grants.insert((service, who, role), until));
                })
            }
            Act::Revoke { service, agent: who, name } => {
                let role = named(service, name);
                Box::new(move |state| {
                    role.map(|role| state.grants.remove(&(service, who, role)));
                })
            }
            Act::SetStatus { agent: who, status } => Box::new(move |state| {
                let cutoff = if status == Status::Active { state.condition(who).cutoff } else { revision };
                state.agents.insert(who, Condition { status, since: revision, cutoff });
            }),
            Act::Feedback { agent: who, .. } => {
                let Outcome::HttpResponse(answer) = outcome else { unreachable!("feedback is one request") };
                let trust = answer.body["newTrustScore"].to_string();
                Box::new(move |state| {
                    state.trust.insert(who, trust);
                })
            }
            Act::RevokeToken { token } => Box::new(move |state| {
                state.dead_tokens.insert(token);
            }),
            Act::RevokeLogin { login } | Act::Refresh { login, .. } => Box::new(move |state| {
                state.dead_logins.insert(login);
            }),
            // What became of the keys is read by itself.
            Act::Rotate | Act::RevokeKey { .. } | Act::Register | Act::Login { .. } | Act::Replay { .. } => return,
        };
        model.become_at(revision, change);
    }
}

/// The tokens of a good answer enter the model.
pub fn enter_tokens(model: &mut Model, environment: &Environment, login: usize, body: &Value) {
    let text = text(&body["accessToken"]);
    let claims = part(&text, 1);
    let number = |name: &str| claims[name].as_i64().unwrap();
    let token = Token {
        id: self::text(&claims["jti"]),
        kid: self::text(&part(&text, 0)["kid"]),
        agent: model.logins[login].agent,
        login,
        service: environment.services.iter().position(|service| claims["aud"] == service.id),
        rev: number("rev"),
        issued_at: number("iat"),
        expires_at: number("exp"),
        handed_out: model.newest(),
        text,
    };
    model.tokens.push(token);
    model.logins[login].refresh.push(self::text(&body["refreshToken"]));
}

/// A good login enters the model.
pub fn enter_login(model: &mut Model, environment: &Environment, agent: usize, body: &Value, answer: (String, String)) {
    let login = model.logins.len();
    model.logins.push(Login { agent, id: String::new(), begun_revision: 0, refresh: Vec::new(), answer });
    enter_tokens(model, environment, login, body);
    let token = model.tokens.last().unwrap();
    let claims = part(&token.text, 1);
    model.logins[login].id = text(&claims["sid"]);
    model.logins[login].begun_revision = token.rev;
}

/// When a role ends that is assigned now for some seconds, in microseconds.
fn until(environment: &Environment, seconds: u32) -> i64 {
    (environment.clock.now().seconds() + i64::from(seconds)) * 1_000_000
}

fn instant(micros: i64) -> String {
    jiff::Timestamp::from_microsecond(micros).unwrap().to_string()
}

/// A part of a token: its header or its claims.
fn part(token: &str, number: usize) -> Value {
    let part = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').nth(number).unwrap()).unwrap();
    serde_json::from_slice(&part).unwrap()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

pub const fn word(status: Status) -> &'static str {
    match status {
        Status::Active => "active",
        Status::Suspended => "suspended",
        Status::Revoked => "revoked",
    }
}
