//! Rate-limited clients: the command line prints the delay, and a session keeps its tokens and waits.

use super::fixture::{Fixture, MINUTE};
use countersign_client::{Api, KeyError, PrivateKey, Session, SessionTokens, Sign};
use countersign_identity::Timestamp;
use countersign_process::{Clock, SystemClock};
use countersign_tests::{ControlPlane, Shell};
use serde_json::Value;

/// The private key of an agent, shared by several sessions.
struct SharedKey<'a>(&'a PrivateKey);

impl Sign for SharedKey<'_> {
    async fn sign_text(&self, text: &str) -> Result<String, KeyError> {
        Ok(self.0.sign(text))
    }
}

#[tokio::test]
async fn command_line_reports_the_retry_delay() {
    let control = ControlPlane::start_with_default_limits_and(&["limits.auth_per_minute=2"]).await;
    let shell = Shell::with_env(&control, &["URL", "CA"]);
    shell.stdout(&["agent", "keygen"]);
    shell.stdout(&["agent", "register", "--email", "a@example.org", "--name", "Agent"]);
    shell.stdout(&["agent", "login"]);
    let (code, error) = shell.failure(&["agent", "login"]);
    let (first_line, next) = error.split_once("\nNext: wait ").unwrap_or_else(|| panic!("{error}"));
    assert!(code == 1 && first_line.starts_with("countersign: 429 RATE_LIMIT_EXCEEDED: "), "{error}");
    let (seconds, rest) = next.split_once(" second").unwrap();
    assert!((1..=60).contains(&seconds.parse::<u32>().unwrap()) && rest.contains("then try again"), "{error}");

    let (_, error) = shell.failure(&["agent", "login", "-o", "json"]);
    let error: Value = serde_json::from_str(&error).unwrap();
    assert_eq!(error["error"]["code"], "RATE_LIMIT_EXCEEDED");
    assert!(error["error"]["retryAfterSeconds"].as_u64().is_some_and(|wait| (1..=60).contains(&wait)), "{error}");
    assert!(error["error"]["next"].as_str().unwrap().starts_with("wait "), "{error}");
}

#[tokio::test]
async fn rate_limited_session_keeps_its_tokens_until_retry_after() {
    let fixture = Fixture::with_settings(&["limits.auth_per_minute=2"]).await;
    let agent = fixture.register().await;
    let api = Api::new(&fixture.api.url, Some(&fixture.control.authority())).unwrap();
    let now = SystemClock.now();
    let session = Session::new(api.clone(), SharedKey(&agent.key), agent.id.clone(), None);
    // The login uses both calls that the rate limit of this test allows in a minute: one for the challenge and one for
    // its signature.
    let tokens = session.tokens().await.unwrap();
    let due_tokens = |expires_at: Timestamp| SessionTokens { refresh_at: now, expires_at, ..tokens.clone() };
    let session = Session::new(api.clone(), SharedKey(&agent.key), agent.id.clone(), None)
        .resume(Some(due_tokens(tokens.expires_at)));
    for _ in 0..3 {
        let current = session.tokens().await.unwrap();
        assert!(current.refresh_at > now && current.expires_at == tokens.expires_at);
    }
    assert_eq!(fixture.rate_limited_total("auth").await, Some(1.0), "one call was refused");

    // The session returns no expired tokens, but an error that contains the delay.
    let session = Session::new(api, SharedKey(&agent.key), agent.id.clone(), None).resume(Some(due_tokens(now)));
    let error = session.tokens().await.unwrap_err();
    assert!(error.retry_after().is_some_and(|wait| !wait.is_zero() && wait <= MINUTE), "{error}");
    fixture.clock.advance(MINUTE);
    assert!(session.tokens().await.is_ok());
}
