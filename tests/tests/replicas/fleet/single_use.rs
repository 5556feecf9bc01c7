//! Tests that a challenge yields one token pair and a refresh token one successor across all replicas, even if a
//! replica is killed while it responds, or Redis loses data.

use super::{FleetAgent, Replicas};
use countersign_tests::{ControlPlane, Database, HttpResponse, Redis};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tokio::task::JoinSet;

const ATTEMPTS: usize = 50;
const KILLS: usize = 6;

/// Outcomes of many attempts with their counts, and the bodies of the successful ones.
struct Outcome {
    counts: BTreeMap<String, usize>,
    pairs: Vec<Value>,
}

/// Sends a request concurrently to the replicas in turn. An attempt without a response counts as `no_response`.
fn submit(replicas: [&ControlPlane; 2], path: &str, body: &Value) -> JoinSet<Option<HttpResponse>> {
    let mut attempts = JoinSet::new();
    for number in 0..ATTEMPTS {
        attempts.spawn(HttpResponse::try_send(replicas[number % 2].api.request("POST", path).json(body)));
    }
    attempts
}

async fn collect_outcome(mut attempts: JoinSet<Option<HttpResponse>>) -> Outcome {
    let (mut counts, mut pairs) = (BTreeMap::new(), Vec::new());
    while let Some(response) = attempts.join_next().await {
        let response = response.unwrap();
        let (status, _, reason) = response.as_ref().map_or((0, "", "no_response"), HttpResponse::error);
        *counts.entry(format!("{status} {reason}").trim().to_owned()).or_default() += 1;
        pairs.extend(response.filter(|response| response.status == 200).map(|response| response.body));
    }
    Outcome { counts, pairs }
}

/// Number of sessions in the database.
async fn session_count(database: &str) -> usize {
    let count = Database::connect(database).await.text_column("SELECT CAST(COUNT(*) AS TEXT) FROM sessions").await;
    count[0].parse().unwrap()
}

/// Asserts that no replica accepts a login and a refresh that were submitted.
async fn assert_used(replicas: [&ControlPlane; 2], login: &Value, refresh: &Value) {
    for control in replicas {
        let repeated = control.api.post("/auth/authenticate", login.clone()).await;
        assert_eq!(repeated.error(), (401, "AUTHENTICATION_FAILED", "challenge_used"));
        assert_eq!(control.api.post("/auth/refresh", refresh.clone()).await.status, 401);
    }
}

/// A replica may be killed before it has sent the token pair, but there is never a second token pair.
#[tokio::test(flavor = "multi_thread")]
async fn single_use_holds_if_a_replica_is_killed_while_it_responds() {
    let mut replicas = Replicas::start().await;
    let agent = FleetAgent::register(&replicas.first).await;
    let mut interrupted = 0;
    for number in 0..KILLS {
        let login = agent.login_body(&replicas.first).await;
        let refresh = json!({ "refreshToken": agent.login(&replicas.first).await["refreshToken"] });
        let before = session_count(&replicas.database).await;
        let submitted = submit(replicas.both(), "/auth/authenticate", &login);
        let refreshed = submit(replicas.both(), "/auth/refresh", &refresh);
        // The replica is killed a little later in each round.
        tokio::time::sleep(std::time::Duration::from_millis(15 * number as u64)).await;
        replicas.second.kill();
        let (logged_in, refreshed) = (collect_outcome(submitted).await, collect_outcome(refreshed).await);
        for Outcome { counts, pairs } in [&logged_in, &refreshed] {
            interrupted += counts.get("0 no_response").unwrap_or(&0);
            assert!(pairs.len() <= 1, "{number}");
        }
        assert_eq!(session_count(&replicas.database).await - before, 1, "at most one login succeeded");
        replicas.second.restart().await;
        assert_used(replicas.both(), &login, &refresh).await;
    }
    assert!(interrupted > 0, "no kill interrupted a request");
}

/// Single use does not depend on Redis, which may lose data or restore old data.
#[tokio::test(flavor = "multi_thread")]
async fn single_use_holds_if_redis_loses_or_restores_data() {
    let mut redis = Redis::start().await;
    let replicas = Replicas::start_with(&[&format!("redis.url={}", redis.url())]).await;
    let agent = FleetAgent::register(&replicas.first).await;
    let dump = redis.dump().await;
    for round in 0..3 {
        let login = agent.login_body(&replicas.first).await;
        let refresh = json!({ "refreshToken": agent.login(&replicas.first).await["refreshToken"] });
        let logins = submit(replicas.both(), "/auth/authenticate", &login);
        let refreshes = submit(replicas.both(), "/auth/refresh", &refresh);
        match round {
            0 => redis.flush().await,
            1 => redis.restore(&dump).await,
            _ => redis.kill(),
        }
        let (logins, refreshes) = (collect_outcome(logins).await, collect_outcome(refreshes).await);
        assert_eq!((logins.pairs.len(), refreshes.pairs.len()), (1, 1), "{:?} {:?}", logins.counts, refreshes.counts);
        assert_used(replicas.both(), &login, &refresh).await;
    }
}
