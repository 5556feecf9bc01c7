//! Writers that record which writes the control plane acknowledged, and compare them with the database afterwards.

use countersign_client::PrivateKey;
use countersign_tests::{ControlPlane, HttpClient, HttpResponse, control_plane::text};
use serde_json::{Value, json};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Row};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::task::JoinSet;

/// Each agent is written five times, so a ledger contains a thousand writes.
const AGENTS: usize = 200;

/// Number of writers at the same time.
const WRITERS: usize = 8;

/// The pause before a write is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// The control plane under test. This is a copy of its addresses, so a test can kill the control plane while writers use it.
pub struct Target {
    api: HttpClient,
    key: String,
    service: String,
    database: String,
}

impl Target {
    /// The replicas of a control plane, which get the writes in turn.
    pub fn of(control: &ControlPlane) -> Self {
        Self {
            api: control.api.clone(),
            key: control.key().to_owned(),
            service: control.service().to_owned(),
            database: control.database_url(),
        }
    }
}

/// What all writers share.
struct Ledger {
    target: Target,
    next: AtomicUsize,
    acknowledged: Mutex<Vec<Writes>>,
    retries: AtomicUsize,
}

/// The acknowledged writes about one agent.
struct Writes {
    agent: String,
    role: String,
    refresh_token: String,
}

/// Writes a thousand times while `faults` runs, and compares the database with what was acknowledged.
pub async fn assert_nothing_is_lost_or_doubled(target: Target, faults: impl Future<Output = ()>) {
    let ledger = Arc::new(Ledger {
        target,
        next: AtomicUsize::new(0),
        acknowledged: Mutex::default(),
        retries: AtomicUsize::new(0),
    });
    let writers: JoinSet<()> = (0..WRITERS).map(|_| write_all(ledger.clone())).collect();
    tokio::join!(writers.join_all(), faults);
    let retries = ledger.retries.load(Ordering::SeqCst);
    println!("{} writes were acknowledged, after {retries} attempts that were not", 5 * AGENTS);
    ledger.compare().await;
}

async fn write_all(ledger: Arc<Ledger>) {
    loop {
        let number = ledger.next.fetch_add(1, Ordering::SeqCst);
        if number >= AGENTS {
            return;
        }
        let writes = ledger.write(number).await;
        ledger.acknowledged.lock().unwrap().push(writes);
    }
}

impl Ledger {
    /// Registers an agent, creates a role and assigns it to the agent, sends feedback about the agent, and logs the agent in.
    async fn write(&self, number: usize) -> Writes {
        let key = PrivateKey::generate();
        let name = format!("ledger-{number}");
        let body = json!({ "email": "o@example.org", "name": name, "publicKey": key.public_pem().unwrap() });
        let agent = text(&self.send("POST", "/auth/register", &name, &body).await["agentId"]);
        let roles = format!("/services/{}/roles", self.target.service);
        let role = self.send("POST", &roles, &name, &json!({ "name": name, "permissions": ["read"] })).await;
        let role = text(&role["roleId"]);
        let path = format!("/services/{}/agents/{agent}/roles", self.target.service);
        self.send("POST", &path, &name, &json!({ "roleId": role })).await;
        self.send("POST", "/trust/feedback", &name, &json!({ "agentId": agent, "score": 90, "reason": name })).await;
        Writes { refresh_token: self.login(&agent, &key).await, agent, role }
    }

    async fn login(&self, agent: &str, key: &PrivateKey) -> String {
        loop {
            let challenge = self.send("POST", "/auth/challenge", "", &json!({ "agentId": agent })).await;
            let signature = key.sign(&text(&challenge["nonce"]));
            let body = json!({ "challengeId": challenge["challengeId"], "signature": signature });
            // If the response of a login is lost, try again with a new challenge: this one may be used up.
            if let Some(tokens) = self.try_send("POST", "/auth/authenticate", "", &body).await {
                return text(&tokens["refreshToken"]);
            }
        }
    }

    /// Sends a request until it is acknowledged. The idempotency key lets the control plane recognize the repetitions.
    async fn send(&self, method: &str, path: &str, idempotency_key: &str, body: &Value) -> Value {
        loop {
            if let Some(response) = self.try_send(method, path, idempotency_key, body).await {
                return response;
            }
            self.retries.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Sends a request once. Returns `None` if it was not acknowledged.
    async fn try_send(&self, method: &str, path: &str, idempotency_key: &str, body: &Value) -> Option<Value> {
        let mut request = self.target.api.request(method, path).json(body);
        if !path.starts_with("/auth/") {
            request = request.bearer_auth(&self.target.key);
        }
        if !idempotency_key.is_empty() {
            request = request.header("idempotency-key", format!("\"{idempotency_key}\""));
        }
        let response = HttpResponse::try_send(request).await?;
        match response.status {
            200..300 => Some(response.body),
            503 => None,
            status => panic!("{method} {path}: {status} {}", response.body),
        }
    }

    async fn compare(&self) {
        let acknowledged = std::mem::take(&mut *self.acknowledged.lock().unwrap());
        assert_eq!(acknowledged.len(), AGENTS);
        sqlx::any::install_default_drivers();
        let mut database = AnyConnection::connect(&self.target.database).await.unwrap();
        let mut count = async |sql: &str| -> BTreeMap<String, i64> {
            let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut database).await.unwrap();
            rows.iter().map(|row| (row.get(0), row.get(1))).collect()
        };
        let agents = count("SELECT id, COUNT(*) FROM agents WHERE name LIKE 'ledger-%' GROUP BY id").await;
        let roles = count("SELECT id, COUNT(*) FROM roles WHERE name LIKE 'ledger-%' GROUP BY id").await;
        let assignments = count("SELECT agent_id, COUNT(*) FROM assignments GROUP BY agent_id").await;
        let feedback = count("SELECT agent_id, COUNT(*) FROM trust_feedback GROUP BY agent_id").await;
        assert_eq!([agents.len(), roles.len(), assignments.len(), feedback.len()], [AGENTS; 4]);
        for Writes { agent, role, refresh_token } in acknowledged {
            assert_eq!((agents.get(&agent), roles.get(&role)), (Some(&1), Some(&1)), "{agent} {role}");
            assert_eq!((assignments.get(&agent), feedback.get(&agent)), (Some(&1), Some(&1)), "{agent} {role}");
            let refreshed = self.target.api.post("/auth/refresh", json!({ "refreshToken": refresh_token })).await;
            assert_eq!(refreshed.status, 200, "the session of {agent}: {}", refreshed.body);
        }
    }
}
