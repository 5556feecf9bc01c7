//! A control plane with agents that call it at the same time.

use crate::{
    rounds::spread_part,
    scale,
    servers::{SERVER_CORE, per_second, pin},
    wrk::wrk,
};
use countersign_client::PrivateKey;
use countersign_process::{Clock as _, SystemClock};
use countersign_tests::{
    Agent, ControlPlane,
    bulk::{BulkInserts, copy_id},
};
use serde_json::json;
use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    time::Duration,
};

/// Number of callers, which call at the same time.
pub const CALLERS: usize = 32;

/// Number of connections of `wrk`.
pub const CONNECTIONS: &str = "32";

/// Number of sessions that each caller begins after agents were added to the database. The sessions are of random agents.
const SESSIONS: u32 = 32;

/// The settings of each control plane that is measured.
pub const SETTINGS: [&str; 1] = ["quotas.sessions_per_agent=1000000"];

/// What a caller does again and again.
#[derive(Debug, Clone, Copy)]
pub enum Operation {
    /// Gets a challenge and logs in.
    Login,
    /// Refreshes the next of the sessions that the caller has begun.
    Refresh,
    /// Assigns a role, and revokes it with the next call.
    RoleChange,
    /// Gives feedback about an agent.
    Feedback,
}

impl Operation {
    /// All operations, with their names in the report.
    pub const ALL: [(&str, Self); 4] = [
        ("login", Self::Login),
        ("refresh", Self::Refresh),
        ("role_change", Self::RoleChange),
        ("feedback", Self::Feedback),
    ];
}

/// Starts a control plane to be measured, with this database. An empty URL selects SQLite.
pub async fn start_control_plane(database: &str) -> ControlPlane {
    ControlPlane::start_one_with(&[&[format!("database.url={database}").as_str()], &SETTINGS[..]].concat()).await
}

/// A control plane with an agent for each caller.
pub struct Deployment {
    pub control: ControlPlane,
    agents: Vec<Agent>,
    role: String,
    /// The number of agents that were added to the database. They have the key of the first caller.
    added: i64,
    /// The number of measurements so far. Each measurement selects other agents.
    measurements: Cell<u64>,
    verifications: RecentVerifications,
    /// The sessions of each caller, in the order in which they are refreshed.
    sessions: Vec<RefCell<VecDeque<countersign_client::Tokens>>>,
}

impl Deployment {
    /// Starts a control plane on the processor of the servers, with this database. An empty URL selects SQLite.
    pub async fn start(database: &str) -> Self {
        let deployment = Self::of(start_control_plane(database).await).await;
        pin(deployment.control.process_id(), SERVER_CORE);
        deployment
    }

    /// Registers the agents of the callers at this control plane.
    pub async fn of(control: ControlPlane) -> Self {
        let role = control.create_role("reader", &["read"]).await;
        let mut agents = Vec::new();
        for _ in 0..CALLERS {
            agents.push(Agent::register(&control, "Caller").await);
        }
        let sessions = agents.iter().map(|_| RefCell::default()).collect();
        let (measurements, verifications) = (Cell::new(0), RecentVerifications::default());
        let deployment = Self { control, agents, role, added: 0, measurements, verifications, sessions };
        deployment.begin_sessions(1).await;
        deployment
    }

    /// Logs in this number of agents for each caller.
    async fn begin_sessions(&self, count: u64) {
        for (caller, sessions) in self.sessions.iter().enumerate() {
            sessions.borrow_mut().clear();
            for call in 0..count {
                let (key, id) = self.agent(caller, call);
                let tokens = self.agents[caller].api().login(key, &id, Some(self.control.service())).await;
                sessions.borrow_mut().push_back(tokens.expect("the login succeeds"));
            }
        }
    }

    /// Adds this number of agents to the database, each with a role at the service, and starts the control plane again.
    pub async fn add_agents(&mut self, count: i64) {
        self.control.kill();
        let mut inserts = BulkInserts::connect(&self.control.database_url(), &self.agents[0].id).await;
        inserts.prepare().await;
        inserts.agents((1, count), "active").await;
        inserts.assignments((1, count), self.control.service(), std::slice::from_ref(&self.role)).await;
        inserts.analyze().await;
        inserts.checkpoint().await;
        drop(inserts);
        self.added = count;
        self.control.restart().await;
        pin(self.control.process_id(), SERVER_CORE);
        self.begin_sessions(scale::count(SESSIONS).into()).await;
    }

    /// The responses per second of `verify` for one token.
    pub async fn verifications_per_second(&self, headers: &[String]) -> f64 {
        let url = format!("{}{}", self.control.urls()[0], self.control.path("/verify"));
        let headers: Vec<_> = headers.iter().map(String::as_str).collect();
        self.verifications.measure(wrk(&url, &headers, CONNECTIONS)).await
    }

    /// The headers of a request to `verify`, with a token of an agent that holds the role.
    pub async fn verification_headers(&self) -> Vec<String> {
        let token = self.agents[0].token_for(self.control.service()).await;
        self.control.assign(&self.agents[0].id, &self.role).await;
        vec![format!("authorization: Bearer {}", self.control.key()), format!("x-agent-token: {token}")]
    }

    /// The calls per second of all callers.
    pub async fn per_second(&self, operation: Operation, time: Duration) -> f64 {
        self.measurements.set(self.measurements.get() + 1);
        per_second(CALLERS, scale::time(time), async |caller, call| self.call(operation, caller, call).await).await
    }

    /// The key and the id of the agent as which a call acts: a random added agent or, if none were added, the caller's.
    fn agent(&self, caller: usize, call: u64) -> (&PrivateKey, String) {
        if self.added == 0 {
            return (&self.agents[caller].key, self.agents[caller].id.clone());
        }
        let call = caller as u64 * 1_000_003 + self.measurements.get() * 40_009 + call;
        let number = 1 + (spread_part(call) * self.added as f64) as i64;
        (&self.agents[0].key, copy_id(&self.agents[0].id, number))
    }

    async fn call(&self, operation: Operation, caller: usize, call: u64) {
        let (control, agent) = (&self.control, &self.agents[caller]);
        match operation {
            Operation::Login => {
                let (key, id) = self.agent(caller, call);
                drop(agent.api().login(key, &id, Some(control.service())).await.expect("the login succeeds"));
            }
            Operation::Refresh => {
                let next = self.sessions[caller].borrow_mut().pop_front();
                let refresh_token = next.expect("the caller has sessions").refresh_token;
                let tokens = agent.api().refresh(&refresh_token).await.expect("the refresh succeeds");
                self.sessions[caller].borrow_mut().push_back(tokens);
            }
            Operation::RoleChange if call.is_multiple_of(2) => {
                control.assign(&self.agent(caller, call / 2).1, &self.role).await;
            }
            Operation::RoleChange => drop(control.revoke(&self.agent(caller, call / 2).1, &self.role).await),
            Operation::Feedback => {
                let body = json!({ "agentId": self.agent(caller, call).1, "score": 1 });
                let response = control.api.send_as(control.key(), "POST", "/trust/feedback", body).await;
                assert!(response.status < 300, "{response:?}");
            }
        }
    }
}

/// After this many verifications at a service within a minute, the next measurement waits. One measurement makes fewer than 100,000
/// verifications, so there are always fewer than a million in a minute, which is the highest rate limit.
const MAX_VERIFICATIONS: f64 = 900_000.0;

/// When the measurements of the last minute took place, and how many verifications each of them made. The sum must stay below the
/// highest rate limit that the control plane accepts.
#[derive(Default)]
pub struct RecentVerifications(RefCell<VecDeque<(Duration, f64)>>);

impl RecentVerifications {
    /// Measures verifications per second for a second. First waits if the rate limit is near.
    pub async fn measure(&self, per_second: impl Future<Output = f64>) -> f64 {
        while self.count() > MAX_VERIFICATIONS {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let per_second = per_second.await;
        self.0.borrow_mut().push_back((SystemClock.since_boot(), per_second));
        per_second
    }

    fn count(&self) -> f64 {
        let since = SystemClock.since_boot().saturating_sub(Duration::from_secs(65));
        let mut recent = self.0.borrow_mut();
        recent.retain(|(time, _)| *time >= since);
        recent.iter().map(|(_, count)| count).sum()
    }
}
