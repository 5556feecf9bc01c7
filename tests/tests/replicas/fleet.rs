//! Several control planes on one PostgreSQL: guarantees that hold for all replicas together, also during failures.
//!
//! `FLEET_SECONDS` sets how long `order` runs.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]
#![expect(clippy::print_stdout, reason = "prints measurements")]

mod hang;
mod line;
mod order;
mod outage;
mod revocation;
mod schema;
mod single_use;
mod small;
mod start;
mod unwritable;

use countersign_client::PrivateKey;
use countersign_process::{Clock, SystemClock};
use countersign_tests::{ControlPlane, HttpClient, control_plane::text};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};

static ALONE: Mutex<()> = Mutex::const_new(());

/// Serializes the tests that put the machine under load.
async fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().await
}

/// A replica on this database.
async fn replica(database: &str) -> ControlPlane {
    ControlPlane::start_replica(database, &[]).await
}

/// An agent that can call any replica.
struct Member {
    id: String,
    key: PrivateKey,
}

impl Member {
    async fn register(at: &ControlPlane) -> Self {
        let key = PrivateKey::generate();
        let body = json!({ "email": "o@example.org", "name": "Agent", "publicKey": key.public_pem().unwrap() });
        Self { id: text(&at.api.post("/auth/register", body).await.expect(201)["agentId"]), key }
    }

    /// A challenge id and its signature, as the body of a login.
    async fn answered(&self, at: &HttpClient) -> Value {
        let challenge = at.post("/auth/challenge", json!({ "agentId": self.id })).await.expect(200);
        json!({ "challengeId": challenge["challengeId"], "signature": self.key.sign(&text(&challenge["nonce"])) })
    }

    /// The response to a login.
    async fn login(&self, at: &ControlPlane) -> Value {
        at.api.post("/auth/authenticate", self.answered(&at.api).await).await.expect(200)
    }

    async fn token(&self, at: &ControlPlane) -> String {
        text(&self.login(at).await["accessToken"])
    }
}

/// Time since boot.
fn now() -> Duration {
    SystemClock.since_boot()
}

/// A quantile of durations: 0.5 is the median.
fn quantile(durations: &mut [Duration], share: f64) -> Duration {
    durations.sort_unstable();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index"
    )]
    let index = (durations.len() as f64 * share) as usize;
    durations[index.min(durations.len() - 1)]
}
