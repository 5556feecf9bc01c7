//! A control plane with one of everything, and requests made of the table of routes.

use super::{
    contract::line,
    routes::{Door, Field, Route},
};
use countersign_client::PrivateKey;
use countersign_tests::{Agent, ControlPlane, Database, HttpResponse, Upstream, eventually};
use reqwest::RequestBuilder;
use secrecy::ExposeSecret;
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicU32, Ordering},
};
use tokio::sync::Mutex;

/// Every code that an error of the API may have.
const CODES: [&str; 17] = [
    "AUTHENTICATION_FAILED",
    "INSUFFICIENT_PERMISSIONS",
    "AGENT_NOT_FOUND",
    "RATE_LIMIT_EXCEEDED",
    "INVALID_SIGNATURE",
    "VALIDATION_ERROR",
    "HTTPS_REQUIRED",
    "NOT_FOUND",
    "SERVICE_NOT_FOUND",
    "ROLE_NOT_FOUND",
    "WEBHOOK_NOT_FOUND",
    "METHOD_NOT_ALLOWED",
    "CONFLICT",
    "PAYLOAD_TOO_LARGE",
    "UNSUPPORTED_MEDIA_TYPE",
    "INTERNAL",
    "SERVICE_UNAVAILABLE",
];

/// One of everything.
pub struct Fixture {
    pub control: ControlPlane,
    pub agent: Agent,
    /// An access token of the agent.
    pub token: String,
    pub role: String,
    /// A role that whoever may can delete.
    pub doomed: String,
    /// A key of full scope that nobody needs.
    pub spare_key: String,
    /// The signing key that nothing was signed with yet.
    pub next_kid: String,
    /// Webhooks of the service and of the deployment, which got an event.
    pub webhooks: [Webhooks; 2],
    /// The event that they got.
    pub event: String,
    receiver: Upstream,
    number: AtomicU32,
    database: Mutex<Database>,
}

/// Webhooks at one place.
pub struct Webhooks {
    pub lasting: String,
    /// One that whoever may can delete.
    pub doomed: String,
}

/// A challenge and its answer.
pub struct Challenge {
    pub id: String,
    pub nonce: String,
    pub signature: String,
}

impl Fixture {
    pub async fn new() -> Self {
        Self::with_settings(&[]).await
    }

    pub async fn with_settings(settings: &[&str]) -> Self {
        Self::on(ControlPlane::start_with(settings).await).await
    }

    pub async fn on(control: ControlPlane) -> Self {
        let agent = Agent::register(&control, "Agent").await;
        let role = control.create_role("reader", &["read"]).await;
        let receiver = Upstream::start().await;
        let service_webhooks = Webhooks::make(&control, &control.path("/webhooks"), &receiver).await;
        let webhooks = [service_webhooks, Webhooks::make(&control, "/webhooks", &receiver).await];
        control.assign(&agent.id, &role).await;
        let event = delivered(&control, &webhooks[0].lasting).await;
        let doomed = control.create_role("doomed", &["read"]).await;
        let spare_key = control.create_key(control.service(), "full").await;
        let next_kid = control.signing_key("next").await;
        let (token, database) = (agent.token().await, Mutex::new(Database::of(&control).await));
        let number = AtomicU32::new(0);
        Self { control, agent, token, role, doomed, spare_key, next_kid, webhooks, event, receiver, number, database }
    }

    /// Everything in the database, once what an earlier request set going is done: that changed trust is told, and
    /// webhooks of what happened.
    pub async fn rows(&self) -> BTreeSet<String> {
        let mut database = self.database.lock().await;
        let quiet = async || {
            let rows = database.rows().await;
            let is_due = |row: &str| row.starts_with("webhook_deliveries ") && row.split(' ').nth(3) != Some("NULL");
            let waits = |row: &String| ["trust_marks ", "webhook_outbox "].iter().any(|table| row.starts_with(table));
            (!rows.iter().any(|row| waits(row) || is_due(row))).then_some(rows)
        };
        eventually("changed trust and events are told", quiet, || self.control.log()).await
    }

    pub async fn challenge(&self) -> Challenge {
        let body = self.control.api.post("/auth/challenge", json!({ "agentId": self.agent.id })).await.expect(200);
        let [id, nonce] = ["challengeId", "nonce"].map(|name| body[name].as_str().unwrap().to_owned());
        Challenge { id, signature: self.agent.key.sign(&nonce), nonce }
    }

    pub async fn refresh_token(&self) -> String {
        self.agent.login().await.refresh_token.expose_secret().to_owned()
    }

    /// The path of a route, filled in.
    pub fn path(&self, route: &Route) -> String {
        let key_id = format!("key_{}", &self.spare_key["svc_sk_".len()..][..26]);
        let doomed = route.method == "DELETE" && route.again.is_some();
        let role = if doomed { &self.doomed } else { &self.role };
        let webhooks = self.webhooks_of(route);
        let ids = [
            ("service", self.control.service()),
            ("agent", &self.agent.id),
            ("key", &key_id),
            ("kid", &self.next_kid),
            ("role", role),
            ("webhook", if doomed { &webhooks.doomed } else { &webhooks.lasting }),
            ("event", &self.event),
            ("file", "swagger-ui.css"),
        ];
        ids.iter().fold(route.path.to_owned(), |path, (name, value)| path.replace(&format!("{{{name}}}"), value))
    }

    /// The webhooks at the place of a route.
    pub fn webhooks_of(&self, route: &Route) -> &Webhooks {
        &self.webhooks[usize::from(route.path.starts_with("/webhooks"))]
    }

    /// A good body for a route: what is used up by success is fresh.
    pub async fn body(&self, route: &Route) -> Map<String, Value> {
        let template: String = route.fields.iter().map(|field| field.good).collect();
        let mut values = vec![
            ("agent", self.agent.id.clone()),
            ("service", self.control.service().to_owned()),
            ("role", self.role.clone()),
            ("receiver", self.receiver.url()),
            ("number", self.number.fetch_add(1, Ordering::Relaxed).to_string()),
        ];
        if template.contains("<pem>") {
            values.push(("pem", PrivateKey::generate().public_pem().unwrap().replace('\n', "\\n")));
        }
        if template.contains("<challenge>") {
            let challenge = self.challenge().await;
            values.extend([("challenge", challenge.id), ("signature", challenge.signature)]);
        }
        if template.contains("<refresh>") {
            values.push(("refresh", self.refresh_token().await));
        }
        let fill = |text: &str| {
            values.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("<{name}>"), value))
        };
        let value = |field: &Field| serde_json::from_str(&fill(field.good)).expect(field.good);
        route.fields.iter().map(|field| (field.name.to_owned(), value(field))).collect()
    }

    /// A request for a route without credential and body.
    pub fn request(&self, route: &Route) -> RequestBuilder {
        self.control.api.request(route.method, &self.path(route))
    }

    /// A request for a route with a credential that may use it.
    pub fn admitted(&self, route: &Route) -> RequestBuilder {
        self.admit(route, self.request(route))
    }

    /// Adds a credential that may use a route.
    pub fn admit(&self, route: &Route, request: RequestBuilder) -> RequestBuilder {
        match route.door {
            Door::Open | Door::Registrant => request,
            Door::Verifier => request.bearer_auth(self.control.key()).header("x-agent-token", &self.token),
            Door::AnyFullKey | Door::Manager => request.bearer_auth(self.control.key()),
            Door::Owner | Door::Person | Door::Admin => request.bearer_auth(self.control.human()),
        }
    }
}

impl Webhooks {
    async fn make(control: &ControlPlane, path: &str, receiver: &Upstream) -> Self {
        let make = async || {
            let body = json!({ "url": receiver.url(), "events": ["agent.role_assigned"] });
            let made = control.api.send_as(control.human(), "POST", path, body).await.expect(201);
            made["webhookId"].as_str().unwrap().to_owned()
        };
        Self { lasting: make().await, doomed: make().await }
    }
}

/// The event that was delivered to a webhook of the service.
async fn delivered(control: &ControlPlane, webhook: &str) -> String {
    let path = control.path(&format!("/webhooks/{webhook}/deliveries?status=delivered"));
    let found = async || {
        let page = control.api.get_as(control.key(), &path).await.expect(200);
        page["data"][0]["eventId"].as_str().map(str::to_owned)
    };
    eventually("the webhook is told of the role", found, || control.log()).await
}

/// What is wrong with the shape of a refusal, if anything is.
pub fn misshapen(answer: &HttpResponse) -> Option<&'static str> {
    let error = &answer.body["error"];
    if !(400..500).contains(&answer.status) {
        Some("no refusal")
    } else if !error["code"].as_str().is_some_and(|code| CODES.contains(&code)) {
        Some("no code of the list")
    } else if error["message"].as_str().is_none_or(str::is_empty) || error["message"].as_str().unwrap().len() > 2000 {
        Some("no message, or a long one")
    } else if !error["details"].is_object() {
        Some("no details")
    } else if answer.header("x-request-id").is_empty() {
        Some("no request id")
    } else {
        None
    }
}

/// What is wrong with a refusal of this route by the table of docs/use/api.md, if anything is.
pub fn unlisted(route: &Route, answer: &HttpResponse) -> Option<String> {
    let code = answer.text("/error/code");
    let fine = answer.status < 400 || line(route.method, route.path).allows(code);
    (!fine).then(|| format!("{} {}: docs/use/api.md knows no {code}", route.method, route.path))
}

/// What is wrong with an answer that should be this error, about these fields.
pub fn fault(answer: &HttpResponse, expected: (u16, &str), fields: Option<&[&str]>) -> Option<String> {
    let named: Option<Vec<_>> = answer.body["error"]["details"]["fields"].as_object().map(|map| map.keys().collect());
    let right = (answer.status, answer.text("/error/code")) == expected
        && fields.is_none_or(|fields| named.is_some_and(|named| named == fields));
    let shape = misshapen(answer);
    (shape.is_some() || !right).then(|| {
        let shape = shape.unwrap_or_default();
        format!("expected {expected:?} about {fields:?}, came {} {} {shape}", answer.status, answer.body)
    })
}

/// The panic that tells all faults at once.
#[track_caller]
pub fn assert_none(faults: &[String]) {
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}
