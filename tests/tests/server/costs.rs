//! Measures how many instructions and allocations the whole process needs to verify a token that it has verified before, from
//! reading the request to writing the response. Valgrind counts them, so they hardly depend on the machine, and a verification that
//! becomes slower fails the test.

use countersign_tests::{Agent, ControlPlane, callgrind::Callgrind};

/// The instructions of a repeated verification, in a build for tests.
///
/// If a change makes a verification cheaper, replace the numbers by what the failed test prints. Higher numbers need a reason.
const INSTRUCTIONS: u64 = 2_648_000;

/// The allocations of a repeated verification.
const ALLOCATIONS: u64 = 93;

/// Maximum difference in percent. On a busy machine the parts of a verification wait for each other more often, and each wait has a
/// cost: 12 allocations more were seen. What the process does at intervals is subtracted, but its cost is not known exactly.
const TOLERANCE_PERCENT: u64 = 20;

/// Number of counted verifications.
const VERIFICATIONS: u64 = 200;

#[tokio::test]
async fn costs_of_a_repeated_verification() {
    let mut control = ControlPlane::start_process_with(&["database.url="]).await;
    let agent = Agent::register(&control, "agent").await;
    let token = agent.token_for(control.service()).await;
    let callgrind = Callgrind::new(control.folder());
    control.restart_under(&callgrind.wrapper()).await;
    let verify = async || {
        control.verify(&token).await.expect(200);
    };
    // The first verifications open the connection, and read data from the database. Later ones find this data in memory.
    verify().await;
    verify().await;
    let counts = callgrind.counts_per_request(control.process_id(), VERIFICATIONS, verify).await;
    counts.assert_near((INSTRUCTIONS, ALLOCATIONS), TOLERANCE_PERCENT);
}
