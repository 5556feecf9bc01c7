//! Several control planes on one PostgreSQL, as a fleet runs them: what must be so whichever of them is asked, and
//! whatever fails around them.
//!
//! Whatever takes long is bounded; `FLEET_SECONDS` makes the order of the feed be watched for longer.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "what is measured here is worth reading")]

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

/// Waits until no other test that measures time runs here.
async fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().await
}

/// A control plane of the fleet that uses this database.
async fn replica(database: &str) -> ControlPlane {
    ControlPlane::start_replica(database, &[]).await
}

/// An agent that talks to whichever replica it is sent to.
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

    /// A challenge with its answer.
    async fn answered(&self, at: &HttpClient) -> Value {
        let challenge = at.post("/auth/challenge", json!({ "agentId": self.id })).await.expect(200);
        json!({ "challengeId": challenge["challengeId"], "signature": self.key.sign(&text(&challenge["nonce"])) })
    }

    /// Access and refresh token, and what else a login gives.
    async fn login(&self, at: &ControlPlane) -> Value {
        at.api.post("/auth/authenticate", self.answered(&at.api).await).await.expect(200)
    }

    async fn token(&self, at: &ControlPlane) -> String {
        text(&self.login(at).await["accessToken"])
    }
}

/// Since the machine was started.
fn now() -> Duration {
    SystemClock.since_boot()
}

/// A share of some durations: 0.5 gives the median.
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
