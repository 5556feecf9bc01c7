//! Clocks that are ten minutes off.

use countersign_tests::{Agent, ControlPlane, Postgres, WrongClock};

/// Registers an agent with a role at the service.
async fn agent_with_role(control: &ControlPlane) -> Agent {
    let agent = Agent::register(control, "agent").await;
    let role = control.create_role("reader", &[]).await;
    control.assign(&agent.id, &role).await;
    agent
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_whose_clocks_differ_refuse_tokens_with_the_reason() {
    let postgres = Postgres::start().await;
    let ahead = WrongClock::new(600);
    let control = ControlPlane::start_pair(&postgres.create_database().await, [&[], &ahead.environment()]).await;
    let agent = agent_with_role(&control).await;
    let mut reasons = std::collections::BTreeSet::new();
    for _ in 0..4 {
        let token = agent.token().await;
        // Both replicas verify the token, because they get the requests in turn.
        for _ in 0..2 {
            let verified = control.verify(&token).await;
            reasons.insert(if verified.status == 200 { "ok".to_owned() } else { verified.error().2.to_owned() });
        }
    }
    assert_eq!(reasons.into_iter().collect::<Vec<_>>(), ["ok", "token_not_yet_valid"]);
}
