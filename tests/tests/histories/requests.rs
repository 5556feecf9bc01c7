//! Prepares requests, sends them, and predicts the change that each causes.

use crate::{
    environment::{ChangeRow, Environment, Service},
    model::{Model, Proof},
    model_updates::role_expiry,
    oauth_client,
    operation::{MAX_AGENTS, PERMISSIONS, ROLE_NAMES, Request, SCOPES, Status},
};
use countersign_client::PrivateKey;
use countersign_tests::{HttpResponse, control_plane::text};
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
    /// A request that is built.
    Send(Box<RequestBuilder>),
    /// A registration.
    Register { key: PrivateKey, name: String },
    /// A request to the token endpoint.
    SendForm(Vec<(&'static str, String)>),
    /// A login, which needs a challenge or an assertion first.
    Login { agent: usize, service: Option<usize>, scope: Option<usize> },
}

/// The response to a request.
pub enum Outcome {
    Response(HttpResponse),
    Registered { id: String, name: String, key: PrivateKey },
    LoggedIn { response: HttpResponse, proof: Proof },
}

/// The private keys of the agents, by agent index.
pub type Keys = Vec<PrivateKey>;

/// Maps the indices in a request to existing entities. Returns `None` if the entities do not exist, or if no agent may be added.
fn resolve(request: &Request, model: &Model) -> Option<Request> {
    let mut request = request.clone();
    let (index, count) = match &mut request {
        Request::Register if model.agents.len() >= MAX_AGENTS => return None,
        Request::Assign { agent, .. }
        | Request::Revoke { agent, .. }
        | Request::SetStatus { agent, .. }
        | Request::Login { agent, .. }
        | Request::Feedback { agent, .. } => (agent, model.agents.len()),
        Request::Refresh { login, .. } | Request::Replay { login } | Request::RevokeLogin { login } => {
            (login, model.logins.len())
        }
        Request::RevokeToken { token } => (token, model.tokens.len()),
        Request::RevokeKey { key } => (key, model.now().keys.len()),
        Request::Register
        | Request::CreateRole { .. }
        | Request::ChangeRole { .. }
        | Request::DeleteRole { .. }
        | Request::SetAcceptsUnbound { .. }
        | Request::Rotate => return Some(request),
    };
    *index = index.checked_rem(count)?;
    Some(request)
}

impl PreparedRequest {
    /// Prepares a request. Returns `None` if the request cannot be sent in the current state of the model.
    pub fn new(request: &Request, environment: &Environment, model: &Model) -> Option<Self> {
        let request = resolve(request, model)?;
        let (expected_change, transport) = prepare(&request, environment, model);
        Some(Self { request, expected_change, transport })
    }

    /// Whether both requests cause the same change, so that the change feed cannot show which of the requests caused the change.
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

/// The change that a request causes, and how it is sent.
fn prepare(request: &Request, environment: &Environment, model: &Model) -> (Option<ExpectedChange>, Transport) {
    let post = |path: &str, body: Value| Transport::Send(Box::new(environment.api.request("POST", path).json(&body)));
    let session = |login: &usize| Some(("session", model.logins[*login].id.clone(), None));
    match request {
        Request::Register => {
            let name = format!("agent {}", model.agents.len());
            (None, Transport::Register { key: PrivateKey::generate(), name })
        }
        Request::Login { agent, service, scope } => {
            (None, Transport::Login { agent: *agent, service: *service, scope: *scope })
        }
        Request::Refresh { login, first, scope } => {
            let refresh_tokens = &model.logins[*login].refresh;
            let token = if *first { refresh_tokens.first() } else { refresh_tokens.last() };
            let transport = match scope {
                Some(scope) => Transport::SendForm(oauth_client::refresh_form(token.unwrap(), SCOPES[*scope])),
                None => post("/auth/refresh", json!({ "refreshToken": token })),
            };
            (session(login), transport)
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
            (session(login), post("/auth/revoke", json!({ "token": token })))
        }
        other => prepare_manager_request(other, environment, model),
    }
}

/// Prepares a request that a service key or an administrator's token authenticates.
fn prepare_manager_request(
    request: &Request,
    environment: &Environment,
    model: &Model,
) -> (Option<ExpectedChange>, Transport) {
    let send = |method: &str, path: &str, bearer: &str, body: Option<Value>| {
        let request = environment.api.request(method, path).bearer_auth(bearer);
        Transport::Send(Box::new(if let Some(body) = body { request.json(&body) } else { request }))
    };
    let of_service = |method: &str, service: usize, below: &str, body: Option<Value>| {
        let Service { id, key, .. } = &environment.services[service];
        send(method, &format!("/services/{id}{below}"), key, body)
    };
    let agent_id = |agent: usize| model.agents[agent].0.clone();
    let service_id = |service: usize| environment.services[service].id.clone();
    let definitions = |service: usize| Some(("definitions", service_id(service), Some(service_id(service))));
    let roles = |agent: usize, service: usize| Some(("roles", agent_id(agent), Some(service_id(service))));
    match *request {
        Request::CreateRole { service, name, permissions } => {
            let body = json!({ "name": ROLE_NAMES[name], "permissions": PERMISSIONS[permissions] });
            (definitions(service), of_service("POST", service, "/roles", Some(body)))
        }
        Request::ChangeRole { service, name, permissions } => {
            let path = format!("/roles/{}", role_id(model, service, name));
            let body = json!({ "permissions": PERMISSIONS[permissions] });
            (definitions(service), of_service("PATCH", service, &path, Some(body)))
        }
        Request::DeleteRole { service, name } => {
            let path = format!("/roles/{}", role_id(model, service, name));
            (definitions(service), of_service("DELETE", service, &path, None))
        }
        Request::SetAcceptsUnbound { service, accepted } => {
            let (id, body) = (service_id(service), json!({ "acceptsUnboundTokens": accepted }));
            let transport = send("PATCH", &format!("/services/{id}"), &environment.human, Some(body));
            (Some(("settings", id.clone(), Some(id))), transport)
        }
        Request::Assign { service, agent, name, seconds } => {
            let path = format!("/agents/{}/roles", agent_id(agent));
            let until = seconds.map(|seconds| rfc3339(role_expiry(environment, seconds)));
            let body = json!({ "roleId": role_id(model, service, name), "expiresAt": until });
            (roles(agent, service), of_service("POST", service, &path, Some(body)))
        }
        Request::Revoke { service, agent, name } => {
            let path = format!("/agents/{}/roles/{}", agent_id(agent), role_id(model, service, name));
            (roles(agent, service), of_service("DELETE", service, &path, None))
        }
        Request::SetStatus { agent, status } => {
            let path = format!("/agents/{}/status", agent_id(agent));
            let body = json!({ "status": status_name(status) });
            (Some(("status", agent_id(agent), None)), send("PUT", &path, &environment.human, Some(body)))
        }
        Request::Feedback { service, agent, score } => {
            let body = json!({ "agentId": agent_id(agent), "score": score });
            let transport = send("POST", "/trust/feedback", &environment.services[service].key, Some(body));
            (Some(("trust", agent_id(agent), None)), transport)
        }
        Request::Rotate => {
            (Some(signing_keys_change()), send("POST", "/signing-keys/rotate", &environment.human, None))
        }
        Request::RevokeKey { key } => {
            let path = format!("/signing-keys/{}", model.now().keys[key].kid);
            (Some(signing_keys_change()), send("DELETE", &path, &environment.human, None))
        }
        ref other => unreachable!("{other:?} is not a request of a manager"),
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
