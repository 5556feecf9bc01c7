//! A target of webhooks as its owner sees it, and causes of events.

use crate::{Agent, ControlPlane, HttpClient, HttpResponse, control_plane::text, eventually};
use serde_json::{Value, json};

/// A control plane whose deliveries are tried again after these seconds.
pub async fn control_with_retries(seconds: &[u32], more: &[&str]) -> ControlPlane {
    let retries = format!("webhooks.retry_seconds={}", list(seconds));
    ControlPlane::start_with(&[&[retries.as_str()], more].concat()).await
}

fn list(seconds: &[u32]) -> String {
    seconds.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// A target, and who manages it.
pub struct Target {
    api: HttpClient,
    bearer: String,
    path: String,
    /// Its id.
    pub id: String,
    /// What it knows us by.
    pub secret: String,
}

impl Target {
    /// Makes one at the first service, for all kinds of events.
    pub async fn make(control: &ControlPlane, url: &str) -> Self {
        Self::make_for(control, url, &["*"]).await
    }

    /// Makes one at the first service.
    pub async fn make_for(control: &ControlPlane, url: &str, kinds: &[&str]) -> Self {
        Self::make_at(&control.api, control.key(), &control.path("/webhooks"), url, kinds).await
    }

    /// Makes one for the whole deployment.
    pub async fn make_everywhere(control: &ControlPlane, url: &str) -> Self {
        Self::make_at(&control.api, control.human(), "/webhooks", url, &["*"]).await
    }

    /// Makes one in any set.
    pub async fn make_at(api: &HttpClient, bearer: &str, set: &str, url: &str, kinds: &[&str]) -> Self {
        let made = api.send_as(bearer, "POST", set, json!({ "url": url, "events": kinds })).await.expect(201);
        let id = text(&made["webhookId"]);
        let (api, bearer, path) = (api.clone(), bearer.to_owned(), format!("{set}/{id}"));
        Self { api, bearer, path, id, secret: text(&made["secret"]) }
    }

    async fn send(&self, method: &str, below: &str, body: Value) -> HttpResponse {
        self.api.send_as(&self.bearer, method, &format!("{}{below}", self.path), body).await
    }

    /// What is known of it.
    pub async fn read(&self) -> Value {
        self.api.get_as(&self.bearer, &self.path).await.expect(200)
    }

    /// Changes it.
    pub async fn change(&self, body: Value) -> Value {
        self.send("PATCH", "", body).await.expect(200)
    }

    /// Pauses it.
    pub async fn pause(&self) {
        assert_eq!(self.change(json!({ "status": "paused" })).await["status"], "paused");
    }

    /// Lets deliveries go on.
    pub async fn resume(&self) {
        assert_eq!(self.change(json!({ "status": "active" })).await["status"], "active");
    }

    /// Deletes it.
    pub async fn delete(&self) {
        let request = self.api.request("DELETE", &self.path).bearer_auth(&self.bearer);
        assert_eq!(HttpResponse::send(request).await.expect(200), json!({ "deleted": true }));
    }

    /// Gives it a new secret, which from now on is the one of this target.
    pub async fn rotate(&mut self) -> Value {
        let made = self.send("POST", "/rotate-secret", json!({})).await.expect(200);
        self.secret = text(&made["secret"]);
        made
    }

    /// Sends it a test; gives the id of the event.
    pub async fn test(&self) -> String {
        text(&self.send("POST", "/test", json!({})).await.expect(202)["eventId"])
    }

    /// Its deliveries, by a query such as `?status=dead`: the first page.
    pub async fn deliveries(&self, query: &str) -> Vec<Value> {
        let page = self.api.get_as(&self.bearer, &format!("{}/deliveries{query}", self.path)).await.expect(200);
        page["data"].as_array().expect("a list").clone()
    }

    /// How many deliveries there are of a status.
    pub async fn total(&self, status: &str) -> u64 {
        let path = format!("{}/deliveries?status={status}&limit=1", self.path);
        self.api.get_as(&self.bearer, &path).await.expect(200)["pagination"]["total"].as_u64().expect("a number")
    }

    /// One delivery.
    pub async fn delivery(&self, event: &str) -> Value {
        self.api.get_as(&self.bearer, &format!("{}/deliveries/{event}", self.path)).await.expect(200)
    }

    /// Replays one delivery.
    pub async fn replay(&self, event: &str) {
        let replayed = self.send("POST", &format!("/deliveries/{event}/replay"), json!({})).await.expect(202);
        assert_eq!(replayed, json!({ "replayed": 1 }));
    }

    /// Replays many; says how many.
    pub async fn replay_since(&self, body: Value) -> u64 {
        self.send("POST", "/replay", body).await.expect(202)["replayed"].as_u64().expect("a number")
    }

    /// Waits until what is known of it is as expected.
    pub async fn until(&self, what: &str, expected: impl Fn(&Value) -> bool) -> Value {
        let last = std::cell::RefCell::new(Value::Null);
        let there = async || {
            let target = self.read().await;
            last.replace(target.clone());
            expected(&target).then_some(target)
        };
        eventually(what, there, || format!("{:#}", last.borrow())).await
    }

    /// Waits until a delivery is as expected.
    pub async fn until_delivery(&self, event: &str, what: &str, expected: impl Fn(&Value) -> bool) -> Value {
        let last = std::cell::RefCell::new(Value::Null);
        let there = async || {
            let delivery = self.delivery(event).await;
            last.replace(delivery.clone());
            expected(&delivery).then_some(delivery)
        };
        eventually(what, there, || format!("{:#}", last.borrow())).await
    }

    /// Waits until a delivery has a status.
    pub async fn until_status(&self, event: &str, status: &str) -> Value {
        self.until_delivery(event, &format!("{event} is {status}"), |delivery| delivery["status"] == status).await
    }
}

/// An agent, and a role of the first service, to cause events with.
pub struct EventSource<'a> {
    /// Where it happens.
    pub control: &'a ControlPlane,
    /// Who does it.
    pub agent: Agent,
    /// What it is given.
    pub role: String,
}

impl<'a> EventSource<'a> {
    /// A new agent, and a new role.
    pub async fn new(control: &'a ControlPlane) -> Self {
        Self::with_role(control, "reader").await
    }

    /// The same with the name of the role.
    pub async fn with_role(control: &'a ControlPlane, role: &str) -> Self {
        let agent = Agent::register(control, "Agent").await;
        let role = control.create_role(role, &["read"]).await;
        Self { control, agent, role }
    }

    /// One `agent.role_assigned`.
    pub async fn assign(&self) {
        self.control.assign(&self.agent.id, &self.role).await;
    }

    /// One `agent.role_revoked`.
    pub async fn revoke(&self) {
        assert!(self.control.revoke(&self.agent.id, &self.role).await, "it was held");
    }

    /// So many events, of the two kinds in turn. The role is not held before and, after an even number, not after.
    pub async fn events(&self, count: usize) {
        for number in 0..count {
            if number % 2 == 0 { self.assign().await } else { self.revoke().await }
        }
    }

    /// A login that fails, at a service or at none; gives the answer.
    pub async fn fail(&self, service: Option<&str>) -> HttpResponse {
        let challenge = self.challenge(service).await;
        self.answer(&challenge, &self.agent.key.sign("another nonce")).await
    }

    /// A challenge, for a service or for none.
    pub async fn challenge(&self, service: Option<&str>) -> Value {
        let body = json!({ "agentId": self.agent.id, "serviceId": service });
        let body = if service.is_some() { body } else { json!({ "agentId": self.agent.id }) };
        self.control.api.post("/auth/challenge", body).await.expect(200)
    }

    /// An answer to a challenge.
    pub async fn answer(&self, challenge: &Value, signature: &str) -> HttpResponse {
        let body = json!({ "challengeId": challenge["challengeId"], "signature": signature });
        self.control.api.post("/auth/authenticate", body).await
    }

    /// The right answer to a challenge.
    pub fn signature(&self, challenge: &Value) -> String {
        self.agent.key.sign(challenge["nonce"].as_str().expect("a text"))
    }
}
