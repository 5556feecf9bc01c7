//! The refresh of a human user's login, with an issuer that rotates refresh tokens.

use crate::{
    client_errors::on_full_disk,
    human_login::{Fixture, SECRET},
};
use countersign_tests::issuer::IssuerBehavior;
use serde_json::json;
use std::process::Stdio;

/// A lifetime in seconds that causes a refresh before the next use.
const SHORT: i64 = 30;

impl Fixture {
    async fn with_lifetimes(lifetimes: &[i64]) -> Self {
        let fixture = Self::start().await;
        fixture.issuer.device_grant(|grant| grant.lifetimes = lifetimes.iter().copied().collect());
        fixture.shell.stdout(&fixture.login_with(&[]));
        fixture
    }

    fn used_refresh_tokens(&self) -> Vec<String> {
        self.issuer.refreshes().iter().map(|form| form["refresh_token"].clone()).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_expires_soon_is_refreshed_and_the_refresh_token_rotates() {
    let fixture = Fixture::with_lifetimes(&[SHORT, SHORT, 3600]).await;
    for _ in 0..3 {
        assert_eq!(fixture.shell.json(&["service", "list"]), json!([]));
    }
    assert_eq!(fixture.used_refresh_tokens(), ["refresh-s3cr3t-1", "refresh-s3cr3t-2"]);
    assert_eq!(fixture.stored()["refresh_token"], "refresh-s3cr3t-3");
    fixture.replace_stored_token(-1);
    assert_eq!(fixture.shell.json(&["service", "list"]), json!([]), "an expired token is refreshed");
    assert_eq!(fixture.used_refresh_tokens().last().unwrap(), "refresh-s3cr3t-3");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refresh_token_is_kept_if_the_issuer_does_not_rotate() {
    let fixture = Fixture::with_lifetimes(&[SHORT, SHORT]).await;
    fixture.issuer.device_grant(|grant| grant.issues_refresh_tokens = false);
    for _ in 0..2 {
        fixture.shell.stdout(&["service", "list"]);
    }
    assert_eq!(fixture.used_refresh_tokens(), ["refresh-s3cr3t-1", "refresh-s3cr3t-1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_commands_use_every_refresh_token_once() {
    const COMMANDS: usize = 6;
    let fixture = Fixture::with_lifetimes(&[SHORT]).await;
    let start = || {
        let mut command = fixture.shell.command(&["service", "list"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let commands: Vec<_> = (0..COMMANDS).map(|_| start()).collect();
    for command in commands {
        let output = command.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let expected: Vec<_> = (1..=COMMANDS).map(|number| format!("refresh-s3cr3t-{number}")).collect();
    assert_eq!(fixture.used_refresh_tokens(), expected);
    assert_eq!(fixture.issuer.device_grant(|grant| grant.refused_refreshes), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_that_cannot_be_refreshed_names_both_ways() {
    let fixture = Fixture::with_lifetimes(&[3600]).await;
    let fail = |code: i32, text: &str| {
        let error = fixture.shell.assert_fails(code, &["service", "list"], &[text]);
        assert!(!error.contains(SECRET), "{error}");
        error
    };
    fixture.replace_stored_token(-1);
    let mut stored = fixture.stored();
    for (refresh_token, reason) in [
        (
            json!("s3cr3t-of-an-ended-session"),
            "has ended: the issuer refused the request: invalid_grant (… is not valid)",
        ),
        (json!(null), "the login of the profile default has expired"),
    ] {
        stored["refresh_token"] = refresh_token;
        std::fs::write(fixture.shell.profile_path("default.human.json"), stored.to_string()).unwrap();
        let error = fail(3, reason);
        assert!(error.contains("countersign login") && error.contains("COUNTERSIGN_HUMAN_TOKEN"), "{error}");
    }
    std::fs::write(fixture.shell.profile_path("default.human.json"), "{").unwrap();
    fail(2, "the token of a human user is not set");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_of_the_issuer_does_not_end_a_valid_token() {
    let fixture = Fixture::with_lifetimes(&[SHORT]).await;
    fixture.issuer.set_behavior(IssuerBehavior::Status(503));
    assert_eq!(fixture.shell.json(&["service", "list"]), json!([]));
    fixture.replace_stored_token(-1);
    fixture.shell.assert_fails(1, &["service", "list"], &["returned status 503"]);
    fixture.issuer.set_behavior(IssuerBehavior::Normal);
    fixture.shell.stdout(&["service", "list"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refresh_token_is_not_used_if_its_successor_cannot_be_stored() {
    let fixture = Fixture::with_lifetimes(&[SHORT]).await;
    let (code, printed, error) = on_full_disk(&fixture.shell, &["-o", "json", "service", "list"]);
    assert!(code == 0 && printed == "[]", "the token is still valid: {error}");
    fixture.replace_stored_token(-1);
    let (code, _, error) = on_full_disk(&fixture.shell, &["service", "list"]);
    assert!(code == 1 && error.contains("\nNext: set XDG_CONFIG_HOME"), "{error}");
    let (code, _, error) = on_full_disk(&fixture.shell, &["login"]);
    assert!(code == 1 && error.contains("\nNext: set XDG_CONFIG_HOME"), "{error}");
    assert!(fixture.issuer.refreshes().is_empty() && fixture.issuer.forms("/device").len() == 1);
    fixture.shell.stdout(&["service", "list"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refresh_that_returns_another_user_is_refused_and_rotates() {
    let fixture = Fixture::with_lifetimes(&[3600]).await;
    fixture.replace_stored_token(-1);
    fixture.issuer.device_grant(|grant| grant.claims = json!({ "sub": "eve" }));
    fixture.shell.assert_fails(1, &["service", "list"], &["unexpected `sub`"]);
    assert_eq!(fixture.stored()["refresh_token"], "refresh-s3cr3t-2", "the refresh token is stored nevertheless");
    fixture.issuer.device_grant(|grant| grant.claims = json!({}));
    fixture.shell.stdout(&["service", "list"]);
}
