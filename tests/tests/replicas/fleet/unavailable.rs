//! Tests that the API responds in time and sidecars keep deciding while the database hangs, is killed or is
//! unreachable, and that all requests succeed afterwards.

use super::{
    now,
    outage::{BackgroundChecks, ConnectionCount, FleetClient},
    replica,
};
use countersign_tests::{ControlPlane, EventSource, Postgres, Receiver, Sidecar, Target, TcpProxy};
use std::time::Duration;

/// Number of checks to which the sidecar must respond during each outage.
const CHECKS: u32 = 10;

/// Number of failed logins: so many that not all get an event of their own, and some are only counted in memory.
const FAILED_LOGINS: usize = 30;

/// The default of `database.max_connections`.
const MAX_CONNECTIONS: usize = 16;

/// Asserts that a control plane and its sidecar survive two failures of the database. `set_failing` begins or ends a failure.
async fn assert_outage_is_survived(name: &str, control: &ControlPlane, mut set_failing: impl AsyncFnMut(bool)) {
    let (steady, warm, clients) =
        (FleetClient::create(control).await, FleetClient::create(control).await, FleetClient::create(control).await);
    let sidecar = Sidecar::start(control).await;
    let checks = BackgroundChecks::start(&sidecar, &steady.token).await;
    // These requests make the control plane open all database connections and prepare its statements.
    let before = warm.send_all().await;
    assert!(before.iter().all(|response| response.status < 500), "{before:?}");
    let connections = ConnectionCount::start(control);
    for round in 0..2 {
        set_failing(true).await;
        let begun = now();
        let (mut slowest, unhealthy) = tokio::join!(clients.assert_all_unavailable(), clients.wait_until_unhealthy());
        checks.wait_for_more(CHECKS).await;
        loop {
            slowest = slowest.max(clients.assert_all_unavailable().await);
            if now().saturating_sub(begun) >= shortest_outage() {
                break;
            }
        }
        assert_eq!(clients.health().await.0, 503);
        set_failing(false).await;
        let recovery = clients.wait_for_recovery().await;
        println!(
            "{name}, round {round}: unhealthy after {unhealthy:.1?}, requests refused within {slowest:.1?}, recovered {recovery:.1?} \
             after the end"
        );
        clients.wait_for_health(200, "healthy", "up").await;
    }
    let (count, longest) = checks.stop().await;
    println!("{name}: {count} checks at the sidecar, the longest took {longest:.1?}");
    let largest = connections.largest();
    println!("{name}: at most {largest} connections to the database");
    assert!(largest <= MAX_CONNECTIONS, "{largest} connections");
}

/// The shortest time of an outage, which `OUTAGE_SECONDS` sets.
fn shortest_outage() -> Duration {
    Duration::from_secs(std::env::var("OUTAGE_SECONDS").map_or(0, |seconds| seconds.parse().unwrap()))
}

#[tokio::test(flavor = "multi_thread")]
async fn api_returns_503_and_recovers_when_postgresql_hangs() {
    let postgres = Postgres::start().await;
    let control = replica(&postgres.create_database().await).await;
    let pause = async |pause| if pause { postgres.pause() } else { postgres.resume() };
    assert_outage_is_survived("PostgreSQL paused", &control, pause).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn api_returns_503_and_recovers_when_postgresql_is_killed() {
    let mut postgres = Postgres::start().await;
    let control = replica(&postgres.create_database().await).await;
    let kill = async |kill| if kill { postgres.kill() } else { postgres.restart().await };
    assert_outage_is_survived("PostgreSQL killed", &control, kill).await;
}

/// After the first outage, the database connections from before work again; after the second, only new ones work.
#[tokio::test(flavor = "multi_thread")]
async fn api_returns_503_and_recovers_when_postgresql_is_unreachable() {
    let postgres = Postgres::start().await;
    let proxy = TcpProxy::start().await;
    proxy.set_target(postgres.address());
    let url = postgres.create_database().await;
    let url = url.replace(&postgres.address().to_string(), &proxy.address.to_string());
    let control = replica(&url).await;
    let mut outages = 0;
    let freeze = async |freeze| {
        outages += u32::from(freeze);
        if freeze || outages == 1 { proxy.set_frozen(freeze) } else { proxy.forward_new_connections() }
    };
    assert_outage_is_survived("PostgreSQL unreachable", &control, freeze).await;
}

/// Some PostgreSQL server processes stop, as server processes do when a disk hangs. For each connection to a stopped process, a
/// request waits until it times out. Then the control plane closes the connection, so later requests do not wait.
#[tokio::test(flavor = "multi_thread")]
async fn requests_recover_when_some_backends_hang() {
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let control = replica(&database).await;
    let (warm, clients) = (FleetClient::create(&control).await, FleetClient::create(&control).await);
    warm.send_all().await;
    let paused = postgres.pause_idle_backends(&database).await;
    assert!(paused >= 2, "{paused} connections were open");
    let (mut refused, mut rounds_without_refusal) = (0, 0);
    while rounds_without_refusal < 3 {
        let responses = clients.send_all().await;
        let unavailable = responses.iter().filter(|response| response.status == 503).count();
        assert!(responses.iter().all(|response| response.status < 500 || response.status == 503), "{responses:?}");
        refused += unavailable;
        rounds_without_refusal = if unavailable == 0 { rounds_without_refusal + 1 } else { 0 };
        assert!(refused <= 3 * paused, "{refused} requests were refused, but only {paused} backends are paused");
    }
    println!("{paused} backends paused: {refused} requests were refused, then none");
    postgres.resume();
}

/// When the control plane stops, it writes the counts of failed logins that are only in memory. If the database hangs then, the
/// process must end nevertheless.
#[tokio::test(flavor = "multi_thread")]
async fn control_plane_stops_while_postgresql_hangs() {
    let postgres = Postgres::start().await;
    let mut control = replica(&postgres.create_database().await).await;
    let receiver = Receiver::start_ok().await;
    Target::create_for_deployment(&control, &receiver.url).await;
    {
        let source = EventSource::new(&control).await;
        for _ in 0..FAILED_LOGINS {
            assert!(source.fail_login(None).await.status < 500);
        }
    }
    postgres.pause();
    assert!(control.terminate().await.success());
    postgres.resume();
}
