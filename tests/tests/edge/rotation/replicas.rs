//! Signing keys of several control planes with the same database.

use super::kid;
use countersign_tests::{Agent, ControlPlane, Postgres, Sidecar, agent::log_in_at, control_plane::text, eventually};

async fn replica(database: &str) -> ControlPlane {
    ControlPlane::start_replica(database, &["sync.max_staleness_seconds=1"]).await
}

/// Logs in at one replica. All replicas are the same issuer.
async fn login(control: &ControlPlane, agent: &Agent) -> String {
    text(&log_in_at(&control.api, &agent.id, &agent.key).await["accessToken"])
}

async fn check(sidecar: &Sidecar, token: &str) -> u16 {
    let bearer = format!("Bearer {token}");
    sidecar.check_with(&[("authorization", &bearer)], &[("allow_unassigned", "true")]).await.status
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_use_the_same_keys() {
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let (first, second) = (replica(&database).await, replica(&database).await);
    let (first_sidecar, second_sidecar) = tokio::join!(Sidecar::start(&first), Sidecar::start(&second));
    let agent = Agent::register(&first, "Agent").await;
    assert_eq!(first.signing_keys().await, second.signing_keys().await);
    let mut tokens = Vec::new();
    for control in [&first, &second, &first] {
        let rotation = control.rotate().await;
        let signs = async || {
            let new_tokens = [login(&first, &agent).await, login(&second, &agent).await];
            let all_have_new_key = new_tokens.iter().all(|token| kid(token) == rotation.text("/kid"));
            tokens.extend(new_tokens);
            all_have_new_key.then_some(())
        };
        eventually("the next key signs at both replicas", signs, String::new).await;
    }
    for token in &tokens {
        for control in [&first, &second] {
            control.verify(token).await.expect(200);
        }
        let accepted = async || {
            let statuses = (check(&first_sidecar, token).await, check(&second_sidecar, token).await);
            (statuses == (200, 200)).then_some(())
        };
        eventually("both sidecars accept the token", accepted, || second_sidecar.log()).await;
    }

    let (signing, token) = (first.signing_key("signing").await, login(&second, &agent).await);
    assert_eq!(kid(&token), signing);
    assert!(first.revoke_signing_key(&signing).await);
    for control in [&first, &second] {
        assert_eq!(control.verify(&token).await.error().2, "token_key_unknown");
        let new_token = login(control, &agent).await;
        assert_eq!(kid(&new_token), second.signing_key("signing").await);
        control.verify(&new_token).await.expect(200);
    }
    let refused = async || {
        let statuses = (check(&first_sidecar, &token).await, check(&second_sidecar, &token).await);
        (statuses == (401, 401)).then_some(())
    };
    eventually("both sidecars refuse the token", refused, || second_sidecar.log()).await;
    assert!(!second.revoke_signing_key(&signing).await);
    assert_eq!(first.signing_keys().await, second.signing_keys().await);
}

/// Concurrent requests cause one rotation and one revocation.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_rotation_requests_cause_one_rotation() {
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    // With a short maximum staleness, the first rotation could be complete before a slow machine sends the last request.
    let (first, second) =
        (ControlPlane::start_replica(&database, &[]).await, ControlPlane::start_replica(&database, &[]).await);
    let before = first.signing_keys().await.len();
    let rotations = futures_util::future::join_all([&first, &second, &first, &second].map(ControlPlane::rotate)).await;
    let mut key_ids: Vec<_> = rotations.iter().map(|response| response.text("/kid")).collect();
    key_ids.dedup();
    assert_eq!((key_ids.len(), first.signing_keys().await.len()), (1, before + 1));
    let signing = first.signing_key("signing").await;
    let revoked = tokio::join!(first.revoke_signing_key(&signing), second.revoke_signing_key(&signing));
    assert_ne!(revoked.0, revoked.1, "exactly one replica revoked the key");
}
