//! Owners are identified by issuer and `sub` together.

use super::{NOT_YOURS, start, start_with_issuer};
use countersign_client::PrivateKey;
use countersign_tests::{Agent, Issuer, SigningKey, agent::registration, http::texts};
use serde_json::{Value, json};

#[tokio::test]
async fn same_sub_from_two_issuers_identifies_two_human_users() {
    let (key, other_key) = (SigningKey::p256("p"), SigningKey::p256("p"));
    let (first_issuer, second_issuer) = (Issuer::start(&[&key]).await, Issuer::start(&[&other_key]).await);
    let control = start(&[first_issuer.settings("one", &[]), second_issuer.settings("two", &[])].concat()).await;
    let tokens = [key.token(&first_issuer.claims("ann")), other_key.token(&second_issuer.claims("ann"))];
    let theirs = || json!({ "name": "theirs" });
    let (first, _) = control.create_service_of(&tokens[0], theirs()).await;
    let (second, _) = control.create_service_of(&tokens[1], theirs()).await;
    let services = [first, second];
    for (own, other) in [(0, 1), (1, 0)] {
        let token = tokens[own].as_str();
        let listed = control.api.get_as(token, "/services").await.expect(200);
        assert_eq!(texts(&listed, "serviceId"), [&services[own]], "each human user sees only their own service");
        let keys = |service: &str| format!("/services/{service}/keys");
        control.api.get_as(token, &keys(&services[own])).await.expect(200);
        let other_service = &services[other];
        assert_eq!(control.api.get_as(token, &keys(other_service)).await.error(), NOT_YOURS);
        let body = json!({ "name": "mine now", "scope": "full" });
        assert_eq!(control.api.send_as(token, "POST", &keys(other_service), body).await.error(), NOT_YOURS);
        let role = json!({ "name": "r", "description": "", "permissions": [] });
        let roles = format!("/services/{other_service}/roles");
        assert_eq!(control.api.send_as(token, "POST", &roles, role.clone()).await.error(), NOT_YOURS);
        control.api.send_as(token, "POST", &format!("/services/{}/roles", services[own]), role).await.expect(201);
    }
    let operator_token = control.mint_human("ann");
    let response = control.api.get_as(&operator_token, &format!("/services/{}/keys", services[0])).await;
    assert_eq!(response.error(), NOT_YOURS, "`ann` in an operator token is another human user");
}

#[tokio::test]
async fn registration_with_same_key_user_and_name_returns_the_same_agent() {
    let (key, other_key) = (SigningKey::rsa("r"), SigningKey::ed25519("e"));
    let (first_issuer, second_issuer) = (Issuer::start(&[&key]).await, Issuer::start(&[&other_key]).await);
    let control = start(&[first_issuer.settings("one", &[]), second_issuer.settings("two", &[])].concat()).await;
    let body = registration(&PrivateKey::generate(), "Ann's");
    let register = async |token: &str| -> Value {
        control.api.send_as(token, "POST", "/auth/register", body.clone()).await.expect(201)
    };
    let first = register(&key.token(&first_issuer.claims("ann"))).await;
    assert_eq!(register(&key.token(&first_issuer.claims("ann"))).await, first, "another token of the same human user");
    let other_agents = [
        register(&other_key.token(&second_issuer.claims("ann"))).await,
        register(&key.token(&first_issuer.claims("Ann"))).await,
        register(control.human()).await,
    ];
    for other in &other_agents {
        assert_ne!(other["agentId"], first["agentId"]);
    }
    let path = format!("/agents/{}/status", first["agentId"].as_str().unwrap());
    let suspend = json!({ "status": "suspended" });
    let other_user_token = other_key.token(&second_issuer.claims("ann"));
    assert_eq!(control.api.send_as(&other_user_token, "PUT", &path, suspend.clone()).await.error(), NOT_YOURS);
    control.api.send_as(&key.token(&first_issuer.claims("ann")), "PUT", &path, suspend).await.expect(200);
}

#[tokio::test]
async fn agent_tokens_are_refused_as_human_tokens() {
    let key = SigningKey::p256("p");
    let issuer = Issuer::start(&[&key]).await;
    let control = start_with_issuer(&issuer, &[]).await;
    let agent = Agent::register(&control, "agent").await;
    let response = control.api.get_as(&agent.token().await, "/services").await;
    assert_eq!(response.error(), super::INVALID);
}
