//! Requests of clients during a failure, and their responses.

use super::{Member, now};
use countersign_tests::{
    ControlPlane, HttpResponse, Sidecar,
    control_plane::text,
    eventually,
    sidecar::{CheckResult, request},
};
use futures_util::future::join_all;
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::task::JoinHandle;

/// Deadline of a request during a failure.
const LONGEST: Duration = Duration::from_secs(20);

/// Concurrent requests of each kind: together more than there are database connections.
const AT_ONCE: usize = 4;

/// A response and its duration.
#[derive(Debug)]
pub struct Asked {
    pub what: &'static str,
    pub status: u16,
    pub took: Duration,
    pub body: Value,
}

/// A client with all credentials.
pub struct Clients<'a> {
    pub at: &'a ControlPlane,
    agent: Member,
    pub token: String,
    refresh: String,
    role: String,
    /// The body of a login that needs no further challenge.
    login: Value,
}

impl<'a> Clients<'a> {
    pub async fn of(at: &'a ControlPlane) -> Self {
        let agent = Member::register(at).await;
        let role = at.create_role(&format!("role of {}", agent.id), &["read"]).await;
        at.assign(&agent.id, &role).await;
        let pair = agent.login(at).await;
        let (token, refresh) = (text(&pair["accessToken"]), text(&pair["refreshToken"]));
        let login = agent.answered(&at.api).await;
        Self { at, agent, token, refresh, role, login }
    }

    /// Requests that only read.
    pub fn reads(&self) -> Vec<(&'static str, RequestBuilder)> {
        let at = self.at;
        let verify = at.api.request("GET", &at.path("/verify")).bearer_auth(at.key());
        let get = |path: &str| at.api.request("GET", path);
        vec![
            ("verify", verify.header("x-agent-token", format!("Bearer {}", self.token))),
            ("roles", get(&at.path("/roles")).bearer_auth(at.key())),
            ("agent", get(&at.path(&format!("/agents/{}", self.agent.id))).bearer_auth(at.key())),
            ("challenge", at.api.request("POST", "/auth/challenge").json(&json!({ "agentId": self.agent.id }))),
            ("audit", get("/audit").bearer_auth(at.human())),
        ]
    }

    /// Requests that write.
    pub fn writes(&self) -> Vec<(&'static str, RequestBuilder)> {
        let at = self.at;
        let key = countersign_client::PrivateKey::generate().public_pem().unwrap();
        let agent = json!({ "email": "o@example.org", "name": "Agent", "publicKey": key });
        let role = json!({ "name": format!("role {}", now().as_nanos()), "permissions": [] });
        let held = at.path(&format!("/agents/{}/roles/{}", self.agent.id, self.role));
        let status = json!({ "status": "active" });
        vec![
            ("register", at.api.request("POST", "/auth/register").json(&agent)),
            ("authenticate", at.api.request("POST", "/auth/authenticate").json(&self.login)),
            ("refresh", at.api.request("POST", "/auth/refresh").json(&json!({ "refreshToken": self.refresh }))),
            ("make a role", at.api.request("POST", &at.path("/roles")).bearer_auth(at.key()).json(&role)),
            ("revoke a role", at.api.request("DELETE", &held).bearer_auth(at.key())),
            (
                "status",
                at.api
                    .request("PUT", &format!("/agents/{}/status", self.agent.id))
                    .bearer_auth(at.human())
                    .json(&status),
            ),
            ("revoke", at.api.request("POST", "/auth/revoke").json(&json!({ "token": self.token }))),
        ]
    }

    /// Sends all requests several times concurrently, and asserts the deadline.
    pub async fn ask_all(&self) -> Vec<Asked> {
        let all = (0..AT_ONCE).flat_map(|_| self.reads().into_iter().chain(self.writes()));
        let asked = join_all(all.map(|(what, request)| ask(what, request))).await;
        for Asked { what, took, status, .. } in &asked {
            assert!(*took < LONGEST, "{what}: {status} after {took:?}\n{}", self.at.log());
        }
        asked
    }

    /// Asserts that all requests return 503. Returns the longest duration.
    pub async fn assert_all_unavailable(&self) -> Duration {
        let asked = self.ask_all().await;
        for Asked { what, status, body, took } in &asked {
            assert_eq!(*status, 503, "{what} after {took:?}: {body}");
            assert_eq!(body["error"]["code"], "SERVICE_UNAVAILABLE", "{what}");
        }
        asked.iter().map(|asked| asked.took).max().unwrap()
    }

    /// Waits until reads and writes succeed. Returns the duration.
    pub async fn await_recovery(&self) -> Duration {
        let began = now();
        let good = async || {
            let mut statuses = BTreeSet::new();
            for _ in 0..3 {
                let all = self.reads().into_iter().chain([self.writes().swap_remove(0)]);
                let asked = join_all(
                    (0..AT_ONCE).flat_map(|_| self.reads()).chain(all).map(|(what, request)| ask(what, request)),
                );
                statuses.extend(asked.await.iter().map(|asked| asked.status));
            }
            statuses.is_subset(&BTreeSet::from([200, 201])).then_some(())
        };
        eventually("all requests succeed again", good, || self.at.log()).await;
        now().saturating_sub(began)
    }

    /// Status code, overall status and database check of `/health`, which responds although the database hangs.
    pub async fn health(&self) -> (u16, String, String) {
        let asked = ask("health", self.at.api.request("GET", "/health")).await;
        assert!(asked.took < LONGEST, "health took {:?}", asked.took);
        (asked.status, text(&asked.body["status"]), text(&asked.body["checks"]["database"]))
    }

    /// Waits until `/health` returns this.
    pub async fn await_health(&self, status: u16, overall: &str, database: &str) {
        let wanted = (status, overall.to_owned(), database.to_owned());
        let mut last = None;
        let says = async || {
            last = Some(self.health().await);
            (last.as_ref() == Some(&wanted)).then_some(())
        };
        eventually(&format!("health is {wanted:?}"), says, || self.at.log()).await;
    }
}

async fn ask(what: &'static str, request: RequestBuilder) -> Asked {
    let began = now();
    let answer = HttpResponse::try_send(request.timeout(LONGEST)).await;
    let took = now().saturating_sub(began);
    let (status, body) = answer.map_or((0, Value::Null), |answer| (answer.status, answer.body));
    Asked { what, status, took, body }
}

/// Checks a token at a sidecar, again and again.
pub struct Checks {
    ends: Arc<AtomicBool>,
    count: Arc<AtomicU32>,
    asking: JoinHandle<Duration>,
}

impl Checks {
    /// Starts. The sidecar must allow every check.
    pub async fn begin(sidecar: &Sidecar, token: &str) -> Self {
        let (ends, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let (over, answered, mut client) = (Arc::clone(&ends), Arc::clone(&count), sidecar.client().await);
        let asked = request(&[("authorization", &format!("Bearer {token}"))], &[]);
        let asking = tokio::spawn(async move {
            let mut longest = Duration::ZERO;
            while !over.load(Ordering::SeqCst) {
                let began = now();
                let verdict = CheckResult::of(client.check(asked.clone()).await.unwrap().into_inner());
                assert_eq!(verdict.status, 200, "{}", verdict.reason);
                longest = longest.max(now().saturating_sub(began));
                answered.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            longest
        });
        Self { ends, count, asking }
    }

    /// Waits until the sidecar has answered this many more checks.
    pub async fn more(&self, checks: u32) {
        let enough = self.count.load(Ordering::SeqCst) + checks;
        let answered = async || (self.count.load(Ordering::SeqCst) >= enough).then_some(());
        eventually("the sidecar answers checks", answered, String::new).await;
    }

    /// Ends. Returns the number of checks and the longest time that one took.
    pub async fn end(self) -> (u32, Duration) {
        self.ends.store(true, Ordering::SeqCst);
        (self.count.load(Ordering::SeqCst), self.asking.await.unwrap())
    }
}
