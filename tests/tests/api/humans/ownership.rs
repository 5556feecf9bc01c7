//! Who owns what: the issuer and the `sub` together.

use super::{NOT_YOURS, control_of, make_service, start};
use countersign_tests::{Agent, Issuer, SigningKey};
use serde_json::{Value, json};

#[tokio::test]
async fn same_sub_from_two_issuers_identifies_two_human_users() {
    let (key, others) = (SigningKey::p256("p"), SigningKey::p256("p"));
    let (one, two) = (Issuer::start(&[&key]).await, Issuer::start(&[&others]).await);
    let control = start(&[one.settings("one", &[]), two.settings("two", &[])].concat()).await;
    let people = [key.token(&one.claims("ann")), others.token(&two.claims("ann"))];
    let services = [make_service(&control, &people[0]).await, make_service(&control, &people[1]).await];
    for (own, foreign) in [(0, 1), (1, 0)] {
        let person = people[own].as_str();
        let listed = control.api.get_as(person, "/services").await.expect(200);
        let listed: Vec<_> = listed["data"].as_array().unwrap().iter().map(|service| &service["serviceId"]).collect();
        assert_eq!(listed, [&json!(services[own])], "they see their own and no other");
        let keys = |service: &str| format!("/services/{service}/keys");
        control.api.get_as(person, &keys(&services[own])).await.expect(200);
        let foreign = &services[foreign];
        assert_eq!(control.api.get_as(person, &keys(foreign)).await.error(), NOT_YOURS);
        let body = json!({ "name": "mine now", "scope": "full" });
        assert_eq!(control.api.send_as(person, "POST", &keys(foreign), body).await.error(), NOT_YOURS);
        let role = json!({ "name": "r", "description": "", "permissions": [] });
        let roles = format!("/services/{foreign}/roles");
        assert_eq!(control.api.send_as(person, "POST", &roles, role.clone()).await.error(), NOT_YOURS);
        control.api.send_as(person, "POST", &format!("/services/{}/roles", services[own]), role).await.expect(201);
    }
    let operators_ann = control.mint_human("ann");
    let answer = control.api.get_as(&operators_ann, &format!("/services/{}/keys", services[0])).await;
    assert_eq!(answer.error(), NOT_YOURS, "and the operator's ann is a third");
}

#[tokio::test]
async fn registration_with_same_key_user_and_name_returns_the_same_agent() {
    let (key, others) = (SigningKey::rsa("r"), SigningKey::ed25519("e"));
    let (one, two) = (Issuer::start(&[&key]).await, Issuer::start(&[&others]).await);
    let control = start(&[one.settings("one", &[]), two.settings("two", &[])].concat()).await;
    let pem = countersign_client::PrivateKey::generate().public_pem().unwrap();
    let register = async |token: &str| -> Value {
        let body = json!({ "email": "ann@example.org", "name": "Ann's", "publicKey": pem });
        control.api.send_as(token, "POST", "/auth/register", body).await.expect(201)
    };
    let first = register(&key.token(&one.claims("ann"))).await;
    assert_eq!(register(&key.token(&one.claims("ann"))).await, first, "another token of the same person");
    let of_others = [
        register(&others.token(&two.claims("ann"))).await,
        register(&key.token(&one.claims("Ann"))).await,
        register(control.human()).await,
    ];
    for other in &of_others {
        assert_ne!(other["agentId"], first["agentId"]);
    }
    let path = format!("/agents/{}/status", first["agentId"].as_str().unwrap());
    let suspend = json!({ "status": "suspended" });
    let foreign = others.token(&two.claims("ann"));
    assert_eq!(control.api.send_as(&foreign, "PUT", &path, suspend.clone()).await.error(), NOT_YOURS);
    control.api.send_as(&key.token(&one.claims("ann")), "PUT", &path, suspend).await.expect(200);
}

#[tokio::test]
async fn agent_tokens_are_refused_as_human_tokens() {
    let key = SigningKey::p256("p");
    let issuer = Issuer::start(&[&key]).await;
    let control = control_of(&issuer, &[]).await;
    let agent = Agent::register(&control, "agent").await;
    let answer = control.api.get_as(&agent.token().await, "/services").await;
    assert_eq!(answer.error(), super::INVALID);
}
