//! Two control planes on one PostgreSQL and one Redis, with a low rate limit.

use countersign_tests::{
    ControlPlane, HttpResponse, Postgres, Redis, control_plane::replica_settings, eventually, http::HttpClient,
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Management calls per minute.
pub const MOST: usize = 40;

/// Concurrent calls in a crowd.
const CROWD: usize = 100;

/// Attempts, because on a busy machine a call to Redis may time out, which other tests cover.
pub const TRIES: usize = 5;

/// Calls with a measured duration: fewer than a crowd, so that they do not wait for each other.
const FEW: usize = 6;

/// Deadline of a failover: it takes seconds, and windows last a minute.
const FOR_EVER: Duration = Duration::from_secs(45);

/// Deadline of a request while Redis is lost. A request that waits for Redis gets 503 earlier.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Fleet {
    pub one: ControlPlane,
    pub other: ControlPlane,
    _postgres: Postgres,
}

/// A service that lists its roles.
#[derive(Clone)]
pub struct Caller {
    key: String,
    path: String,
}

/// Remaining calls in the responses of a crowd, in descending order.
#[derive(Debug, PartialEq, Eq)]
pub struct Crowd(Vec<usize>);

impl Fleet {
    /// Starts two replicas with these `[redis]` settings.
    pub async fn start(redis: &[String]) -> Self {
        let postgres = Postgres::start().await;
        let database = postgres.database().await;
        let one = replica(&database, redis).await;
        let other = replica(&database, redis).await;
        Self { one, other, _postgres: postgres }
    }

    pub fn both(&self) -> [&ControlPlane; 2] {
        [&self.one, &self.other]
    }

    /// A service without calls.
    pub async fn caller(&self) -> Caller {
        let (service, key) = self.one.create_service(json!({ "name": "caller" })).await;
        Caller { path: format!("/services/{service}/roles"), key }
    }

    /// Sends concurrent calls, alternating between the replicas.
    pub async fn crowd(&self, caller: &Caller) -> Crowd {
        self.crowd_at(caller, &self.both()).await
    }

    /// Sends concurrent calls to these replicas.
    pub async fn crowd_at(&self, caller: &Caller, at: &[&ControlPlane]) -> Crowd {
        let mut crowd = JoinSet::new();
        for call in 0..CROWD {
            let (site, caller) = (at[call % at.len()].api.clone(), caller.clone());
            crowd.spawn(async move { call_once(&site, &caller).await });
        }
        let mut left: Vec<_> = crowd.join_all().await.into_iter().flatten().collect();
        left.sort_unstable_by(|one, other| other.cmp(one));
        Crowd(left)
    }

    /// Asserts that requests do not wait for a lost Redis, including the first ones that notice it.
    #[expect(clippy::disallowed_methods, reason = "measures durations in the test")]
    pub async fn nobody_waits(&self) {
        let mut few = JoinSet::new();
        for call in 0..FEW {
            let site = self.both()[call % 2].api.clone();
            few.spawn(async move {
                let began = Instant::now();
                // This request asks Redis twice: before the token is looked up, and for the limit.
                site.post("/auth/revoke", json!({ "token": format!("nonsense {call}") })).await.expect(200);
                began.elapsed()
            });
        }
        let longest = few.join_all().await.into_iter().max().unwrap();
        assert!(longest < PATIENCE, "{longest:?}");
    }

    /// Asserts that a crowd is counted in Redis, together for both replicas. Returns its caller.
    pub async fn counts_together(&self) -> Caller {
        for _ in 0..TRIES {
            let caller = self.caller().await;
            if let Some(crowd) = self.undisturbed_crowd(&caller).await {
                crowd.is_counted(MOST);
                return caller;
            }
        }
        panic!("Redis was too slow every time");
    }

    /// Asserts that the calls of a caller are still counted: the limit is exhausted.
    pub async fn remembers(&self, caller: &Caller) {
        for _ in 0..TRIES {
            if let Some(crowd) = self.undisturbed_crowd(caller).await {
                return crowd.is_counted(0);
            }
        }
        panic!("Redis was too slow every time");
    }

    /// Whether a call passes at a replica.
    pub async fn passes_at(&self, caller: &Caller, replica: usize) -> bool {
        call_once(&self.both()[replica % 2].api, caller).await.is_some()
    }

    /// Calls both replicas in turn until both have lost Redis since `losses` and reconnected. Returns the duration
    /// and the calls that passed at each.
    #[expect(clippy::disallowed_methods, reason = "measures durations in the test")]
    pub async fn hammered_through_a_loss(&self, caller: &Caller, losses: usize) -> (Duration, [usize; 2]) {
        let (began, mut passed) = (Instant::now(), [0, 0]);
        loop {
            let mut up = 0;
            for (replica, control) in self.both().into_iter().enumerate() {
                passed[replica] += usize::from(self.passes_at(caller, replica).await);
                up += usize::from(health(control).await["checks"]["redis"] == "up");
            }
            if up == 2 && self.losses() >= losses + 2 {
                return (began.elapsed(), passed);
            }
            assert!(began.elapsed() < FOR_EVER, "Redis is not back\n{}", self.one.log());
        }
    }

    /// Asserts that each replica allowed at most the limit to a caller who has exhausted it in Redis.
    #[track_caller]
    pub fn is_limited_alone(&self, passed: [usize; 2]) {
        assert!(passed.iter().all(|passed| *passed <= MOST), "{passed:?}\n{}", self.one.log());
    }

    /// A crowd, if neither replica lost Redis meanwhile.
    pub async fn undisturbed_crowd(&self, caller: &Caller) -> Option<Crowd> {
        self.says("up").await;
        let losses = self.losses();
        let crowd = self.crowd(caller).await;
        (self.losses() == losses).then_some(crowd)
    }

    /// Number of losses of Redis at both replicas.
    pub fn losses(&self) -> usize {
        self.both().map(|control| logged(control, "redis connection lost")).iter().sum()
    }

    /// Waits until both replicas report this check.
    pub async fn says(&self, check: &str) {
        for control in self.both() {
            says(control, check).await;
        }
    }
}

impl Crowd {
    /// Asserts that exactly this many calls passed, each counted once.
    #[track_caller]
    pub fn is_counted(&self, passed: usize) {
        assert_eq!(self.0, (0..passed).rev().collect::<Vec<_>>());
    }
}

async fn call_once(site: &HttpClient, caller: &Caller) -> Option<usize> {
    let answer = site.get_as(&caller.key, &caller.path).await;
    if answer.status == 429 {
        return None;
    }
    let left = left(&answer);
    answer.expect(200);
    Some(left)
}

/// Waits until a replica has everything that the master has now.
pub async fn is_copied(master: &Redis, replica: &Redis) {
    let now = offset(master, "master_repl_offset:").await;
    let copied = async || (offset(replica, "slave_repl_offset:").await >= now).then_some(());
    eventually("it is copied", copied, || replica.log()).await;
}

async fn offset(redis: &Redis, name: &str) -> Option<u64> {
    let said: String = redis.command(&["INFO", "replication"]).await;
    said.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// Remaining calls in the `RateLimit` header.
fn left(answer: &HttpResponse) -> usize {
    let said = answer.header("ratelimit");
    said.split_once(";r=")
        .and_then(|(_, rest)| rest.split(';').next()?.parse().ok())
        .unwrap_or_else(|| panic!("{said}"))
}

pub async fn health(control: &ControlPlane) -> Value {
    control.api.get("/health").await.expect(200)
}

/// Waits until health reports this Redis check and the overall status that follows from it.
pub async fn says(control: &ControlPlane, check: &str) {
    let expected = if check == "up" { "healthy" } else { "degraded" };
    let said = async || {
        let health = health(control).await;
        (health["checks"]["redis"] == check && health["status"] == expected && health["backends"]["redis"] == "redis")
            .then_some(())
    };
    eventually(&format!("redis is {check}"), said, || control.log()).await;
}

/// A value of `/metrics`.
pub async fn metric(control: &ControlPlane, name: &str) -> Option<f64> {
    let text = HttpClient::plain(control.env["ADMIN_URL"].clone()).get("/metrics").await.expect(200);
    let text = text.as_str().unwrap().to_owned();
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// Number of occurrences in the log.
pub fn logged(control: &ControlPlane, text: &str) -> usize {
    control.log().matches(text).count()
}

async fn replica(database: &str, redis: &[String]) -> ControlPlane {
    let (own, limit) = (replica_settings(database), format!("limits.management_per_minute={MOST}"));
    let settings: Vec<_> = own.iter().chain([&limit]).chain(redis).map(String::as_str).collect();
    ControlPlane::start_with_default_limits_and(&settings).await
}
