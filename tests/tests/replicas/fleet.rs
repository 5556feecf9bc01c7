//! Tests of guarantees that hold for several control planes with one PostgreSQL database, also during failures.
//!
//! `FLEET_SECONDS` sets the duration of the writes in the module `order`, in seconds.

mod order;
mod outage;
mod revocation;
mod schema;
mod single_use;
mod small_disk;
mod start;
mod tenants;
mod unavailable;
mod unwritable;
mod verify_from_memory;

use countersign_client::PrivateKey;
use countersign_process::{Clock, SystemClock};
use countersign_tests::{ControlPlane, HttpResponse, Postgres, control_plane::text};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};

static LOAD_LOCK: Mutex<()> = Mutex::const_new(());

/// Serializes the tests that put the machine under load.
async fn lock_load() -> MutexGuard<'static, ()> {
    LOAD_LOCK.lock().await
}

async fn replica(database: &str) -> ControlPlane {
    ControlPlane::start_replica(database, &[]).await
}

/// Two replicas with one database.
struct Replicas {
    first: ControlPlane,
    second: ControlPlane,
    database: String,
    // Declared last, so that the database ends after its clients.
    _postgres: Postgres,
}

impl Replicas {
    async fn start() -> Self {
        Self::start_with(&[]).await
    }

    async fn start_with(settings: &[&str]) -> Self {
        let postgres = Postgres::start().await;
        let database = postgres.create_database().await;
        let start = || ControlPlane::start_replica(&database, settings);
        let (first, second) = tokio::join!(start(), start());
        Self { first, second, database, _postgres: postgres }
    }

    fn both(&self) -> [&ControlPlane; 2] {
        [&self.first, &self.second]
    }
}

/// An agent that can call any replica.
struct FleetAgent {
    id: String,
    key: PrivateKey,
}

impl FleetAgent {
    async fn register(control: &ControlPlane) -> Self {
        let key = PrivateKey::generate();
        let body = json!({ "email": "o@example.org", "name": "Agent", "publicKey": key.public_pem().unwrap() });
        Self { id: text(&control.api.post("/auth/register", body).await.expect(201)["agentId"]), key }
    }

    async fn challenge(&self, control: &ControlPlane, service: Option<&str>) -> HttpResponse {
        control.api.post("/auth/challenge", json!({ "agentId": self.id, "serviceId": service })).await
    }

    /// The body of a login with this challenge.
    fn answer(&self, challenge: &HttpResponse) -> Value {
        let signature = self.key.sign(challenge.text("/nonce"));
        json!({ "challengeId": challenge.text("/challengeId"), "signature": signature })
    }

    /// Requests a challenge and returns the body of a login with its signature.
    async fn login_body(&self, control: &ControlPlane) -> Value {
        let challenge = self.challenge(control, None).await;
        assert_eq!(challenge.status, 200, "{challenge:?}");
        self.answer(&challenge)
    }

    /// Logs in for a service. If the challenge is refused, returns that response.
    async fn login_for(&self, control: &ControlPlane, service: &str) -> HttpResponse {
        let challenge = self.challenge(control, Some(service)).await;
        if challenge.status != 200 {
            return challenge;
        }
        control.api.post("/auth/authenticate", self.answer(&challenge)).await
    }

    /// Logs in and returns the body of the response.
    async fn login(&self, control: &ControlPlane) -> Value {
        control.api.post("/auth/authenticate", self.login_body(control).await).await.expect(200)
    }

    async fn token(&self, control: &ControlPlane) -> String {
        text(&self.login(control).await["accessToken"])
    }
}

/// Time since boot.
fn now() -> Duration {
    SystemClock.since_boot()
}
