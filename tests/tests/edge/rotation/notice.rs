//! When keys sign and when they go, by a clock that is told to go on.

use super::kid;
use countersign_client::PrivateKey;
use countersign_process::Clock;
use countersign_tests::{Answer, Hand, Server, SteppedPlane, eventually};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tempfile::TempDir;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_hours(24);

/// After this without contact sidecars refuse; keys are published for five seconds more before they sign.
const STALENESS: Duration = Duration::from_mins(20);
const NOTICE: Duration = Duration::from_secs(1205);

/// A control plane, its clock, and an agent.
struct Stage {
    folder: TempDir,
    hand: Arc<Hand>,
    plane: SteppedPlane,
    settings: Vec<(&'static str, String)>,
    agent: (String, PrivateKey),
}

impl Stage {
    async fn set(settings: &[(&'static str, &str)]) -> Self {
        let (folder, hand) = (tempfile::tempdir().unwrap(), Hand::new());
        let mut all = vec![("sync.max_staleness_seconds", STALENESS.as_secs().to_string())];
        all.push(("public_url", "https://rotation.test".to_owned()));
        all.extend(settings.iter().map(|(key, value)| (*key, (*value).to_owned())));
        let plane = SteppedPlane::start(folder.path(), &all, &hand).await;
        let key = PrivateKey::generate();
        let body = json!({ "email": "o@example.org", "name": "Agent", "publicKey": key.public_pem().unwrap() });
        let id = plane.api.post("/auth/register", body).await.expect(201)["agentId"].as_str().unwrap().to_owned();
        Self { folder, hand, plane, settings: all, agent: (id, key) }
    }

    /// Ends at once and starts again, with another setting.
    async fn restart(&mut self, key: &'static str, value: &str) {
        self.plane.server = Server::none();
        self.settings.retain(|(other, _)| *other != key);
        self.settings.push((key, value.to_owned()));
        self.plane = SteppedPlane::start(self.folder.path(), &self.settings, &self.hand).await;
    }

    /// Time passes, but for the last part of it.
    fn pass(&self, span: Duration, but: Duration) {
        self.hand.advance(span.saturating_sub(but));
    }

    async fn token(&self) -> String {
        let (id, key) = &self.agent;
        let challenge = self.plane.api.post("/auth/challenge", json!({ "agentId": id })).await.expect(200);
        let signature = key.sign(challenge["nonce"].as_str().unwrap());
        let body = json!({ "challengeId": challenge["challengeId"], "signature": signature });
        let tokens = self.plane.api.post("/auth/authenticate", body).await.expect(200);
        tokens["accessToken"].as_str().unwrap().to_owned()
    }

    async fn verify(&self, token: &str) -> Answer {
        let [service, key] = ["SERVICE_ID", "SERVICE_KEY"].map(|name| SteppedPlane::env(self.folder.path(), name));
        let request = self.plane.api.request("GET", &format!("/services/{service}/verify")).bearer_auth(key);
        Answer::to(request.header("x-agent-token", token)).await
    }

    /// The keys as published, and a hash of them.
    async fn published(&self) -> (Vec<String>, String) {
        let answer = self.plane.api.get("/.well-known/jwks.json").await;
        let tag = answer.header("etag").to_owned();
        let keys = answer.expect(200)["keys"].as_array().unwrap().clone();
        (keys.iter().map(|key| key["kid"].as_str().unwrap().to_owned()).collect(), tag)
    }

    async fn ask(&self, method: &str, path: &str) -> Answer {
        let human = SteppedPlane::env(self.folder.path(), "HUMAN_TOKEN");
        Answer::to(self.plane.api.request(method, path).bearer_auth(human)).await
    }

    async fn listed(&self) -> Vec<Value> {
        self.ask("GET", "/signing-keys").await.expect(200)["data"].as_array().unwrap().clone()
    }

    fn instant(&self) -> String {
        jiff::Timestamp::from_microsecond(self.hand.now().micros()).unwrap().to_string()
    }
}

#[tokio::test]
async fn the_next_key_never_signs_before_whoever_still_answers_knows_it() {
    let mut stage = Stage::set(&[]).await;
    let (keys, _) = stage.published().await;
    let [first, next] = <[String; 2]>::try_from(keys).unwrap();
    let published_at = stage.instant();
    assert_eq!(kid(&stage.token().await), first);

    stage.hand.advance(SECOND);
    let rotation = stage.ask("POST", "/signing-keys/rotate").await.expect(202);
    stage.pass(NOTICE, SECOND);
    assert_eq!(rotation, json!({ "kid": next, "status": "next", "signsFrom": stage.instant() }));
    stage.restart("tokens.access_seconds", "600").await;
    let (keys, tag) = stage.published().await;
    assert_eq!((&keys[..2], keys.len()), (&[first.clone(), next.clone()][..], 3), "the one after it is published too");

    // It signs by its instant, and no microsecond before: nobody has to say anything.
    assert_eq!(kid(&stage.token().await), next);
    let signing = stage.listed().await.into_iter().find(|key| key["kid"] == next).unwrap();
    assert_eq!((&signing["status"], &signing["publishedAt"]), (&json!("signing"), &json!(published_at)));
    assert_eq!(stage.published().await, (keys, tag), "who signs is no news to who verifies");
}

#[tokio::test]
async fn a_microsecond_before_its_instant_the_old_key_signs() {
    let stage = Stage::set(&[]).await;
    let (keys, _) = stage.published().await;
    stage.ask("POST", "/signing-keys/rotate").await.expect(202);
    stage.pass(NOTICE, Duration::from_micros(1));
    assert_eq!(kid(&stage.token().await), keys[0]);
    let again = stage.ask("POST", "/signing-keys/rotate").await.expect(202);
    assert_eq!(again["kid"], keys[1], "one rotation at a time");
    stage.hand.advance(Duration::from_micros(1));
    assert_eq!(kid(&stage.token().await), keys[1]);
    // The one behind it was published at the rotation, long enough ago by now.
    let at_once = stage.ask("POST", "/signing-keys/rotate").await.expect(200);
    assert_eq!((&at_once["status"], &at_once["signsFrom"]), (&json!("signing"), &json!(stage.instant())));
    assert_eq!(kid(&stage.token().await), at_once["kid"]);
}

#[tokio::test]
async fn a_key_goes_when_its_last_token_is_dead_and_not_before() {
    let mut stage = Stage::set(&[]).await;
    let (keys, _) = stage.published().await;
    stage.ask("POST", "/signing-keys/rotate").await.expect(202);
    stage.pass(NOTICE, SECOND);
    let last = stage.token().await;
    assert_eq!(kid(&last), keys[0]);
    stage.hand.advance(SECOND);

    // Tokens that are issued from now on live for a minute, but not those that are out.
    stage.restart("tokens.access_seconds", "60").await;
    stage.hand.advance(Duration::from_secs(3598));
    stage.restart("tokens.challenge_seconds", "299").await;
    stage.verify(&last).await.expect(200);
    stage.hand.advance(SECOND);
    assert_eq!(stage.verify(&last).await.error().2, "token_expired");
    stage.hand.advance(Duration::from_secs(299));
    stage.restart("tokens.challenge_seconds", "298").await;
    assert!(stage.published().await.0.contains(&keys[0]), "clocks may run apart");
    stage.hand.advance(SECOND * 2);
    // Whoever looks after the keys does it within seconds.
    let gone = async || (!stage.published().await.0.contains(&keys[0])).then_some(());
    eventually("the key is removed", gone, String::new).await;
    assert_eq!(stage.verify(&last).await.error().2, "token_key_unknown");
    let removed = stage.listed().await.into_iter().find(|key| key["kid"] == keys[0]).unwrap();
    assert_eq!((&removed["status"], &removed["removedAt"]), (&json!("removed"), &json!(stage.instant())));
    assert!(removed["retiredAt"].as_str().unwrap() < removed["removedAt"].as_str().unwrap());
}

#[tokio::test]
async fn keys_are_rotated_by_age_or_never() {
    for (days, rotates) in [("90", true), ("0", false)] {
        let stage = Stage::set(&[("signing_keys.rotation_days", days)]).await;
        let (keys, _) = stage.published().await;
        stage.pass(DAY * 90, SECOND);
        assert_eq!(kid(&stage.token().await), keys[0]);
        stage.hand.advance(SECOND);
        if rotates {
            let rotated = async || (kid(&stage.token().await) == keys[1]).then_some(());
            eventually("the key is rotated", rotated, String::new).await;
            assert_eq!(stage.published().await.0.len(), 3);
        } else {
            stage.hand.advance(DAY * 1000);
            tokio::time::sleep(SECOND * 6).await;
            assert_eq!((kid(&stage.token().await), stage.published().await.0), (keys[0].clone(), keys));
        }
    }
}
