//! Tests that calls are counted across replicas, and separately for each Countersign deployment.

use super::fixture::{ATTEMPTS, Fleet, LIMIT, TIMED_OUT};
use countersign_tests::{ControlPlane, Redis};
use serde_json::json;

/// Number of counted calls that [`move_calls_back`] moves out of the window.
const EXPIRED_CALLS: usize = 15;

#[tokio::test(flavor = "multi_thread")]
async fn exactly_the_limit_passes_even_at_the_end_of_a_window() {
    let redis = Redis::start().await;
    let fleet = Fleet::with(&redis).await;
    for _ in 0..ATTEMPTS {
        let caller = fleet.assert_counted_together().await;
        fleet.assert_limit_exhausted(&caller).await;
        move_calls_back(&redis).await;
        let first = fleet.undisturbed_burst(&caller).await;
        if let (Some(first), Some(second)) = (first, fleet.undisturbed_burst(&caller).await) {
            first.assert_passed(EXPIRED_CALLS);
            return second.assert_passed(0);
        }
    }
    panic!("{TIMED_OUT}");
}

/// Moves the times of counted calls back: some calls by a minute, the other calls by half a minute.
async fn move_calls_back(redis: &Redis) {
    let keys: Vec<String> = redis.command(&["KEYS", "*:proven:*"]).await;
    for key in keys {
        let calls: Vec<i64> = redis.command(&["LRANGE", &key, "0", "-1"]).await;
        if calls.len() == LIMIT {
            for (index, call) in calls.iter().enumerate() {
                let age = if index < EXPIRED_CALLS { 60_000_000 } else { 30_000_000 };
                redis.command::<()>(&["LSET", &key, &index.to_string(), &(call - age).to_string()]).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_and_services_are_counted_across_replicas() {
    let redis = Redis::start().await;
    let fleet = Fleet::with(&redis).await;
    fleet.wait_for_redis_check("up").await;
    let key = countersign_client::PrivateKey::generate().public_pem().unwrap();
    let body = json!({ "email": "owner@example.org", "name": "Agent", "publicKey": key });
    let agent = fleet.first.api.post("/auth/register", body).await.expect(201)["agentId"].clone();
    let mut passed = 0;
    for call in 0..24 {
        let response = fleet.replicas()[call % 2].api.post("/auth/challenge", json!({ "agentId": agent })).await;
        passed += usize::from(response.status == 200);
    }
    assert_eq!(passed, 10);
    let call_with_unknown_key = async |control: &ControlPlane| control.api.get_as("svc_sk_unknown", "/services").await;
    let before = call_with_unknown_key(&fleet.first).await;
    let after = call_with_unknown_key(&fleet.second).await;
    assert!(before.header("ratelimit").contains("r=299"), "{before:?}");
    assert!(after.header("ratelimit").contains("r=298"), "{after:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn services_of_one_owner_are_counted_together_across_replicas() {
    let redis = Redis::start().await;
    let fleet = Fleet::with(&redis).await;
    fleet.wait_for_redis_check("up").await;
    let owner = fleet.first.mint_human("owner");
    let mut passed = 0;
    // All services of an owner together have five times the limit of one.
    for _ in 0..6 {
        let caller = fleet.caller_of(&owner).await;
        for call in 0..LIMIT {
            passed += usize::from(caller.list_roles(fleet.replicas()[call % 2]).await.status == 200);
        }
    }
    assert_eq!(passed, 5 * LIMIT);
}

#[tokio::test(flavor = "multi_thread")]
async fn deployments_that_share_a_redis_are_counted_separately() {
    let redis = Redis::start().await;
    let url = format!("redis.url={}", redis.url());
    let settings = [url.as_str(), "limits.address_per_minute=5"];
    // The two Countersign deployments have different master keys.
    let first = ControlPlane::start_process_with_default_limits_and(&settings).await;
    let second = ControlPlane::start_process_with_default_limits_and(&settings).await;
    for control in [&first, &second] {
        let mut passed = 0;
        for _ in 0..8 {
            let response = control.api.post("/auth/revoke", json!({ "token": "nonsense" })).await;
            passed += usize::from(response.status != 429);
        }
        assert_eq!(passed, 5);
    }
    let keys: Vec<String> = redis.command(&["KEYS", "*"]).await;
    assert!(keys.iter().all(|key| key.starts_with("{countersign:")), "{keys:?}");
    // Deleting all keys of Redis (flush) resets the counts of calls.
    redis.flush().await;
    first.api.post("/auth/revoke", json!({ "token": "nonsense" })).await.expect(200);
    let tags: std::collections::BTreeSet<_> = keys.iter().filter_map(|key| key.split('}').next()).collect();
    assert_eq!(tags.len(), 2, "{keys:?}");
}
