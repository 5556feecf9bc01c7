//! Tests of `restore`, which replaces the database with a backup and revokes earlier tokens, challenges and client assertions.

use super::{assert_refused, assert_start_refused, execute_on_file, files_in, path_in, query_file, succeed};
use countersign_process::{Clock, SystemClock};
use countersign_tests::{
    Agent, ControlPlane, InProcessServer, ManualClock, Postgres, Sidecar, agent::signed_challenge, control_plane::text,
    eventually, oauth, tools,
};
use serde_json::{Value, json};
use std::{process::Command, time::Duration};

/// Tokens, challenges and client assertions from before the backup, or from between the backup and its restore.
struct EarlierCredentials {
    agent: Agent,
    role: String,
    pairs: Vec<Value>,
    challenges: Vec<Value>,
    assertions: Vec<String>,
}

impl EarlierCredentials {
    /// Creates an agent with a role, tokens, challenges and assertions.
    async fn new(control: &ControlPlane) -> Self {
        let (agent, role) = Agent::with_role(control, "reader", &["read"]).await;
        let mut earlier = Self { agent, role, pairs: Vec::new(), challenges: Vec::new(), assertions: Vec::new() };
        earlier.add(control).await;
        earlier
    }

    /// Adds a login, a used refresh token, used and unused challenges, and used and unused client assertions.
    async fn add(&mut self, control: &ControlPlane) {
        let used = self.signed_challenge(control).await;
        let first = control.api.post("/auth/authenticate", used.clone()).await.expect(200);
        let refresh = json!({ "refreshToken": first["refreshToken"] });
        self.pairs.push(control.api.post("/auth/refresh", refresh).await.expect(200));
        self.pairs.push(first);
        self.challenges.extend([used, self.signed_challenge(control).await]);
        let number = self.assertions.len();
        for name in ["used", "unused"] {
            let assertion = oauth::assertion(control, &self.agent, &format!("{name} {number}")).await;
            self.assertions.push(assertion);
        }
        oauth::request_token(control, &oauth::login_form(&self.assertions[number], &[])).await.expect(200);
    }

    async fn signed_challenge(&self, control: &ControlPlane) -> Value {
        signed_challenge(&control.api, &self.agent.id, &self.agent.key).await
    }

    /// Asserts that API and sidecar refuse all earlier tokens and challenges, and that the agent can log in again.
    async fn assert_revoked(&self, control: &ControlPlane, sidecar: &Sidecar) {
        for pair in &self.pairs {
            let token = text(&pair["accessToken"]);
            let refused = control.verify(&token).await;
            assert_eq!(refused.error().2, "token_superseded", "{refused:?}");
            sidecar.wait_until_refused(&token, "token_superseded").await;
            let refused = control.api.post("/auth/refresh", json!({ "refreshToken": pair["refreshToken"] })).await;
            assert_eq!(refused.error().0, 401, "{refused:?}");
        }
        for response in &self.challenges {
            let refused = control.api.post("/auth/authenticate", response.clone()).await;
            assert_eq!(refused.error().0, 401, "{refused:?}");
        }
        let last = control.api.post("/auth/authenticate", self.challenges.last().unwrap().clone()).await;
        assert_eq!(last.error().2, "challenge_expired", "an unused challenge is also refused");
        for assertion in &self.assertions {
            let refused = oauth::request_token(control, &oauth::login_form(assertion, &[])).await;
            let (status, error, reason) = oauth::error(&refused);
            assert_eq!((status, &*error, &*reason), (401, "invalid_client", "assertion_expired"), "{assertion}");
        }
        let new_token = self.agent.token().await;
        control.verify(&new_token).await.expect(200);
        sidecar.wait_until_accepted(&new_token).await;
    }
}

async fn assert_restore_is_audited(control: &ControlPlane) {
    let verified = control.command(&["audit", "verify"]);
    assert!(verified.status.success(), "{verified:?}");
    let entries = control.api.get_as(control.human(), "/audit?action=database.restored").await.expect(200);
    assert_eq!(entries["data"][0]["actor"]["kind"], "system");
    assert!(entries["data"][0]["details"]["newestChangeAt"].is_string(), "{entries}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restore_revokes_credentials_that_may_have_changed_since_the_backup() {
    let (mut control, folder) = (ControlPlane::start_process().await, tempfile::tempdir().unwrap());
    let sidecar = Sidecar::start(&control).await;
    let mut earlier = EarlierCredentials::new(&control).await;
    let file = path_in(&folder, "backup");
    Agent::register(&control, "unused").await;
    tokio::task::block_in_place(|| succeed(&control, &["backup", &file]));
    let backed_up_at = SystemClock.now().micros();
    earlier.add(&control).await;
    control.revoke(&earlier.agent.id, &earlier.role).await;
    earlier.add(&control).await;

    let database = control.folder().join("countersign.db");
    let message = assert_refused(&control, &["restore", &file, "--replace"], &["a control plane uses this database"]);
    assert!(!message.contains("master"), "{message}");
    control.terminate().await;
    assert_refused(&control, &["restore", &file], &["--replace", "countersign.db"]);
    assert_refused(&control, &["restore", database.to_str().unwrap(), "--replace"], &["is the configured database"]);
    let message = succeed(&control, &["restore", &file, "--replace"]);
    assert!(
        succeed(&control, &["audit", "verify"]).contains("ok"),
        "a restored database can be verified before it is served"
    );
    assert!(message.contains("restored from") && message.contains("all agents log in again"), "{message}");
    assert!(message.contains("The backup was made at ") && message.contains("roles that were revoked"), "{message}");
    let replaced = files_in(control.folder())
        .into_iter()
        .find(|name| name.contains(".before-"))
        .expect("the replaced database is saved");
    let roles = "SELECT CAST(COUNT(*) AS BIGINT) FROM assignments";
    assert_eq!(
        query_file(&control.folder().join(replaced), roles).await,
        0,
        "the saved file is the complete replaced database"
    );
    assert_eq!(query_file(&database, roles).await, 1, "the database is the backup");
    let registered_at = query_file(&database, "SELECT MIN(registered_at) FROM unused_agents").await;
    assert!(registered_at > backed_up_at, "agents whose first login may be lost have the whole time to log in");

    control.restart().await;
    earlier.assert_revoked(&control, &sidecar).await;
    assert_restore_is_audited(&control).await;
    // The revocation of earlier credentials survives the next start and its housekeeping.
    control.restart().await;
    earlier.assert_revoked(&control, &sidecar).await;
}

/// A sidecar that connected after the backup is not in the restored database. It may decide with its view until the view is too
/// old, so until then, no receipt may claim that a change is in force everywhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receipts_wait_for_sidecars_that_connected_after_the_backup() {
    let settings = ["sync.max_staleness_seconds=8"];
    let (mut control, folder) = (ControlPlane::start_one_with(&settings).await, tempfile::tempdir().unwrap());
    let earlier = EarlierCredentials::new(&control).await;
    let sync_key = control.create_key(control.service(), "sync").await;
    let file = path_in(&folder, "backup");
    tokio::task::block_in_place(|| succeed(&control, &["backup", &file]));
    let sidecar = Sidecar::start_with(&control, &[&sync_key], &[]);
    sidecar.wait_until_ready().await;
    let token = earlier.agent.token().await;
    assert_eq!(sidecar.check_token(&token).await.status, 200);
    sidecar.signal("STOP");
    control.terminate().await;
    tokio::task::block_in_place(|| succeed(&control, &["restore", &file, "--replace"]));
    control.restart().await;

    let path = control.path(&format!("/agents/{}/roles/{}", earlier.agent.id, earlier.role));
    let revoked = control.api.send_as(control.key(), "DELETE", &path, json!({})).await.expect(200);
    let path = control.path(&format!("/enforcement?revision={}", revoked["revision"]));
    let receipt = async || control.api.get_as(control.key(), &path).await.expect(200);
    let incomplete = receipt().await;
    assert_eq!((&incomplete["enforced"], &incomplete["sidecars"]), (&json!(false), &json!(1)), "{incomplete}");
    assert_eq!(
        incomplete["unconfirmed"][0]["instance"],
        "0".repeat(32),
        "it stands for unknown sidecars: {incomplete}"
    );
    sidecar.signal("CONT");
    sidecar.wait_until_refused(&token, "token_superseded").await;
    let known = async || {
        let receipt = receipt().await;
        assert_eq!(receipt["enforced"], false, "there may be more unknown sidecars: {receipt}");
        (receipt["sidecars"] == 2 && receipt["enforcedSidecars"] == 1).then_some(())
    };
    eventually("the sidecar has reported", known, || control.log()).await;
}

/// The server refuses a backup that was copied by hand until `restore` without a file makes it usable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copied_backup_is_not_served_before_restore_runs() {
    let (mut control, folder) = (ControlPlane::start_process().await, tempfile::tempdir().unwrap());
    let sidecar = Sidecar::start(&control).await;
    let earlier = EarlierCredentials::new(&control).await;
    let file = folder.path().join("backup");
    succeed(&control, &["backup", file.to_str().unwrap()]);
    control.terminate().await;
    std::fs::copy(&file, control.folder().join("countersign.db")).unwrap();
    assert_start_refused(&control, &[], "this database is a backup").await;
    assert!(succeed(&control, &["restore"]).contains("restore completed"));
    control.restart().await;
    earlier.assert_revoked(&control, &sidecar).await;
    assert_restore_is_audited(&control).await;
}

/// A restore moves the revision ahead of the clock, so the time of the newest change must not be read from this revision.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newest_change_of_a_backup_is_not_later_than_the_backup() {
    let (mut control, folder) = (ControlPlane::start_process().await, tempfile::tempdir().unwrap());
    let [first, second] = ["first", "second"].map(|name| path_in(&folder, name));
    succeed(&control, &["backup", &first]);
    control.terminate().await;
    succeed(&control, &["restore", &first, "--replace"]);
    succeed(&control, &["backup", &second]);
    let message = succeed(&control, &["restore", &second, "--replace"]);
    let time_after = |label: &str| -> jiff::Timestamp {
        let (_, rest) = message.split_once(label).unwrap();
        rest.split_inclusive('Z').next().unwrap().parse().unwrap()
    };
    assert!(time_after("Its newest change was at ") <= time_after("The backup was made at "), "{message}");
}

/// Challenges are revoked by their content and not by their time, because the clocks of machines differ.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restore_revokes_challenges_of_a_replica_with_a_fast_clock() {
    let (mut control, fast_clock) = (ControlPlane::start_process().await, ManualClock::new());
    let agent = Agent::register(&control, "agent").await;
    control.terminate().await;
    fast_clock.advance(Duration::from_mins(4));
    let signed_challenge =
        async |replica: &InProcessServer| signed_challenge(&replica.api, &agent.id, &agent.key).await;
    let replica = InProcessServer::start(control.folder(), &[], &fast_clock).await;
    let before = signed_challenge(&replica).await;
    replica.server.stop().await;
    succeed(&control, &["restore"]);
    let replica = InProcessServer::start(control.folder(), &[], &fast_clock).await;
    assert_eq!(replica.api.post("/auth/authenticate", before).await.error().2, "challenge_expired");
    let after = signed_challenge(&replica).await;
    replica.api.post("/auth/authenticate", after.clone()).await.expect(200);
    assert_eq!(replica.api.post("/auth/authenticate", after).await.error().2, "challenge_used");
    replica.server.stop().await;
}

#[tokio::test]
async fn invalid_backup_changes_nothing() {
    let (mut control, folder) = (ControlPlane::start_process().await, tempfile::tempdir().unwrap());
    let file = |name: &str| folder.path().join(name);
    let path = |name: &str| path_in(&folder, name);
    EarlierCredentials::new(&control).await;
    succeed(&control, &["backup", &path("good")]);
    control.terminate().await;
    let valid = std::fs::read(file("good")).unwrap();
    std::fs::write(file("empty"), "").unwrap();
    std::fs::write(file("text"), "this is not a database, but it is long enough to be one").unwrap();
    std::fs::write(file("cut"), &valid[..valid.len() / 2]).unwrap();
    std::fs::write(file("short"), &valid[..1000]).unwrap();
    std::fs::write(file("corrupted"), damage(&valid)).unwrap();
    let sql = [
        ("other", "CREATE TABLE other (id TEXT)"),
        ("newer", "INSERT INTO _sqlx_migrations VALUES (9999, 'later', '2030-01-01', 1, x'00', 1)"),
        ("unreleased", "UPDATE _sqlx_migrations SET checksum = x'00'"),
        ("trigger", "CREATE TRIGGER evil AFTER INSERT ON sessions BEGIN DELETE FROM changes; END"),
        ("without-deployment", "DELETE FROM deployment"),
        ("real", "UPDATE deployment SET dev_since = NULL"),
    ];
    for (name, sql) in sql {
        if name != "other" {
            std::fs::write(file(name), &valid).unwrap();
        }
        execute_on_file(&file(name), sql).await;
    }
    let database = control.folder().join("countersign.db");
    let (bytes, names) = (std::fs::read(&database).unwrap(), files_in(control.folder()));
    for (name, expected_text) in [
        ("missing", "No such file"),
        ("empty", "not an SQLite database"),
        ("text", "not an SQLite database"),
        ("cut", "damaged"),
        ("short", "damaged"),
        ("corrupted", "damaged"),
        ("other", "not a database of Countersign"),
        ("trigger", "triggers"),
        ("newer", "version is 9999"),
        ("unreleased", "never released"),
        ("without-deployment", "no deployment"),
        ("real", "--dev"),
    ] {
        assert_refused(&control, &["restore", &path(name), "--replace"], &[expected_text]);
    }
    let other_key = format!("secrets.master_key={}", "ab".repeat(32));
    assert_refused(
        &control,
        &["--set", &other_key, "restore", &path("good"), "--replace"],
        &["master key", "secrets.master_key"],
    );
    assert_eq!(std::fs::read(&database).unwrap(), bytes);
    let lock: Vec<_> = names.into_iter().chain(["countersign.db.lock".to_owned()]).collect();
    assert!(files_in(control.folder()).iter().all(|name| lock.contains(name)), "a refused restore creates no file");
}

/// A restore replaces a damaged database, keeps the damaged database with its side files, and creates a missing database.
#[tokio::test]
async fn backup_replaces_a_damaged_or_missing_database() {
    let (mut control, folder) = (ControlPlane::start_process().await, tempfile::tempdir().unwrap());
    let (file, database) = (folder.path().join("good"), control.folder().join("countersign.db"));
    let path = file.to_str().unwrap();
    succeed(&control, &["backup", path]);
    control.terminate().await;
    std::fs::write(&database, damage(&std::fs::read(&file).unwrap())).unwrap();
    let wal = control.folder().join("countersign.db-wal");
    std::fs::write(&wal, "stale").unwrap();
    succeed(&control, &["restore", path, "--replace"]);
    assert!(!wal.exists(), "the old write-ahead log is not applied");
    control.restart().await;
    // A backup can be restored on a machine without a database.
    control.terminate().await;
    std::fs::remove_file(&database).unwrap();
    assert_refused(&control, &["restore"], &["there is no database"]);
    succeed(&control, &["restore", path]);
    control.restart().await;
}

/// Damages pages of a database.
fn damage(database: &[u8]) -> Vec<u8> {
    let mut damaged = database.to_vec();
    for byte in &mut damaged[4096 * 2..4096 * 8] {
        *byte ^= 0x5a;
    }
    damaged
}

/// PostgreSQL has its own backup tools. The server refuses a restored dump until `restore` runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_postgresql_dump_is_not_served_before_restore_runs() {
    let (postgres, folder) = (Postgres::start().await, tempfile::tempdir().unwrap());
    let url = postgres.create_database().await;
    let mut control = ControlPlane::start_process_with(&[&format!("database.url={url}")]).await;
    let sidecar = Sidecar::start(&control).await;
    let mut earlier = EarlierCredentials::new(&control).await;
    let dump = path_in(&folder, "dump");
    run_postgres_tool("pg_dump", &["--format=custom", "--file", &dump, &url]);
    earlier.add(&control).await;
    assert_refused(&control, &["restore", &dump], &["pg_restore"]);
    assert_refused(&control, &["restore"], &["control planes are connected"]);
    // The server does not mistake a restart for a restore.
    control.restart().await;
    control.kill();
    run_postgres_tool("pg_restore", &["--clean", "--if-exists", "--dbname", &url, &dump]);
    assert_start_refused(&control, &[], "restored from a dump").await;
    restore_when_disconnected(&control).await;
    control.restart().await;
    earlier.assert_revoked(&control, &sidecar).await;
    assert_restore_is_audited(&control).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_server_stops_when_a_dump_replaces_its_database() {
    let (postgres, folder) = (Postgres::start().await, tempfile::tempdir().unwrap());
    let url = postgres.create_database().await;
    let mut control = ControlPlane::start_process_with(&[&format!("database.url={url}")]).await;
    let dump = path_in(&folder, "dump");
    run_postgres_tool("pg_dump", &["--format=custom", "--file", &dump, &url]);
    run_postgres_tool("pg_restore", &["--clean", "--if-exists", "--dbname", &url, &dump]);
    control.wait_for_log("restored from a dump").await;
    control.kill();
    restore_when_disconnected(&control).await;
    control.restart().await;

    // Restores into the existing tables, so that their OIDs do not change.
    control.kill();
    run_postgres_tool("pg_dump", &["--format=custom", "--file", &dump, &url]);
    let empty = "DO $$ BEGIN EXECUTE (SELECT 'TRUNCATE ' || string_agg(quote_ident(tablename), ', ') FROM pg_tables \
                 WHERE schemaname = 'public'); END $$";
    run_postgres_tool("psql", &["--quiet", "--command", empty, &url]);
    run_postgres_tool("pg_restore", &["--data-only", "--disable-triggers", "--dbname", &url, &dump]);
    assert_start_refused(&control, &[], "restored from a dump").await;
}

/// PostgreSQL notices only after a moment that a killed control plane has disconnected.
async fn restore_when_disconnected(control: &ControlPlane) {
    let restored = async || control.command(&["restore"]).status.success().then_some(());
    eventually("`restore` succeeds", restored, || control.log()).await;
}

fn run_postgres_tool(program: &str, arguments: &[&str]) {
    let output = Command::new(tools::postgres(program)).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
