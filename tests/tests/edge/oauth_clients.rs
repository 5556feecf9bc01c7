//! Tests unchanged OAuth libraries from package registries: agents get tokens with them, and call a service through Envoy.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

mod fixture;
mod huskarl;
mod library;
mod program;

use countersign_tests::{control_plane::text, eventually};
use fixture::Fixture;
use huskarl::Huskarl;
use library::{Discovered, Library, OAuthError, Settings};
use program::Program;
use serde_json::{Value, json};

async fn tokens_are_for_the_service_that_the_library_finds<L: Library>(connect: impl FnOnce(Settings) -> L) {
    let fixture = Fixture::start(connect).await;
    let Fixture { environment, library, agent, resource } = &fixture;
    let refused = library.call(&fixture.url("/"), None).await;
    assert_eq!(refused.status, 401, "{refused:?}");
    let issuer = environment.control.env["URL"].clone();
    assert_eq!(library.discover(resource).await, Discovered { resource: resource.clone(), issuer });

    let tokens = library.token(resource, None).await.unwrap();
    assert_eq!(tokens.scope, "read");
    let answer = fixture.call("/", &tokens.access, 200).await;
    let received: Value = serde_json::from_str(&answer.text).unwrap();
    assert_eq!(received["x-agent-id"], json!([agent.id]));

    let elsewhere = library.token(&fixture.other_resource().await, None).await.unwrap();
    let refused = fixture.call("/", &elsewhere.access, 401).await;
    let metadata = fixture.url("/.well-known/oauth-protected-resource");
    let challenge = refused.challenge.unwrap();
    assert_eq!((&challenge["error"], &challenge["resource_metadata"]), (&json!("invalid_token"), &json!(metadata)));
    assert!(refused.text.contains("token_audience_mismatch"), "{}", refused.text);
}

async fn sessions_continue_until_a_refresh_token_is_used_twice<L: Library>(connect: impl FnOnce(Settings) -> L) {
    let fixture = Fixture::start(connect).await;
    let library = &fixture.library;
    let first = library.token(&fixture.resource, None).await.unwrap();
    let second = library.refresh(&first.refresh).await.unwrap();
    fixture.call("/", &second.access, 200).await;
    let third = library.refresh(&second.refresh).await.unwrap();
    fixture.call("/", &third.access, 200).await;
    assert_eq!(library.refresh(&first.refresh).await.unwrap_err().error, "invalid_grant");
    assert_eq!(library.refresh(&third.refresh).await.unwrap_err().error, "invalid_grant", "the session has ended");
    fixture.wait_until_refused(&third.access).await;
}

async fn revoked_tokens_are_refused<L: Library>(connect: impl FnOnce(Settings) -> L) {
    let fixture = Fixture::start(connect).await;
    let tokens = fixture.library.token(&fixture.resource, None).await.unwrap();
    fixture.call("/", &tokens.access, 200).await;
    fixture.library.revoke(&tokens.access).await;
    let refused = fixture.wait_until_refused(&tokens.access).await;
    assert_eq!((refused.status, &refused.challenge.unwrap()["error"]), (401, &json!("invalid_token")));
    assert!(refused.text.contains("token_revoked"), "{}", refused.text);
    let next = fixture.library.refresh(&tokens.refresh).await.unwrap();
    fixture.call("/", &next.access, 200).await;
}

async fn scopes_narrow_what_a_token_permits<L: Library>(connect: impl FnOnce(Settings) -> L) {
    let fixture = Fixture::start(connect).await;
    let control = &fixture.environment.control;
    control.assign(&fixture.agent.id, &control.create_role("administrator", &["admin"]).await).await;
    let wide = fixture.library.token(&fixture.resource, None).await.unwrap();
    assert_eq!(wide.scope, "admin read");
    let is_permitted = async || {
        Some(fixture.library.call(&fixture.url("/admin"), Some(&wide.access)).await).filter(|it| it.status == 200)
    };
    eventually("the sidecar has the role", is_permitted, || fixture.environment.sidecar.log()).await;

    let narrow = fixture.library.token(&fixture.resource, Some("read unknown")).await.unwrap();
    assert_eq!(narrow.scope, "read");
    fixture.call("/", &narrow.access, 200).await;
    let refused = fixture.call("/admin", &narrow.access, 403).await;
    let challenge = refused.challenge.unwrap();
    assert_eq!((&challenge["error"], &challenge["scope"]), (&json!("insufficient_scope"), &json!("admin")));
    let next = fixture.library.refresh(&narrow.refresh).await.unwrap();
    assert_eq!(next.scope, "read");
    fixture.call("/admin", &next.access, 403).await;
}

async fn errors_are_visible<L: Library>(connect: impl FnOnce(Settings) -> L) {
    let fixture = Fixture::start(connect).await;
    let Fixture { environment, library, agent, resource } = &fixture;
    let other_key = fixture.other_key().await;
    let refused = library.token_with(&other_key, resource, None).await.unwrap_err();
    assert_eq!(refused.error, "invalid_client", "{refused:?}");
    let refused = library.token("https://unknown.example", None).await.unwrap_err();
    assert_eq!(refused.error, "invalid_target", "{refused:?}");
    let refused = library.token(resource, Some("a\"b")).await.unwrap_err();
    assert_eq!(refused.error, "invalid_scope", "{refused:?}");
    environment.control.set_status(&agent.id, "suspended").await.expect(200);
    let refused = library.token(resource, None).await.unwrap_err();
    assert_eq!(refused.error, "unauthorized_client", "{refused:?}");
}

async fn used_assertions_are_refused(connect: impl FnOnce(Settings) -> Program) {
    let fixture = Fixture::start(connect).await;
    fixture.library.token_with_assertion_id("the same").await.unwrap();
    let OAuthError { error, description } = fixture.library.token_with_assertion_id("the same").await.unwrap_err();
    assert!(error == "invalid_client" && description.contains("jti"), "{error}: {description}");
    fixture.library.token_with_assertion_id("another").await.unwrap();
}

async fn services_introspect(connect: impl FnOnce(Settings) -> Program) {
    let fixture = Fixture::start(connect).await;
    let (program, control) = (&fixture.library, &fixture.environment.control);
    let token = program.token(&fixture.resource, None).await.unwrap().access;
    for method in ["client_secret_basic", "client_secret_post"] {
        let introspect = async |key, token| program.introspect(control.service(), key, method, token).await;
        let active = introspect(control.key(), &token).await.unwrap();
        assert_eq!(
            (&active["active"], text(&active["client_id"])),
            (&json!(true), fixture.agent.id.clone()),
            "{method}"
        );
        assert_eq!((&active["scope"], &active["roles"]), (&json!("read"), &json!(["reader"])));
        assert_eq!(introspect(control.key(), "nonsense").await.unwrap(), json!({ "active": false }));
    }
    program.revoke(&token).await;
    let revoked = program.introspect(control.service(), control.key(), "client_secret_post", &token).await.unwrap();
    assert_eq!(revoked, json!({ "active": false }));
    let refused = program.introspect(control.service(), "wrong", "client_secret_post", &token).await.unwrap_err();
    assert_eq!(refused.error, "invalid_client");
}

macro_rules! library_tests {
    ($library:ident, $connect:expr, [$($test:ident)+]) => {
        mod $library {
            $(
                #[tokio::test]
                async fn $test() {
                    super::$test($connect).await;
                }
            )+
        }
    };
}

macro_rules! program_tests {
    ($library:ident, $connect:expr) => {
        library_tests!($library, $connect, [
            tokens_are_for_the_service_that_the_library_finds
            sessions_continue_until_a_refresh_token_is_used_twice
            revoked_tokens_are_refused
            scopes_narrow_what_a_token_permits
            errors_are_visible
            used_assertions_are_refused
            services_introspect
        ]);
    };
}

program_tests!(with_authlib, super::Program::authlib);
program_tests!(with_openid_client, super::Program::openid_client);

library_tests!(with_huskarl, super::Huskarl::new, [
    tokens_are_for_the_service_that_the_library_finds
    sessions_continue_until_a_refresh_token_is_used_twice
    revoked_tokens_are_refused
    scopes_narrow_what_a_token_permits
    errors_are_visible
]);

#[tokio::test]
async fn assertions_that_live_an_hour_are_refused() {
    let fixture = Fixture::start(Program::authlib).await;
    let parameters = json!({ "resource": fixture.resource, "stock": true });
    let refused = fixture.library.run::<Value>("token", parameters).await.unwrap_err();
    assert_eq!(refused.error, "invalid_client");
    assert!(refused.description.contains("`exp` must be at most 5 minutes away"), "{refused:?}");
}
