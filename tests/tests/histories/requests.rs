//! Prepares requests, sends them, and predicts the change that each causes.

use crate::{
    environment::{ChangeRow, Environment},
    model::{Model, Proof},
    model_updates::{role_expiry, text},
    oauth_client,
    operation::{MAX_AGENTS, PERMISSIONS, ROLE_NAMES, Request, SCOPES, Status},
};
use countersign_client::PrivateKey;
use countersign_tests::HttpResponse;
use reqwest::RequestBuilder;
use serde_json::{Value, json};

/// A valid role id that does not exist.
const NO_ROLE: &str = "role_00000000000000000000000000";

/// Facet (kind of data that changed), subject and service of a row in the change feed.
type ExpectedChange = (&'static str, String, Option<String>);

/// The facet (kind of data that changed) of signing-key changes in the change feed.
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
    Register {
        key: PrivateKey,
        name: String,
    },
    /// A request to the token endpoint.
    SendForm(Vec<(&'static str, String)>),
    Login {
        agent: usize,
        service: Option<usize>,
        scope: Option<usize>,
    },
}

/// The response to a request.
pub enum Outcome {
    Response(HttpResponse),
    Registered { id: String, name: String, key: PrivateKey },
    LoggedIn { response: HttpResponse, proof: Proof },
}

/// The private keys of the agents, by agent index.
pub type Keys = Vec<PrivateKey>;

/// Maps the indices in a request to existing entities. Returns `None` if the entities do not exist, or if no agent may
/// be added.
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
        Request::Login { agent, service, scope } => Request::Login { agent: index(agent, agents)?, service, scope },
        Request::Feedback { service, agent, score } => {
            Request::Feedback { service, agent: index(agent, agents)?, score }
        }
        Request::Refresh { login, first, scope } => {
            Request::Refresh { login: index(login, model.logins.len())?, first, scope }
        }
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
    /// Prepares a request. Returns `None` if the request cannot be sent in the current state of the model.
    pub fn new(request: &Request, environment: &Environment, model: &Model) -> Option<Self> {
        let request = resolve(request, model)?;
        let (expected_change, transport) = match &request {
            Request::Register => (
                None,
                Transport::Register { key: PrivateKey::generate(), name: format!("agent {}", model.agents.len()) },
            ),
            Request::Login { agent, service, scope } => {
                (None, Transport::Login { agent: *agent, service: *service, scope: *scope })
            }
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

    /// Whether both requests cause the same change, so that the change feed cannot show which of the requests caused
    /// the change.
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
            Transport::SendForm(form) => Outcome::Response(oauth_client::request_tokens(environment, &form).await),
            Transport::Login { agent, service, scope: Some(scope) } => {
                let service = service.map(|service| environment.services[service].id.as_str());
                let agent = (model.agents[agent].0.as_str(), &keys[agent]);
                let (response, assertion) = oauth_client::log_in(environment, agent, service, SCOPES[scope]).await;
                Outcome::LoggedIn { response, proof: Proof::Assertion(assertion) }
            }
            Transport::Login { agent, service, scope: None } => {
                let service = service.map(|service| &environment.services[service].id);
                let body = json!({ "agentId": model.agents[agent].0, "serviceId": service });
                let challenge = environment.api.post("/auth/challenge", body).await;
                if challenge.status != 200 {
                    return (sent, Outcome::Response(challenge));
                }
                let (id, signature) =
                    (challenge.text("/challengeId").to_owned(), keys[agent].sign(challenge.text("/nonce")));
                let body = json!({ "challengeId": id, "signature": signature });
                let response = environment.api.post("/auth/authenticate", body).await;
                Outcome::LoggedIn { response, proof: Proof::Challenge(id, signature) }
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
        Request::Refresh { login, first, scope } => {
            let refresh_tokens = &model.logins[*login].refresh;
            let token = if *first { refresh_tokens.first() } else { refresh_tokens.last() };
            let transport = match scope {
                Some(scope) => Transport::SendForm(oauth_client::refresh_form(token.unwrap(), SCOPES[*scope])),
                None => post("/auth/refresh", json!({ "refreshToken": token })),
            };
            (session(*login), transport)
        }
        Request::Replay { login } => match &model.logins[*login].proof {
            Proof::Challenge(id, signature) => {
                (None, post("/auth/authenticate", json!({ "challengeId": id, "signature": signature })))
            }
            Proof::Assertion(assertion) => (None, Transport::SendForm(oauth_client::login_form(assertion, None, ""))),
        },
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
        authenticated_request(environment, (method, &path), bearer, body)
    };
    let role = |owner: usize, name: usize| role_id(model, owner, name);
    let service = |number: &usize| &environment.services[*number];
    let definitions = |number| Some(("definitions", service(number).id.clone(), Some(service(number).id.clone())));
    match request {
        Request::CreateRole { service: number, name, permissions } => {
            let owner = service(number);
            let body = json!({ "name": ROLE_NAMES[*name], "permissions": PERMISSIONS[*permissions] });
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
            (Some(("settings", id.clone(), Some(id.clone()))), transport)
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
        other => (Some(signing_keys_change()), prepare_key_request(other, environment, model)),
    }
}

/// Prepares a request that changes the signing keys.
fn prepare_key_request(request: &Request, environment: &Environment, model: &Model) -> Transport {
    let (method, path) = match request {
        Request::Rotate => ("POST", "/signing-keys/rotate".to_owned()),
        Request::RevokeKey { key } => ("DELETE", format!("/signing-keys/{}", model.now().keys[*key].kid)),
        other => unreachable!("{other:?} is not a request of a manager"),
    };
    authenticated_request(environment, (method, &path), &environment.human, None)
}

fn authenticated_request(
    environment: &Environment,
    (method, path): (&str, &str),
    bearer: &str,
    body: Option<Value>,
) -> Transport {
    let request = environment.api.request(method, path).bearer_auth(bearer);
    Transport::Send(Box::new(if let Some(body) = body { request.json(&body) } else { request }))
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
    /// Whether this request caused the change in a row of the change feed.
    pub fn caused(&self, change: &ChangeRow) -> bool {
        let expected = self.expected_change.as_ref().map(|(facet, subject, service)| (*facet, subject, service));
        expected == Some((change.facet.as_str(), &change.subject, &change.service))
    }
}

fn rfc3339(micros: i64) -> String {
    jiff::Timestamp::from_microsecond(micros).unwrap().to_string()
}

pub const fn status_name(status: Status) -> &'static str {
    match status {
        Status::Active => "active",
        Status::Suspended => "suspended",
        Status::Revoked => "revoked",
    }
}
