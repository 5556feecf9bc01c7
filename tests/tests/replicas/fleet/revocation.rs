//! A role revoked at one replica is refused by a sidecar of another replica.

use super::{FleetAgent, lock_load, now, quantile, replica};
use countersign_tests::{
    ControlPlane, Postgres, Redis, Sidecar,
    sidecar::{CheckResult, request},
};
use futures_util::{StreamExt, stream};
use std::time::Duration;

const REVOCATIONS: usize = 500;

/// Concurrent revocations.
const CONCURRENCY: usize = 10;

/// Creates a role and agents with it, each with a token issued after the assignment.
async fn agents_with_role(control: &ControlPlane) -> (String, Vec<(FleetAgent, String)>) {
    let role = control.create_role("reader", &["read"]).await;
    let create_agent = async |_| {
        let agent = FleetAgent::register(control).await;
        control.assign(&agent.id, &role).await;
        let token = agent.token(control).await;
        (agent, token)
    };
    let agents_with_role = stream::iter(0..REVOCATIONS).map(create_agent).buffer_unordered(CONCURRENCY).collect().await;
    (role, agents_with_role)
}

/// Revokes the roles at `control`. Returns for each agent how long the sidecar still allowed it.
async fn revoke_all(control: &ControlPlane, sidecar: &Sidecar) -> Vec<Duration> {
    let (role, agents_with_role) = agents_with_role(control).await;
    let client = sidecar.client().await;
    let check = async |token: &str| {
        let request = request(&[("authorization", &format!("Bearer {token}"))], &[]);
        CheckResult::of(client.clone().check(request).await.unwrap().into_inner()).status
    };
    let revoke = async |(agent, token): (FleetAgent, String)| {
        while check(&token).await != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(control.revoke(&agent.id, &role).await);
        let began = now();
        while check(&token).await != 403 {
            assert!(now().saturating_sub(began) < Duration::from_secs(20), "the sidecar still allows the token");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        now().saturating_sub(began)
    };
    stream::iter(agents_with_role).map(revoke).buffer_unordered(CONCURRENCY).collect().await
}

/// Prints how long the revocations took to reach the sidecar; [`revoke_all`] waits for each.
fn print_times(name: &str, mut durations: Vec<Duration>) {
    assert_eq!(durations.len(), REVOCATIONS);
    let [median, p99, max] = [0.5, 0.99, 1.0].map(|fraction| quantile(&mut durations, fraction));
    println!(
        "{name}: time from a revocation at a replica to the refusal by a sidecar of the other: p50 {median:?}, p99 {p99:?}, \
         max {max:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_refuses_roles_revoked_at_another_replica() {
    let _lock = lock_load().await;
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
    let _lock = lock_load().await;
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
