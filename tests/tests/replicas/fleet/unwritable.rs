//! Tests that with a full or read-only database, writes return 503, reads and verifications succeed and `/health` is
//! `degraded`, and that writes succeed again afterwards.

use super::{
    outage::{BackgroundChecks, FleetClient},
    replica,
    small_disk::SmallDisk,
};
use countersign_tests::{ControlPlane, HttpResponse, Postgres, Sidecar, eventually};
use futures_util::future::join_all;
use reqwest::RequestBuilder;

async fn statuses(requests: Vec<(&'static str, RequestBuilder)>) -> Vec<(&'static str, u16)> {
    let responses =
        requests.into_iter().map(|(name, request)| async move { (name, HttpResponse::send(request).await.status) });
    join_all(responses).await
}

/// The number of transactions that failed because the database cannot be written to, from the metrics.
async fn unwritable_transactions(control: &ControlPlane) -> f64 {
    control.admin().metric_sum("countersign_store_transactions_total", r#"result="unwritable""#).await
}

/// Waits until the newest change is in force at the only sidecar, which remains connected.
async fn wait_for_receipt(control: &ControlPlane) {
    let complete = async || {
        let receipt = control.api.get_as(control.key(), &control.path("/enforcement?wait=3")).await.expect(200);
        (receipt["enforced"] == true && receipt["enforcedSidecars"] == 1).then_some(())
    };
    eventually("the newest change is in force at the sidecar", complete, || control.log()).await;
}

/// Tests a database that refuses writes from `begin` to `end`.
async fn assert_outage_is_survived(control: &ControlPlane, begin: impl AsyncFn(), end: impl AsyncFn()) {
    let (steady, clients) = (FleetClient::create(control).await, FleetClient::create(control).await);
    let sidecar = Sidecar::start(control).await;
    let checks = BackgroundChecks::start(&sidecar, &steady.token).await;
    clients.wait_for_health(200, "healthy", "up").await;
    begin().await;
    // Some writes still fit on a full disk, so write until the health is degraded.
    let mut refused = 0;
    let degraded = async || {
        let results = statuses(clients.write_requests()).await;
        assert!(results.iter().all(|(_, status)| *status < 500 || *status == 503), "{results:?}\n{}", control.log());
        refused += results.iter().filter(|(_, status)| *status == 503).count();
        (clients.health().await == (200, "degraded".to_owned(), "degraded".to_owned())).then_some(())
    };
    eventually("health is degraded", degraded, || control.log()).await;
    assert!(refused > 0, "no write was refused");
    for _ in 0..3 {
        for (name, status) in statuses(steady.read_requests()).await {
            assert_eq!(status, 200, "{name}\n{}", control.log());
        }
    }
    assert!(unwritable_transactions(control).await > 0.0, "the metrics show that writes fail");
    wait_for_receipt(control).await;
    end().await;
    steady.wait_for_recovery().await;
    wait_for_receipt(control).await;
    steady.wait_for_health(200, "healthy", "up").await;
    let (count, longest) = checks.stop().await;
    println!("{refused} writes refused; {count} checks at the sidecar, the longest took {longest:?}");
}

/// Tests that a control plane without requests notices that its database refuses writes, and does not report it as healthy before
/// a write succeeds.
async fn assert_outage_is_noticed_without_requests(control: &ControlPlane, begin: impl AsyncFn(), end: impl AsyncFn()) {
    let health = async || control.api.get("/health").await.text("/status").to_owned();
    let is = async |status: &str| (health().await == status).then_some(());
    eventually("health is healthy", async || is("healthy").await, || control.log()).await;
    begin().await;
    eventually("health is degraded", async || is("degraded").await, || control.log()).await;
    let failures = unwritable_transactions(control).await;
    let more_failures = async || {
        assert_eq!(health().await, "degraded", "{}", control.log());
        (unwritable_transactions(control).await >= failures + 3.0).then_some(())
    };
    eventually("three more writes fail", more_failures, || control.log()).await;
    end().await;
    eventually("health is healthy", async || is("healthy").await, || control.log()).await;
}

async fn set_read_only(postgres: &Postgres, database: &str, value: &str) {
    let name = database.rsplit('/').next().unwrap();
    postgres.execute(format!("ALTER DATABASE {name} SET default_transaction_read_only = {value}")).await;
    if value == "on" {
        // Closes the database connections, as a failover does, because the setting applies only to new connections. Connections
        // that are opened meanwhile stay read-only, so the control plane must close them.
        let close = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname";
        postgres.execute(format!("{close} = '{name}'")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn read_only_postgresql_degrades_and_recovers() {
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let control = replica(&database).await;
    let begin = async || set_read_only(&postgres, &database, "on").await;
    let end = async || set_read_only(&postgres, &database, "off").await;
    assert_outage_is_noticed_without_requests(&control, begin, end).await;
    assert_outage_is_survived(&control, begin, end).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn full_disk_is_noticed_without_requests() {
    let disk = SmallDisk::mount(32);
    let control = replica(&format!("sqlite://{}", disk.path().join("countersign.db").display())).await;
    assert_outage_is_noticed_without_requests(&control, async || disk.fill(), async || disk.empty()).await;
    drop(control);
}

#[tokio::test(flavor = "multi_thread")]
async fn postgresql_on_a_full_disk_degrades_and_recovers() {
    let disk = SmallDisk::mount(64);
    let postgres = Postgres::start().await;
    let folder = disk.path().join("space");
    postgres.create_writable_folder(&folder);
    postgres.execute(format!("CREATE TABLESPACE small LOCATION '{}'", folder.display())).await;
    let control = replica(&postgres.create_database_with("TABLESPACE small").await).await;
    assert_outage_is_survived(&control, async || disk.fill(), async || disk.empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_on_a_full_disk_degrades_and_recovers() {
    let disk = SmallDisk::mount(32);
    let control = replica(&format!("sqlite://{}", disk.path().join("countersign.db").display())).await;
    assert_outage_is_survived(&control, async || disk.fill(), async || disk.empty()).await;
    drop(control);
}
