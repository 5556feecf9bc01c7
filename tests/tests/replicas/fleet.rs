//! Tests of guarantees that hold for several control planes with one PostgreSQL database, also during failures.
//!
//! `FLEET_SECONDS` sets the duration of the writes in the module `order`, in seconds.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]
#![expect(clippy::print_stdout, reason = "prints measurements")]

mod order;
mod outage;
mod revocation;
mod schema;
mod single_use;
mod small_disk;
mod start;
mod tcp_proxy;
mod tenants;
mod unavailable;
mod unwritable;
mod verify_from_memory;

use countersign_client::PrivateKey;
use countersign_process::{Clock, SystemClock};
use countersign_tests::{ControlPlane, HttpClient, control_plane::text};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};

static LOAD_LOCK: Mutex<()> = Mutex::const_new(());

/// Serializes the tests that put the machine under load.
async fn lock_load() -> MutexGuard<'static, ()> {
    LOAD_LOCK.lock().await
}

/// Starts a replica with this database.
async fn replica(database: &str) -> ControlPlane {
    ControlPlane::start_replica(database, &[]).await
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

    /// Requests a challenge and returns the body of a login with its signature.
    async fn login_body(&self, api: &HttpClient) -> Value {
        let challenge = api.post("/auth/challenge", json!({ "agentId": self.id })).await.expect(200);
        json!({ "challengeId": challenge["challengeId"], "signature": self.key.sign(&text(&challenge["nonce"])) })
    }

    /// Logs in and returns the body of the response.
    async fn login(&self, control: &ControlPlane) -> Value {
        control.api.post("/auth/authenticate", self.login_body(&control.api).await).await.expect(200)
    }

    async fn token(&self, control: &ControlPlane) -> String {
        text(&self.login(control).await["accessToken"])
    }
}

/// Time since boot.
fn now() -> Duration {
    SystemClock.since_boot()
}

/// A quantile of durations: 0.5 is the median.
fn quantile(durations: &mut [Duration], fraction: f64) -> Duration {
    durations.sort_unstable();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index"
    )]
    let index = (durations.len() as f64 * fraction) as usize;
    durations[index.min(durations.len() - 1)]
}
