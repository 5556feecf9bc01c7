//! Sends requests and applies the changes that they cause to the model.

use crate::{
    environment::{ChangeRow, Environment},
    model::{AgentState, Login, Model, Role, State, Token},
    operation::{MAX_AGENTS, PERMISSIONS, ROLE_NAMES, Request, Status},
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use countersign_client::PrivateKey;
use countersign_process::Clock;
use countersign_tests::HttpResponse;
use reqwest::RequestBuilder;
use serde_json::{Value, json};

/// A valid role id that does not exist.
const NO_ROLE: &str = "role_00000000000000000000000000";

/// Facet, subject and service of a row in the change feed.
type ExpectedChange = (&'static str, String, Option<String>);

/// The facet of changes to signing keys.
pub const KEYS: &str = "keys";

const fn signing_keys_change() -> ExpectedChange {
    (KEYS, String::new(), None)
}

/// A request with resolved ids, ready to be sent.
pub struct PreparedRequest {
    request: Request,
    /// The change that the request causes, if any.
    expected_change: Option<ExpectedChange>,
    transport: Transport,
}

enum Transport {
    Send(Box<RequestBuilder>),
    Register { key: PrivateKey, name: String },
    Login { agent: usize, service: Option<usize> },
}

/// The response to a request.
pub enum Outcome {
    Response(HttpResponse),
    Registered { id: String, name: String, key: PrivateKey },
    LoggedIn { response: HttpResponse, signed_challenge: (String, String) },
}

/// The private keys of the agents, by agent index.
pub type Keys = Vec<PrivateKey>;

/// Maps the indices in a request to existing entities. Returns `None` if there are none, or if no agent may be added.
fn resolve(request: &Request, model: &Model) -> Option<Request> {
    let agents = model.agents.len();
    let index = |number: usize, count: usize| number.checked_rem(count);
    Some(match request.clone() {
        Request::Register if agents >= MAX_AGENTS => return None,
        Request::Assign { service, agent, name, seconds } => {
            Request::Assign { service, agent: index(agent, agents)?, name, seconds }
        }
        Request::Revoke { service, agent, name } => Request::Revoke { service, agent: index(agent, agents)?, name },
        Request::SetStatus { agent, status } => Request::SetStatus { agent: index(agent, agents)?, status },
        Request::Login { agent, service } => Request::Login { agent: index(agent, agents)?, service },
        Request::Feedback { service, agent, score } => {
            Request::Feedback { service, agent: index(agent, agents)?, score }
        }
        Request::Refresh { login, first } => Request::Refresh { login: index(login, model.logins.len())?, first },
        Request::Replay { login } => Request::Replay { login: index(login, model.logins.len())? },
        Request::RevokeToken { token } => Request::RevokeToken { token: index(token, model.tokens.len())? },
        Request::RevokeLogin { login } => Request::RevokeLogin { login: index(login, model.logins.len())? },
        Request::RevokeKey { key } => Request::RevokeKey { key: index(key, model.now().keys.len())? },
        request @ (Request::Register
        | Request::CreateRole { .. }
        | Request::ChangeRole { .. }
        | Request::DeleteRole { .. }
        | Request::SetAcceptsUnbound { .. }
        | Request::Rotate) => request,
    })
}

impl PreparedRequest {
    /// Prepares a request. Returns `None` if it cannot be sent in the current state.
    pub fn new(request: &Request, environment: &Environment, model: &Model) -> Option<Self> {
        let request = resolve(request, model)?;
        let (expected_change, transport) = match &request {
            Request::Register => (
                None,
                Transport::Register { key: PrivateKey::generate(), name: format!("agent {}", model.agents.len()) },
            ),
            Request::Login { agent, service } => (None, Transport::Login { agent: *agent, service: *service }),
            Request::Refresh { .. }
            | Request::Replay { .. }
            | Request::RevokeToken { .. }
            | Request::RevokeLogin { .. } => prepare_agent_request(&request, environment, model),
            Request::CreateRole { .. }
            | Request::ChangeRole { .. }
            | Request::DeleteRole { .. }
            | Request::SetAcceptsUnbound { .. }
            | Request::Assign { .. }
            | Request::Revoke { .. }
            | Request::Feedback { .. }
            | Request::SetStatus { .. }
            | Request::Rotate
            | Request::RevokeKey { .. } => prepare_manager_request(&request, environment, model),
        };
        Some(Self { request, expected_change, transport })
    }

    /// Whether both requests cause the same change, so that the feed cannot show which of them caused it.
    pub fn causes_same_change_as(&self, other: &Self) -> bool {
        self.expected_change.is_some() && self.expected_change == other.expected_change
    }

    pub async fn send(self, environment: &Environment, model: &Model, keys: &Keys) -> (SentRequest, Outcome) {
        let sent = SentRequest { request: self.request, expected_change: self.expected_change };
        let outcome = match self.transport {
            Transport::Send(request) => Outcome::Response(HttpResponse::send(*request).await),
            Transport::Register { key, name } => {
                let body = json!({ "email": "o@example.org", "name": name, "publicKey": key.public_pem().unwrap() });
                let created = environment.api.post("/auth/register", body).await.expect(201);
                Outcome::Registered { id: text(&created["agentId"]), name, key }
            }
            Transport::Login { agent, service } => {
                let service = service.map(|service| &environment.services[service].id);
                let body = json!({ "agentId": model.agents[agent].0, "serviceId": service });
                let challenge = environment.api.post("/auth/challenge", body).await;
                if challenge.status != 200 {
                    return (sent, Outcome::Response(challenge));
                }
                let signed_challenge =
                    (challenge.text("/challengeId").to_owned(), keys[agent].sign(challenge.text("/nonce")));
                let body = json!({ "challengeId": signed_challenge.0, "signature": signed_challenge.1 });
                let response = environment.api.post("/auth/authenticate", body).await;
                Outcome::LoggedIn { response, signed_challenge }
            }
        };
        (sent, outcome)
    }
}

/// Prepares a request that an agent authenticates.
fn prepare_agent_request(
    request: &Request,
    environment: &Environment,
    model: &Model,
) -> (Option<ExpectedChange>, Transport) {
    let post = |path: &str, body: Value| Transport::Send(Box::new(environment.api.request("POST", path).json(&body)));
    let session = |login: usize| Some(("session", model.logins[login].id.clone(), None));
    match request {
        Request::Refresh { login, first } => {
            let refresh_tokens = &model.logins[*login].refresh;
            let token = if *first { refresh_tokens.first() } else { refresh_tokens.last() };
            (session(*login), post("/auth/refresh", json!({ "refreshToken": token })))
        }
        Request::Replay { login } => {
            let (challenge, signature) = &model.logins[*login].answer;
            (None, post("/auth/authenticate", json!({ "challengeId": challenge, "signature": signature })))
        }
        Request::RevokeToken { token } => {
            let token = &model.tokens[*token];
            (Some(("token", token.id.clone(), None)), post("/auth/revoke", json!({ "token": token.text })))
        }
        Request::RevokeLogin { login } => {
            let token = model.logins[*login].refresh.last();
            (session(*login), post("/auth/revoke", json!({ "token": token })))
        }
        other => unreachable!("{other:?} is not a request of an agent"),
    }
}

/// Prepares a request that a service key or an administrator's token authenticates.
fn prepare_manager_request(
    request: &Request,
    environment: &Environment,
    model: &Model,
) -> (Option<ExpectedChange>, Transport) {
    let send = |method: &str, path: String, bearer: &str, body: Option<Value>| {
        let request = environment.api.request(method, &path).bearer_auth(bearer);
        Transport::Send(Box::new(if let Some(body) = body { request.json(&body) } else { request }))
    };
    let role = |owner: usize, name: usize| role_id(model, owner, name);
    let service = |number: &usize| &environment.services[*number];
    let definitions = |number| Some(("definitions", service(number).id.clone(), Some(service(number).id.clone())));
    match request {
        Request::CreateRole { service: number, name, permissions } => {
            let (owner, body) =
                (service(number), json!({ "name": ROLE_NAMES[*name], "permissions": PERMISSIONS[*permissions] }));
            (definitions(number), send("POST", format!("/services/{}/roles", owner.id), &owner.key, Some(body)))
        }
        Request::ChangeRole { service: number, name, permissions } => {
            let (owner, role) = (service(number), role(*number, *name));
            let body = json!({ "permissions": PERMISSIONS[*permissions] });
            (definitions(number), send("PATCH", format!("/services/{}/roles/{role}", owner.id), &owner.key, Some(body)))
        }
        Request::DeleteRole { service: number, name } => {
            let (owner, role) = (service(number), role(*number, *name));
            (definitions(number), send("DELETE", format!("/services/{}/roles/{role}", owner.id), &owner.key, None))
        }
        Request::SetAcceptsUnbound { service: number, accepted } => {
            let id = &service(number).id;
            let body = json!({ "acceptsUnboundTokens": accepted });
            let transport = send("PATCH", format!("/services/{id}"), &environment.human, Some(body));
            (Some(("terms", id.clone(), Some(id.clone()))), transport)
        }
        Request::Assign { service: number, agent, name, seconds } => {
            let (owner, agent) = (service(number), &model.agents[*agent].0);
            let until = seconds.map(|seconds| rfc3339(role_expiry(environment, seconds)));
            let body = json!({ "roleId": role(*number, *name), "expiresAt": until });
            let path = format!("/services/{}/agents/{agent}/roles", owner.id);
            (Some(("roles", agent.clone(), Some(owner.id.clone()))), send("POST", path, &owner.key, Some(body)))
        }
        Request::Revoke { service: number, agent, name } => {
            let (owner, agent) = (service(number), &model.agents[*agent].0);
            let path = format!("/services/{}/agents/{agent}/roles/{}", owner.id, role(*number, *name));
            (Some(("roles", agent.clone(), Some(owner.id.clone()))), send("DELETE", path, &owner.key, None))
        }
        Request::SetStatus { agent, status } => {
            let (agent, body) = (&model.agents[*agent].0, json!({ "status": status_name(*status) }));
            let transport = send("PUT", format!("/agents/{agent}/status"), &environment.human, Some(body));
            (Some(("status", agent.clone(), None)), transport)
        }
        Request::Feedback { service: number, agent, score } => {
            let (key, agent) = (&service(number).key, &model.agents[*agent].0);
            let body = json!({ "agentId": agent, "score": score });
            (Some(("trust", agent.clone(), None)), send("POST", "/trust/feedback".to_owned(), key, Some(body)))
        }
        Request::Rotate => {
            (Some(signing_keys_change()), send("POST", "/signing-keys/rotate".to_owned(), &environment.human, None))
        }
        Request::RevokeKey { key } => {
            let path = format!("/signing-keys/{}", model.now().keys[*key].kid);
            (Some(signing_keys_change()), send("DELETE", path, &environment.human, None))
        }
        other => unreachable!("{other:?} is not a request of a manager"),
    }
}

/// The id of the role of this name, or an id that does not exist.
fn role_id(model: &Model, service: usize, name: usize) -> String {
    let role = model.now().roles.get(&(service, name)).map(|role| model.roles[*role].id.clone());
    role.unwrap_or_else(|| NO_ROLE.to_owned())
}

/// A request that has been sent.
pub struct SentRequest {
    pub request: Request,
    expected_change: Option<ExpectedChange>,
}

impl SentRequest {
    /// Whether this request caused the change in a feed row.
    pub fn caused(&self, change: &ChangeRow) -> bool {
        let expected = self.expected_change.as_ref().map(|(facet, subject, service)| (*facet, subject, service));
        expected == Some((change.facet.as_str(), &change.subject, &change.service))
    }

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
                Box::new(move |state| {
                    state.permissions.insert(number, permissions);
                })
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
                })
            }
            Request::Revoke { service, agent, name } => {
                let role = role_number(service, name);
                Box::new(move |state| {
                    role.map(|role| state.grants.remove(&(service, agent, role)));
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
            Request::RevokeToken { token } => Box::new(move |state| {
                state.revoked_tokens.insert(token);
            }),
            Request::RevokeLogin { login } | Request::Refresh { login, .. } => Box::new(move |state| {
                state.revoked_logins.insert(login);
            }),
            // Signing keys are read from the database.
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
pub fn record_tokens(model: &mut Model, environment: &Environment, login: usize, body: &Value) {
    let text = text(&body["accessToken"]);
    let claims = token_part(&text, 1);
    let number = |name: &str| claims[name].as_i64().unwrap();
    let token = Token {
        id: self::text(&claims["jti"]),
        kid: self::text(&token_part(&text, 0)["kid"]),
        agent: model.logins[login].agent,
        login,
        service: environment.services.iter().position(|service| claims["aud"] == service.id),
        rev: number("rev"),
        issued_at: number("iat"),
        expires_at: number("exp"),
        latest_state_at_issue: model.newest(),
        text,
    };
    model.tokens.push(token);
    model.logins[login].refresh.push(self::text(&body["refreshToken"]));
}

/// Adds a login to the model.
pub fn record_login(
    model: &mut Model,
    environment: &Environment,
    agent: usize,
    body: &Value,
    answer: (String, String),
) {
    let login = model.logins.len();
    model.logins.push(Login { agent, id: String::new(), start_revision: 0, refresh: Vec::new(), answer });
    record_tokens(model, environment, login, body);
    let token = model.tokens.last().unwrap();
    let claims = token_part(&token.text, 1);
    model.logins[login].id = text(&claims["sid"]);
    model.logins[login].start_revision = token.rev;
}

/// Expiry of a role assigned now, in microseconds.
fn role_expiry(environment: &Environment, seconds: u32) -> i64 {
    (environment.clock.now().seconds() + i64::from(seconds)) * 1_000_000
}

fn rfc3339(micros: i64) -> String {
    jiff::Timestamp::from_microsecond(micros).unwrap().to_string()
}

/// Decodes a part of a token: header (0) or claims (1).
fn token_part(token: &str, number: usize) -> Value {
    let token_part = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').nth(number).unwrap()).unwrap();
    serde_json::from_slice(&token_part).unwrap()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

pub const fn status_name(status: Status) -> &'static str {
    match status {
        Status::Active => "active",
        Status::Suspended => "suspended",
        Status::Revoked => "revoked",
    }
}
