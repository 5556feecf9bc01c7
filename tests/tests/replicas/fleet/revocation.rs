//! A role revoked at one replica is refused by a sidecar of another replica.

use super::{Member, alone, now, quantile, replica};
use countersign_tests::{
    ControlPlane, Postgres, Redis, Sidecar,
    sidecar::{CheckResult, request},
};
use futures_util::{StreamExt, stream};
use std::time::Duration;

const REVOCATIONS: usize = 500;

/// Concurrent revocations.
const AT_A_TIME: usize = 10;

/// Agents with a role, each with a token issued after the assignment.
async fn holders(at: &ControlPlane) -> (String, Vec<(Member, String)>) {
    let role = at.create_role("reader", &["read"]).await;
    let holder = async |_| {
        let agent = Member::register(at).await;
        at.assign(&agent.id, &role).await;
        let token = agent.token(at).await;
        (agent, token)
    };
    let holders = stream::iter(0..REVOCATIONS).map(holder).buffer_unordered(AT_A_TIME).collect().await;
    (role, holders)
}

/// Times for which the sidecar still allows an agent after its role was revoked at `at`.
async fn revoke_all(at: &ControlPlane, sidecar: &Sidecar) -> Vec<Duration> {
    let (role, holders) = holders(at).await;
    let client = sidecar.client().await;
    let check = async |token: &str| {
        let asked = request(&[("authorization", &format!("Bearer {token}"))], &[]);
        CheckResult::of(client.clone().check(asked).await.unwrap().into_inner()).status
    };
    let revoke = async |(agent, token): (Member, String)| {
        while check(&token).await != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(at.revoke(&agent.id, &role).await);
        let began = now();
        while check(&token).await != 403 {
            assert!(now().saturating_sub(began) < Duration::from_secs(20), "the sidecar still allows the token");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        now().saturating_sub(began)
    };
    stream::iter(holders).map(revoke).buffer_unordered(AT_A_TIME).collect().await
}

/// Prints how long the revocations took to reach the sidecar; [`revoke_all`] waits for each.
fn print_times(what: &str, mut took: Vec<Duration>) {
    assert_eq!(took.len(), REVOCATIONS);
    let [median, most, all] = [0.5, 0.99, 1.0].map(|share| quantile(&mut took, share));
    println!(
        "{what}: a role revoked at one replica, refused by a sidecar of the other: p50 {median:?}, p99 {most:?}, at most {all:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_refuses_roles_revoked_at_another_replica() {
    let _alone = alone().await;
    let postgres = Postgres::start().await;
    let database = postgres.database().await;
    let (one, other) = tokio::join!(replica(&database), replica(&database));
    // A key of the service of the first replica, used at the second.
    let key = one.create_key(one.service(), "sync").await;
    let sidecar = Sidecar::start_with(&other, &[&key], &[]);
    sidecar.await_ready().await;
    print_times("without Redis", revoke_all(&one, &sidecar).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_refuses_roles_revoked_at_another_replica_with_redis() {
    let _alone = alone().await;
    let (postgres, redis) = (Postgres::start().await, Redis::start().await);
    let (database, url) = (postgres.database().await, format!("redis.url={}", redis.url()));
    let settings = [url.as_str()];
    let (one, other) = tokio::join!(
        ControlPlane::start_replica(&database, &settings),
        ControlPlane::start_replica(&database, &settings)
    );
    let key = one.create_key(one.service(), "sync").await;
    let sidecar = Sidecar::start_with(&other, &[&key], &[]);
    sidecar.await_ready().await;
    print_times("with Redis", revoke_all(&one, &sidecar).await);
}
