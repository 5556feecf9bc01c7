use super::*;
use countersign_identity::Timestamp;
use serde_json::json;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};

#[derive(Default)]
struct Still(AtomicU64);

impl Clock for Still {
    fn now(&self) -> Timestamp {
        Timestamp::from_seconds(0)
    }

    fn since_boot(&self) -> Duration {
        Duration::from_millis(self.0.load(SeqCst))
    }
}

/// A source with one Ed25519 key of a name that can be changed, or that is away.
#[derive(Default)]
struct Scripted {
    kid: Mutex<Option<&'static str>>,
    fetches: AtomicUsize,
    hangs: AtomicBool,
}

impl Source for Arc<Scripted> {
    async fn fetch(&self) -> Result<KeySet, impl Display + Send> {
        self.fetches.fetch_add(1, SeqCst);
        tokio::task::yield_now().await;
        while self.hangs.load(SeqCst) {
            tokio::task::yield_now().await;
        }
        let kid = self.kid.lock().unwrap().ok_or("away")?;
        let x = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc";
        let keys = json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "kid": kid, "x": x }] });
        KeySet::read(keys.to_string().as_bytes()).map_err(|_| "malformed")
    }
}

struct Stage {
    clock: Arc<Still>,
    source: Arc<Scripted>,
    keys: Arc<Keys<Arc<Scripted>>>,
}

/// Keys are fetched again after 100 s and believed for 1000 s.
fn stage(kid: Option<&'static str>) -> Stage {
    let clock = Arc::new(Still(AtomicU64::new(5_000_000)));
    let source =
        Arc::new(Scripted { kid: Mutex::new(kid), fetches: AtomicUsize::new(0), hangs: AtomicBool::default() });
    let patience = Patience { refresh: Duration::from_secs(100), max_age: Duration::from_secs(1000) };
    let keys = Arc::new(Keys::new("test".into(), source.clone(), patience, clock.clone()));
    Stage { clock, source, keys }
}

impl Stage {
    fn wait(&self, seconds: f64) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small numbers of a test")]
        self.clock.0.fetch_add((seconds * 1000.0) as u64, SeqCst);
    }

    fn serve(&self, kid: Option<&'static str>) {
        *self.source.kid.lock().unwrap() = kid;
    }

    /// Until a fetch that nobody waits for has ended.
    async fn settle(&self) {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }

    fn fetches(&self) -> usize {
        self.source.fetches.load(SeqCst)
    }

    async fn find(&self, kid: &str) -> Result<(), Reason> {
        self.keys.find(Some(kid), Algorithm::EdDsa).await.map(drop).map_err(|refusal| refusal.reason)
    }

    async fn find_many(&self, kids: impl Iterator<Item = String>) -> Vec<Result<(), Reason>> {
        let tasks: Vec<_> = kids
            .map(|kid| {
                let keys = self.keys.clone();
                tokio::spawn(async move { keys.find(Some(&kid), Algorithm::EdDsa).await.map(drop) })
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
async fn many_at_once_are_one_fetch_whether_it_succeeds_or_fails() {
    let stage = stage(None);
    let all = |count| (0..count).map(|_| "a".to_owned());
    assert!(stage.find_many(all(50)).await.iter().all(|outcome| *outcome == UNAVAILABLE));
    assert_eq!(stage.fetches(), 1);
    stage.serve(Some("a"));
    stage.wait(0.9);
    assert_eq!((stage.find("a").await, stage.fetches()), (UNAVAILABLE, 1), "not at once again");
    stage.wait(0.1);
    assert!(stage.find_many(all(50)).await.iter().all(Result::is_ok));
    assert_eq!(stage.fetches(), 2);
}

#[tokio::test]
async fn an_unknown_key_is_fetched_for_once_a_minute() {
    let stage = stage(Some("a"));
    stage.find("a").await.unwrap();
    stage.wait(1.0);
    stage.serve(Some("b"));
    assert_eq!((stage.find("b").await, stage.fetches()), (Ok(()), 2), "a new key is found at once");
    let invented = |count: usize| (0..count).map(|number| format!("invented {number}"));
    stage.wait(1.0);
    assert!(stage.find_many(invented(200)).await.iter().all(|outcome| *outcome == INVALID));
    assert_eq!((stage.find("a").await, stage.fetches()), (INVALID, 2), "the old one is gone");
    stage.wait(58.9);
    assert_eq!((stage.find("c").await, stage.fetches()), (INVALID, 2));
    stage.wait(0.1);
    assert!(stage.find_many(invented(200)).await.iter().all(|outcome| *outcome == INVALID));
    assert_eq!(stage.fetches(), 3);
}

#[tokio::test]
async fn an_unknown_key_of_an_issuer_that_is_away_is_not_known_to_be_wrong() {
    let stage = stage(Some("a"));
    stage.find("a").await.unwrap();
    stage.wait(1.0);
    stage.serve(None);
    assert_eq!((stage.find("b").await, stage.find("b").await, stage.fetches()), (UNAVAILABLE, UNAVAILABLE, 2));
    assert_eq!(stage.find("a").await, Ok(()), "the others serve");
    stage.serve(Some("b"));
    stage.wait(60.0);
    assert_eq!((stage.find("b").await, stage.fetches()), (Ok(()), 3));
}

#[tokio::test]
async fn old_keys_are_fetched_again_serve_while_that_fails_and_are_not_believed_for_ever() {
    let stage = stage(Some("a"));
    stage.find("a").await.unwrap();
    stage.wait(99.9);
    assert_eq!((stage.find("a").await, stage.fetches()), (Ok(()), 1));
    stage.serve(None);
    stage.wait(0.1);
    assert_eq!((stage.find("a").await, stage.find("a").await, stage.fetches()), (Ok(()), Ok(()), 2));
    stage.wait(15.0);
    assert_eq!(stage.find("a").await, Ok(()));
    stage.settle().await;
    assert_eq!(stage.fetches(), 3);
    stage.wait(884.9);
    assert_eq!(stage.find("a").await, Ok(()), "at the age of 999.9 s");
    stage.wait(0.1);
    assert_eq!(stage.find("a").await, UNAVAILABLE, "no key is believed for longer");
    stage.wait(1.0);
    stage.serve(Some("b"));
    assert_eq!((stage.find("b").await, stage.find("a").await), (Ok(()), INVALID), "a withdrawn key is not believed");
}

#[tokio::test]
async fn an_issuer_that_was_seen_away_and_hangs_holds_up_nobody_whose_key_is_known() {
    let stage = stage(Some("a"));
    stage.find("a").await.unwrap();
    stage.serve(None);
    stage.wait(100.0);
    stage.find("a").await.unwrap();
    stage.source.hangs.store(true, SeqCst);
    stage.wait(16.0);
    for _ in 0..3 {
        assert_eq!(stage.find("a").await, Ok(()), "at once, though the fetch does not end");
        stage.settle().await;
        assert_eq!(stage.fetches(), 3, "one at a time");
    }
    stage.serve(Some("b"));
    stage.source.hangs.store(false, SeqCst);
    stage.settle().await;
    assert_eq!((stage.find("a").await, stage.find("b").await), (INVALID, Ok(())), "what it brought holds");
    stage.serve(None);
    stage.wait(100.0);
    stage.find("b").await.unwrap();
    stage.serve(Some("c"));
    stage.wait(61.0);
    assert_eq!(stage.find("b").await, INVALID, "what was seen long ago says nothing of now");
}

#[tokio::test]
async fn a_fetch_goes_on_though_the_one_who_asked_went_away() {
    let stage = stage(Some("a"));
    tokio::select! {
        biased;
        _ = stage.find("a") => panic!("it cannot be there yet"),
        () = std::future::ready(()) => {}
    }
    assert_eq!((stage.find("a").await, stage.fetches()), (Ok(()), 1));
}
