//! Tests that a sidecar of one replica refuses a role that was revoked at another replica.

use super::{FleetAgent, Replicas, lock_load, now};
use countersign_tests::{
    ControlPlane, Redis, Sidecar,
    quantiles::{quantile, sorted},
    sidecar::{self, check_request},
};
use futures_util::{StreamExt, stream};
use std::time::Duration;

const REVOCATIONS: usize = 500;

/// Number of concurrent revocations.
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

/// Revokes the roles at `control`. Returns how long the sidecar still allowed each agent.
async fn revoke_all(control: &ControlPlane, sidecar: &Sidecar) -> Vec<Duration> {
    let (role, agents_with_role) = agents_with_role(control).await;
    let client = sidecar.client().await;
    let check = async |token: &str| {
        let request = check_request(&[("authorization", &format!("Bearer {token}"))], &[]);
        sidecar::check(&mut client.clone(), request).await.status
    };
    let revoke = async |(agent, token): (FleetAgent, String)| {
        while check(&token).await != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(control.revoke(&agent.id, &role).await);
        let start = now();
        while check(&token).await != 403 {
            assert!(now().saturating_sub(start) < Duration::from_secs(20), "the sidecar still allows the token");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        now().saturating_sub(start)
    };
    stream::iter(agents_with_role).map(revoke).buffer_unordered(CONCURRENCY).collect().await
}

/// Revokes roles at a replica, and prints quantiles of the times until a sidecar of the other replica refuses.
async fn assert_refused(name: &str, settings: &[&str]) {
    let _lock = lock_load().await;
    let replicas = Replicas::start_with(settings).await;
    let Replicas { first, second, .. } = &replicas;
    // The sidecar uses a key that was created at the first replica to connect to the second replica.
    let key = first.create_key(first.service(), "sync").await;
    let sidecar = Sidecar::start_with(second, &[&key], &[]);
    sidecar.wait_until_ready().await;
    let seconds = sorted(revoke_all(first, &sidecar).await.iter().map(Duration::as_secs_f64).collect());
    assert_eq!(seconds.len(), REVOCATIONS);
    let [median, p99, max] = [0.5, 0.99, 1.0].map(|part| quantile(&seconds, part));
    println!(
        "{name}: time from a revocation at a replica to the refusal by a sidecar of the other replica: p50 {median:.3} s, p99 {p99:.3} s, \
         max {max:.3} s"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_refuses_roles_revoked_at_another_replica() {
    assert_refused("without Redis", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_refuses_roles_revoked_at_another_replica_with_redis() {
    let redis = Redis::start().await;
    assert_refused("with Redis", &[&format!("redis.url={}", redis.url())]).await;
}
