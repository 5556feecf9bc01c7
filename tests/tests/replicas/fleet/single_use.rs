//! A challenge yields one token pair and a refresh token one successor, over all replicas together, also if one of
//! them is killed while it answers.

use super::{Member, replica};
use countersign_tests::{ControlPlane, Database, HttpResponse, Postgres, Redis, control_plane::text};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tokio::task::JoinSet;

const CHALLENGES: usize = 200;
const ATTEMPTS: usize = 50;
const REFRESHES: usize = 200;
const KILLS: usize = 6;

/// What came of many attempts: how often each outcome, and what those got that succeeded.
struct Outcome {
    counts: BTreeMap<String, usize>,
    pairs: Vec<Value>,
}

/// Sends the same request at once to all replicas in turn; an attempt at one that is gone is `gone`.
fn submit(replicas: &[&ControlPlane], path: &str, body: &Value) -> JoinSet<Option<HttpResponse>> {
    let mut attempts = JoinSet::new();
    for number in 0..ATTEMPTS {
        attempts.spawn(HttpResponse::try_send(replicas[number % replicas.len()].api.request("POST", path).json(body)));
    }
    attempts
}

async fn outcome(mut attempts: JoinSet<Option<HttpResponse>>) -> Outcome {
    let (mut counts, mut pairs) = (BTreeMap::new(), Vec::new());
    while let Some(answer) = attempts.join_next().await {
        let answer = answer.unwrap();
        let told = answer.as_ref().map_or((0, "", "gone"), HttpResponse::error);
        *counts.entry(format!("{} {}", told.0, told.2).trim().to_owned()).or_default() += 1;
        pairs.extend(answer.filter(|answer| answer.status == 200).map(|answer| answer.body));
    }
    Outcome { counts, pairs }
}

/// How many logins there are, as the database knows them.
async fn logins(database: &str) -> usize {
    let counted = Database::connect(database).await.texts("SELECT CAST(COUNT(*) AS TEXT) FROM sessions").await;
    counted[0].parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_challenges_submitted_fifty_times_each_at_two_replicas_yield_two_hundred_pairs() {
    let postgres = Postgres::start().await;
    let database = postgres.database().await;
    let (one, other) = tokio::join!(replica(&database), replica(&database));
    let agent = Member::register(&one).await;
    let mut pairs = 0;
    for number in 0..CHALLENGES {
        let login = agent.answered(&[&one, &other][number % 2].api).await;
        let Outcome { counts, pairs: got } = outcome(submit(&[&one, &other], "/auth/authenticate", &login)).await;
        let expected = BTreeMap::from([("200".into(), 1), ("401 challenge_used".into(), ATTEMPTS - 1)]);
        assert_eq!(counts, expected, "challenge {number}");
        pairs += got.len();
    }
    assert_eq!((pairs, logins(&database).await), (CHALLENGES, CHALLENGES));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_token_used_fifty_times_at_two_replicas_has_one_successor_and_ends_its_login() {
    let postgres = Postgres::start().await;
    let database = postgres.database().await;
    let (one, other) = tokio::join!(replica(&database), replica(&database));
    let agent = Member::register(&one).await;
    for round in 0..REFRESHES {
        let login = agent.login(&one).await;
        let refresh = json!({ "refreshToken": login["refreshToken"] });
        let Outcome { counts, pairs } = outcome(submit(&[&one, &other], "/auth/refresh", &refresh)).await;
        let refused = counts.iter().filter(|(outcome, _)| outcome.starts_with("401 refresh_re")).map(|(_, n)| n);
        assert_eq!((counts.get("200"), refused.sum()), (Some(&1), ATTEMPTS - 1), "round {round}: {counts:?}");
        // It was used again, so the login is over, at both.
        let successor = json!({ "refreshToken": pairs[0]["refreshToken"] });
        for at in [&one, &other] {
            assert_eq!(at.api.post("/auth/refresh", successor.clone()).await.error().2, "refresh_revoked");
            let dead = at.verify(&text(&pairs[0]["accessToken"])).await;
            assert_eq!(dead.error(), (401, "AUTHENTICATION_FAILED", "token_revoked"));
        }
    }
}

/// Who was answered by the one that died may not know it; but nobody gets a second pair.
#[tokio::test(flavor = "multi_thread")]
async fn also_if_one_of_them_is_killed_while_it_answers() {
    let postgres = Postgres::start().await;
    let database = postgres.database().await;
    let (one, mut other) = tokio::join!(replica(&database), replica(&database));
    let agent = Member::register(&one).await;
    let mut gone = 0;
    for number in 0..KILLS {
        let login = agent.answered(&one.api).await;
        let refresh = json!({ "refreshToken": agent.login(&one).await["refreshToken"] });
        let before = logins(&database).await;
        let submitted = submit(&[&one, &other], "/auth/authenticate", &login);
        let refreshed = submit(&[&one, &other], "/auth/refresh", &refresh);
        // Each time a little later in what they do.
        tokio::time::sleep(std::time::Duration::from_millis(15 * number as u64)).await;
        other.kill();
        let (logged_in, refreshed) = (outcome(submitted).await, outcome(refreshed).await);
        gone += logged_in.counts.get("0 gone").unwrap_or(&0) + refreshed.counts.get("0 gone").unwrap_or(&0);
        assert!(logged_in.pairs.len() <= 1 && refreshed.pairs.len() <= 1, "{number}");
        assert_eq!(logins(&database).await - before, 1, "it was the login of one, whoever was told");
        other.restart().await;
        for at in [&one, &other] {
            let again = at.api.post("/auth/authenticate", login.clone()).await;
            assert_eq!(again.error(), (401, "AUTHENTICATION_FAILED", "challenge_used"), "{number}");
            assert_eq!(at.api.post("/auth/refresh", refresh.clone()).await.status, 401, "{number}");
        }
    }
    assert!(gone > 0, "nobody was in the middle of anything");
}

/// Nothing of this is in Redis: it may forget, and it may remember what is long past.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_becomes_of_redis() {
    let (postgres, mut redis) = (Postgres::start().await, Redis::start().await);
    let (database, url) = (postgres.database().await, format!("redis.url={}", redis.url()));
    let settings = [url.as_str()];
    let (one, other) = tokio::join!(
        ControlPlane::start_replica(&database, &settings),
        ControlPlane::start_replica(&database, &settings)
    );
    let agent = Member::register(&one).await;
    let old = redis.dump().await;
    for round in 0..3 {
        let login = agent.answered(&one.api).await;
        let refresh = json!({ "refreshToken": agent.login(&one).await["refreshToken"] });
        let (logins, refreshes) =
            (submit(&[&one, &other], "/auth/authenticate", &login), submit(&[&one, &other], "/auth/refresh", &refresh));
        match round {
            0 => redis.flush().await,
            1 => redis.restore(&old).await,
            _ => redis.kill(),
        }
        let (logins, refreshes) = (outcome(logins).await, outcome(refreshes).await);
        assert_eq!((logins.pairs.len(), refreshes.pairs.len()), (1, 1), "{:?} {:?}", logins.counts, refreshes.counts);
        for at in [&one, &other] {
            let again = at.api.post("/auth/authenticate", login.clone()).await;
            assert_eq!(again.error(), (401, "AUTHENTICATION_FAILED", "challenge_used"));
            assert_eq!(at.api.post("/auth/refresh", refresh.clone()).await.status, 401);
        }
    }
}
