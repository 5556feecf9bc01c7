//! Logins of human users that fail: denied, expired, at a wrong issuer, or for another control plane.

use crate::human_login::{Fixture, SECRET};
use countersign_tests::{Shell, issuer::AUDIENCE};
use serde_json::{Value, json};
use std::{io::ErrorKind, net::TcpListener};

/// Runs a login that fails. Asserts its exit code, that its error contains a text and a next step, and that nothing is stored.
#[track_caller]
fn assert_failure(fixture: &Fixture, code: i32, text: &str) -> String {
    assert_failure_with(fixture, &fixture.login_with(&[]), code, text)
}

#[track_caller]
fn assert_failure_with(fixture: &Fixture, arguments: &[&str], code: i32, text: &str) -> String {
    let error = fixture.shell.assert_fails(code, arguments, &[text, "\nNext: "]);
    assert!(!error.contains(SECRET) && !fixture.is_stored(), "{error}");
    error
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn login_polls_while_the_authorization_is_pending() {
    let fixture = Fixture::start().await;
    let errors = ["authorization_pending", "slow_down", "authorization_pending"];
    fixture.issuer.device_grant(|grant| grant.poll_errors = errors.into());
    fixture.shell.stdout(&fixture.login_with(&[]));
    assert_eq!(fixture.issuer.forms("/token").len(), errors.len() + 1);
    assert!(fixture.is_stored());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn login_ends_if_the_user_denies_it_or_the_code_expires() {
    let fixture = Fixture::start().await;
    let poll = |error| fixture.issuer.device_grant(|grant| grant.poll_errors = [error].into());
    poll("access_denied");
    assert_failure(&fixture, 3, "access_denied");
    poll("expired_token");
    assert_failure(&fixture, 1, "the user code has expired");
    poll("invalid_client");
    assert_failure(&fixture, 3, "--client-id (COUNTERSIGN_CLIENT_ID)");
    poll("in\u{1b}[2Jvalid\nNext: run this");
    let (_, error) = fixture.shell.failure(&fixture.login_with(&[]));
    assert!(error.contains("in?[2Jvalid?Next: run this"), "{error}");
    fixture.issuer.device_grant(|grant| grant.device_response = json!({ "expires_in": 0 }));
    assert_failure(&fixture, 1, "the user code has expired");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_of_the_issuer_are_checked() {
    let fixture = Fixture::start().await;
    for response in [
        json!({ "user_code": "two\nlines" }),
        json!({ "user_code": "x".repeat(300 * 1024) }),
        json!({ "device_code": Value::Null }),
    ] {
        fixture.issuer.device_grant(|grant| grant.device_response = response);
        assert_failure(&fixture, 1, "a response that is not one of an OIDC issuer");
    }
    for page in ["javascript:alert(1)", "http://verify.example.org/", "file:///etc/passwd"] {
        fixture.issuer.device_grant(|grant| grant.device_response = json!({ "verification_uri": page }));
        assert_failure(&fixture, 1, "`verification_uri` of the issuer is not an https URL");
    }
    fixture.issuer.device_grant(|grant| grant.device_response = json!({}));
    for (claims, claim) in [
        (json!({ "iss": "https://other.example.org" }), "unexpected `iss`"),
        (json!({ "aud": "other" }), "unexpected `aud`"),
        (json!({ "exp": 1 }), "unexpected `exp`"),
    ] {
        fixture.issuer.device_grant(|grant| grant.claims = claims);
        assert_failure(&fixture, 1, claim);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_issuers_are_refused() {
    let fixture = Fixture::start().await;
    let client = ["--client-id", AUDIENCE];
    for (issuer, code, text) in [
        ("http://issuer.example.org", 2, "is not an https URL"),
        ("https://user:s3cr3t@issuer.example.org", 2, "is not an https URL"),
        ("https://127.0.0.1:1", 4, "cannot reach the issuer"),
        (&format!("{}/", fixture.issuer.url), 1, "names the issuer"),
        (&fixture.issuer.moved_url(), 1, "redirects are not followed"),
    ] {
        assert_failure_with(&fixture, &[&["login", "--issuer", issuer][..], &client].concat(), code, text);
    }
    assert!(fixture.issuer.forms("/device").is_empty());
    let moved = fixture.issuer.moved_url();
    let url = fixture.issuer.url.clone();
    for (field, path) in [("device_authorization_endpoint", "/device"), ("token_endpoint", "/token")] {
        fixture.issuer.set_discovery_field(field, &format!("{moved}{path}"));
        assert_failure(&fixture, 1, "redirects are not followed");
        assert!(fixture.issuer.forms(path).is_empty(), "{path} received no request");
        fixture.issuer.set_discovery_field(field, &format!("{url}{path}"));
    }
    fixture.issuer.set_discovery_field("device_authorization_endpoint", "http://issuer.example.org/device");
    assert_failure(&fixture, 1, "`device_authorization_endpoint` of the issuer is not an https URL");
    fixture.issuer.set_discovery_field("issuer", "https://other.example.org");
    assert_failure(&fixture, 1, "names the issuer `https://other.example.org`");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn issuers_without_device_grant_are_named() {
    let key = countersign_tests::SigningKey::p256("k1");
    let issuer = countersign_tests::Issuer::start(&[&key]).await;
    issuer.set_discovery_field("token_endpoint", &format!("{}/token", issuer.url));
    let server = ["--server", "https://127.0.0.1:1"];
    let arguments = [&["login", "--issuer", &issuer.url, "--client-id", "cli"][..], &server].concat();
    let (code, error) = Shell::new().failure(&arguments);
    assert!(code == 1 && error.contains("no `device_authorization_endpoint`"), "{error}");
    assert!(error.contains("RFC 8628") && error.contains("COUNTERSIGN_HUMAN_TOKEN"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_that_the_control_plane_refuses_are_not_stored() {
    let fixture = Fixture::start().await;
    fixture.issuer.device_grant(|grant| grant.claims = json!({ "aud": "other" }));
    let arguments = ["login", "--issuer", &fixture.issuer.url, "--client-id", "other"];
    let error = assert_failure_with(&fixture, &arguments, 3, "401 AUTHENTICATION_FAILED");
    assert!(error.contains("humans.issuers.NAME.issuer") && error.contains("audience to other"), "{error}");
    assert_eq!(fixture.issuer.forms("/revoke").len(), 1, "the refresh token is revoked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_token_is_not_sent_to_another_control_plane() {
    let fixture = Fixture::logged_in().await;
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    other.set_nonblocking(true).unwrap();
    let url = format!("https://{}", other.local_addr().unwrap());
    fixture.shell.stdout(&["agent", "keygen"]);
    for arguments in [
        &["service", "list"][..],
        &["role", "list", "--service", fixture.control.service()],
        &["webhook", "list", "--deployment"],
        &["signing-key", "list"],
        &["agent", "register", "--email", "a@example.org", "--name", "A"],
    ] {
        let expected = format!("is for {}, and its token is not sent to another", fixture.control.env["URL"]);
        let next = format!("Next: countersign login --server {url}");
        fixture.shell.assert_fails(2, &[arguments, &["--server", &url]].concat(), &[&expected, &next]);
    }
    let refused = fixture.shell.run(&["-o", "json", "whoami", "--server", &url]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(matches!(other.accept(), Err(error) if error.kind() == ErrorKind::WouldBlock), "no command has connected");
    let upper_case = fixture.control.env["URL"].replace("https://localhost", "https://LOCALHOST");
    fixture.shell.stdout(&["service", "list", "--server", &format!("{upper_case}/")]);
}
