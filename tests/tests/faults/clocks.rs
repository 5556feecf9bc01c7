//! Tests servers whose clocks are wrong by ten minutes, or jump.

use countersign_tests::{Agent, ControlPlane, Postgres, Sidecar, WrongClock, eventually};

/// Ten minutes in either direction.
const OFFSETS: [i64; 2] = [-600, 600];

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_with_a_wrong_clock_decides_by_the_time_of_the_control_plane() {
    for offset in OFFSETS {
        let control = ControlPlane::start_process_with(&["tokens.access_seconds=8"]).await;
        let (agent, _role) = Agent::with_role(&control, "reader", &[]).await;
        let clock = WrongClock::new(offset);
        let key = control.create_key(control.service(), "sync").await;
        let sidecar = Sidecar::start_in(&clock.environment(), &control, &[&key], &[]);
        sidecar.wait_until_ready().await;
        let token = agent.token().await;
        let allowed = sidecar.check_token(&token).await;
        assert_eq!(allowed.status, 200, "{offset}: {}", allowed.reason);
        let expired = async || (control.verify(&token).await.error().2 == "token_expired").then_some(());
        eventually("the token expires", expired, String::new).await;
        let refused = sidecar.check_token(&token).await;
        assert_eq!((refused.status, refused.reason.as_str()), (401, "token_expired"), "{offset}");
        assert!(!sidecar.log().contains("panicked"), "{}", sidecar.log());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jumps_of_the_clock_of_the_control_plane_are_survived() {
    let clock = WrongClock::new(0);
    let control = ControlPlane::start_in(&clock.environment(), &["tokens.access_seconds=300"]).await;
    let (agent, role) = Agent::with_role(&control, "reader", &[]).await;
    let sidecar = Sidecar::start(&control).await;
    let token = agent.token().await;
    assert_eq!(sidecar.check_token(&token).await.status, 200);
    clock.set(600);
    assert_eq!(control.verify(&token).await.error().2, "token_expired");
    sidecar.wait_for_check(&token, |result| result.reason == "token_expired").await;
    for offset in OFFSETS {
        clock.set(offset);
        let token = agent.token().await;
        assert_eq!(control.verify(&token).await.status, 200, "{offset}");
        sidecar.wait_for_check(&token, |result| result.status == 200).await;
        assert!(control.revoke(&agent.id, &role).await, "{offset}");
        sidecar.wait_for_check(&token, |result| result.reason == "no_role").await;
        control.assign(&agent.id, &role).await;
    }
    assert!(!control.log().contains("panicked") && !sidecar.log().contains("panicked"));
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_whose_clocks_differ_refuse_tokens_with_the_reason() {
    let postgres = Postgres::start().await;
    let ahead = WrongClock::new(600);
    let control = ControlPlane::start_pair(&postgres.create_database().await, [&[], &ahead.environment()]).await;
    let (agent, _role) = Agent::with_role(&control, "reader", &[]).await;
    let mut reasons = std::collections::BTreeSet::new();
    for _ in 0..4 {
        let token = agent.token().await;
        // Verify twice, so that each replica does it once: they get the requests in turn.
        for _ in 0..2 {
            let verified = control.verify(&token).await;
            reasons.insert(if verified.status == 200 { "ok".to_owned() } else { verified.error().2.to_owned() });
        }
    }
    assert_eq!(reasons.into_iter().collect::<Vec<_>>(), ["ok", "token_not_yet_valid"]);
}
