//! When keys begin to sign and when they are removed, with a manual clock.

use super::kid;
use countersign_client::PrivateKey;
use countersign_process::Clock;
use countersign_tests::{HttpResponse, InProcessServer, ManualClock, Server, eventually};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tempfile::TempDir;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_hours(24);

/// Sidecars refuse after this time without contact. Keys are published for five seconds longer before they sign.
const STALENESS: Duration = Duration::from_mins(20);
const NOTICE: Duration = Duration::from_secs(1205);

/// A control plane, its clock, and an agent.
struct Fixture {
    folder: TempDir,
    clock: Arc<ManualClock>,
    plane: InProcessServer,
    settings: Vec<(&'static str, String)>,
    agent: (String, PrivateKey),
}

impl Fixture {
    async fn set(settings: &[(&'static str, &str)]) -> Self {
        let (folder, clock) = (tempfile::tempdir().unwrap(), ManualClock::new());
        let mut all = vec![("sync.max_staleness_seconds", STALENESS.as_secs().to_string())];
        all.push(("public_url", "https://rotation.test".to_owned()));
        all.extend(settings.iter().map(|(key, value)| (*key, (*value).to_owned())));
        let plane = InProcessServer::start(folder.path(), &all, &clock).await;
        let key = PrivateKey::generate();
        let body = json!({ "email": "o@example.org", "name": "Agent", "publicKey": key.public_pem().unwrap() });
        let id = plane.api.post("/auth/register", body).await.expect(201)["agentId"].as_str().unwrap().to_owned();
        Self { folder, clock, plane, settings: all, agent: (id, key) }
    }

    /// Stops the control plane at once and restarts it with another setting.
    async fn restart(&mut self, key: &'static str, value: &str) {
        self.plane.server = Server::none();
        self.settings.retain(|(other, _)| *other != key);
        self.settings.push((key, value.to_owned()));
        self.plane = InProcessServer::start(self.folder.path(), &self.settings, &self.clock).await;
    }

    /// Advances the clock, except for the last part.
    fn pass(&self, span: Duration, but: Duration) {
        self.clock.advance(span.saturating_sub(but));
    }

    async fn token(&self) -> String {
        let (id, key) = &self.agent;
        let challenge = self.plane.api.post("/auth/challenge", json!({ "agentId": id })).await.expect(200);
        let signature = key.sign(challenge["nonce"].as_str().unwrap());
        let body = json!({ "challengeId": challenge["challengeId"], "signature": signature });
        let tokens = self.plane.api.post("/auth/authenticate", body).await.expect(200);
        tokens["accessToken"].as_str().unwrap().to_owned()
    }

    async fn verify(&self, token: &str) -> HttpResponse {
        let [service, key] = ["SERVICE_ID", "SERVICE_KEY"].map(|name| InProcessServer::env(self.folder.path(), name));
        let request = self.plane.api.request("GET", &format!("/services/{service}/verify")).bearer_auth(key);
        HttpResponse::send(request.header("x-agent-token", token)).await
    }

    /// The published keys and a hash of them.
    async fn published(&self) -> (Vec<String>, String) {
        let answer = self.plane.api.get("/.well-known/jwks.json").await;
        let tag = answer.header("etag").to_owned();
        let keys = answer.expect(200)["keys"].as_array().unwrap().clone();
        (keys.iter().map(|key| key["kid"].as_str().unwrap().to_owned()).collect(), tag)
    }

    async fn ask(&self, method: &str, path: &str) -> HttpResponse {
        let human = InProcessServer::env(self.folder.path(), "HUMAN_TOKEN");
        HttpResponse::send(self.plane.api.request(method, path).bearer_auth(human)).await
    }

    async fn listed(&self) -> Vec<Value> {
        self.ask("GET", "/signing-keys").await.expect(200)["data"].as_array().unwrap().clone()
    }

    fn instant(&self) -> String {
        jiff::Timestamp::from_microsecond(self.clock.now().micros()).unwrap().to_string()
    }
}

#[tokio::test]
async fn next_key_signs_only_after_every_live_sidecar_has_it() {
    let mut fixture = Fixture::set(&[]).await;
    let (keys, _) = fixture.published().await;
    let [first, next] = <[String; 2]>::try_from(keys).unwrap();
    let published_at = fixture.instant();
    assert_eq!(kid(&fixture.token().await), first);

    fixture.clock.advance(SECOND);
    let rotation = fixture.ask("POST", "/signing-keys/rotate").await.expect(202);
    fixture.pass(NOTICE, SECOND);
    assert_eq!(rotation, json!({ "kid": next, "status": "next", "signsFrom": fixture.instant() }));
    fixture.restart("tokens.access_seconds", "600").await;
    let (keys, tag) = fixture.published().await;
    assert_eq!((&keys[..2], keys.len()), (&[first.clone(), next.clone()][..], 3), "the following key is published too");

    // The key signs from its time on, not a microsecond earlier, without a further request.
    assert_eq!(kid(&fixture.token().await), next);
    let signing = fixture.listed().await.into_iter().find(|key| key["kid"] == next).unwrap();
    assert_eq!((&signing["status"], &signing["publishedAt"]), (&json!("signing"), &json!(published_at)));
    assert_eq!(fixture.published().await, (keys, tag), "the published keys do not change");
}

#[tokio::test]
async fn old_key_signs_until_the_microsecond_before_the_switch() {
    let fixture = Fixture::set(&[]).await;
    let (keys, _) = fixture.published().await;
    fixture.ask("POST", "/signing-keys/rotate").await.expect(202);
    fixture.pass(NOTICE, Duration::from_micros(1));
    assert_eq!(kid(&fixture.token().await), keys[0]);
    let again = fixture.ask("POST", "/signing-keys/rotate").await.expect(202);
    assert_eq!(again["kid"], keys[1], "one rotation at a time");
    fixture.clock.advance(Duration::from_micros(1));
    assert_eq!(kid(&fixture.token().await), keys[1]);
    // The following key was published at the rotation, long enough ago.
    let at_once = fixture.ask("POST", "/signing-keys/rotate").await.expect(200);
    assert_eq!((&at_once["status"], &at_once["signsFrom"]), (&json!("signing"), &json!(fixture.instant())));
    assert_eq!(kid(&fixture.token().await), at_once["kid"]);
}

#[tokio::test]
async fn key_is_removed_when_its_last_token_has_expired() {
    let mut fixture = Fixture::set(&[]).await;
    let (keys, _) = fixture.published().await;
    fixture.ask("POST", "/signing-keys/rotate").await.expect(202);
    fixture.pass(NOTICE, SECOND);
    let last = fixture.token().await;
    assert_eq!(kid(&last), keys[0]);
    fixture.clock.advance(SECOND);

    // New tokens live for a minute; tokens issued earlier keep their lifetime.
    fixture.restart("tokens.access_seconds", "60").await;
    fixture.clock.advance(Duration::from_secs(3598));
    fixture.restart("tokens.challenge_seconds", "299").await;
    fixture.verify(&last).await.expect(200);
    fixture.clock.advance(SECOND);
    assert_eq!(fixture.verify(&last).await.error().2, "token_expired");
    fixture.clock.advance(Duration::from_secs(299));
    fixture.restart("tokens.challenge_seconds", "298").await;
    assert!(fixture.published().await.0.contains(&keys[0]), "allows for clock skew");
    fixture.clock.advance(SECOND * 2);
    // The background job removes the key within seconds.
    let gone = async || (!fixture.published().await.0.contains(&keys[0])).then_some(());
    eventually("the key is removed", gone, String::new).await;
    assert_eq!(fixture.verify(&last).await.error().2, "token_key_unknown");
    let removed = fixture.listed().await.into_iter().find(|key| key["kid"] == keys[0]).unwrap();
    assert_eq!((&removed["status"], &removed["removedAt"]), (&json!("removed"), &json!(fixture.instant())));
    assert!(removed["retiredAt"].as_str().unwrap() < removed["removedAt"].as_str().unwrap());
}

#[tokio::test]
async fn keys_rotate_by_age_or_never() {
    for (days, rotates) in [("90", true), ("0", false)] {
        let fixture = Fixture::set(&[("signing_keys.rotation_days", days)]).await;
        let (keys, _) = fixture.published().await;
        fixture.pass(DAY * 90, SECOND);
        assert_eq!(kid(&fixture.token().await), keys[0]);
        fixture.clock.advance(SECOND);
        if rotates {
            let rotated = async || (kid(&fixture.token().await) == keys[1]).then_some(());
            eventually("the key is rotated", rotated, String::new).await;
            assert_eq!(fixture.published().await.0.len(), 3);
        } else {
            fixture.clock.advance(DAY * 1000);
            tokio::time::sleep(SECOND * 6).await;
            assert_eq!((kid(&fixture.token().await), fixture.published().await.0), (keys[0].clone(), keys));
        }
    }
}
