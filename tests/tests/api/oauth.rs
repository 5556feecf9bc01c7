//! The token endpoint of OAuth: client assertions (RFC 7523) and refresh tokens.

mod description;
mod introspection;
mod metadata;
mod resources;
mod scope;

use countersign_tests::{
    Agent, ControlPlane,
    control_plane::text,
    oauth::{
        self, ASSERTION_TYPE, assertion, claims, issuer, login_form, now, post_form_as, refusal, request_token, signed,
    },
};
use futures_util::future::join_all;
use serde_json::{Value, json};

#[tokio::test]
async fn an_assertion_gets_tokens_once_and_a_refresh_token_the_next_ones() {
    let mut control = ControlPlane::start_process().await;
    let agent = Agent::register(&control, "agent").await;
    control.assign_new_role(&agent.id, "reader", &["read"]).await;
    let assertion = assertion(&control, &agent, "first").await;
    let service = control.service().to_owned();
    let response = request_token(&control, &login_form(&assertion, &[("resource", &service), ("scope", "")])).await;
    assert_eq!(response.header("cache-control"), "no-store");
    let tokens = response.expect(200);
    assert_eq!((&tokens["token_type"], &tokens["expires_in"]), (&json!("Bearer"), &json!(3600)));
    let verified = control.verify(&text(&tokens["access_token"])).await.expect(200);
    let verified = &verified["agent"];
    assert_eq!((&verified["id"], &verified["permissions"]), (&json!(agent.id), &json!(["read"])));

    let used = (401, "invalid_client", "assertion_used");
    assert_eq!(refusal(&request_token(&control, &login_form(&assertion, &[])).await), used);
    control.kill();
    control.restart().await;
    let again = request_token(&control, &login_form(&assertion, &[])).await;
    assert_eq!(refusal(&again), used);
    assert!(again.body["error_description"].as_str().is_some_and(|text| text.contains("jti")), "{}", again.body);

    let refresh = text(&tokens["refresh_token"]);
    let form = [("grant_type", "refresh_token"), ("refresh_token", refresh.as_str()), ("client_id", &agent.id)];
    let other = [("grant_type", "refresh_token"), ("refresh_token", refresh.as_str()), ("client_id", &service)];
    assert_eq!(refusal(&request_token(&control, &other).await), (400, "invalid_grant", ""));
    let next = request_token(&control, &form).await.expect(200);
    control.verify(&text(&next["access_token"])).await.expect(200);
    // The refusal names the reuse of the token, even if other parameters of the request are wrong, too.
    let reused = [&form[..2], &[("client_id", service.as_str()), ("resource", "https://nope.example")]].concat();
    assert_eq!(refusal(&request_token(&control, &reused).await), (400, "invalid_grant", "refresh_reused"));
    assert_eq!(control.verify(&text(&next["access_token"])).await.status, 401, "the reuse ended the session");
}

#[tokio::test]
async fn an_assertion_that_is_sent_many_times_at_once_gets_one_session() {
    let control = ControlPlane::start().await;
    for number in 0..20 {
        let agent = Agent::register(&control, &format!("agent {number}")).await;
        let assertion = assertion(&control, &agent, "once").await;
        let form = login_form(&assertion, &[]);
        let responses = join_all((0..50).map(|_| request_token(&control, &form))).await;
        let (accepted, refused): (Vec<_>, Vec<_>) = responses.iter().partition(|response| response.status == 200);
        assert_eq!((accepted.len(), refused.len()), (1, 49));
        for response in refused {
            assert_eq!(refusal(response), (401, "invalid_client", "assertion_used"));
        }
    }
}

#[tokio::test]
async fn assertions_that_prove_nothing_are_refused() {
    let control = ControlPlane::start().await;
    let (agent, other) = (Agent::register(&control, "agent").await, Agent::register(&control, "other").await);
    let (issuer, header) = (issuer(&control).await, json!({ "alg": "ES256" }));
    let claims = || claims(&agent.id, &issuer, "id");
    let with = |name: &str, value: Value| {
        let mut claims = claims();
        claims[name] = value;
        signed(&agent.key, &header, &claims)
    };
    let invalid = (401, "invalid_client", "assertion_invalid");
    for (assertion, expected) in [
        (signed(&other.key, &header, &claims()), invalid),
        (signed(&agent.key, &json!({ "alg": "HS256" }), &claims()), invalid),
        (signed(&agent.key, &json!({ "alg": "none" }), &claims()), invalid),
        (signed(&agent.key, &json!({ "alg": "ES256", "typ": "at+jwt" }), &claims()), invalid),
        (with("aud", json!("https://other.example")), invalid),
        (with("exp", json!(now() + 3600)), invalid),
        (with("exp", json!(now() - 1)), (401, "invalid_client", "assertion_expired")),
        (with("iss", json!(other.id)), invalid),
        (with("jti", Value::Null), invalid),
        (agent.token().await, invalid),
    ] {
        assert_eq!(refusal(&request_token(&control, &login_form(&assertion, &[])).await), expected, "{assertion}");
    }
    let unknown = "agent_00000000000000000000000001";
    let unknown = signed(&agent.key, &header, &oauth::claims(unknown, &issuer, "id"));
    assert_eq!(refusal(&request_token(&control, &login_form(&unknown, &[])).await), invalid);
    // Only the holder of the key learns whether a resource exists.
    let foreign = signed(&other.key, &header, &claims());
    for resource in ["https://nope.example", "svc_00000000000000000000000001"] {
        assert_eq!(refusal(&request_token(&control, &login_form(&foreign, &[("resource", resource)])).await), invalid);
    }
    let unused = signed(&agent.key, &header, &claims());
    request_token(&control, &login_form(&unused, &[])).await.expect(200);
}

#[tokio::test]
async fn wrong_parameters_have_the_errors_of_oauth() {
    let control = ControlPlane::start().await;
    let agent = Agent::register(&control, "agent").await;
    let assertion = assertion(&control, &agent, "id").await;
    let missing = "svc_00000000000000000000000001";
    for (form, status, code) in [
        (vec![], 400, "invalid_request"),
        (vec![("grant_type", "password")], 400, "unsupported_grant_type"),
        (vec![("grant_type", "refresh_token")], 400, "invalid_request"),
        (vec![("grant_type", "refresh_token"), ("refresh_token", "nonsense")], 400, "invalid_grant"),
        (vec![("grant_type", "client_credentials"), ("client_assertion", &assertion)], 400, "invalid_client"),
        (vec![("grant_type", "client_credentials"), ("client_assertion_type", ASSERTION_TYPE)], 400, "invalid_client"),
        (login_form(&assertion, &[("resource", "nothing")]), 400, "invalid_target"),
        (login_form(&assertion, &[("scope", "read,write")]), 400, "invalid_scope"),
        (login_form(&assertion, &[("resource", missing)]), 400, "invalid_target"),
        (login_form(&assertion, &[("resource", control.service()), ("audience", missing)]), 400, "invalid_target"),
        (login_form(&assertion, &[("client_id", missing)]), 400, "invalid_client"),
        (login_form(&assertion, &[("resource", missing), ("resource", missing)]), 400, "invalid_target"),
        (login_form(&assertion, &[("scope", "a"), ("scope", "a")]), 400, "invalid_scope"),
        (login_form(&assertion, &[("other", "a"), ("other", "a")]), 400, "invalid_request"),
        (login_form(&assertion, &[("client_secret", "a")]), 401, "invalid_client"),
    ] {
        let response = request_token(&control, &form).await;
        assert_eq!(oauth::code(&response), (status, code), "{form:?}: {}", response.body);
    }
    // A client with a secret gets the status 401 of a wrong secret, even with a valid assertion.
    let form = login_form(&assertion, &[]);
    let refused = post_form_as(&control.api, "/oauth/token", &form, Some("Basic YWdlbnQ6c2VjcmV0")).await;
    assert_eq!(refusal(&refused), (401, "invalid_client", "assertion_invalid"));
    assert!(refused.header("www-authenticate").starts_with("Basic "), "{refused:?}");
    assert!(refused.body["error_description"].as_str().unwrap().contains("private_key_jwt"), "{}", refused.body);

    control.set_status(&agent.id, "suspended").await.expect(200);
    let refused = request_token(&control, &login_form(&assertion, &[])).await;
    assert_eq!(refusal(&refused), (400, "unauthorized_client", "agent_suspended"));
}
