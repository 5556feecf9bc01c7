//! Retrieval of issuer keys: sources, frequency, and slow, incorrect or unreachable issuers.

use super::{INVALID, UNAVAILABLE, list_services};
use countersign_tests::{
    ControlPlane, HttpResponse, Issuer, ManualClock, SigningKey, eventually,
    issuer::{IssuerBehavior, jwks, with},
    process::free_port,
};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tempfile::NamedTempFile;

/// Starts one process, because each process fetches the keys of an issuer for itself.
async fn start(settings: &[String]) -> ControlPlane {
    let settings: Vec<_> = settings.iter().map(String::as_str).collect();
    ControlPlane::start_one_with(&settings).await
}

/// Like [`start`], with this issuer under the name `corp`.
async fn start_with_issuer(issuer: &Issuer, issuer_settings: &[(&str, &str)]) -> ControlPlane {
    start(&issuer.settings("corp", issuer_settings)).await
}

#[tokio::test]
async fn unknown_key_id_reloads_the_keys_and_drops_withdrawn_ones() {
    let (old, new) = (SigningKey::rsa("old"), SigningKey::ed25519("new"));
    let issuer = Issuer::start(&[&old]).await;
    let control = start_with_issuer(&issuer, &[]).await;
    list_services(&control, &old.token(&issuer.claims("ann"))).await.expect(200);
    issuer.publish(&[&new]);
    list_services(&control, &new.token(&issuer.claims("ann"))).await.expect(200);
    assert_eq!(list_services(&control, &old.token(&issuer.claims("ann"))).await.error(), INVALID);
}

async fn wait_until_accepted(control: &ControlPlane, token: &str) {
    let accepted = async || (list_services(control, token).await.status == 200).then_some(());
    eventually("the token is accepted", accepted, || control.log()).await;
}

/// An issuer without keys of its own, and a file with the keys that the control plane accepts.
struct KeyFile {
    issuer: Issuer,
    file: NamedTempFile,
}

impl KeyFile {
    async fn new(key: &SigningKey) -> Self {
        let key_file = Self { issuer: Issuer::start(&[]).await, file: NamedTempFile::new().unwrap() };
        key_file.write(&jwks(&[key]).to_string());
        key_file
    }

    fn write(&self, text: &str) {
        std::fs::write(&self.file, text).unwrap();
    }

    async fn start(&self) -> ControlPlane {
        start_with_issuer(&self.issuer, &[("jwks", self.file.path().to_str().unwrap())]).await
    }
}

/// A control plane whose clock the test sets, and a human user with a token that does not expire.
struct ClockFixture {
    clock: Arc<ManualClock>,
    control: ControlPlane,
    token: String,
}

impl ClockFixture {
    async fn start(issuer: &Issuer, key: &SigningKey) -> Self {
        let clock = ManualClock::new();
        let settings = issuer.settings("corp", &[]);
        let settings: Vec<_> = settings.iter().map(String::as_str).collect();
        let control = ControlPlane::start_with_clock(&clock, &settings).await;
        let claims = with(issuer.claims("ann"), "exp", json!(4_102_444_800_u64));
        Self { clock, control, token: key.token(&claims) }
    }

    async fn list_services(&self) -> HttpResponse {
        list_services(&self.control, &self.token).await
    }

    async fn wait_for_status(&self, what: &str, status: u16) -> HttpResponse {
        let response = async || {
            // After a failed fetch, the next one waits for a second.
            self.clock.advance(Duration::from_secs(1));
            Some(self.list_services().await).filter(|response| response.status == status)
        };
        eventually(what, response, String::new).await
    }
}

#[tokio::test]
async fn unreachable_issuer_returns_503_and_recovers_without_a_restart() {
    let key = SigningKey::p256("p");
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}");
    let settings = [format!("humans.issuers.corp.issuer={url}"), "humans.issuers.corp.audience=countersign".to_owned()];
    let control = start(&settings).await;
    let token = key.token(&json!({ "iss": url, "aud": "countersign", "sub": "ann", "exp": 4_102_444_800_u64 }));
    let response = list_services(&control, &token).await;
    assert_eq!((response.error(), response.header("retry-after")), (UNAVAILABLE, "1"), "{}", response.body);
    list_services(&control, control.human()).await.expect(200);
    let _issuer = Issuer::start_on(port, &[&key]).await;
    wait_until_accepted(&control, &token).await;
}

#[tokio::test]
async fn cached_keys_are_used_up_to_their_maximum_age_during_an_outage() {
    let key = SigningKey::p256("p");
    let issuer = Issuer::start(&[&key]).await;
    let fixture = ClockFixture::start(&issuer, &key).await;
    fixture.list_services().await.expect(200);
    let before = issuer.discovery_fetches();
    issuer.set_behavior(IssuerBehavior::Status(500));
    fixture.clock.advance(Duration::from_mins(15));
    let refreshed = async || {
        fixture.list_services().await.expect(200);
        (issuer.discovery_fetches() > before).then_some(())
    };
    eventually("a refresh of the keys is attempted", refreshed, String::new).await;
    fixture.clock.advance(Duration::from_mins(45) - Duration::from_micros(1));
    fixture.list_services().await.expect(200);
    let response = fixture.wait_for_status("the keys exceed their maximum age", 503).await;
    assert_eq!(response.error(), UNAVAILABLE);
    issuer.set_behavior(IssuerBehavior::Normal);
    fixture.wait_for_status("the issuer works again", 200).await;
}

#[tokio::test]
async fn invalid_issuer_responses_are_refused() {
    let (key, untrusted_key) = (SigningKey::p256("p"), SigningKey::p256("p"));
    let redirect_target = Issuer::start(&[&untrusted_key]).await;
    let huge = json!({ "keys": [key.jwk()], "padding": "x".repeat(256 * 1024) }).to_string();
    let behaviors = [
        IssuerBehavior::Status(500),
        IssuerBehavior::Status(204),
        IssuerBehavior::Redirect(redirect_target.jwks_url()),
        IssuerBehavior::Body(huge),
        IssuerBehavior::Body("<html>".to_owned()),
        IssuerBehavior::Body(String::new()),
        IssuerBehavior::Endless,
    ];
    for behavior in behaviors {
        let issuer = Issuer::start(&[&key]).await;
        issuer.set_behavior(behavior.clone());
        let control = start_with_issuer(&issuer, &[]).await;
        for signer in [&key, &untrusted_key] {
            let refused = list_services(&control, &signer.token(&issuer.claims("ann"))).await;
            assert_eq!(refused.error(), UNAVAILABLE, "{behavior:?}");
        }
    }
    assert_eq!(redirect_target.jwks_fetches(), 0, "a redirect is not followed");
}

#[tokio::test]
async fn discovery_document_with_wrong_issuer_or_unsafe_jwks_url_is_refused() {
    let key = SigningKey::p256("p");
    for (name, value) in
        [("issuer", "https://other.example"), ("jwks_uri", "http://192.0.2.1/keys"), ("jwks_uri", "file:///etc/passwd")]
    {
        let issuer = Issuer::start(&[&key]).await;
        issuer.set_discovery_field(name, value);
        let control = start_with_issuer(&issuer, &[]).await;
        let refused = list_services(&control, &key.token(&issuer.claims("ann"))).await;
        assert_eq!(refused.error(), UNAVAILABLE, "{name} = {value}");
        assert_eq!(issuer.jwks_fetches(), 0);
    }
}

#[tokio::test]
async fn slow_issuer_delays_only_its_own_users_and_for_a_limited_time() {
    let key = SigningKey::p256("p");
    let issuer = Issuer::start(&[&key]).await;
    issuer.set_behavior(IssuerBehavior::Delayed(Duration::from_mins(2)));
    let control = start_with_issuer(&issuer, &[]).await;
    let waiting = {
        let (api, token) = (control.api.clone(), key.token(&issuer.claims("ann")));
        tokio::spawn(async move { api.get_as(&token, "/services").await })
    };
    let fetching = async || (issuer.discovery_fetches() > 0).then_some(());
    eventually("the issuer receives the request", fetching, || control.log()).await;
    for _ in 0..20 {
        control.api.get("/health").await.expect(200);
        list_services(&control, control.human()).await.expect(200);
    }
    assert!(!waiting.is_finished(), "other requests do not wait for the slow issuer");
    assert_eq!(waiting.await.unwrap().error(), UNAVAILABLE, "the request does not wait until the issuer answers");
}

#[tokio::test]
async fn changed_jwks_file_is_loaded_and_a_bad_one_keeps_the_keys() {
    let (old, new) = (SigningKey::p256("old"), SigningKey::p256("new"));
    let file = KeyFile::new(&old).await;
    let (control, issuer) = (file.start().await, &file.issuer);
    let old_token = old.token(&issuer.claims("ann"));
    for (bad, error) in [(r#"{"keys":[]}"#, "contains no usable key"), ("{", "not a JWK set")] {
        file.write(bad);
        let is_refusal = |line: &str| line.contains("changed files cannot be loaded") && line.contains(error);
        let refused = async || control.log().lines().any(is_refusal).then_some(());
        eventually("the file is refused", refused, || control.log()).await;
        assert_eq!(list_services(&control, &new.token(&issuer.claims("ann"))).await.error(), INVALID);
        list_services(&control, &old_token).await.expect(200);
    }
    file.write(&jwks(&[&new]).to_string());
    let withdrawn = async || Some(list_services(&control, &old_token).await).filter(|response| response.status == 401);
    assert_eq!(eventually("the key is withdrawn", withdrawn, || control.log()).await.error(), INVALID);
    list_services(&control, &new.token(&issuer.claims("ann"))).await.expect(200);
    assert_eq!((issuer.discovery_fetches(), issuer.jwks_fetches()), (0, 0));
}

#[tokio::test]
async fn issuer_certificate_must_be_signed_by_the_configured_authority() {
    let key = SigningKey::rsa("r");
    let (issuer, authority) = Issuer::start_tls(&[&key]).await;
    let (_, other) = Issuer::start_tls(&[]).await;
    let file = NamedTempFile::new().unwrap();
    std::fs::write(&file, other).unwrap();
    let token = key.token(&issuer.claims("ann"));
    let untrusting = start_with_issuer(&issuer, &[]).await;
    assert_eq!(list_services(&untrusting, &token).await.error(), UNAVAILABLE, "without an authority");
    let control = start_with_issuer(&issuer, &[("ca_file", file.path().to_str().unwrap())]).await;
    assert_eq!(list_services(&control, &token).await.error(), UNAVAILABLE, "with another authority");
    assert_eq!(issuer.jwks_fetches(), 0, "an untrusted issuer receives no request");
    // The control plane trusts a changed file without a restart.
    std::fs::write(&file, authority).unwrap();
    wait_until_accepted(&control, &token).await;
}
