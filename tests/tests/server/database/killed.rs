//! `migrate --to` that is killed, or whose target says no: at most one of the two databases can be served.

use super::{does, in_place, number, open, refuses, refuses_to_serve, run_file};
use countersign_tests::{ControlPlane, Postgres, eventually};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor};
use std::{
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};
use tokio::process::{Child, Command};

/// What a control plane says that is started on a database that was left in the middle.
const INTERRUPTED: &str = "was interrupted, and it is unknown whether it completed";

/// A control plane that has ended, and a database of PostgreSQL for what it kept.
struct Fixture {
    control: ControlPlane,
    postgres: Postgres,
    url: String,
    /// At that database, beside whoever moves.
    watcher: AnyConnection,
}

impl Fixture {
    async fn make() -> Self {
        let (mut control, postgres) = (ControlPlane::start().await, Postgres::start().await);
        control.create_role("reader", &[]).await;
        control.terminate().await;
        let url = postgres.database().await;
        let watcher = open(&url).await;
        Self { control, postgres, url, watcher }
    }

    /// Makes the target wait in its commit until the test lets it go on, and then do this.
    async fn hold_commits(&mut self, then: &str) {
        does(&self.control, &["--set", &format!("database.url={}", self.url), "migrate"]);
        self.run(&format!(
            "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN PERFORM pg_advisory_xact_lock(42); {then} RETURN NULL; END $$; \
             CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON deployment DEFERRABLE INITIALLY DEFERRED \
             FOR EACH ROW EXECUTE FUNCTION hold()"
        ))
        .await;
    }

    async fn run(&mut self, sql: &str) {
        self.watcher.execute(AssertSqlSafe(sql.to_owned())).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    fn begin(&self) -> Child {
        let mut command = Command::from(self.control.prepare(&["migrate", "--to", &self.url]));
        command.stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap()
    }

    /// A move that is killed when the target was told to commit and has not answered.
    async fn kill_in_commit(&mut self) {
        self.run("SELECT CAST(pg_advisory_lock(42) AS TEXT)").await;
        let mut moving = self.begin();
        self.until_waiting("wait_event = 'advisory'").await;
        moving.kill().await.unwrap();
        refuses_to_serve(&self.control, &[], INTERRUPTED).await;
        self.run("SELECT pg_advisory_unlock(42)").await;
        self.until_alone().await;
    }

    async fn until_waiting(&mut self, how: &str) {
        let sql = format!("SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND {how}");
        let waits = async || (number(&mut self.watcher, &sql).await > 0).then_some(());
        eventually("it waits", waits, String::new).await;
    }

    /// PostgreSQL goes on with what it was told, and notices only then that nobody is there.
    async fn until_alone(&mut self) {
        let sql = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() \
                   AND pid <> pg_backend_pid() AND backend_type = 'client backend'";
        let alone = async || (number(&mut self.watcher, sql).await == 0).then_some(());
        eventually("PostgreSQL has noticed", alone, String::new).await;
    }

    fn file(&self) -> PathBuf {
        self.control.folder().join("countersign.db")
    }

    /// Whether a control plane would serve what is in the file.
    async fn source_is_good(&self) -> bool {
        run_file(&self.file(), "SELECT COUNT(*) FROM deployment WHERE set_aside_as IS NULL").await == 1
    }

    /// Whether everything is at the target.
    async fn target_is_whole(&mut self) -> bool {
        let table = "SELECT COUNT(*) FROM information_schema.tables WHERE table_name = 'deployment'";
        number(&mut self.watcher, table).await == 1
            && number(&mut self.watcher, "SELECT COUNT(*) FROM deployment").await == 1
    }
}

/// The target keeps everything, and nobody was there to be told.
#[tokio::test]
async fn transfer_killed_during_commit_leaves_the_source_refused() {
    let mut fixture = Fixture::make().await;
    fixture.hold_commits("").await;
    fixture.kill_in_commit().await;
    assert!(fixture.target_is_whole().await && !fixture.source_is_good().await);
    refuses_to_serve(&fixture.control, &[], INTERRUPTED).await;
    let said = does(&fixture.control, &["migrate", "--to", &fixture.url]);
    assert!(said.contains("had already been copied, and are equal"), "{said}");
    refuses_to_serve(&fixture.control, &[], "migrated to PostgreSQL").await;

    // As if it had gone on there without that.
    let there = format!("database.url={}", fixture.url);
    fixture.control.restart_with(&there).await;
    fixture.control.create_role("another", &[]).await;
    fixture.control.terminate().await;
    in_place(&fixture.file(), "UPDATE deployment SET set_aside_as = 'moving'").await;
    let here = ["--set", "database.url="];
    let again = [&here[..], &["migrate", "--to", &fixture.url]].concat();
    refuses(&fixture.control, &again, &["is not empty", "leave database.url at it"]);
    refuses_to_serve(&fixture.control, &here[1..], INTERRUPTED).await;
    // Who decides to stay says so.
    assert!(does(&fixture.control, &[&here[..], &["restore"]].concat()).contains("restore completed"));
    assert!(fixture.source_is_good().await);
    fixture.control.restart_with("database.url=").await;
}

/// The target keeps nothing, and nobody was there to be told.
#[tokio::test]
async fn killed_transfer_continues_into_an_empty_target() {
    let mut fixture = Fixture::make().await;
    fixture.hold_commits("RAISE EXCEPTION 'there is no room';").await;
    // Whoever hears the target say no takes the mark back.
    refuses(&fixture.control, &["migrate", "--to", &fixture.url], &["the target", "there is no room"]);
    assert!(!fixture.target_is_whole().await);
    fixture.control.restart().await;
    fixture.control.terminate().await;

    fixture.kill_in_commit().await;
    assert!(!fixture.target_is_whole().await);
    // The mark of before: it may be whole somewhere else.
    refuses(&fixture.control, &["migrate", "--to", &fixture.url], &["the target", "there is no room"]);
    refuses_to_serve(&fixture.control, &[], INTERRUPTED).await;
    fixture.run("DROP TRIGGER hold ON deployment").await;
    let said = does(&fixture.control, &["migrate", "--to", &fixture.url]);
    assert!(said.contains("were copied") && said.contains("A previous migration was interrupted"), "{said}");
    refuses_to_serve(&fixture.control, &[], "migrated to PostgreSQL").await;
    let there = format!("database.url={}", fixture.url);
    fixture.control.restart_with(&there).await;
}

#[tokio::test]
async fn target_that_fails_before_commit_leaves_the_source_usable() {
    let mut fixture = Fixture::make().await;
    fixture.hold_commits("").await;
    let mut holder = open(&fixture.url).await;
    holder.execute("BEGIN; LOCK TABLE agents").await.unwrap();
    let moving = fixture.begin();
    fixture.until_waiting("wait_event_type = 'Lock'").await;
    let end = "SELECT CAST(pg_terminate_backend(pid) AS TEXT) FROM pg_stat_activity \
               WHERE datname = current_database() AND wait_event_type = 'Lock'";
    fixture.run(end).await;
    let output = moving.wait_with_output().await.unwrap();
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("the target"), "{output:?}");
    holder.close().await.unwrap();
    fixture.control.restart().await;
    fixture.control.terminate().await;

    fixture.run("SELECT CAST(pg_advisory_lock(42) AS TEXT)").await;
    let moving = fixture.begin();
    fixture.until_waiting("wait_event = 'advisory'").await;
    fixture.postgres.kill();
    let output = moving.wait_with_output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("it is unknown whether the target committed") && said.contains("run this again"), "{said}");
    refuses_to_serve(&fixture.control, &[], INTERRUPTED).await;
    fixture.postgres.restart().await;
    let said = does(&fixture.control, &["migrate", "--to", &fixture.url]);
    assert!(said.contains("were copied"), "{said}");
}

/// In whatever moment. It rarely hits the commit itself, where the tests above wait.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "moments are parts of how long it takes")]
async fn transfer_killed_at_any_time_leaves_at_most_one_usable_database() {
    const MOMENTS: u32 = 10;
    let mut fixture = Fixture::make().await;
    let began = Instant::now();
    does(&fixture.control, &["migrate", "--to", &fixture.url]);
    let all = began.elapsed() + Duration::from_millis(20);
    let mut seen = Vec::new();
    for moment in 0..MOMENTS {
        in_place(&fixture.file(), "UPDATE deployment SET set_aside_at = NULL, set_aside_as = NULL").await;
        fixture.url = fixture.postgres.database().await;
        fixture.watcher = open(&fixture.url).await;
        let mut moving = fixture.begin();
        tokio::time::sleep(all * (moment + 1) / MOMENTS).await;
        moving.kill().await.unwrap();
        fixture.until_alone().await;
        let (source, target) = (fixture.source_is_good().await, fixture.target_is_whole().await);
        assert!(!(source && target), "moment {moment}");
        seen.push((source, target));
        if !source {
            let _goes_on_or_was_done = fixture.control.command(&["migrate", "--to", &fixture.url]);
            assert!(fixture.target_is_whole().await && !fixture.source_is_good().await, "moment {moment}");
        }
    }
    eprintln!("source and target, by the moment: {seen:?}");
}
