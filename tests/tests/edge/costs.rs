//! Measures how many instructions and allocations the whole sidecar needs for a check that it has decided before, over HTTP/2 and
//! gRPC. Valgrind counts them, so they hardly depend on the machine, and a check that becomes slower fails the test. A test in the
//! crate of the sidecar counts the decision alone.

use countersign_tests::{
    Agent, ControlPlane, Sidecar,
    callgrind::Callgrind,
    sidecar::{CheckResult, check_request},
};

/// The instructions of a repeated check, in a build for tests.
///
/// If a change makes a check cheaper, replace the numbers by what the failed test prints. Higher numbers need a reason. The reason
/// for the last increase: each check builds its response, and prost encodes it.
const INSTRUCTIONS: u64 = 1_388_000;

/// The allocations of a repeated check.
const ALLOCATIONS: u64 = 73;

/// Maximum difference in percent. What the sidecar does at intervals is subtracted, but its cost is not known exactly.
const TOLERANCE_PERCENT: u64 = 5;

/// Number of counted checks.
const CHECKS: u64 = 2000;

#[tokio::test]
async fn costs_of_a_repeated_check() {
    let control = ControlPlane::start().await;
    let (agent, _) = Agent::with_role(&control, "reader", &["read"]).await;
    let bearer = format!("Bearer {}", agent.token_for(control.service()).await);
    let mut sidecar = Sidecar::start(&control).await;
    let callgrind = Callgrind::new(sidecar.folder());
    sidecar.restart_under(&callgrind.wrapper());
    sidecar.wait_until_ready().await;
    let mut client = sidecar.client().await;
    let request =
        check_request(&[("authorization", &bearer)], &[("require_roles", "reader"), ("min_trust_score", "10")]);
    let mut check = async || {
        let response = client.check(request.clone()).await.expect("the sidecar decides").into_inner();
        assert_eq!(CheckResult::from_response(response).status, 200);
    };
    // The first checks verify the signature and encode the response. Later checks find both in memory.
    check().await;
    check().await;
    let counts = callgrind.counts_per_request(sidecar.id(), CHECKS, check).await;
    counts.assert_near((INSTRUCTIONS, ALLOCATIONS), TOLERANCE_PERCENT);
}
