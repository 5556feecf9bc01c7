//! The times at which keys start to sign and are removed, tested with a manual clock.

use super::kid;
use countersign_client::PrivateKey;
use countersign_process::Clock;
use countersign_tests::{
    HttpResponse, InProcessServer, ManualClock, Server, agent::log_in_at, control_plane::text, eventually,
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tempfile::TempDir;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_hours(24);

/// Sidecars refuse requests after this time without contact to the control plane. A signing key must be published for
/// this time and five more seconds before it signs.
const STALENESS: Duration = Duration::from_mins(20);
const PUBLICATION_LEAD: Duration = Duration::from_secs(1205);

/// A control plane, its clock, and an agent.
struct Fixture {
    directory: TempDir,
    clock: Arc<ManualClock>,
    control: InProcessServer,
    settings: Vec<(&'static str, String)>,
    agent: (String, PrivateKey),
}

impl Fixture {
    async fn start(settings: &[(&'static str, &str)]) -> Self {
        let (directory, clock) = (tempfile::tempdir().unwrap(), ManualClock::new());
        let mut all_settings = vec![("sync.max_staleness_seconds", STALENESS.as_secs().to_string())];
        all_settings.push(("public_url", "https://rotation.test".to_owned()));
        all_settings.extend(settings.iter().map(|(key, value)| (*key, (*value).to_owned())));
        let control = InProcessServer::start(directory.path(), &all_settings, &clock).await;
        let key = PrivateKey::generate();
        let body = json!({ "email": "o@example.org", "name": "Agent", "publicKey": key.public_pem().unwrap() });
        let id = control.api.post("/auth/register", body).await.expect(201)["agentId"].as_str().unwrap().to_owned();
        Self { directory, clock, control, settings: all_settings, agent: (id, key) }
    }

    /// Stops the control plane at once and restarts it with another setting.
    async fn restart(&mut self, key: &'static str, value: &str) {
        self.control.server = Server::none();
        self.settings.retain(|(other, _)| *other != key);
        self.settings.push((key, value.to_owned()));
        self.control = InProcessServer::start(self.directory.path(), &self.settings, &self.clock).await;
    }

    /// Advances the clock by `duration` less `remainder`.
    fn advance_except(&self, duration: Duration, remainder: Duration) {
        self.clock.advance(duration.saturating_sub(remainder));
    }

    async fn token(&self) -> String {
        let (id, key) = &self.agent;
        text(&log_in_at(&self.control.api, id, key).await["accessToken"])
    }

    async fn verify(&self, token: &str) -> HttpResponse {
        let [service, key] =
            ["SERVICE_ID", "SERVICE_KEY"].map(|name| InProcessServer::env(self.directory.path(), name));
        let request = self.control.api.request("GET", &format!("/services/{service}/verify")).bearer_auth(key);
        HttpResponse::send(request.header("x-agent-token", token)).await
    }

    /// The ids of the published keys, and the entity tag of the response.
    async fn published_keys(&self) -> (Vec<String>, String) {
        let response = self.control.api.get("/.well-known/jwks.json").await;
        let etag = response.header("etag").to_owned();
        let keys = response.expect(200)["keys"].as_array().unwrap().clone();
        (keys.iter().map(|key| key["kid"].as_str().unwrap().to_owned()).collect(), etag)
    }

    async fn send_as_human(&self, method: &str, path: &str) -> HttpResponse {
        let human = InProcessServer::env(self.directory.path(), "HUMAN_TOKEN");
        HttpResponse::send(self.control.api.request(method, path).bearer_auth(human)).await
    }

    async fn signing_keys(&self) -> Vec<Value> {
        self.send_as_human("GET", "/signing-keys").await.expect(200)["data"].as_array().unwrap().clone()
    }

    fn now(&self) -> String {
        jiff::Timestamp::from_microsecond(self.clock.now().micros()).unwrap().to_string()
    }
}

#[tokio::test]
async fn next_key_signs_only_after_every_live_sidecar_has_it() {
    let mut fixture = Fixture::start(&[]).await;
    let (keys, _) = fixture.published_keys().await;
    let [first, next] = <[String; 2]>::try_from(keys).unwrap();
    let published_at = fixture.now();
    assert_eq!(kid(&fixture.token().await), first);

    fixture.clock.advance(SECOND);
    let rotation = fixture.send_as_human("POST", "/signing-keys/rotate").await.expect(202);
    fixture.advance_except(PUBLICATION_LEAD, SECOND);
    let revision = rotation["revision"].as_i64().unwrap();
    let expected = json!({ "kid": next, "status": "next", "signsFrom": fixture.now(), "revision": revision });
    assert_eq!(rotation, expected);
    fixture.restart("tokens.access_seconds", "600").await;
    let (keys, etag) = fixture.published_keys().await;
    assert_eq!(
        (&keys[..2], keys.len()),
        (&[first.clone(), next.clone()][..], 3),
        "the key after the next one is also published"
    );

    // The next key signs from the microsecond `signsFrom` on, without a further request for a rotation.
    assert_eq!(kid(&fixture.token().await), next);
    let signing = fixture.signing_keys().await.into_iter().find(|key| key["kid"] == next).unwrap();
    assert_eq!((&signing["status"], &signing["publishedAt"]), (&json!("signing"), &json!(published_at)));
    assert_eq!(fixture.published_keys().await, (keys, etag), "the published keys do not change");
}

#[tokio::test]
async fn old_key_signs_until_the_microsecond_before_the_switch() {
    let fixture = Fixture::start(&[]).await;
    let (keys, _) = fixture.published_keys().await;
    fixture.send_as_human("POST", "/signing-keys/rotate").await.expect(202);
    fixture.advance_except(PUBLICATION_LEAD, Duration::from_micros(1));
    assert_eq!(kid(&fixture.token().await), keys[0]);
    let repeated_rotation = fixture.send_as_human("POST", "/signing-keys/rotate").await.expect(202);
    assert_eq!(repeated_rotation["kid"], keys[1], "a second request during a rotation starts no other rotation");
    fixture.clock.advance(Duration::from_micros(1));
    assert_eq!(kid(&fixture.token().await), keys[1]);
    // The third key was published when the first rotation was requested, so it is old enough to sign at once in a second rotation.
    let second_rotation = fixture.send_as_human("POST", "/signing-keys/rotate").await.expect(200);
    assert_eq!((&second_rotation["status"], &second_rotation["signsFrom"]), (&json!("signing"), &json!(fixture.now())));
    assert_eq!(kid(&fixture.token().await), second_rotation["kid"]);
}

#[tokio::test]
async fn key_is_removed_when_its_last_token_has_expired() {
    let mut fixture = Fixture::start(&[]).await;
    let (keys, _) = fixture.published_keys().await;
    fixture.send_as_human("POST", "/signing-keys/rotate").await.expect(202);
    fixture.advance_except(PUBLICATION_LEAD, SECOND);
    let last_token = fixture.token().await;
    assert_eq!(kid(&last_token), keys[0]);
    fixture.clock.advance(SECOND);

    // New tokens live for a minute; tokens issued earlier keep their lifetime.
    fixture.restart("tokens.access_seconds", "60").await;
    fixture.clock.advance(Duration::from_secs(3598));
    fixture.restart("tokens.refresh_seconds", "2591999").await;
    fixture.verify(&last_token).await.expect(200);
    fixture.clock.advance(SECOND);
    assert_eq!(fixture.verify(&last_token).await.error().2, "token_expired");
    fixture.clock.advance(Duration::from_secs(299));
    fixture.restart("tokens.refresh_seconds", "2591998").await;
    assert!(
        fixture.published_keys().await.0.contains(&keys[0]),
        "the key is published longer, to allow for clock skew"
    );
    fixture.clock.advance(SECOND * 2);
    // When the last token of a signing key has expired, a background job of the control plane removes the key within seconds.
    let key_removed = async || (!fixture.published_keys().await.0.contains(&keys[0])).then_some(());
    eventually("the key is removed", key_removed, String::new).await;
    assert_eq!(fixture.verify(&last_token).await.error().2, "token_key_unknown");
    let removed = fixture.signing_keys().await.into_iter().find(|key| key["kid"] == keys[0]).unwrap();
    assert_eq!((&removed["status"], &removed["removedAt"]), (&json!("removed"), &json!(fixture.now())));
    assert!(removed["retiredAt"].as_str().unwrap() < removed["removedAt"].as_str().unwrap());
}

#[tokio::test]
async fn keys_rotate_by_age_unless_rotation_is_disabled() {
    for (days, rotates) in [("90", true), ("0", false)] {
        let fixture = Fixture::start(&[("signing_keys.rotation_days", days)]).await;
        let (keys, _) = fixture.published_keys().await;
        fixture.advance_except(DAY * 90, SECOND);
        assert_eq!(kid(&fixture.token().await), keys[0]);
        fixture.clock.advance(SECOND);
        if rotates {
            let rotated = async || (kid(&fixture.token().await) == keys[1]).then_some(());
            eventually("the key is rotated", rotated, String::new).await;
            assert_eq!(fixture.published_keys().await.0.len(), 3);
        } else {
            fixture.clock.advance(DAY * 1000);
            tokio::time::sleep(SECOND * 6).await;
            assert_eq!((kid(&fixture.token().await), fixture.published_keys().await.0), (keys[0].clone(), keys));
        }
    }
}
