//! Requests of clients during a failure, and their responses.

use super::{FleetAgent, now};
use countersign_tests::{
    ControlPlane, HttpResponse, Sidecar,
    control_plane::text,
    eventually,
    sidecar::{self, check_request},
};
use futures_util::future::join_all;
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use std::{
    collections::{BTreeSet, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::task::{JoinHandle, JoinSet};

/// Deadline of a request during a failure.
const DEADLINE: Duration = Duration::from_secs(20);

/// Number of concurrent requests of each kind. The concurrent requests of all kinds together exceed the number of
/// database connections.
const CONCURRENCY: usize = 4;

/// A response and its duration. Status 0 means that no response arrived.
#[derive(Debug)]
pub struct TimedResponse {
    pub name: &'static str,
    pub status: u16,
    pub duration: Duration,
    pub body: Value,
}

/// A client with all kinds of credentials.
pub struct FleetClient<'a> {
    pub control: &'a ControlPlane,
    agent: FleetAgent,
    pub token: String,
    refresh: String,
    role: String,
    /// The body of a login with a signed challenge, prepared before the failure.
    login: Value,
}

impl<'a> FleetClient<'a> {
    pub async fn create(control: &'a ControlPlane) -> Self {
        let agent = FleetAgent::register(control).await;
        let role = control.create_role(&format!("role of {}", agent.id), &["read"]).await;
        control.assign(&agent.id, &role).await;
        let tokens = agent.login(control).await;
        let (token, refresh) = (text(&tokens["accessToken"]), text(&tokens["refreshToken"]));
        let login = agent.login_body(control).await;
        Self { control, agent, token, refresh, role, login }
    }

    /// A request with the API key of the service, to `/services/{id}` followed by `below`.
    fn request(&self, method: &str, below: &str) -> RequestBuilder {
        self.control.api.request(method, &self.control.path(below)).bearer_auth(self.control.key())
    }

    /// A request without a credential in a header.
    fn post(&self, path: &str, body: &Value) -> RequestBuilder {
        self.control.api.request("POST", path).json(body)
    }

    /// Requests that only read.
    pub fn read_requests(&self) -> Vec<(&'static str, RequestBuilder)> {
        let verify = self.request("GET", "/verify").header("x-agent-token", format!("Bearer {}", self.token));
        vec![
            ("verify", verify),
            ("roles", self.request("GET", "/roles")),
            ("agent", self.request("GET", &format!("/agents/{}", self.agent.id))),
            ("challenge", self.post("/auth/challenge", &json!({ "agentId": self.agent.id }))),
            ("audit", self.control.api.request("GET", "/audit").bearer_auth(self.control.human())),
            ("sidecars", self.request("GET", "/sidecars")),
            ("enforcement", self.request("GET", "/enforcement")),
        ]
    }

    /// Requests that write.
    pub fn write_requests(&self) -> Vec<(&'static str, RequestBuilder)> {
        let key = countersign_client::PrivateKey::generate().public_pem().unwrap();
        let agent = json!({ "email": "o@example.org", "name": "Agent", "publicKey": key });
        let role = json!({ "name": format!("role {}", now().as_nanos()), "permissions": [] });
        let assignment = format!("/agents/{}/roles/{}", self.agent.id, self.role);
        let status = self.control.api.request("PUT", &format!("/agents/{}/status", self.agent.id));
        vec![
            ("register", self.post("/auth/register", &agent)),
            ("authenticate", self.post("/auth/authenticate", &self.login)),
            ("refresh", self.post("/auth/refresh", &json!({ "refreshToken": self.refresh }))),
            ("create a role", self.request("POST", "/roles").json(&role)),
            ("revoke a role", self.request("DELETE", &assignment)),
            ("status", status.bearer_auth(self.control.human()).json(&json!({ "status": "active" }))),
            ("revoke", self.post("/auth/revoke", &json!({ "token": self.token }))),
        ]
    }

    /// Sends all requests several times concurrently, and asserts that each gets a response before the deadline.
    pub async fn send_all(&self) -> Vec<TimedResponse> {
        let requests = (0..CONCURRENCY).flat_map(|_| self.read_requests().into_iter().chain(self.write_requests()));
        let responses = join_all(requests.map(|(name, request)| send_timed(name, request))).await;
        for TimedResponse { name, duration, status, .. } in &responses {
            assert!(*duration < DEADLINE, "{name}: {status} after {duration:?}\n{}", self.control.log());
        }
        responses
    }

    /// Asserts that all requests return 503, and returns the duration of the slowest request.
    pub async fn assert_all_unavailable(&self) -> Duration {
        let responses = self.send_all().await;
        for TimedResponse { name, status, body, duration } in &responses {
            assert_eq!(*status, 503, "{name} after {duration:?}: {body}");
            assert_eq!(body["error"]["code"], "SERVICE_UNAVAILABLE", "{name}");
        }
        responses.iter().map(|response| response.duration).max().unwrap()
    }

    /// Waits until reads and writes succeed, and returns how long that took.
    pub async fn wait_for_recovery(&self) -> Duration {
        let start = now();
        let all_succeed = async || {
            let mut statuses = BTreeSet::new();
            for _ in 0..3 {
                let reads = (0..=CONCURRENCY).flat_map(|_| self.read_requests());
                let requests = reads.chain([self.write_requests().swap_remove(0)]);
                let responses = join_all(requests.map(|(name, request)| send_timed(name, request))).await;
                statuses.extend(responses.iter().map(|response| response.status));
            }
            statuses.is_subset(&BTreeSet::from([200, 201])).then_some(())
        };
        eventually("all requests succeed again", all_succeed, || self.control.log()).await;
        now().saturating_sub(start)
    }

    /// Returns status code, overall status and database check of `/health`, which responds even if the database hangs.
    pub async fn health(&self) -> (u16, String, String) {
        let response = send_timed("health", self.control.api.request("GET", "/health")).await;
        assert!(response.duration < DEADLINE, "health took {:?}", response.duration);
        (response.status, text(&response.body["status"]), text(&response.body["checks"]["database"]))
    }

    /// Waits until `/health` returns 503, and returns how long that took.
    pub async fn wait_until_unhealthy(&self) -> Duration {
        let start = now();
        self.wait_for_health(503, "unhealthy", "down").await;
        now().saturating_sub(start)
    }

    /// Waits until `/health` returns this status code, overall status and database check.
    pub async fn wait_for_health(&self, status: u16, overall: &str, database: &str) {
        let expected = (status, overall.to_owned(), database.to_owned());
        let mut last = None;
        let reported = async || {
            last = Some(self.health().await);
            (last.as_ref() == Some(&expected)).then_some(())
        };
        eventually(&format!("health is {expected:?}"), reported, || self.control.log()).await;
    }
}

async fn send_timed(name: &'static str, request: RequestBuilder) -> TimedResponse {
    let start = now();
    let response = HttpResponse::try_send(request.timeout(DEADLINE)).await;
    let duration = now().saturating_sub(start);
    let (status, body) = response.map_or((0, Value::Null), |response| (response.status, response.body));
    TimedResponse { name, status, duration, body }
}

/// Checks a token at a sidecar repeatedly in the background.
pub struct BackgroundChecks {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU32>,
    task: JoinHandle<Duration>,
}

impl BackgroundChecks {
    /// Starts the checks. The sidecar must allow each check.
    pub async fn start(sidecar: &Sidecar, token: &str) -> Self {
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let (stop_requested, counter, mut client) = (Arc::clone(&stop), Arc::clone(&count), sidecar.client().await);
        let check = check_request(&[("authorization", &format!("Bearer {token}"))], &[]);
        let task = tokio::spawn(async move {
            let mut longest = Duration::ZERO;
            while !stop_requested.load(Ordering::SeqCst) {
                let start = now();
                let result = sidecar::check(&mut client, check.clone()).await;
                assert_eq!(result.status, 200, "{}", result.reason);
                longest = longest.max(now().saturating_sub(start));
                counter.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            longest
        });
        Self { stop, count, task }
    }

    /// Waits until the sidecar has responded to this many more checks.
    pub async fn wait_for_more(&self, checks: u32) {
        let target = self.count.load(Ordering::SeqCst) + checks;
        let responded = async || (self.count.load(Ordering::SeqCst) >= target).then_some(());
        eventually("the sidecar responds to checks", responded, String::new).await;
    }

    /// Stops the checks, and returns the number of checks and the duration of the slowest check.
    pub async fn stop(self) -> (u32, Duration) {
        self.stop.store(true, Ordering::SeqCst);
        (self.count.load(Ordering::SeqCst), self.task.await.unwrap())
    }
}

/// Counts the network connections of a control plane to its database repeatedly in the background.
pub struct ConnectionCount {
    largest: Arc<AtomicUsize>,
    _task: JoinSet<()>,
}

impl ConnectionCount {
    pub fn start(control: &ControlPlane) -> Self {
        let (url, process) = (control.database_url(), control.process_id());
        let port = url.rsplit(':').next().and_then(|rest| rest.split('/').next()).unwrap().parse().unwrap();
        let largest = Arc::<AtomicUsize>::default();
        let shared = Arc::clone(&largest);
        let count = async move {
            loop {
                shared.fetch_max(connections(process, port), Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        Self { largest, _task: JoinSet::from_iter([count]) }
    }

    /// The largest number of connections so far.
    pub fn largest(&self) -> usize {
        self.largest.load(Ordering::SeqCst)
    }
}

/// The number of connections of a process to a port of this machine that are open or being opened.
fn connections(process: u32, port: u16) -> usize {
    let remote = format!(":{port:04X}");
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    // The fields are: number, local address, remote address, state (01 and 02: established and SYN sent), ..., inode.
    let open = rows.filter(|row| row[2].ends_with(&remote) && ["01", "02"].contains(&row[3]));
    let sockets: HashSet<String> = open.map(|row| format!("socket:[{}]", row[9])).collect();
    let files = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
    let links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    links.filter(|link| link.to_str().is_some_and(|link| sockets.contains(link))).count()
}
