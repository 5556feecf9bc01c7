//! A control plane with one resource of each kind, and requests built from the table of routes.

use super::{
    contract::route_row,
    routes::{Access, Field, Route},
};
use countersign_client::PrivateKey;
use countersign_tests::{
    Agent, ControlPlane, Database, HttpResponse, Tenant, Upstream, control_plane::text, eventually,
};
use reqwest::RequestBuilder;
use secrecy::ExposeSecret;
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicU32, Ordering},
};
use tokio::sync::Mutex;

/// Every error code of the API.
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

/// A control plane with one resource of each kind.
pub struct Fixture {
    pub control: ControlPlane,
    pub agent: Agent,
    /// An access token of the agent.
    pub token: String,
    pub role: String,
    /// A role that tests may delete.
    pub deletable_role: String,
    /// A service that tests may delete. [`Fixture::body`] replaces a deleted one.
    deletable_service: std::sync::Mutex<String>,
    /// Like `deletable_service`, for agents.
    deletable_agent: std::sync::Mutex<String>,
    /// A key of full scope that tests may revoke.
    pub spare_key: String,
    /// The signing key that has not signed anything yet.
    pub next_kid: String,
    /// Webhooks of the service and of the Countersign deployment, each of which has received an event.
    pub webhooks: [Webhooks; 2],
    /// Id of the event that the webhooks received.
    pub event: String,
    /// A service that another user has offered to the developer. [`Fixture::body`] renews the offer.
    offered_service: std::sync::Mutex<String>,
    receiver: Upstream,
    next_number: AtomicU32,
    database: Mutex<Database>,
}

/// The webhooks of one scope: of a service, or of the whole Countersign deployment.
pub struct Webhooks {
    pub permanent: String,
    /// A webhook that tests may delete.
    pub deletable: String,
}

/// A challenge and its signature.
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
        let control = ControlPlane::start_process_with(settings).await;
        let agent = Agent::register(&control, "Agent").await;
        let role = control.create_role("reader", &["read"]).await;
        let receiver = Upstream::start().await;
        let service_webhooks = Webhooks::create(&control, &control.path("/webhooks"), &receiver).await;
        let webhooks = [service_webhooks, Webhooks::create(&control, "/webhooks", &receiver).await];
        control.assign(&agent.id, &role).await;
        let event = delivered_event(&control, &webhooks[0].permanent).await;
        let deletable_role = control.create_role("deletable", &["read"]).await;
        let offered_service = offered_service(&control).await;
        let uris = json!({ "resourceUris": ["https://service.example"] });
        control.api.send_as(control.human(), "PATCH", &control.path(""), uris).await.expect(200);
        let deletable_agent = Agent::register(&control, "deletable").await.id;
        let deletable_service = create_deletable_service(&control).await;
        let spare_key = control.create_key(control.service(), "full").await;
        let next_kid = control.signing_key("next").await;
        let (token, database) = (agent.token().await, Mutex::new(Database::connect_to(&control).await));
        let next_number = AtomicU32::new(0);
        Self {
            control,
            agent,
            token,
            role,
            deletable_role,
            deletable_service: deletable_service.into(),
            deletable_agent: deletable_agent.into(),
            offered_service: offered_service.into(),
            spare_key,
            next_kid,
            webhooks,
            event,
            receiver,
            next_number,
            database,
        }
    }

    /// All rows of the database, after the work that earlier requests left to background jobs (trust changes, webhook deliveries,
    /// removal of deleted roles) is done. Leaves out the rows that background jobs write at any time, and the last column of
    /// `deployment`, the time of the last write check.
    pub async fn rows(&self) -> BTreeSet<String> {
        let mut database = self.database.lock().await;
        let all_processed = async || {
            let rows = database.rows().await;
            let is_due = |row: &str| row.starts_with("webhook_deliveries ") && !row.contains(" due_at=NULL ");
            let is_pending =
                |row: &String| ["changed_trust_scores ", "webhook_outbox "].iter().any(|table| row.starts_with(table));
            let is_deleted_role = |row: &str| row.starts_with("roles ") && !row.contains(" deleted_at=NULL ");
            (!rows.iter().any(|row| is_pending(row) || is_due(row) || is_deleted_role(row))).then_some(rows)
        };
        let rows = eventually("the work of earlier requests is done", all_processed, || self.control.log()).await;
        let without_check_time = |row: String| match row.rsplit_once(' ') {
            Some((rest, _)) if row.starts_with("deployment ") => rest.to_owned(),
            _ => row,
        };
        // Background jobs write these rows at any time. The heads of audit chains only repeat what the entries show.
        let job_tables = ["control_planes ", "sidecars ", "unconfirmed_changes ", "audit_heads "];
        let is_job_row = |row: &String| {
            job_tables.iter().any(|table| row.starts_with(table)) || row.contains("='changes.enforced' ")
        };
        rows.into_iter().filter(|row| !is_job_row(row)).map(without_check_time).collect()
    }

    pub async fn challenge(&self) -> Challenge {
        let challenge = self.agent.challenge(&self.control.api, None).await.expect(200);
        let [id, nonce] = ["challengeId", "nonce"].map(|name| text(&challenge[name]));
        Challenge { id, signature: self.agent.key.sign(&nonce), nonce }
    }

    pub async fn refresh_token(&self) -> String {
        self.agent.login().await.refresh_token.expose_secret().to_owned()
    }

    /// The service that `DELETE /services/{service}` deletes.
    pub fn deletable_service(&self) -> String {
        self.deletable_service.lock().unwrap().clone()
    }

    /// The agent that `DELETE /agents/{agent}` deletes.
    pub fn deletable_agent(&self) -> String {
        self.deletable_agent.lock().unwrap().clone()
    }

    /// The service whose transfer the routes offer, accept and withdraw.
    pub fn offered_service(&self) -> String {
        self.offered_service.lock().unwrap().clone()
    }

    /// If an earlier request has deleted the service or the agent of this route, or has accepted the offer, creates a new one.
    async fn replace_deleted(&self, route: &Route) {
        if (route.method, route.path) == ("DELETE", "/services/{service}") {
            let path = format!("/services/{}", self.deletable_service());
            if self.control.api.get_as(self.control.human(), &path).await.status == 404 {
                let created = create_deletable_service(&self.control).await;
                *self.deletable_service.lock().unwrap() = created;
            }
        }
        if route.path.contains("/transfer") {
            let path = format!("/services/{}/transfer", self.offered_service());
            let offer = self.control.api.get_as(self.control.human(), &path).await;
            if offer.body["newOwner"]["subject"] != "developer" {
                let created = offered_service(&self.control).await;
                *self.offered_service.lock().unwrap() = created;
            }
        }
        if (route.method, route.path) == ("DELETE", "/agents/{agent}") {
            let path = format!("/agents/{}/services", self.deletable_agent());
            if self.control.api.get_as(self.control.human(), &path).await.status == 404 {
                let created = Agent::register(&self.control, "deletable").await.id;
                *self.deletable_agent.lock().unwrap() = created;
            }
        }
    }

    /// The path of a route with ids filled in.
    pub fn path(&self, route: &Route) -> String {
        let key_id = format!("key_{}", &self.spare_key["svc_sk_".len()..][..26]);
        let deletable = route.method == "DELETE" && route.repeated_status.is_some();
        let role = if deletable { &self.deletable_role } else { &self.role };
        let webhooks = self.webhooks_of(route);
        let deletable_service = self.deletable_service();
        let service =
            if route.path == "/services/{service}" && deletable { &deletable_service } else { self.control.service() };
        let offered_service = self.offered_service();
        let service = if route.path.contains("/transfer") { &offered_service } else { service };
        let deletable_agent = self.deletable_agent();
        let agent = if route.path == "/agents/{agent}" { &deletable_agent } else { &self.agent.id };
        let ids = [
            ("service", service),
            ("agent", agent),
            ("key", &key_id),
            ("kid", &self.next_kid),
            ("role", role),
            ("webhook", if deletable { &webhooks.deletable } else { &webhooks.permanent }),
            ("event", &self.event),
            ("file", "swagger-ui.css"),
        ];
        ids.iter().fold(route.path.to_owned(), |path, (name, value)| path.replace(&format!("{{{name}}}"), value))
    }

    /// The webhooks of the scope of a route.
    pub fn webhooks_of(&self, route: &Route) -> &Webhooks {
        &self.webhooks[usize::from(route.path.starts_with("/webhooks"))]
    }

    /// A valid body for a route. Each call of this function generates new single-use values.
    pub async fn body(&self, route: &Route) -> Map<String, Value> {
        self.replace_deleted(route).await;
        let template: String = route.fields.iter().map(|field| field.valid_value).collect();
        let mut values = vec![
            ("agent", self.agent.id.clone()),
            ("service", self.control.service().to_owned()),
            ("role", self.role.clone()),
            ("receiver", self.receiver.url()),
            ("number", self.next_number.fetch_add(1, Ordering::Relaxed).to_string()),
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
        let value = |field: &Field| serde_json::from_str(&fill(field.valid_value)).expect(field.valid_value);
        route.fields.iter().map(|field| (field.name.to_owned(), value(field))).collect()
    }

    /// A request for a route without credentials and body.
    pub fn request(&self, route: &Route) -> RequestBuilder {
        self.control.api.request(route.method, &self.path(route))
    }

    /// A valid request for a route.
    pub async fn valid_request(&self, route: &Route) -> RequestBuilder {
        let body = self.body(route).await;
        route.with_body(self.authorized(route), &body)
    }

    /// A request for a route with valid credentials.
    pub fn authorized(&self, route: &Route) -> RequestBuilder {
        self.authorize(route, self.request(route))
    }

    /// Adds valid credentials for a route.
    pub fn authorize(&self, route: &Route, request: RequestBuilder) -> RequestBuilder {
        match route.access {
            Access::Public | Access::PublicOrHuman => request,
            Access::Verifier => request.bearer_auth(self.control.key()).header("x-agent-token", &self.token),
            Access::AnyFullKey | Access::Manager => request.bearer_auth(self.control.key()),
            Access::Owner | Access::Receiver | Access::HumanUser | Access::Admin => {
                request.bearer_auth(self.control.human())
            }
        }
    }
}

impl Webhooks {
    async fn create(control: &ControlPlane, path: &str, receiver: &Upstream) -> Self {
        let create = async || {
            let body = json!({ "url": receiver.url(), "events": ["agent.role_assigned"] });
            text(&control.api.send_as(control.human(), "POST", path, body).await.expect(201)["webhookId"])
        };
        Self { permanent: create().await, deletable: create().await }
    }
}

/// Creates a service without rows that housekeeping would remove some time after the deletion.
async fn create_deletable_service(control: &ControlPlane) -> String {
    let created = control.api.send_as(control.human(), "POST", "/services", json!({ "name": "deletable" })).await;
    text(&created.expect(201)["serviceId"])
}

/// Creates a service of another user, who offers it to the developer.
async fn offered_service(control: &ControlPlane) -> String {
    let seller = Tenant::named(control, "seller", "offered").await;
    let offer = json!({ "subject": "developer" });
    control.api.send_as(&seller.human, "PUT", &seller.path("/transfer"), offer).await.expect(200);
    seller.service
}

/// The id of the event that was delivered to a webhook of the service.
async fn delivered_event(control: &ControlPlane, webhook: &str) -> String {
    let path = format!("/webhooks/{webhook}/deliveries?status=delivered");
    let event_id = async || {
        let page = control.get(&path).await.expect(200);
        page["data"][0]["eventId"].as_str().map(str::to_owned)
    };
    eventually("the role assignment is delivered to the webhook", event_id, || control.log()).await
}

/// Describes how the format of an error response is wrong.
pub fn malformed_error(response: &HttpResponse) -> Option<&'static str> {
    let error = &response.body["error"];
    if !(400..500).contains(&response.status) {
        Some("not an error")
    } else if !error["code"].as_str().is_some_and(|code| CODES.contains(&code)) {
        Some("an unknown code")
    } else if error["message"].as_str().is_none_or(str::is_empty) || error["message"].as_str().unwrap().len() > 2000 {
        Some("no message, or one that is too long")
    } else if !error["details"].is_object() {
        Some("no details")
    } else if response.header("x-request-id").is_empty() {
        Some("no request id")
    } else {
        None
    }
}

/// Describes an error code that docs/use/api.md does not list for the route.
pub fn undocumented_error(route: &Route, response: &HttpResponse) -> Option<String> {
    let code = response.text("/error/code");
    let is_documented = response.status < 400 || route_row(route.method, route.path).allows(code);
    (!is_documented).then(|| format!("docs/use/api.md does not list {code}"))
}

/// Describes how an error response differs from the expected error code and fields.
pub fn error_mismatch(response: &HttpResponse, expected: (u16, &str), fields: Option<&[&str]>) -> Option<String> {
    let actual_fields: Option<Vec<_>> =
        response.body["error"]["details"]["fields"].as_object().map(|map| map.keys().collect());
    let is_expected = response.code() == expected
        && fields.is_none_or(|fields| actual_fields.is_some_and(|actual_fields| actual_fields == fields));
    let format_error = malformed_error(response);
    (format_error.is_some() || !is_expected).then(|| {
        let format_error = format_error.unwrap_or_default();
        format!("expected {expected:?} about {fields:?}, got {} {} {format_error}", response.status, response.body)
    })
}

/// Everything that was wrong in a test, so that the test reports it at once.
#[derive(Debug, Default)]
pub struct Failures(Vec<String>);

impl Failures {
    /// If the result is not the expected one, adds a description of what was wrong.
    pub fn check(&mut self, is_expected: bool, describe: impl FnOnce() -> String) {
        if !is_expected {
            self.0.push(describe());
        }
    }

    /// Adds what was wrong in a case, if anything was.
    pub fn add(&mut self, case: impl std::fmt::Display, mismatch: Option<impl std::fmt::Display>) {
        self.0.extend(mismatch.map(|mismatch| format!("{case}: {mismatch}")));
    }

    /// Adds the rows that a refused request must not change.
    pub fn add_changed<'a>(&mut self, case: impl std::fmt::Display, rows: impl IntoIterator<Item = &'a String>) {
        self.0.extend(rows.into_iter().map(|row| format!("{case}: a refused request changed the row {row}")));
    }

    /// Panics with everything that was wrong.
    #[track_caller]
    pub fn assert_none(&self) {
        assert!(self.0.is_empty(), "{} failures:\n{}", self.0.len(), self.0.join("\n"));
    }
}
