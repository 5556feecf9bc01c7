//! Signing keys of several control planes on one database.

use super::kid;
use countersign_tests::{Agent, ControlPlane, Postgres, Sidecar, eventually};
use serde_json::json;

async fn replica(database: &str) -> ControlPlane {
    ControlPlane::start_replica(database, &["sync.max_staleness_seconds=1"]).await
}

/// Logs in at one replica; all replicas are the same issuer.
async fn login(control: &ControlPlane, agent: &Agent) -> String {
    let challenge = control.api.post("/auth/challenge", json!({ "agentId": agent.id })).await.expect(200);
    let signature = agent.key.sign(challenge["nonce"].as_str().unwrap());
    let body = json!({ "challengeId": challenge["challengeId"], "signature": signature });
    control.api.post("/auth/authenticate", body).await.expect(200)["accessToken"].as_str().unwrap().to_owned()
}

async fn register(control: &ControlPlane) -> Agent {
    let key = countersign_client::PrivateKey::generate();
    let body = json!({ "email": "o@example.org", "name": "Agent", "publicKey": key.public_pem().unwrap() });
    let id = control.api.post("/auth/register", body).await.expect(201)["agentId"].as_str().unwrap().to_owned();
    let api = countersign_client::Api::new(&control.api.url, Some(&control.authority())).unwrap();
    Agent { id, key, api }
}

async fn check(sidecar: &Sidecar, token: &str) -> u16 {
    let bearer = format!("Bearer {token}");
    sidecar.check_with(&[("authorization", &bearer)], &[("allow_unassigned", "true")]).await.status
}

async fn assert_replicas_share_keys(database: &str) {
    let (one, other) = (replica(database).await, replica(database).await);
    let (one_sidecar, other_sidecar) = tokio::join!(Sidecar::start(&one), Sidecar::start(&other));
    let agent = register(&one).await;
    assert_eq!(one.signing_keys().await, other.signing_keys().await);
    let mut tokens = Vec::new();
    for control in [&one, &other, &one] {
        let rotation = control.rotate().await;
        let signs = async || {
            let new_tokens = [login(&one, &agent).await, login(&other, &agent).await];
            let both = new_tokens.iter().all(|token| kid(token) == rotation.text("/kid"));
            tokens.extend(new_tokens);
            both.then_some(())
        };
        eventually("the next key signs at both replicas", signs, String::new).await;
    }
    for token in &tokens {
        for control in [&one, &other] {
            control.verify(token).await.expect(200);
        }
        let accepted = async || {
            let both = tokio::join!(check(&one_sidecar, token), check(&other_sidecar, token));
            (both == (200, 200)).then_some(())
        };
        eventually("both sidecars accept the token", accepted, || other_sidecar.log()).await;
    }

    let (signing, token) = (one.signing_key("signing").await, login(&other, &agent).await);
    assert_eq!(kid(&token), signing);
    assert!(one.revoke_signing_key(&signing).await);
    for control in [&one, &other] {
        assert_eq!(control.verify(&token).await.error().2, "token_key_unknown");
        let new_token = login(control, &agent).await;
        assert_eq!(kid(&new_token), other.signing_key("signing").await);
        control.verify(&new_token).await.expect(200);
    }
    let refused =
        async || (tokio::join!(check(&one_sidecar, &token), check(&other_sidecar, &token)) == (401, 401)).then_some(());
    eventually("both sidecars refuse the token", refused, || other_sidecar.log()).await;
    assert!(!other.revoke_signing_key(&signing).await);
    assert_eq!(one.signing_keys().await, other.signing_keys().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_on_postgresql_use_the_same_keys() {
    let postgres = Postgres::start().await;
    Box::pin(assert_replicas_share_keys(&postgres.database().await)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn control_planes_on_one_sqlite_use_the_same_keys() {
    let directory = tempfile::tempdir().unwrap();
    Box::pin(assert_replicas_share_keys(&format!("sqlite://{}", directory.path().join("shared.db").display()))).await;
}

/// Concurrent requests cause one rotation and one revocation.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_rotations_make_one_change() {
    let postgres = Postgres::start().await;
    let database = postgres.database().await;
    let (one, other) = (replica(&database).await, replica(&database).await);
    let before = one.signing_keys().await.len();
    let rotations = futures_util::future::join_all([&one, &other, &one, &other].map(ControlPlane::rotate)).await;
    let mut key_ids: Vec<_> = rotations.iter().map(|response| response.text("/kid")).collect();
    key_ids.dedup();
    assert_eq!((key_ids.len(), one.signing_keys().await.len()), (1, before + 1));
    let signing = one.signing_key("signing").await;
    let revoked = tokio::join!(one.revoke_signing_key(&signing), other.revoke_signing_key(&signing));
    assert_ne!(revoked.0, revoked.1, "exactly one replica revoked the key");
}
