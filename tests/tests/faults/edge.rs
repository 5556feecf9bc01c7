//! Faults of the sidecar, of Envoy and of the control plane behind a sidecar.

use countersign_tests::{Environment, Envoy, eventually};

/// Sends requests through Envoy until one has this status.
async fn wait_for_status(environment: &Environment, token: &str, status: u16) {
    let answered = async || (environment.call("/", token).await.status == status).then_some(());
    eventually("Envoy answers with the status", answered, || environment.sidecar.log()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_refuses_while_the_sidecar_is_frozen_or_dead() {
    let mut environment = Environment::start().await;
    let (agent, _role) = environment.agent("reader", &[]).await;
    let token = agent.token().await;
    wait_for_status(&environment, &token, 200).await;
    environment.sidecar.signal("STOP");
    let frozen = environment.call("/", &token).await;
    assert_eq!(frozen.status, 503, "{}", frozen.body);
    environment.sidecar.signal("CONT");
    wait_for_status(&environment, &token, 200).await;
    environment.sidecar.kill();
    assert_eq!(environment.call("/", &token).await.status, 503);
    environment.sidecar.restart();
    wait_for_status(&environment, &token, 200).await;
    environment.envoy = Envoy::start_example(&environment.sidecar.socket(), environment.upstream.port).await;
    wait_for_status(&environment, &token, 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn checks_continue_while_the_control_plane_is_frozen_or_dead() {
    let mut environment = Environment::start().await;
    let (agent, role) = environment.agent("reader", &[]).await;
    let token = agent.token().await;
    wait_for_status(&environment, &token, 200).await;
    environment.control.signal("STOP");
    for _ in 0..20 {
        assert_eq!(environment.call("/", &token).await.status, 200, "{}", environment.sidecar.log());
    }
    environment.control.signal("CONT");
    for _ in 0..3 {
        environment.control.kill();
        for _ in 0..20 {
            assert_eq!(environment.call("/", &token).await.status, 200, "{}", environment.sidecar.log());
        }
        environment.control.restart().await;
    }
    assert!(environment.control.revoke(&agent.id, &role).await);
    wait_for_status(&environment, &token, 403).await;
}
