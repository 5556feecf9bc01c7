//! Tests that at most one of the two databases is usable if `migrate --to` is killed or its target database fails.

use super::{assert_refused, assert_start_refused, execute_on_file, query_file, succeed};
use countersign_tests::{ControlPlane, Database, Postgres, eventually};
use std::{
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};
use tokio::process::{Child, Command};

/// The error with which a control plane refuses a database whose transfer was interrupted.
const INTERRUPTED: &str = "was interrupted, and it is unknown whether it completed";

/// A stopped control plane, and a PostgreSQL database as target.
struct Fixture {
    control: ControlPlane,
    postgres: Postgres,
    url: String,
    /// A separate connection to the target database.
    watcher: Database,
}

impl Fixture {
    async fn new() -> Self {
        let (mut control, postgres) = (ControlPlane::start_process().await, Postgres::start().await);
        control.create_role("reader", &[]).await;
        control.terminate().await;
        let url = postgres.create_database().await;
        let watcher = Database::open(&url).await;
        Self { control, postgres, url, watcher }
    }

    /// Makes the commit in the target database wait for an advisory lock and then execute a statement.
    async fn delay_commits(&mut self, statement: &str) {
        succeed(&self.control, &["--set", &format!("database.url={}", self.url), "migrate"]);
        let trigger = format!(
            "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN PERFORM pg_advisory_xact_lock(42); {statement} RETURN NULL; END $$; \
             CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON deployment DEFERRABLE INITIALLY DEFERRED \
             FOR EACH ROW EXECUTE FUNCTION hold()"
        );
        self.watcher.execute(&trigger).await;
    }

    fn start_transfer(&self) -> Child {
        let mut command = Command::from(self.control.prepare(&["migrate", "--to", &self.url]));
        command.stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap()
    }

    /// Kills a transfer after it sent the commit and before the target database acknowledged the commit.
    async fn kill_during_commit(&mut self) {
        self.watcher.execute("SELECT CAST(pg_advisory_lock(42) AS TEXT)").await;
        let mut transfer = self.start_transfer();
        self.wait_until_transfer_waits("wait_event = 'advisory'").await;
        transfer.kill().await.unwrap();
        assert_start_refused(&self.control, &[], INTERRUPTED).await;
        self.watcher.execute("SELECT pg_advisory_unlock(42)").await;
        self.wait_until_others_disconnect().await;
    }

    async fn wait_until_transfer_waits(&mut self, condition: &str) {
        let sql = format!("SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND {condition}");
        let waiting = async || (self.watcher.number(&sql).await > 0).then_some(());
        eventually("the transfer waits", waiting, String::new).await;
    }

    /// Waits until PostgreSQL has closed all other connections. PostgreSQL finishes a statement before it notices that
    /// the client has disconnected.
    async fn wait_until_others_disconnect(&mut self) {
        let sql = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() \
                   AND pid <> pg_backend_pid() AND backend_type = 'client backend'";
        let others_disconnected = async || (self.watcher.number(sql).await == 0).then_some(());
        eventually("PostgreSQL has closed the other connections", others_disconnected, String::new).await;
    }

    fn file(&self) -> PathBuf {
        self.control.folder().join("countersign.db")
    }

    /// Whether a control plane would start with the source database.
    async fn source_is_usable(&self) -> bool {
        query_file(&self.file(), "SELECT COUNT(*) FROM deployment WHERE quarantine_reason IS NULL").await == 1
    }

    async fn target_is_empty(&mut self) -> bool {
        self.watcher.count("information_schema.tables WHERE table_schema = 'public'").await == 0
    }

    /// Whether the target database has all data.
    async fn target_is_complete(&mut self) -> bool {
        !self.target_is_empty().await && self.watcher.count("deployment").await == 1
    }
}

/// In this test, the target database commits after the transfer was killed.
#[tokio::test]
async fn transfer_killed_during_commit_leaves_the_source_refused() {
    let mut fixture = Fixture::new().await;
    fixture.delay_commits("").await;
    fixture.kill_during_commit().await;
    assert!(fixture.target_is_complete().await && !fixture.source_is_usable().await);
    assert_start_refused(&fixture.control, &[], INTERRUPTED).await;
    let message = succeed(&fixture.control, &["migrate", "--to", &fixture.url]);
    assert!(message.contains("had already been copied, and are equal"), "{message}");
    assert_start_refused(&fixture.control, &[], "migrated to PostgreSQL").await;

    // In the second case, a control plane uses the target database, although the operator has not run the killed transfer again.
    let target_setting = format!("database.url={}", fixture.url);
    fixture.control.restart_with(&target_setting).await;
    fixture.control.create_role("another", &[]).await;
    fixture.control.terminate().await;
    execute_on_file(&fixture.file(), "UPDATE deployment SET quarantine_reason = 'migrating'").await;
    let source_setting = ["--set", "database.url="];
    let repeated_transfer = [&source_setting[..], &["migrate", "--to", &fixture.url]].concat();
    assert_refused(&fixture.control, &repeated_transfer, &["is not empty", "keep database.url set to it"]);
    assert_start_refused(&fixture.control, &source_setting[1..], INTERRUPTED).await;
    // `restore` makes the source database usable again.
    assert!(succeed(&fixture.control, &[&source_setting[..], &["restore"]].concat()).contains("restore completed"));
    assert!(fixture.source_is_usable().await);
    fixture.control.restart_with("database.url=").await;
}

/// In this test, the target database rolls back after the transfer was killed.
#[tokio::test]
async fn killed_transfer_continues_into_an_empty_target() {
    let mut fixture = Fixture::new().await;
    fixture.delay_commits("RAISE EXCEPTION 'the disk is full';").await;
    // If the target database refuses the commit, the transfer removes the mark from the source database.
    assert_refused(&fixture.control, &["migrate", "--to", &fixture.url], &["the target", "the disk is full"]);
    assert!(!fixture.target_is_complete().await);
    fixture.control.restart().await;
    fixture.control.terminate().await;

    fixture.kill_during_commit().await;
    assert!(!fixture.target_is_complete().await);
    // The source database stays marked as interrupted, because another target database may have the data.
    assert_refused(&fixture.control, &["migrate", "--to", &fixture.url], &["the target", "the disk is full"]);
    assert_start_refused(&fixture.control, &[], INTERRUPTED).await;
    fixture.watcher.execute("DROP TRIGGER hold ON deployment").await;
    let message = succeed(&fixture.control, &["migrate", "--to", &fixture.url]);
    assert!(message.contains("were copied") && message.contains("A previous migration was interrupted"), "{message}");
    assert_start_refused(&fixture.control, &[], "migrated to PostgreSQL").await;
    let target_setting = format!("database.url={}", fixture.url);
    fixture.control.restart_with(&target_setting).await;
}

#[tokio::test]
async fn target_that_fails_before_commit_leaves_the_source_usable() {
    let mut fixture = Fixture::new().await;
    fixture.delay_commits("").await;
    let mut lock_holder = Database::open(&fixture.url).await;
    lock_holder.execute("BEGIN; LOCK TABLE agents").await;
    let transfer = fixture.start_transfer();
    fixture.wait_until_transfer_waits("wait_event_type = 'Lock'").await;
    let terminate_waiting = "SELECT CAST(pg_terminate_backend(pid) AS TEXT) FROM pg_stat_activity \
               WHERE datname = current_database() AND wait_event_type = 'Lock'";
    fixture.watcher.execute(terminate_waiting).await;
    let output = transfer.wait_with_output().await.unwrap();
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("the target"), "{output:?}");
    lock_holder.close().await;
    fixture.control.restart().await;
    fixture.control.terminate().await;

    fixture.watcher.execute("SELECT CAST(pg_advisory_lock(42) AS TEXT)").await;
    let transfer = fixture.start_transfer();
    fixture.wait_until_transfer_waits("wait_event = 'advisory'").await;
    fixture.postgres.kill();
    let output = transfer.wait_with_output().await.unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        message.contains("it is unknown whether the target committed") && message.contains("run this command again"),
        "{message}"
    );
    assert_start_refused(&fixture.control, &[], INTERRUPTED).await;
    fixture.postgres.restart().await;
    let message = succeed(&fixture.control, &["migrate", "--to", &fixture.url]);
    assert!(message.contains("were copied"), "{message}");
}

/// Kills the transfer at several times. A kill at a fixed time rarely hits the commit, which other tests cover.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "the times of the kills are fractions of a measured duration")]
async fn transfer_killed_at_any_time_leaves_at_most_one_usable_database() {
    const STEPS: u32 = 10;
    let mut fixture = Fixture::new().await;
    let rows = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) \
                INSERT INTO idempotent_requests SELECT 'id ' || i, 'digest', 'a response of ordinary length, or so', i FROM n";
    execute_on_file(&fixture.file(), rows).await;
    let started = Instant::now();
    succeed(&fixture.control, &["migrate", "--to", &fixture.url]);
    let duration = started.elapsed() + Duration::from_millis(20);
    let mut results = Vec::new();
    for step in 0..STEPS {
        execute_on_file(&fixture.file(), "UPDATE deployment SET quarantined_at = NULL, quarantine_reason = NULL").await;
        fixture.url = fixture.postgres.create_database().await;
        fixture.watcher = Database::open(&fixture.url).await;
        let mut transfer = fixture.start_transfer();
        tokio::time::sleep(duration * (step + 1) / STEPS).await;
        transfer.kill().await.unwrap();
        fixture.wait_until_others_disconnect().await;
        let (source, target) = (fixture.source_is_usable().await, fixture.target_is_complete().await);
        assert!(!(source && target), "step {step}");
        assert!(target || fixture.target_is_empty().await, "step {step}: no part of the data is left");
        results.push((source, target));
        if !source {
            let _output = fixture.control.command(&["migrate", "--to", &fixture.url]);
            assert!(fixture.target_is_complete().await && !fixture.source_is_usable().await, "step {step}");
        }
    }
    eprintln!("usable source and target, by time of the kill: {results:?}");
}
