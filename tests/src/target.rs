//! A webhook target with the credential that manages it, and an agent whose actions cause events.

use crate::{Agent, ControlPlane, HttpClient, HttpResponse, Receiver, Reply, control_plane::text, eventually};
use serde_json::{Value, json};
use std::cell::RefCell;

/// Starts a control plane with these delays between delivery attempts, in seconds.
pub async fn start_with_retries(seconds: &[u32], extra_settings: &[&str]) -> ControlPlane {
    ControlPlane::start_with(&[&[retry_setting(seconds).as_str()], extra_settings].concat()).await
}

/// The setting for how long the control plane waits before each retry of a delivery.
pub fn retry_setting(seconds: &[u32]) -> String {
    format!("webhooks.retry_seconds={}", seconds.iter().map(u32::to_string).collect::<Vec<_>>().join(","))
}

/// A webhook target and the credential that manages it.
pub struct Target {
    api: HttpClient,
    bearer: String,
    path: String,
    /// Webhook id.
    pub id: String,
    /// Signing secret.
    pub secret: String,
}

impl Target {
    /// Creates a target at the first service for all event kinds.
    pub async fn create(control: &ControlPlane, url: &str) -> Self {
        Self::create_for(control, url, &["*"]).await
    }

    /// Starts a receiver with one reply, and creates a target with it at the first service for all event kinds.
    pub async fn with_receiver(control: &ControlPlane, reply: Reply) -> (Self, Receiver) {
        let receiver = Receiver::start(reply).await;
        (Self::create(control, &receiver.url).await, receiver)
    }

    /// Creates a target at the first service for these event kinds.
    pub async fn create_for(control: &ControlPlane, url: &str, kinds: &[&str]) -> Self {
        Self::create_in(&control.api, control.key(), &control.path("/webhooks"), url, kinds).await
    }

    /// Creates a target of the whole Countersign deployment, for the events of all services.
    pub async fn create_for_deployment(control: &ControlPlane, url: &str) -> Self {
        Self::create_in(&control.api, control.human(), "/webhooks", url, &["*"]).await
    }

    /// Creates a target with a request to the path of a collection, such as `/webhooks`.
    pub async fn create_in(api: &HttpClient, bearer: &str, collection: &str, url: &str, kinds: &[&str]) -> Self {
        let created = api.send_as(bearer, "POST", collection, json!({ "url": url, "events": kinds })).await.expect(201);
        let id = text(&created["webhookId"]);
        let (api, bearer, path) = (api.clone(), bearer.to_owned(), format!("{collection}/{id}"));
        Self { api, bearer, path, id, secret: text(&created["secret"]) }
    }

    async fn send(&self, method: &str, suffix: &str, body: Value) -> HttpResponse {
        self.api.send_as(&self.bearer, method, &format!("{}{suffix}", self.path), body).await
    }

    /// Reads the target.
    pub async fn read(&self) -> Value {
        self.api.get_as(&self.bearer, &self.path).await.expect(200)
    }

    /// Changes the target.
    pub async fn change(&self, body: Value) -> Value {
        self.send("PATCH", "", body).await.expect(200)
    }

    /// Pauses deliveries.
    pub async fn pause(&self) {
        assert_eq!(self.change(json!({ "status": "paused" })).await["status"], "paused");
    }

    /// Resumes deliveries.
    pub async fn resume(&self) {
        assert_eq!(self.change(json!({ "status": "active" })).await["status"], "active");
    }

    /// Deletes the target.
    pub async fn delete(&self) {
        let deleted = self.api.delete_as(&self.bearer, &self.path).await.expect(200);
        assert_eq!(deleted, json!({ "deleted": true }));
    }

    /// Rotates the secret and stores the new one in `secret`.
    pub async fn rotate_secret(&mut self) -> Value {
        let created = self.send("POST", "/rotate-secret", json!({})).await.expect(200);
        self.secret = text(&created["secret"]);
        created
    }

    /// Sends a test event, and returns its id.
    pub async fn send_test_event(&self) -> String {
        text(&self.send("POST", "/test", json!({})).await.expect(202)["eventId"])
    }

    /// The first page of deliveries for a query such as `?status=dead`.
    pub async fn deliveries(&self, query: &str) -> Vec<Value> {
        let page = self.api.get_as(&self.bearer, &format!("{}/deliveries{query}", self.path)).await.expect(200);
        page["data"].as_array().expect("the value is a list").clone()
    }

    /// Number of deliveries with a status.
    pub async fn count_deliveries(&self, status: &str) -> u64 {
        let path = format!("{}/deliveries?status={status}&limit=1", self.path);
        let page = self.api.get_as(&self.bearer, &path).await.expect(200);
        page["pagination"]["total"].as_u64().expect("the value is a number")
    }

    /// The delivery of the event with this id.
    pub async fn delivery(&self, event: &str) -> Value {
        self.api.get_as(&self.bearer, &format!("{}/deliveries/{event}", self.path)).await.expect(200)
    }

    /// Replays one delivery.
    pub async fn replay(&self, event: &str) {
        let replayed = self.send("POST", &format!("/deliveries/{event}/replay"), json!({})).await.expect(202);
        assert_eq!(replayed, json!({ "replayed": 1 }));
    }

    /// Replays deliveries in bulk, and returns the number of replayed deliveries.
    pub async fn replay_since(&self, body: Value) -> u64 {
        self.send("POST", "/replay", body).await.expect(202)["replayed"].as_u64().expect("the value is a number")
    }

    /// Waits until the target meets a condition.
    pub async fn wait_until(&self, condition_name: &str, expected: impl Fn(&Value) -> bool) -> Value {
        wait_until(condition_name, async || self.read().await, expected).await
    }

    /// Waits until a delivery meets a condition.
    pub async fn wait_for_delivery(
        &self,
        event: &str,
        condition_name: &str,
        expected: impl Fn(&Value) -> bool,
    ) -> Value {
        wait_until(condition_name, async || self.delivery(event).await, expected).await
    }

    /// Waits until a number of attempts of a delivery is recorded.
    pub async fn wait_for_attempts(&self, event: &str, count: u64) -> Value {
        let condition = format!("{count} attempts are recorded");
        self.wait_for_delivery(event, &condition, |delivery| delivery["attempts"] == count).await
    }

    /// Waits until this number of deliveries has a status.
    pub async fn wait_until_count(&self, status: &str, count: u64) {
        let counted = async || (self.count_deliveries(status).await == count).then_some(());
        eventually(&format!("{count} deliveries are {status}"), counted, String::new).await;
    }

    /// Waits until a delivery has a status.
    pub async fn wait_for_delivery_status(&self, event: &str, status: &str) -> Value {
        self.wait_for_delivery(event, &format!("{event} is {status}"), |delivery| delivery["status"] == status).await
    }
}

/// Reads a value until it meets a condition.
async fn wait_until(name: &str, read: impl AsyncFn() -> Value, expected: impl Fn(&Value) -> bool) -> Value {
    let last = RefCell::new(Value::Null);
    let poll = async || {
        let value = read().await;
        last.replace(value.clone());
        expected(&value).then_some(value)
    };
    eventually(name, poll, || format!("{:#}", last.borrow())).await
}

/// An agent and a role of the first service that cause events.
pub struct EventSource<'a> {
    /// The control plane.
    pub control: &'a ControlPlane,
    /// The agent.
    pub agent: Agent,
    /// The role id.
    pub role: String,
}

impl<'a> EventSource<'a> {
    /// Registers an agent and creates the role `reader`.
    pub async fn new(control: &'a ControlPlane) -> Self {
        Self::with_role(control, "reader").await
    }

    /// Registers an agent and creates a role with this name.
    pub async fn with_role(control: &'a ControlPlane, role: &str) -> Self {
        let agent = Agent::register(control, "Agent").await;
        let role = control.create_role(role, &["read"]).await;
        Self { control, agent, role }
    }

    /// Assigns the role, which causes one `agent.role_assigned` event.
    pub async fn assign(&self) {
        self.control.assign(&self.agent.id, &self.role).await;
    }

    /// Revokes the role, which causes one `agent.role_revoked` event.
    pub async fn revoke(&self) {
        assert!(self.control.revoke(&self.agent.id, &self.role).await, "the agent had the role");
    }

    /// Assigns and revokes the role alternately. The agent must not have the role before the call, and does not have
    /// the role after an even number of events.
    pub async fn cause_events(&self, count: usize) {
        for number in 0..count {
            if number % 2 == 0 { self.assign().await } else { self.revoke().await }
        }
    }

    /// Attempts a login with a wrong signature, for a service or, if `service` is `None`, for no service.
    pub async fn fail_login(&self, service: Option<&str>) -> HttpResponse {
        let challenge = self.challenge(service).await;
        self.authenticate(&challenge, &self.agent.key.sign("another nonce")).await
    }

    /// Requests a challenge, for a service or, if `service` is `None`, for no service.
    pub async fn challenge(&self, service: Option<&str>) -> Value {
        self.agent.challenge(&self.control.api, service).await.expect(200)
    }

    /// Submits a signature for a challenge.
    pub async fn authenticate(&self, challenge: &Value, signature: &str) -> HttpResponse {
        let body = json!({ "challengeId": challenge["challengeId"], "signature": signature });
        self.control.api.post("/auth/authenticate", body).await
    }

    /// Signs a challenge with the agent's key.
    pub fn sign(&self, challenge: &Value) -> String {
        self.agent.key.sign(challenge["nonce"].as_str().expect("the value is a string"))
    }
}
