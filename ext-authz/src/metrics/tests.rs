//! Tests of the exposed series.

use super::*;
use std::collections::BTreeSet;

const SERVICE: ServiceId = ServiceId::from_bits(1);

fn exposed(metrics: &Metrics) -> String {
    prometheus::TextEncoder::new().encode_to_string(&metrics.registry.gather()).unwrap()
}

#[test]
fn only_possible_verdicts_have_series() {
    let metrics = Metrics::new().unwrap();
    metrics.init_service(SERVICE);
    let text = exposed(&metrics);
    let reasons = |service: &str| -> BTreeSet<String> {
        let of_service = format!(r#"service="{service}""#);
        let lines = text.lines().filter(|line| line.contains("_checks_total{") && line.contains(&of_service));
        lines.map(|line| line.split("reason=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()).collect()
    };
    let without_service = [
        "dry_run",
        "host_invalid",
        "internal",
        "mcp_request_invalid",
        "path_ambiguous",
        "request_invalid",
        "rule_invalid",
        "service_unknown",
        "sync_key_refused",
        "sync_key_removed",
        "view_missing",
    ];
    assert_eq!(reasons(NO_SERVICE), without_service.map(str::to_owned).into());
    let with_service = reasons(&SERVICE.to_string());
    assert_eq!(with_service.len(), 26, "{with_service:?}");
    let overlap: Vec<_> = without_service.iter().filter(|reason| with_service.contains(**reason)).collect();
    assert_eq!(overlap, [&"dry_run", &"sync_key_refused", &"view_missing"]);
}

#[test]
fn dry_runs_are_counted_as_allowed_and_by_reason_and_measured() {
    let metrics = Metrics::new().unwrap();
    metrics.init_service(SERVICE);
    metrics.record_check(Some(SERVICE), Verdict::DryRun(Reason::RoleMissing), Duration::ZERO);
    metrics.record_check(None, Verdict::DryRun(Reason::PathAmbiguous), Duration::ZERO);
    let text = exposed(&metrics);
    for line in [
        format!(r#"countersign_authz_checks_total{{decision="allow",reason="dry_run",service="{SERVICE}"}} 1"#),
        format!(r#"countersign_authz_dry_run_denials_total{{reason="role_missing",service="{SERVICE}"}} 1"#),
        format!(r#"countersign_authz_dry_run_denials_total{{reason="trust_too_low",service="{SERVICE}"}} 0"#),
        r#"countersign_authz_dry_run_denials_total{reason="path_ambiguous",service="none"} 1"#.to_owned(),
        format!(r#"countersign_authz_check_duration_seconds_count{{service="{SERVICE}"}} 1"#),
        r#"countersign_authz_check_duration_seconds_count{service="none"} 1"#.to_owned(),
    ] {
        assert!(text.contains(&line), "{line}\n{text}");
    }
    assert!(!text.contains(r#"dry_run_denials_total{reason="internal""#), "{text}");
}

#[test]
fn failed_attempts_and_lost_streams_are_counted_apart_for_each_service() {
    let metrics = Metrics::new().unwrap();
    metrics.connect_failed(None);
    metrics.init_service(SERVICE);
    metrics.stream_opened(SERVICE);
    metrics.stream_lost(SERVICE);
    metrics.connect_failed(Some(SERVICE));
    metrics.connect_failed(Some(SERVICE));
    let text = exposed(&metrics);
    for line in [
        r#"countersign_authz_stream_connect_failures_total{service="none"} 1"#.to_owned(),
        format!(r#"countersign_authz_stream_connect_failures_total{{service="{SERVICE}"}} 2"#),
        format!(r#"countersign_authz_stream_reconnects_total{{service="{SERVICE}"}} 1"#),
        format!(r#"countersign_authz_stream_connected{{service="{SERVICE}"}} 0"#),
    ] {
        assert!(text.contains(&line), "{line}\n{text}");
    }
    assert!(!text.contains(r#"stream_reconnects_total{service="none"}"#), "{text}");
}

#[test]
fn service_without_an_api_key_has_no_gauges() {
    let metrics = Metrics::new().unwrap();
    metrics.init_service(SERVICE);
    metrics.stream_opened(SERVICE);
    metrics.view_published(SERVICE, Revision::new(7), 1);
    metrics.view_confirmed(SERVICE, Timestamp::from_micros(1));
    metrics.clock_offset(SERVICE, 1);
    metrics.addresses.in_use(SERVICE, 0);
    metrics.copies.written(SERVICE, 1, Timestamp::from_micros(1));
    metrics.copies.in_use(SERVICE, false);
    metrics.stream_closed(SERVICE);
    metrics.forget_service(SERVICE);
    metrics.forget_service(SERVICE);
    let text = exposed(&metrics);
    let of_service: Vec<_> = text.lines().filter(|line| line.contains(&SERVICE.to_string())).collect();
    assert!(
        of_service.iter().all(|line| line.contains("_total{") || line.contains("check_duration")),
        "{of_service:#?}"
    );
}
