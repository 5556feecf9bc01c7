//! Emergency revocation of a leaked signing key.

use super::kid;
use countersign_tests::{Agent, ControlPlane, Sidecar, Verifiers, VerifyOutcome, eventually};
use std::time::Duration;

const KEY_UNKNOWN: (u16, &str) = (401, "token_key_unknown");

/// Creates an agent and a token. API and sidecar have accepted the token twice, so that the sidecar has cached its signature.
async fn accepted_token(control: &ControlPlane, sidecar: &Sidecar) -> (Agent, String) {
    let agent = Agent::register(control, "agent").await;
    let token = agent.token().await;
    let is_accepted = |outcome: &VerifyOutcome| matches!(outcome, VerifyOutcome::Accepted { .. });
    for _ in 0..2 {
        Verifiers::new(control, sidecar).wait_until_equal("the token is accepted", &token, is_accepted).await;
    }
    (agent, token)
}

async fn assert_both_refuse(control: &ControlPlane, sidecar: &Sidecar, token: &str) {
    let refused = VerifyOutcome::refused(KEY_UNKNOWN.0, KEY_UNKNOWN.1);
    Verifiers::new(control, sidecar)
        .wait_until_equal("the token is refused", token, |outcome| *outcome == refused)
        .await;
}

#[tokio::test]
async fn tokens_of_a_revoked_key_are_refused_and_new_ones_accepted() {
    let mut control = ControlPlane::start_process().await;
    let mut sidecar = Sidecar::start(&control).await;
    let (agent, token) = accepted_token(&control, &sidecar).await;
    let signing = control.signing_key("signing").await;
    let next = control.signing_key("next").await;
    assert_eq!(kid(&token), signing);

    assert!(control.revoke_signing_key(&signing).await);
    assert_eq!(control.verify(&token).await.error(), (401, "AUTHENTICATION_FAILED", KEY_UNKNOWN.1), "at once");
    let new_token = agent.token().await;
    assert_eq!(kid(&new_token), next, "the next key signs before its scheduled time");
    control.verify(&new_token).await.expect(200);
    let check = async |token: &str| {
        let headers = [("authorization", format!("Bearer {token}"))];
        let result = sidecar.check_with(&[(headers[0].0, &headers[0].1)], &[("allow_unassigned", "true")]).await;
        (result.status, result.reason)
    };
    let refused = async || (check(&token).await == (KEY_UNKNOWN.0, KEY_UNKNOWN.1.to_owned())).then_some(());
    eventually("the sidecar refuses the token", refused, || sidecar.log()).await;
    assert_eq!(check(&new_token).await.0, 200, "the sidecar receives the revocation and the new key together");

    // The token stays refused after a new snapshot, a restart, and another revocation.
    sidecar.restart();
    sidecar.wait_until_ready().await;
    assert_both_refuse(&control, &sidecar, &token).await;
    control.restart().await;
    assert_both_refuse(&control, &sidecar, &token).await;
    assert!(!control.revoke_signing_key(&signing).await, "the key was already revoked");
    assert!(control.revoke_signing_key(&next).await);
    assert_both_refuse(&control, &sidecar, &new_token).await;
    assert_both_refuse(&control, &sidecar, &token).await;
    assert_ne!(kid(&agent.token().await), next);
}

#[tokio::test]
async fn one_signing_and_one_next_key_remain_after_any_revocation() {
    let control = ControlPlane::start_with(&["sync.max_staleness_seconds=1"]).await;
    let agent = Agent::register(&control, "agent").await;
    // A new next key replaces a revoked next key.
    let (signing, next) = (control.signing_key("signing").await, control.signing_key("next").await);
    assert!(control.revoke_signing_key(&next).await);
    assert_ne!(control.signing_key("next").await, next);
    assert_eq!(kid(&agent.token().await), signing);
    // A revoked scheduled key is replaced by the next key, which signs at its own scheduled time.
    let scheduled = control.rotate().await;
    assert_eq!((scheduled.status, control.signing_keys().await.len()), (202, 4));
    assert!(control.revoke_signing_key(scheduled.text("/kid")).await);
    let successor = control.rotate().await.expect(202);
    assert_ne!(successor["kid"], scheduled.body["kid"]);
    assert!(successor["signsFrom"].as_str().unwrap() >= scheduled.text("/signsFrom"));
    let old = agent.token().await;
    assert_eq!(kid(&old), signing);
    let signs = async || (control.signing_key("signing").await == successor["kid"]).then_some(());
    eventually("the successor signs", signs, || control.log()).await;
    // Revoking a retired key invalidates only the tokens that the key signed.
    let new = agent.token().await;
    control.verify(&old).await.expect(200);
    assert!(control.revoke_signing_key(&signing).await);
    assert_eq!(control.verify(&old).await.error().2, KEY_UNKNOWN.1);
    control.verify(&new).await.expect(200);
    assert_eq!(kid(&agent.token().await), successor["kid"].as_str().unwrap());
}

#[tokio::test]
async fn control_plane_killed_during_a_rotation_restarts_with_valid_keys() {
    let mut control = ControlPlane::start_process_with(&["sync.max_staleness_seconds=1"]).await;
    let agent = Agent::register(&control, "agent").await;
    for round in 0..4 {
        let token = agent.token().await;
        let signing = control.signing_key("signing").await;
        let path = if round % 2 == 0 { "/signing-keys/rotate".to_owned() } else { format!("/signing-keys/{signing}") };
        let method = if round % 2 == 0 { "POST" } else { "DELETE" };
        let request = tokio::spawn(control.api.request(method, &path).bearer_auth(control.human()).send());
        tokio::time::sleep(Duration::from_millis(round * 2)).await;
        control.kill();
        let succeeded = request.await.unwrap().is_ok();
        control.restart().await;
        let keys = control.signing_keys().await;
        let count = |status: &str| keys.iter().filter(|key| key["status"] == status).count();
        assert_eq!(count("signing"), 1, "{keys:?}");
        assert!((1..=2).contains(&count("next")), "{keys:?}");
        control.verify(&agent.token().await).await.expect(200);
        let revoked = keys.iter().any(|key| key["kid"] == signing.as_str() && key["status"] == "revoked");
        assert!(revoked || method == "POST" || !succeeded, "a confirmed revocation survives the crash");
        assert_eq!(control.verify(&token).await.status, if revoked { 401 } else { 200 });
    }
}
