//! The main path: an agent with nothing but a key reaches a service through Envoy.

use countersign_tests::{Environment, eventually};
use serde_json::json;

#[tokio::test]
async fn agent_with_a_key_reaches_the_service_until_its_role_is_revoked() {
    let environment = Environment::start().await;
    let refused = environment.envoy.site.get("/").await;
    assert_eq!(refused.error(), (401, "AUTHENTICATION_FAILED", "token_missing"));
    assert_eq!(refused.header("x-agent-reason"), "token_missing");
    assert_eq!(refused.header("www-authenticate"), "Bearer");

    let (agent, role) = environment.agent("reader", &["read", "list"]).await;
    let token = agent.token().await;
    let seen = environment.call("/", &token).await.expect(200);
    assert_eq!(seen["x-agent-id"], json!([agent.id]));
    assert_eq!(seen["x-agent-name"], json!(["Test Agent"]));
    assert_eq!(seen["x-agent-roles"], json!(["reader"]));
    assert_eq!(seen["x-agent-permissions"], json!(["list,read"]));
    assert_eq!(seen["x-agent-trust-score"], json!(["50"]));
    assert_eq!(seen["x-agent-service"], json!([environment.control.service()]));
    assert!(seen["x-agent-token-id"][0].as_str().is_some_and(|id| id.starts_with("tok_")));
    assert_eq!(seen.get("authorization"), None, "the token ends at Envoy");

    assert_eq!(
        environment.call("/admin", &token).await.error(),
        (403, "INSUFFICIENT_PERMISSIONS", "permission_missing")
    );

    assert!(environment.control.revoke(&agent.id, &role).await);
    let refused = async || Some(environment.call("/", &token).await).filter(|answer| answer.status != 200);
    let refused = eventually("the revocation arrives", refused, || environment.sidecar.log()).await;
    assert_eq!(refused.error(), (403, "INSUFFICIENT_PERMISSIONS", "no_role"));
}
