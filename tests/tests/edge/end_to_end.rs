//! Tests the main path: an agent that has only a key reaches a service through Envoy.

use countersign_tests::{Environment, eventually};
use serde_json::json;

#[tokio::test]
async fn agent_with_a_key_reaches_the_service_until_its_role_is_revoked() {
    let environment = Environment::start().await;
    let refused = environment.envoy.listener.get("/").await;
    assert_eq!(refused.error(), (401, "AUTHENTICATION_FAILED", "token_missing"));
    assert_eq!(refused.header("x-agent-reason"), "token_missing");
    assert_eq!(refused.header("www-authenticate"), "Bearer");

    let (agent, role) = environment.agent("reader", &["read", "list"]).await;
    let token = agent.token().await;
    let received_headers = environment.call("/", &token).await.expect(200);
    assert_eq!(received_headers["x-agent-id"], json!([agent.id]));
    assert_eq!(received_headers["x-agent-name"], json!(["Test Agent"]));
    assert_eq!(received_headers["x-agent-roles"], json!(["reader"]));
    assert_eq!(received_headers["x-agent-permissions"], json!(["list,read"]));
    assert_eq!(received_headers["x-agent-trust-score"], json!(["50"]));
    assert_eq!(received_headers["x-agent-service"], json!([environment.control.service()]));
    assert!(received_headers["x-agent-token-id"][0].as_str().is_some_and(|id| id.starts_with("tok_")));
    assert_eq!(received_headers.get("authorization"), None, "Envoy removes the token");

    assert_eq!(
        environment.call("/admin", &token).await.error(),
        (403, "INSUFFICIENT_PERMISSIONS", "permission_missing")
    );

    assert!(environment.control.revoke(&agent.id, &role).await);
    let next_refusal = async || Some(environment.call("/", &token).await).filter(|response| response.status != 200);
    let refused = eventually("the sidecar receives the revocation", next_refusal, || environment.sidecar.log()).await;
    assert_eq!(refused.error(), (403, "INSUFFICIENT_PERMISSIONS", "no_role"));
}
