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

/// Tests a database that refuses writes from `begin` to `end`.
async fn assert_outage_is_survived(control: &ControlPlane, begin: impl AsyncFn(), end: impl AsyncFn()) {
    let (steady, clients) = (FleetClient::create(control).await, FleetClient::create(control).await);
    let sidecar = Sidecar::start(control).await;
    let checks = BackgroundChecks::start(&sidecar, &steady.token).await;
    clients.wait_for_health(200, "healthy", "up").await;
    begin().await;
    // Some writes still fit on a full disk.
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
    end().await;
    steady.wait_for_recovery().await;
    steady.wait_for_health(200, "healthy", "up").await;
    let (count, longest) = checks.stop().await;
    println!("{refused} writes refused; {count} checks at the sidecar, the longest took {longest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn read_only_postgresql_degrades_and_recovers() {
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let control = replica(&database).await;
    let name = database.rsplit('/').next().unwrap();
    let set_read_only = async |value: &str| {
        postgres.execute(format!("ALTER DATABASE {name} SET default_transaction_read_only = {value}")).await;
    };
    let begin = async || {
        set_read_only("on").await;
        // Closes the database connections, as a failover does, because the read-only setting applies only to new
        // connections.
        postgres
            .execute(format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"))
            .await;
    };
    // The read-only database connections stay open, so the control plane must close these connections.
    assert_outage_is_survived(&control, begin, async || set_read_only("off").await).await;
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
    let file = disk.path().join("countersign.db");
    let control = replica(&format!("sqlite://{}", file.display())).await;
    assert_outage_is_survived(&control, async || disk.fill(), async || disk.empty()).await;
    drop(control);
}
