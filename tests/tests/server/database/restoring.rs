//! `restore`: a backup in the place of the database, and what it must not believe any more.

use super::{does, files_in, in_place, refuses, refuses_to_serve, run_file};
use countersign_tests::{
    Agent, ControlPlane, HttpResponse, InProcessServer, ManualClock, Postgres, Sidecar, control_plane::text,
    eventually, tools,
};
use serde_json::{Value, json};
use std::{process::Command, time::Duration};

/// Tokens and challenges of before a backup, and of between that and the restoration.
struct Before {
    agent: Agent,
    role: String,
    pairs: Vec<Value>,
    asked: Vec<Value>,
}

impl Before {
    /// What there is at the backup.
    async fn make(control: &ControlPlane) -> Self {
        let agent = Agent::register(control, "agent").await;
        let role = control.create_role("reader", &["read"]).await;
        control.assign(&agent.id, &role).await;
        let mut before = Self { agent, role, pairs: Vec::new(), asked: Vec::new() };
        before.go_on(control).await;
        before
    }

    /// A login, a refresh token that was used once, a challenge that was used, and one that was not.
    async fn go_on(&mut self, control: &ControlPlane) {
        let used = self.ask(control).await;
        let first = control.api.post("/auth/authenticate", used.clone()).await.expect(200);
        let refresh = json!({ "refreshToken": first["refreshToken"] });
        self.pairs.push(control.api.post("/auth/refresh", refresh).await.expect(200));
        self.pairs.push(first);
        self.asked.extend([used, self.ask(control).await]);
    }

    async fn ask(&self, control: &ControlPlane) -> Value {
        let challenge = control.api.post("/auth/challenge", json!({ "agentId": self.agent.id })).await.expect(200);
        json!({ "challengeId": challenge["challengeId"], "signature": self.agent.key.sign(&text(&challenge["nonce"])) })
    }

    /// That nothing of before is good, at the API and at the sidecar, and that the agent logs in again.
    async fn assert_settled(&self, control: &ControlPlane, sidecar: &Sidecar) {
        for pair in &self.pairs {
            let token = text(&pair["accessToken"]);
            let refused = control.verify(&token).await;
            assert_eq!(refused.error().2, "token_superseded", "{refused:?}");
            let refused = async || (sidecar.check_token(&token).await.reason == "token_superseded").then_some(());
            eventually("the sidecar knows", refused, || sidecar.log()).await;
            let refused = control.api.post("/auth/refresh", json!({ "refreshToken": pair["refreshToken"] })).await;
            assert_eq!(refused.error().0, 401, "{refused:?}");
        }
        for answer in &self.asked {
            let refused = control.api.post("/auth/authenticate", answer.clone()).await;
            assert_eq!(refused.error().0, 401, "{refused:?}");
        }
        let last = control.api.post("/auth/authenticate", self.asked.last().unwrap().clone()).await;
        assert_eq!(last.error().2, "challenge_expired", "nobody answered it, but who knows");
        let again = self.agent.token().await;
        control.verify(&again).await.expect(200);
        let passes = async || (sidecar.check_token(&again).await.status == 200).then_some(());
        eventually("the sidecar lets in who logged in again", passes, || sidecar.log()).await;
    }
}

async fn assert_recorded(control: &ControlPlane) {
    let verified = control.command(&["audit", "verify"]);
    assert!(verified.status.success(), "{verified:?}");
    let acts = control.api.get_as(control.human(), "/audit?action=database.restored").await.expect(200);
    assert_eq!(acts["data"][0]["actor"]["kind"], "system");
    assert!(acts["data"][0]["details"]["newestChangeAt"].is_string(), "{acts}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restore_revokes_credentials_that_may_have_changed_since_the_backup() {
    let (mut control, folder) = (ControlPlane::start().await, tempfile::tempdir().unwrap());
    let sidecar = Sidecar::start(&control).await;
    let mut before = Before::make(&control).await;
    let file = folder.path().join("backup").to_str().unwrap().to_owned();
    tokio::task::block_in_place(|| does(&control, &["backup", &file]));
    before.go_on(&control).await;
    control.revoke(&before.agent.id, &before.role).await;
    before.go_on(&control).await;

    let database = control.folder().join("countersign.db");
    let said = refuses(&control, &["restore", &file, "--replace"], &["a control plane runs on this database"]);
    assert!(!said.contains("master"), "{said}");
    control.terminate().await;
    refuses(&control, &["restore", &file], &["--replace", "countersign.db"]);
    refuses(&control, &["restore", database.to_str().unwrap(), "--replace"], &["is the configured database"]);
    let said = does(&control, &["restore", &file, "--replace"]);
    assert!(said.contains("restored from") && said.contains("all agents log in again"), "{said}");
    assert!(said.contains("The backup is as of ") && said.contains("roles that were revoked"), "{said}");
    let kept = files_in(control.folder()).into_iter().find(|name| name.contains(".before-")).expect("it is kept");
    let roles = "SELECT CAST(COUNT(*) AS BIGINT) FROM assignments";
    assert_eq!(run_file(&control.folder().join(kept), roles).await, 0, "the one of before, whole, in one file");
    assert_eq!(run_file(&database, roles).await, 1, "the one of the backup");

    control.restart().await;
    before.assert_settled(&control, &sidecar).await;
    assert_recorded(&control).await;
    // It stays so, through the next start and what is forgotten then.
    control.restart().await;
    before.assert_settled(&control, &sidecar).await;
}

/// Whoever copies a backup into place by hand is told; without a file, `restore` settles it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copied_backup_is_not_served_until_it_is_settled() {
    let (mut control, folder) = (ControlPlane::start().await, tempfile::tempdir().unwrap());
    let sidecar = Sidecar::start(&control).await;
    let before = Before::make(&control).await;
    let file = folder.path().join("backup");
    does(&control, &["backup", file.to_str().unwrap()]);
    control.terminate().await;
    std::fs::copy(&file, control.folder().join("countersign.db")).unwrap();
    refuses_to_serve(&control, &[], "this database is a backup").await;
    assert!(does(&control, &["restore"]).contains("restore completed"));
    control.restart().await;
    before.assert_settled(&control, &sidecar).await;
    assert_recorded(&control).await;
}

/// What was asked before is known by what it says, and not by when: clocks of machines differ.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restore_revokes_challenges_of_a_replica_with_a_fast_clock() {
    let (mut control, ahead) = (ControlPlane::start().await, ManualClock::new());
    let agent = Agent::register(&control, "agent").await;
    control.terminate().await;
    ahead.advance(Duration::from_mins(4));
    let ask = async |plane: &InProcessServer| {
        let challenge = plane.api.post("/auth/challenge", json!({ "agentId": agent.id })).await.expect(200);
        json!({ "challengeId": challenge["challengeId"], "signature": agent.key.sign(&text(&challenge["nonce"])) })
    };
    let plane = InProcessServer::start(control.folder(), &[], &ahead).await;
    let before = ask(&plane).await;
    plane.server.stop().await;
    does(&control, &["restore"]);
    let plane = InProcessServer::start(control.folder(), &[], &ahead).await;
    assert_eq!(plane.api.post("/auth/authenticate", before).await.error().2, "challenge_expired");
    let after = ask(&plane).await;
    plane.api.post("/auth/authenticate", after.clone()).await.expect(200);
    assert_eq!(plane.api.post("/auth/authenticate", after).await.error().2, "challenge_used");
    plane.server.stop().await;
}

#[tokio::test]
async fn invalid_backup_changes_nothing() {
    let (mut control, folder) = (ControlPlane::start().await, tempfile::tempdir().unwrap());
    let at = |name: &str| folder.path().join(name);
    let path = |name: &str| at(name).to_str().unwrap().to_owned();
    Before::make(&control).await;
    does(&control, &["backup", &path("good")]);
    control.terminate().await;
    let good = std::fs::read(at("good")).unwrap();
    std::fs::write(at("empty"), "").unwrap();
    std::fs::write(at("text"), "this is no database, but long enough to be one").unwrap();
    std::fs::write(at("cut"), &good[..good.len() / 2]).unwrap();
    std::fs::write(at("short"), &good[..1000]).unwrap();
    std::fs::write(at("bent"), bend(&good)).unwrap();
    let sql = [
        ("other", "CREATE TABLE other (id TEXT)"),
        ("newer", "INSERT INTO _sqlx_migrations VALUES (9999, 'later', '2030-01-01', 1, x'00', 1)"),
        ("trigger", "CREATE TRIGGER evil AFTER INSERT ON sessions BEGIN DELETE FROM changes; END"),
        ("nobody", "DELETE FROM deployment"),
        ("real", "UPDATE deployment SET dev_since = NULL"),
    ];
    for (name, sql) in sql {
        if name != "other" {
            std::fs::write(at(name), &good).unwrap();
        }
        in_place(&at(name), sql).await;
    }
    let database = control.folder().join("countersign.db");
    let (bytes, names) = (std::fs::read(&database).unwrap(), files_in(control.folder()));
    for (name, word) in [
        ("missing", "No such file"),
        ("empty", "not an SQLite database"),
        ("text", "not an SQLite database"),
        ("cut", "damaged"),
        ("short", "damaged"),
        ("bent", "damaged"),
        ("other", "not a database of Countersign"),
        ("trigger", "triggers"),
        ("newer", "version is 9999"),
        ("nobody", "no deployment"),
        ("real", "--dev"),
    ] {
        refuses(&control, &["restore", &path(name), "--replace"], &[word]);
    }
    let other_key = format!("secrets.master_key={}", "ab".repeat(32));
    refuses(
        &control,
        &["--set", &other_key, "restore", &path("good"), "--replace"],
        &["master key", "secrets.master_key"],
    );
    assert_eq!(std::fs::read(&database).unwrap(), bytes);
    let lock: Vec<_> = names.into_iter().chain(["countersign.db.lock".to_owned()]).collect();
    assert!(files_in(control.folder()).iter().all(|name| lock.contains(name)), "nothing is left behind");
}

/// A damaged database is replaced and kept, with what lies beside it; and where there is none, one is put.
#[tokio::test]
async fn backup_replaces_a_damaged_or_missing_database() {
    let (mut control, folder) = (ControlPlane::start().await, tempfile::tempdir().unwrap());
    let (file, database) = (folder.path().join("good"), control.folder().join("countersign.db"));
    let path = file.to_str().unwrap();
    does(&control, &["backup", path]);
    control.terminate().await;
    std::fs::write(&database, bend(&std::fs::read(&file).unwrap())).unwrap();
    let log = control.folder().join("countersign.db-wal");
    std::fs::write(&log, "stale").unwrap();
    does(&control, &["restore", path, "--replace"]);
    assert!(!log.exists(), "nothing of before is read into it");
    control.restart().await;
    // As on a new machine.
    control.terminate().await;
    std::fs::remove_file(&database).unwrap();
    refuses(&control, &["restore"], &["there is no database"]);
    does(&control, &["restore", path]);
    control.restart().await;
}

/// A database whose pages are not what they were.
fn bend(database: &[u8]) -> Vec<u8> {
    let mut bent = database.to_vec();
    for byte in &mut bent[4096 * 2..4096 * 8] {
        *byte ^= 0x5a;
    }
    bent
}

/// PostgreSQL is dumped and restored by its own tools; who forgets the rest is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_postgresql_dump_is_not_served_until_it_is_settled() {
    let (postgres, folder) = (Postgres::start().await, tempfile::tempdir().unwrap());
    let url = postgres.database().await;
    let mut control = ControlPlane::start_with(&[&format!("database.url={url}")]).await;
    let sidecar = Sidecar::start(&control).await;
    let mut before = Before::make(&control).await;
    let dump = folder.path().join("dump");
    tool("pg_dump", &["--format=custom", "--file", dump.to_str().unwrap(), &url]);
    before.go_on(&control).await;
    refuses(&control, &["restore", dump.to_str().unwrap()], &["pg_restore"]);
    refuses(&control, &["restore"], &["control planes are connected"]);
    // A restart without a restoration is none.
    control.restart().await;
    control.kill();
    tool("pg_restore", &["--clean", "--if-exists", "--dbname", &url, dump.to_str().unwrap()]);
    refuses_to_serve(&control, &[], "restored from a dump").await;
    let settled = async || control.command(&["restore"]).status.success().then_some(());
    // The server notices a killed control plane within a moment.
    eventually("it is settled", settled, || control.log()).await;
    control.restart().await;
    before.assert_settled(&control, &sidecar).await;
    assert_recorded(&control).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_server_stops_when_a_dump_replaces_its_database() {
    let (postgres, folder) = (Postgres::start().await, tempfile::tempdir().unwrap());
    let url = postgres.database().await;
    let mut control = ControlPlane::start_with(&[&format!("database.url={url}")]).await;
    let dump = folder.path().join("dump");
    let dump = dump.to_str().unwrap();
    tool("pg_dump", &["--format=custom", "--file", dump, &url]);
    tool("pg_restore", &["--clean", "--if-exists", "--dbname", &url, dump]);
    let ended = async || control.log().contains("restored from a dump").then_some(());
    eventually("it ends and says why", ended, || control.log()).await;
    control.kill();
    let settled = async || control.command(&["restore"]).status.success().then_some(());
    eventually("it is settled", settled, || control.log()).await;
    control.restart().await;

    // Into the tables that are there, so that they keep their numbers.
    control.kill();
    tool("pg_dump", &["--format=custom", "--file", dump, &url]);
    let empty = "DO $$ BEGIN EXECUTE (SELECT 'TRUNCATE ' || string_agg(quote_ident(tablename), ', ') FROM pg_tables \
                 WHERE schemaname = 'public'); END $$";
    tool("psql", &["--quiet", "--command", empty, &url]);
    tool("pg_restore", &["--data-only", "--disable-triggers", "--dbname", &url, dump]);
    refuses_to_serve(&control, &[], "restored from a dump").await;
}

fn tool(program: &str, arguments: &[&str]) {
    let output = Command::new(tools::postgres(program)).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[tokio::test]
async fn older_backup_is_migrated() {
    let (mut control, folder) = (ControlPlane::start().await, tempfile::tempdir().unwrap());
    let before = Before::make(&control).await;
    let file = folder.path().join("backup");
    does(&control, &["backup", file.to_str().unwrap()]);
    control.terminate().await;
    // As of the step before the last.
    let back = "ALTER TABLE feed DROP COLUMN restored_at; ALTER TABLE feed DROP COLUMN restored_revision; \
                ALTER TABLE deployment DROP COLUMN set_aside_at; ALTER TABLE deployment DROP COLUMN set_aside_as; \
                ALTER TABLE deployment DROP COLUMN table_numbers; DELETE FROM _sqlx_migrations WHERE version >= 8";
    in_place(&file, back).await;
    does(&control, &["restore", file.to_str().unwrap(), "--replace"]);
    control.restart().await;
    let refused: HttpResponse = control.verify(&text(&before.pairs[0]["accessToken"])).await;
    assert_eq!(refused.error().2, "token_superseded");
    // A backup of a database of before, by this program.
    control.terminate().await;
    in_place(&control.folder().join("countersign.db"), back).await;
    let older = folder.path().join("older");
    does(&control, &["backup", older.to_str().unwrap()]);
    does(&control, &["restore", older.to_str().unwrap(), "--replace"]);
    control.restart().await;
}
