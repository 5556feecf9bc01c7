//! Fact 6: if the authorizer is down or does not answer, Envoy refuses, with 403 unless `status_on_error` is set.

use super::{Fixture, Said, scripted_authorizer::Scripted};
use countersign_tests::{Envoy, HttpResponse, RawRequest, Upstream, eventually};
use std::time::{Duration, Instant};

const UNAVAILABLE: &str = "status_on_error: { code: ServiceUnavailable }";

#[tokio::test]
async fn silent_authorizer_returns_403_or_status_on_error() {
    for (case, filter, status) in [("by default", "", 403), ("told to say 503", UNAVAILABLE, 503)] {
        let fixture = Fixture::start(Said { filter, call: "timeout: 1s", ..Said::default() }).await;
        let slow = RawRequest::get("/").send(&fixture.envoy.site).await;
        assert_eq!((slow.status, fixture.authorizer.times_asked()), (status, 1), "{case}, slow");
        let Fixture { authorizer, upstream, envoy } = fixture;
        drop(authorizer);
        let down = RawRequest::get("/").send(&envoy.site).await;
        assert_eq!((down.status, upstream.received()), (status, 0), "{case}, down");
    }
}

#[tokio::test]
async fn envoy_waits_200_ms_or_the_configured_timeout() {
    for (call, least, most) in [("", 150, 900), ("timeout: 1s", 950, 5000)] {
        let fixture = Fixture::start(Said { call, ..Said::default() }).await;
        // A busy machine may delay some answers, not all.
        let in_time = async || {
            let (answer, wait) = timed(&fixture.envoy).await;
            assert_eq!(answer.status, 403);
            assert!(wait >= Duration::from_millis(least), "{call:?}: {wait:?}");
            (wait < Duration::from_millis(most)).then_some(())
        };
        eventually(&format!("{call:?}: Envoy gives up in time"), in_time, || fixture.envoy.log()).await;
        assert_eq!(fixture.upstream.received(), 0);
    }
}

#[tokio::test]
async fn example_configuration_returns_503_and_logs_the_authorizer_error() {
    let (authorizer, upstream) = (Scripted::start(), Upstream::start().await);
    let envoy = Envoy::shipped(&authorizer.socket(), upstream.port).await;
    for path in ["/", "/admin", "/open"] {
        let slow = RawRequest::get(path).send(&envoy.site).await;
        assert_eq!(slow.status, 503, "{path}");
    }
    assert!(authorizer.times_asked() > 0, "the authorizer was slow, not down");
    drop(authorizer);
    for path in ["/", "/admin", "/open"] {
        let down = RawRequest::get(path).send(&envoy.site).await;
        assert_eq!(down.status, 503, "{path}");
    }
    assert_eq!(upstream.received(), 0);
    let logged = async || (envoy.log().matches("ext_authz_error").count() == 6).then_some(());
    eventually("six errors of the authorizer are logged", logged, || envoy.log()).await;
    RawRequest::get("/health").send(&envoy.site).await.expect(200);
}

#[expect(clippy::disallowed_methods, reason = "measures how long Envoy waits")]
async fn timed(envoy: &Envoy) -> (HttpResponse, Duration) {
    let began = Instant::now();
    let answer = RawRequest::get("/").send(&envoy.site).await;
    (answer, began.elapsed())
}
