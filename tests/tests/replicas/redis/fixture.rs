//! Two control planes that share a PostgreSQL and a Redis, with a low rate limit.

use countersign_tests::{
    ControlPlane, HttpResponse, Postgres, Redis, control_plane::replica_settings, eventually, http::HttpClient,
};
use serde_json::{Value, json};
use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};
use tokio::task::JoinSet;

/// The rate limit: management calls per minute.
pub const LIMIT: usize = 40;

/// Number of concurrent calls in a burst.
const CALLS: usize = 100;

/// Number of attempts. On a busy machine a call to Redis may time out, which these tests are not about.
pub const ATTEMPTS: usize = 5;

/// The panic message after all attempts.
pub const TIMED_OUT: &str = "calls to Redis timed out in every attempt";

/// Number of calls whose duration is measured: so few that they do not wait for each other.
const MEASURED_CALLS: usize = 6;

/// Deadline of a failover, which takes seconds. The deadline is shorter than the rate limit window of a minute.
const FAILOVER_DEADLINE: Duration = Duration::from_secs(45);

/// Deadline of a request while Redis is lost. The control plane returns 503 earlier if a request waits for Redis.
const REQUEST_DEADLINE: Duration = Duration::from_secs(20);

pub struct Fleet {
    pub first: ControlPlane,
    pub second: ControlPlane,
    /// Number of owners of services so far.
    owners: AtomicU32,
    _postgres: Postgres,
}

/// A service that lists its roles.
#[derive(Clone)]
pub struct Caller {
    key: String,
    path: String,
}

impl Caller {
    /// Sends one call to a replica.
    pub async fn list_roles(&self, control: &ControlPlane) -> HttpResponse {
        control.api.get_as(&self.key, &self.path).await
    }
}

/// Numbers of remaining calls in the responses of a burst, in descending order.
#[derive(Debug, PartialEq, Eq)]
pub struct RemainingCalls(Vec<usize>);

impl Fleet {
    /// Starts two replicas with this Redis.
    pub async fn with(redis: &Redis) -> Self {
        Self::start(&[format!("redis.url={}", redis.url())]).await
    }

    /// Starts two replicas with these `[redis]` settings.
    pub async fn start(redis: &[String]) -> Self {
        let postgres = Postgres::start().await;
        let (base, limit) =
            (replica_settings(&postgres.create_database().await), format!("limits.management_per_minute={LIMIT}"));
        let settings: Vec<_> = base.iter().chain([&limit]).chain(redis).map(String::as_str).collect();
        let first = ControlPlane::start_process_with_default_limits_and(&settings).await;
        let second = ControlPlane::start_process_with_default_limits_and(&settings).await;
        Self { first, second, owners: AtomicU32::new(0), _postgres: postgres }
    }

    pub fn replicas(&self) -> [&ControlPlane; 2] {
        [&self.first, &self.second]
    }

    /// Creates a service that has not made any calls, of an owner who has no other.
    pub async fn caller(&self) -> Caller {
        let owner = format!("owner {}", self.owners.fetch_add(1, Ordering::SeqCst));
        self.caller_of(&self.first.mint_human(&owner)).await
    }

    /// Creates a service of this human user that has not made any calls.
    pub async fn caller_of(&self, owner: &str) -> Caller {
        let (service, key) = self.first.create_service_of(owner, json!({ "name": "caller" })).await;
        Caller { path: format!("/services/{service}/roles"), key }
    }

    /// Sends a burst of concurrent calls, alternating between the replicas.
    pub async fn send_burst(&self, caller: &Caller) -> RemainingCalls {
        self.send_burst_to(caller, &self.replicas()).await
    }

    /// Sends concurrent calls to these replicas.
    pub async fn send_burst_to(&self, caller: &Caller, replicas: &[&ControlPlane]) -> RemainingCalls {
        let mut burst = JoinSet::new();
        for call in 0..CALLS {
            let (api, caller) = (replicas[call % replicas.len()].api.clone(), caller.clone());
            burst.spawn(async move { call_once(&api, &caller).await });
        }
        let mut remaining: Vec<_> = burst.join_all().await.into_iter().flatten().collect();
        remaining.sort_unstable_by(|left, right| right.cmp(left));
        RemainingCalls(remaining)
    }

    /// Asserts that requests do not wait for a lost Redis, including the first requests after the loss.
    #[expect(clippy::disallowed_methods, reason = "measures durations in the test")]
    pub async fn assert_no_request_waits(&self) {
        let mut requests = JoinSet::new();
        for call in 0..MEASURED_CALLS {
            let api = self.replicas()[call % 2].api.clone();
            requests.spawn(async move {
                let start = Instant::now();
                // A request to `/auth/revoke` calls Redis twice: before the token is looked up, and for the rate limit.
                api.post("/auth/revoke", json!({ "token": format!("nonsense {call}") })).await.expect(200);
                start.elapsed()
            });
        }
        let longest = requests.join_all().await.into_iter().max().unwrap();
        println!("{MEASURED_CALLS} requests without Redis, the longest took {longest:.1?}");
        assert!(longest < REQUEST_DEADLINE, "{longest:?}");
    }

    /// Asserts that a burst is counted in Redis, together for both replicas, and returns the caller of the burst.
    pub async fn assert_counted_together(&self) -> Caller {
        for _ in 0..ATTEMPTS {
            let caller = self.caller().await;
            if let Some(burst) = self.undisturbed_burst(&caller).await {
                burst.assert_passed(LIMIT);
                return caller;
            }
        }
        panic!("{TIMED_OUT}");
    }

    /// Asserts that a further call exceeds the limit, which shows that the earlier calls of the caller still count.
    pub async fn assert_limit_exhausted(&self, caller: &Caller) {
        for _ in 0..ATTEMPTS {
            if let Some(burst) = self.undisturbed_burst(caller).await {
                return burst.assert_passed(0);
            }
        }
        panic!("{TIMED_OUT}");
    }

    /// Whether a call passes at a replica.
    pub async fn passes_at(&self, caller: &Caller, replica: usize) -> bool {
        call_once(&self.replicas()[replica % 2].api, caller).await.is_some()
    }

    /// Calls both replicas in turn until each has lost Redis once more and has reconnected. Together they have lost Redis
    /// `losses` times before. Returns how long the calls took, and the number of calls that passed at each replica.
    #[expect(clippy::disallowed_methods, reason = "measures durations in the test")]
    pub async fn call_until_reconnected(&self, caller: &Caller, losses: usize) -> (Duration, [usize; 2]) {
        let (start, mut passed) = (Instant::now(), [0, 0]);
        loop {
            let mut connected_replicas = 0;
            for (replica, control) in self.replicas().into_iter().enumerate() {
                passed[replica] += usize::from(self.passes_at(caller, replica).await);
                connected_replicas += usize::from(health(control).await["checks"]["redis"] == "up");
            }
            if connected_replicas == 2 && self.losses() >= losses + 2 {
                return (start.elapsed(), passed);
            }
            let is_late = start.elapsed() >= FAILOVER_DEADLINE;
            assert!(!is_late, "the replicas did not reconnect to Redis\n{}", self.first.log());
        }
    }

    /// Asserts that each replica allowed at most the limit to a caller who has exhausted the limit in Redis.
    #[track_caller]
    pub fn assert_limited_per_replica(&self, passed: [usize; 2]) {
        assert!(passed.iter().all(|passed| *passed <= LIMIT), "{passed:?}\n{}", self.first.log());
    }

    /// Sends a burst. Returns `None` if a replica lost its connection to Redis during the burst.
    pub async fn undisturbed_burst(&self, caller: &Caller) -> Option<RemainingCalls> {
        self.wait_for_redis_check("up").await;
        let losses = self.losses();
        let burst = self.send_burst(caller).await;
        (self.losses() == losses).then_some(burst)
    }

    /// Number of times that the replicas lost their connection to Redis.
    pub fn losses(&self) -> usize {
        self.replicas().map(|control| count_in_log(control, "redis connection lost")).iter().sum()
    }

    /// Waits until both replicas report this value of the Redis check.
    pub async fn wait_for_redis_check(&self, check: &str) {
        for control in self.replicas() {
            wait_for_redis_check(control, check).await;
        }
    }
}

impl RemainingCalls {
    /// Asserts that exactly this many calls passed, each counted once.
    #[track_caller]
    pub fn assert_passed(&self, passed: usize) {
        assert_eq!(self.0, (0..passed).rev().collect::<Vec<_>>());
    }
}

async fn call_once(api: &HttpClient, caller: &Caller) -> Option<usize> {
    let response = api.get_as(&caller.key, &caller.path).await;
    if response.status == 429 {
        return None;
    }
    let remaining = remaining_calls(&response);
    response.expect(200);
    Some(remaining)
}

/// Waits until a replica has all writes of the master so far.
pub async fn wait_for_replication(master: &Redis, replica: &Redis) {
    let written = replication_offset(master, "master_repl_offset:").await;
    let replicated = async || (replication_offset(replica, "slave_repl_offset:").await >= written).then_some(());
    eventually("the replica has all writes", replicated, || replica.log()).await;
}

async fn replication_offset(redis: &Redis, name: &str) -> Option<u64> {
    let info: String = redis.command(&["INFO", "replication"]).await;
    info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// Remaining calls in the `RateLimit` header.
fn remaining_calls(response: &HttpResponse) -> usize {
    let header = response.header("ratelimit");
    let remaining = header.split_once(";r=").and_then(|(_, rest)| rest.split(';').next()?.parse().ok());
    remaining.unwrap_or_else(|| panic!("{header}"))
}

pub async fn health(control: &ControlPlane) -> Value {
    control.api.get("/health").await.expect(200)
}

/// Waits until health reports this Redis check and the overall status that follows from it.
pub async fn wait_for_redis_check(control: &ControlPlane, check: &str) {
    let expected = if check == "up" { "healthy" } else { "degraded" };
    let reported = async || {
        let health = control.api.get("/health").await.body;
        (health["checks"]["redis"] == check && health["status"] == expected && health["backends"]["redis"] == "redis")
            .then_some(())
    };
    eventually(&format!("redis is {check}"), reported, || control.log()).await;
}

pub fn count_in_log(control: &ControlPlane, text: &str) -> usize {
    control.log().matches(text).count()
}
