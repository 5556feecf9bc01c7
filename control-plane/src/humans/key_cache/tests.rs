use super::*;
use crate::metrics::{LabelValues, Metrics};
use countersign_test_engines::ManualClock;
use serde_json::json;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// A key source with one Ed25519 key. The test sets the `kid` of the key; without a `kid`, fetches fail.
#[derive(Default)]
struct FakeSource {
    kid: Mutex<Option<&'static str>>,
    fetches: AtomicUsize,
    is_hanging: AtomicBool,
}

impl KeySource for Arc<FakeSource> {
    async fn fetch(&self) -> Result<JwkSet, impl Display + Send> {
        self.fetches.fetch_add(1, SeqCst);
        tokio::task::yield_now().await;
        while self.is_hanging.load(SeqCst) {
            tokio::task::yield_now().await;
        }
        let kid = self.kid.lock().unwrap().ok_or("unavailable")?;
        let x = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc";
        let keys = json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "kid": kid, "x": x }] });
        JwkSet::parse(keys.to_string().as_bytes()).map_err(|_| "malformed")
    }
}

struct KeyCacheFixture {
    clock: Arc<ManualClock>,
    source: Arc<FakeSource>,
    cache: Arc<KeyCache<Arc<FakeSource>>>,
}

fn fixture(kid: Option<&'static str>) -> KeyCacheFixture {
    let clock = ManualClock::new();
    let source =
        Arc::new(FakeSource { kid: Mutex::new(kid), fetches: AtomicUsize::new(0), is_hanging: AtomicBool::default() });
    let metrics = Metrics::new(&LabelValues::default()).unwrap().jwks_fetches("test");
    let cache = Arc::new(KeyCache::new("test".into(), source.clone(), clock.clone(), metrics));
    KeyCacheFixture { clock, source, cache }
}

impl KeyCacheFixture {
    fn advance(&self, seconds: f64) {
        self.clock.advance(Duration::from_secs_f64(seconds));
    }

    fn publish(&self, kid: Option<&'static str>) {
        *self.source.kid.lock().unwrap() = kid;
    }

    /// Lets a background fetch finish.
    async fn finish_background_fetch(&self) {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }

    fn fetches(&self) -> usize {
        self.source.fetches.load(SeqCst)
    }

    async fn find(&self, kid: &str) -> Result<(), Reason> {
        self.cache.find(Some(kid), Algorithm::EdDSA).await.map(drop).map_err(|refusal| refusal.reason)
    }

    async fn find_many(&self, kids: impl Iterator<Item = String>) -> Vec<Result<(), Reason>> {
        let tasks: Vec<_> = kids
            .map(|kid| {
                let cache = self.cache.clone();
                tokio::spawn(async move { cache.find(Some(&kid), Algorithm::EdDSA).await.map(drop) })
            })
            .collect();
        let mut outcomes = Vec::new();
        for task in tasks {
            outcomes.push(task.await.unwrap().map_err(|refusal| refusal.reason));
        }
        outcomes
    }
}

const INVALID: Result<(), Reason> = Err(Reason::HumanTokenInvalid);
const UNAVAILABLE: Result<(), Reason> = Err(Reason::HumanIssuerUnavailable);

#[tokio::test]
async fn concurrent_requests_share_one_fetch() {
    let fixture = fixture(None);
    let kids = |count| (0..count).map(|_| "a".to_owned());
    assert!(fixture.find_many(kids(50)).await.iter().all(|outcome| *outcome == UNAVAILABLE));
    assert_eq!(fixture.fetches(), 1);
    fixture.publish(Some("a"));
    fixture.advance(0.9);
    assert_eq!(
        (fixture.find("a").await, fixture.fetches()),
        (UNAVAILABLE, 1),
        "a failed fetch must not be retried immediately"
    );
    fixture.advance(0.1);
    assert!(fixture.find_many(kids(50)).await.iter().all(Result::is_ok));
    assert_eq!(fixture.fetches(), 2);
}

#[tokio::test]
async fn unknown_kid_triggers_one_fetch_a_minute() {
    let fixture = fixture(Some("a"));
    fixture.find("a").await.unwrap();
    fixture.advance(1.0);
    fixture.publish(Some("b"));
    assert_eq!((fixture.find("b").await, fixture.fetches()), (Ok(()), 2), "a new key must be fetched immediately");
    let unknown_kids = |count: usize| (0..count).map(|number| format!("unknown {number}"));
    fixture.advance(1.0);
    assert!(fixture.find_many(unknown_kids(200)).await.iter().all(|outcome| *outcome == INVALID));
    assert_eq!((fixture.find("a").await, fixture.fetches()), (INVALID, 2), "the old key was withdrawn");
    fixture.advance(58.9);
    assert_eq!((fixture.find("c").await, fixture.fetches()), (INVALID, 2));
    fixture.advance(0.1);
    assert!(fixture.find_many(unknown_kids(200)).await.iter().all(|outcome| *outcome == INVALID));
    assert_eq!(fixture.fetches(), 3);
}

#[tokio::test]
async fn unknown_kid_of_unavailable_issuer_is_reported_as_unavailable() {
    let fixture = fixture(Some("a"));
    fixture.find("a").await.unwrap();
    fixture.advance(1.0);
    fixture.publish(None);
    assert_eq!((fixture.find("b").await, fixture.find("b").await, fixture.fetches()), (UNAVAILABLE, UNAVAILABLE, 2));
    assert_eq!(fixture.find("a").await, Ok(()), "cached keys must remain usable");
    fixture.publish(Some("b"));
    fixture.advance(60.0);
    assert_eq!((fixture.find("b").await, fixture.fetches()), (Ok(()), 3));
}

#[tokio::test]
async fn stale_keys_are_used_while_the_refresh_fails_until_their_maximum_age() {
    let fixture = fixture(Some("a"));
    fixture.find("a").await.unwrap();
    fixture.advance(899.9);
    assert_eq!((fixture.find("a").await, fixture.fetches()), (Ok(()), 1));
    fixture.publish(None);
    fixture.advance(0.1);
    assert_eq!((fixture.find("a").await, fixture.find("a").await, fixture.fetches()), (Ok(()), Ok(()), 2));
    fixture.advance(15.0);
    assert_eq!(fixture.find("a").await, Ok(()));
    fixture.finish_background_fetch().await;
    assert_eq!(fixture.fetches(), 3);
    fixture.advance(2684.9);
    assert_eq!(fixture.find("a").await, Ok(()), "a key must be usable at the age of 3599.9 s");
    fixture.advance(0.1);
    assert_eq!(fixture.find("a").await, UNAVAILABLE, "a key must not be used beyond its maximum age");
    fixture.advance(1.0);
    fixture.publish(Some("b"));
    assert_eq!((fixture.find("b").await, fixture.find("a").await), (Ok(()), INVALID), "a withdrawn key is rejected");
}

#[tokio::test]
async fn hanging_issuer_does_not_delay_requests_with_cached_keys() {
    let fixture = fixture(Some("a"));
    fixture.find("a").await.unwrap();
    fixture.publish(None);
    fixture.advance(900.0);
    fixture.find("a").await.unwrap();
    fixture.source.is_hanging.store(true, SeqCst);
    fixture.advance(16.0);
    for _ in 0..3 {
        assert_eq!(fixture.find("a").await, Ok(()), "a request must not wait for the hanging fetch");
        fixture.finish_background_fetch().await;
        assert_eq!(fixture.fetches(), 3, "there must be only one fetch at a time");
    }
    fixture.publish(Some("b"));
    fixture.source.is_hanging.store(false, SeqCst);
    fixture.finish_background_fetch().await;
    assert_eq!((fixture.find("a").await, fixture.find("b").await), (INVALID, Ok(())), "the fetched keys must be used");
    fixture.publish(None);
    fixture.advance(900.0);
    fixture.find("b").await.unwrap();
    fixture.publish(Some("c"));
    fixture.advance(61.0);
    assert_eq!(fixture.find("b").await, INVALID, "a refresh must not run in the background because of an old failure");
}

#[tokio::test]
async fn fetch_continues_after_its_request_is_cancelled() {
    let fixture = fixture(Some("a"));
    tokio::select! {
        biased;
        _ = fixture.find("a") => panic!("the fetch must not finish at once"),
        () = std::future::ready(()) => {}
    }
    assert_eq!((fixture.find("a").await, fixture.fetches()), (Ok(()), 1));
}
