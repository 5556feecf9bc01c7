//! Tests of what an operator sees while PostgreSQL cannot be reached.

use countersign_tests::{ControlPlane, Database, Postgres, eventually};

/// The message of the log line that states the cause of an outage.
const OUTAGE: &str = "transactions get no connection to the database";

/// The message of the log line at the end of an outage.
const END: &str = "transactions get connections to the database again";

/// Starts a control plane, and waits until its start needs the database no more.
async fn start(settings: &[&str]) -> ControlPlane {
    let control = ControlPlane::start_one_with(settings).await;
    wait_for_line(&control, &["INFO", "ready url="]).await;
    control
}

async fn wait_for_line(control: &ControlPlane, texts: &[&str]) {
    let is_logged = || control.log().lines().any(|line| texts.iter().all(|text| line.contains(text)));
    eventually("the line is logged", async || is_logged().then_some(()), || control.log()).await;
}

/// The connections of a pool that are in use.
async fn in_use(control: &ControlPlane, pool: &str) -> f64 {
    let series = format!(r#"countersign_store_connections{{pool="{pool}",state="in_use"}}"#);
    control.metric(&series).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_postgresql_is_logged_with_the_cause_and_uses_no_connections() {
    let mut postgres = Postgres::start().await;
    let setting = format!("database.url={}", postgres.create_database().await);
    let control = start(&[&setting]).await;
    postgres.kill();
    wait_for_line(&control, &["WARN", OUTAGE, "database.url", "Connection refused"]).await;
    let path = control.path("/roles");
    let request = async { control.api.get_as(control.key(), &path).await.expect(503) };
    let observe = async {
        for _ in 0..20 {
            // Connections that are being opened are not in use.
            assert_eq!((in_use(&control, "read").await, in_use(&control, "write").await), (0.0, 0.0));
        }
    };
    tokio::join!(request, observe);
    assert_eq!(control.log().matches(OUTAGE).count(), 1, "at most one line per minute:\n{}", control.log());
    postgres.restart().await;
    wait_for_line(&control, &["INFO", END]).await;
    control.api.get_as(control.key(), &path).await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_connections_are_logged_with_the_cause_and_without_the_password() {
    let postgres = Postgres::start().await;
    postgres.execute("CREATE ROLE app LOGIN".to_owned()).await;
    let url = postgres.create_database_with("OWNER app").await;
    let setting = format!("database.url={}", url.replace("postgres@", "app:correct-horse@"));
    let control = start(&[&setting]).await;
    let mut database = Database::open(&url).await;
    let end_connections = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'app'";
    for statement in ["ALTER ROLE app CONNECTION LIMIT 0", end_connections] {
        database.execute(statement).await;
    }
    wait_for_line(&control, &["WARN", OUTAGE, "too many connections for role"]).await;
    database.execute("ALTER ROLE app CONNECTION LIMIT -1").await;
    wait_for_line(&control, &["INFO", END]).await;
    assert!(!control.log().contains("correct-horse"), "{}", control.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn standby_is_logged_once_and_not_at_every_attempt_to_connect() {
    let mut postgres = Postgres::start().await;
    let setting = format!("database.url={}", postgres.create_database().await);
    let control = start(&[&setting]).await;
    postgres.become_standby().await;
    wait_for_line(&control, &["WARN", OUTAGE, "the server is a standby"]).await;
    assert!(!control.log().contains("after_connect"), "{}", control.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_that_wait_for_a_lock_are_in_use() {
    let postgres = Postgres::start().await;
    let url = postgres.create_database().await;
    let control = start(&[&format!("database.url={url}"), "database.max_connections=4"]).await;
    let mut database = Database::open(&url).await;
    database.execute("BEGIN; LOCK TABLE roles IN ACCESS EXCLUSIVE MODE").await;
    let path = control.path("/roles");
    let requests = async || {
        loop {
            let request = || control.api.get_as(control.key(), &path);
            tokio::join!(request(), request(), request(), request());
        }
    };
    let observed = async {
        let both_reads = async || (in_use(&control, "read").await >= 2.0).then_some(());
        eventually("the requests use all connections for reads", both_reads, || control.log()).await;
        wait_for_line(&control, &["WARN", "although it accepts connections"]).await;
    };
    tokio::select! {
        () = requests() => {}
        () = observed => {}
    }
    database.execute("ROLLBACK").await;
}
