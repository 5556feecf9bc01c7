//! Tests that a challenge yields one token pair and a refresh token one successor across all replicas, even if a
//! replica is killed while it responds.

use super::{FleetAgent, replica};
use countersign_tests::{ControlPlane, Database, HttpResponse, Postgres, Redis, control_plane::text};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tokio::task::JoinSet;

const CHALLENGES: usize = 200;
const ATTEMPTS: usize = 50;
const REFRESHES: usize = 200;
const KILLS: usize = 6;

/// Outcomes of many attempts with their counts, and the bodies of the successful ones.
struct Outcome {
    counts: BTreeMap<String, usize>,
    pairs: Vec<Value>,
}

/// Sends a request concurrently to the replicas in turn. An attempt without a response counts as `no_response`.
fn submit(replicas: &[&ControlPlane], path: &str, body: &Value) -> JoinSet<Option<HttpResponse>> {
    let mut attempts = JoinSet::new();
    for number in 0..ATTEMPTS {
        attempts.spawn(HttpResponse::try_send(replicas[number % replicas.len()].api.request("POST", path).json(body)));
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

#[tokio::test(flavor = "multi_thread")]
async fn challenges_submitted_fifty_times_at_two_replicas_yield_one_pair_each() {
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let (first, second) = tokio::join!(replica(&database), replica(&database));
    let agent = FleetAgent::register(&first).await;
    let mut pairs = 0;
    for number in 0..CHALLENGES {
        let login = agent.login_body(&[&first, &second][number % 2].api).await;
        let Outcome { counts, pairs: token_pairs } =
            collect_outcome(submit(&[&first, &second], "/auth/authenticate", &login)).await;
        let expected = BTreeMap::from([("200".into(), 1), ("401 challenge_used".into(), ATTEMPTS - 1)]);
        assert_eq!(counts, expected, "challenge {number}");
        pairs += token_pairs.len();
    }
    assert_eq!((pairs, session_count(&database).await), (CHALLENGES, CHALLENGES));
}

#[tokio::test(flavor = "multi_thread")]
async fn refresh_token_used_fifty_times_at_two_replicas_yields_one_successor_and_ends_its_session() {
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let (first, second) = tokio::join!(replica(&database), replica(&database));
    let agent = FleetAgent::register(&first).await;
    for round in 0..REFRESHES {
        let login = agent.login(&first).await;
        let refresh = json!({ "refreshToken": login["refreshToken"] });
        let Outcome { counts, pairs } = collect_outcome(submit(&[&first, &second], "/auth/refresh", &refresh)).await;
        let refused = counts.iter().filter(|(outcome, _)| outcome.starts_with("401 refresh_re")).map(|(_, n)| n);
        assert_eq!((counts.get("200"), refused.sum()), (Some(&1), ATTEMPTS - 1), "round {round}: {counts:?}");
        // The reuse of the refresh token ended the session at both replicas.
        let successor = json!({ "refreshToken": pairs[0]["refreshToken"] });
        for control in [&first, &second] {
            assert_eq!(control.api.post("/auth/refresh", successor.clone()).await.error().2, "refresh_revoked");
            let verification = control.verify(&text(&pairs[0]["accessToken"])).await;
            assert_eq!(verification.error(), (401, "AUTHENTICATION_FAILED", "token_revoked"));
        }
    }
}

/// A replica may be killed before it has sent the token pair, but there is never a second token pair.
#[tokio::test(flavor = "multi_thread")]
async fn single_use_holds_if_a_replica_is_killed_while_it_responds() {
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let (first, mut second) = tokio::join!(replica(&database), replica(&database));
    let agent = FleetAgent::register(&first).await;
    let mut interrupted = 0;
    for number in 0..KILLS {
        let login = agent.login_body(&first.api).await;
        let refresh = json!({ "refreshToken": agent.login(&first).await["refreshToken"] });
        let before = session_count(&database).await;
        let submitted = submit(&[&first, &second], "/auth/authenticate", &login);
        let refreshed = submit(&[&first, &second], "/auth/refresh", &refresh);
        // The replica is killed a little later in each round.
        tokio::time::sleep(std::time::Duration::from_millis(15 * number as u64)).await;
        second.kill();
        let (logged_in, refreshed) = (collect_outcome(submitted).await, collect_outcome(refreshed).await);
        interrupted +=
            logged_in.counts.get("0 no_response").unwrap_or(&0) + refreshed.counts.get("0 no_response").unwrap_or(&0);
        assert!(logged_in.pairs.len() <= 1 && refreshed.pairs.len() <= 1, "{number}");
        assert_eq!(session_count(&database).await - before, 1, "at most one login succeeded");
        second.restart().await;
        for control in [&first, &second] {
            let repeated = control.api.post("/auth/authenticate", login.clone()).await;
            assert_eq!(repeated.error(), (401, "AUTHENTICATION_FAILED", "challenge_used"), "{number}");
            assert_eq!(control.api.post("/auth/refresh", refresh.clone()).await.status, 401, "{number}");
        }
    }
    assert!(interrupted > 0, "no kill interrupted a request");
}

/// Single use does not depend on Redis, which may lose data or restore old data.
#[tokio::test(flavor = "multi_thread")]
async fn single_use_holds_if_redis_loses_or_restores_data() {
    let (postgres, mut redis) = (Postgres::start().await, Redis::start().await);
    let (database, url) = (postgres.create_database().await, format!("redis.url={}", redis.url()));
    let settings = [url.as_str()];
    let (first, second) = tokio::join!(
        ControlPlane::start_replica(&database, &settings),
        ControlPlane::start_replica(&database, &settings)
    );
    let agent = FleetAgent::register(&first).await;
    let dump = redis.dump().await;
    for round in 0..3 {
        let login = agent.login_body(&first.api).await;
        let refresh = json!({ "refreshToken": agent.login(&first).await["refreshToken"] });
        let (logins, refreshes) = (
            submit(&[&first, &second], "/auth/authenticate", &login),
            submit(&[&first, &second], "/auth/refresh", &refresh),
        );
        match round {
            0 => redis.flush().await,
            1 => redis.restore(&dump).await,
            _ => redis.kill(),
        }
        let (logins, refreshes) = (collect_outcome(logins).await, collect_outcome(refreshes).await);
        assert_eq!((logins.pairs.len(), refreshes.pairs.len()), (1, 1), "{:?} {:?}", logins.counts, refreshes.counts);
        for control in [&first, &second] {
            let repeated = control.api.post("/auth/authenticate", login.clone()).await;
            assert_eq!(repeated.error(), (401, "AUTHENTICATION_FAILED", "challenge_used"));
            assert_eq!(control.api.post("/auth/refresh", refresh.clone()).await.status, 401);
        }
    }
}
