//! What our own clients do when they ask too often: the command says when to come back, a session waits.

use super::fixture::{Fixture, MINUTE};
use countersign_client::{Api, KeyError, PrivateKey, Session, SessionTokens, Sign};
use countersign_identity::Timestamp;
use countersign_process::{Clock, SystemClock};
use countersign_tests::{ControlPlane, Shell};
use serde_json::Value;

/// A key that several sessions use.
struct By<'a>(&'a PrivateKey);

impl Sign for By<'_> {
    async fn sign_nonce(&self, nonce: &str) -> Result<String, KeyError> {
        Ok(self.0.sign(nonce))
    }
}

#[tokio::test]
async fn command_line_reports_the_retry_delay() {
    let control = ControlPlane::start_with_default_limits_and(&["limits.auth_per_minute=2"]).await;
    let shell = Shell::with_env(&control, &["URL", "CA"]);
    shell.stdout(&["agent", "keygen"]);
    shell.stdout(&["agent", "register", "--email", "a@example.org", "--name", "Typed"]);
    shell.stdout(&["agent", "login"]);
    let (code, error) = shell.failure(&["agent", "login"]);
    let (said, next) = error.split_once("\nNext: wait ").unwrap_or_else(|| panic!("{error}"));
    assert!(code == 1 && said.starts_with("countersign: 429 RATE_LIMIT_EXCEEDED: "), "{error}");
    let (seconds, then) = next.split_once(" second").unwrap();
    assert!((1..=60).contains(&seconds.parse::<u32>().unwrap()) && then.contains("the same again"), "{error}");

    let (_, error) = shell.failure(&["agent", "login", "-o", "json"]);
    let error: Value = serde_json::from_str(&error).unwrap();
    assert_eq!(error["error"]["code"], "RATE_LIMIT_EXCEEDED");
    assert!(error["error"]["retryAfterSeconds"].as_u64().is_some_and(|wait| (1..=60).contains(&wait)), "{error}");
    assert!(error["error"]["next"].as_str().unwrap().starts_with("wait "), "{error}");
}

#[tokio::test]
async fn rate_limited_session_keeps_its_tokens_until_retry_after() {
    let fixture = Fixture::with_settings(&[("limits.auth_per_minute", "2")]).await;
    let agent = fixture.register().await;
    let (url, authority) = (&fixture.api.url, fixture.authority());
    let api = Api::new(url, Some(authority)).unwrap();
    let now = SystemClock.now();
    let session = Session::new(api.clone(), By(&agent.key), agent.id.clone(), None);
    // Both calls of the minute: challenge and answer.
    let fresh = session.tokens().await.unwrap();
    let due = |expires_at: Timestamp| SessionTokens { refresh_at: now, expires_at, ..fresh.clone() };
    let session = Session::new(api.clone(), By(&agent.key), agent.id.clone(), None).resume(Some(due(fresh.expires_at)));
    for _ in 0..3 {
        let held = session.tokens().await.unwrap();
        assert!(held.refresh_at > now && held.expires_at == fresh.expires_at);
    }
    assert_eq!(fixture.counted("auth").await, Some(1.0), "asked once");

    // What is dead is not given, however long the wait is; and the wait is told.
    let session = Session::new(api, By(&agent.key), agent.id.clone(), None).resume(Some(due(now)));
    let error = session.tokens().await.unwrap_err();
    assert!(error.retry_after().is_some_and(|wait| !wait.is_zero() && wait <= MINUTE), "{error}");
    fixture.clock.advance(MINUTE);
    assert!(session.tokens().await.is_ok());
}
