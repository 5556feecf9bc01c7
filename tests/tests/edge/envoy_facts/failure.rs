//! Fact 6: if the authorizer is down or does not respond, Envoy refuses the request with 403, or with the value of
//! `status_on_error` if this option is set.

use super::{ConfigAdditions, Fixture, scripted_authorizer::ScriptedAuthorizer};
use countersign_tests::{Envoy, HttpResponse, RawRequest, Upstream, eventually};
use std::time::{Duration, Instant};

const UNAVAILABLE: &str = "status_on_error: { code: ServiceUnavailable }";

#[tokio::test]
async fn silent_authorizer_returns_403_or_status_on_error() {
    for (case, filter, status) in [("by default", "", 403), ("status_on_error 503", UNAVAILABLE, 503)] {
        let fixture =
            Fixture::start(ConfigAdditions { filter, grpc_service: "timeout: 1s", ..ConfigAdditions::default() }).await;
        let slow_response = RawRequest::get("/").send(&fixture.envoy.listener).await;
        assert_eq!((slow_response.status, fixture.authorizer.check_count()), (status, 1), "{case}, slow");
        let Fixture { authorizer, upstream, envoy } = fixture;
        drop(authorizer);
        let unavailable_response = RawRequest::get("/").send(&envoy.listener).await;
        assert_eq!((unavailable_response.status, upstream.received()), (status, 0), "{case}, down");
    }
}

#[tokio::test]
async fn envoy_waits_200_ms_or_the_configured_timeout() {
    for (grpc_service, minimum, maximum) in [("", 150, 900), ("timeout: 1s", 950, 5000)] {
        let fixture = Fixture::start(ConfigAdditions { grpc_service, ..ConfigAdditions::default() }).await;
        // A busy machine may delay some responses, but not all of them.
        let in_time = async || {
            let (response, duration) = measure_request(&fixture.envoy).await;
            assert_eq!(response.status, 403);
            assert!(duration >= Duration::from_millis(minimum), "{grpc_service:?}: {duration:?}");
            (duration < Duration::from_millis(maximum)).then_some(())
        };
        eventually(&format!("{grpc_service:?}: Envoy refuses within the limit"), in_time, || fixture.envoy.log()).await;
        assert_eq!(fixture.upstream.received(), 0);
    }
}

#[tokio::test]
async fn example_configuration_returns_503_and_logs_the_authorizer_error() {
    let (authorizer, upstream) = (ScriptedAuthorizer::start(), Upstream::start().await);
    let envoy = Envoy::start_example(&authorizer.socket(), upstream.port).await;
    for path in ["/", "/admin", "/open"] {
        let slow_response = RawRequest::get(path).send(&envoy.listener).await;
        assert_eq!(slow_response.status, 503, "{path}");
    }
    assert!(authorizer.check_count() > 0, "the authorizer was slow, not down");
    drop(authorizer);
    for path in ["/", "/admin", "/open"] {
        let unavailable_response = RawRequest::get(path).send(&envoy.listener).await;
        assert_eq!(unavailable_response.status, 503, "{path}");
    }
    assert_eq!(upstream.received(), 0);
    let errors_logged = async || (envoy.log().matches("ext_authz_error").count() == 6).then_some(());
    eventually("six errors of the authorizer are logged", errors_logged, || envoy.log()).await;
    RawRequest::get("/health").send(&envoy.listener).await.expect(200);
}

#[expect(clippy::disallowed_methods, reason = "measures how long Envoy waits")]
async fn measure_request(envoy: &Envoy) -> (HttpResponse, Duration) {
    let started_at = Instant::now();
    let response = RawRequest::get("/").send(&envoy.listener).await;
    (response, started_at.elapsed())
}
