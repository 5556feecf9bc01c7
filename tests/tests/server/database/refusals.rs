//! What the commands refuse, and that they say what to do about it.

use super::{does, failed, files_in, in_place, number, open, refuses, refuses_to_serve, run_file, texts};
use countersign_tests::{Agent, ControlPlane, Postgres, eventually, tools};
use sqlx::{Connection, Executor, PgConnection, migrate::Migrator};
use std::{process::Command, time::Duration};

#[tokio::test]
async fn backup_that_is_not_a_regular_file_is_refused() {
    let (mut control, folder) = (ControlPlane::start().await, tempfile::tempdir().unwrap());
    control.terminate().await;
    let pipe = folder.path().join("pipe").to_str().unwrap().to_owned();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let before = files_in(control.folder());
    for path in [&pipe, folder.path().to_str().unwrap(), "/dev/zero"] {
        let mut command = tokio::process::Command::from(control.prepare(&["restore", path, "--replace"]));
        let output = tokio::time::timeout(Duration::from_secs(20), command.kill_on_drop(true).output()).await;
        let said = failed(&output.expect("it must not wait").unwrap());
        assert!(said.contains(path) && said.contains("not a regular file: name a backup"), "{said}");
    }
    let after = files_in(control.folder());
    assert!(after.iter().all(|name| before.contains(name) || name == "countersign.db.lock"), "{after:?}");
}

#[tokio::test]
async fn missing_master_key_is_reported_with_its_locations() {
    let (mut control, postgres) = (ControlPlane::start().await, Postgres::start().await);
    control.terminate().await;
    let (key, url) = (control.folder().join("master.key"), postgres.database().await);
    let kept = std::fs::read(&key).unwrap();
    std::fs::remove_file(&key).unwrap();
    let words = [key.to_str().unwrap(), "there is no master key", "data_dir", "secrets.master_key"];
    for command in [&["restore"][..], &["migrate", "--to", &url], &["audit", "verify"]] {
        refuses(&control, command, &words);
        assert!(!key.exists(), "a new one would be of no use");
    }
    std::fs::write(&key, kept).unwrap();
    does(&control, &["restore"]);
}

/// As PostgreSQL is since its version 15: who does not own a database makes nothing in it.
#[tokio::test]
async fn missing_table_privilege_is_reported_with_the_grant() {
    let (mut control, postgres) = (ControlPlane::start().await, Postgres::start().await);
    control.terminate().await;
    let url = postgres.database().await;
    postgres.run("CREATE ROLE app LOGIN".to_owned()).await;
    postgres.run("CREATE ROLE other LOGIN".to_owned()).await;
    let (app, other) = (url.replace("postgres@", "app@"), url.replace("postgres@", "other@"));
    let (there, elsewhere) = (format!("database.url={app}"), format!("database.url={other}"));
    let words = ["permission denied for schema public", "GRANT CREATE ON SCHEMA public TO"];
    refuses(&control, &["--set", &there, "migrate"], &words);
    refuses(&control, &["migrate", "--to", &app], &words);
    refuses_to_serve(&control, &[&there], words[1]).await;
    let mut database = open(&url).await;
    database.execute("GRANT CREATE ON SCHEMA public TO app, other").await.unwrap();
    does(&control, &["--set", &there, "migrate"]);
    refuses(&control, &["--set", &elsewhere, "migrate"], &["permission denied for table", "must own the tables"]);
    does(&control, &["migrate", "--to", &app]);
}

/// SQLite keeps what PostgreSQL cannot, and somebody must say where it is.
#[tokio::test]
async fn character_unsupported_by_postgresql_is_reported_with_its_row() {
    let (mut control, postgres) = (ControlPlane::start().await, Postgres::start().await);
    let agent = Agent::register(&control, "agent").await;
    control.terminate().await;
    let (database, url) = (control.folder().join("countersign.db"), postgres.database().await);
    in_place(&database, "UPDATE agents SET name = 'a' || char(0) || 'b'").await;
    let row = format!("id = \"{}\"", agent.id);
    refuses(&control, &["migrate", "--to", &url], &["NUL", "column `name` of table `agents`", &row, "take it out"]);
    in_place(&database, "UPDATE agents SET name = 'ab'").await;
    does(&control, &["migrate", "--to", &url]);
}

#[tokio::test]
async fn settle_leaves_an_empty_postgresql_empty() {
    let (control, postgres) = (ControlPlane::start().await, Postgres::start().await);
    let url = postgres.database().await;
    let there = format!("database.url={url}");
    refuses(&control, &["--set", &there, "restore"], &["this database is empty", "pg_restore"]);
    let tables = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'public'";
    assert_eq!(number(&mut open(&url).await, tables).await, 0);
    does(&control, &["--set", &there, "migrate"]);
    refuses(&control, &["--set", &there, "restore"], &["this database is empty", "pg_restore"]);
}

/// Of a version of before, so that there is something to be brought up to date.
#[tokio::test]
async fn a_wrong_master_key_is_refused_before_the_schema_is_touched() {
    let (mut control, postgres) = (ControlPlane::start().await, Postgres::start().await);
    let url = postgres.database().await;
    let by_hand = format!("{url}?application_name=psql");
    let steps = Migrator::new(tools::root().join("control-plane/migrations")).await.unwrap();
    steps.run_to(7, &mut PgConnection::connect(&by_hand).await.unwrap()).await.unwrap();
    // A deployment in it as that version made it: of our master key, since this is taken from ours.
    let fingerprint = "SELECT master_key_fingerprint FROM deployment";
    let database = control.folder().join("countersign.db");
    let kept = texts(&mut super::open_file(&database).await, fingerprint).await.remove(0);
    control.terminate().await;
    let mut there = open(&by_hand).await;
    let make =
        format!("INSERT INTO deployment (id, made_at, master_key_fingerprint, dev_since) VALUES (1, 1, '{kept}', 1)");
    there.execute(sqlx::AssertSqlSafe(make)).await.unwrap();
    there.execute("INSERT INTO feed (id, revision, floor) VALUES (1, 1, 0)").await.unwrap();

    let setting = format!("database.url={url}");
    let wrong = format!("secrets.master_key={}", "ab".repeat(32));
    let newest = "SELECT MAX(version) FROM _sqlx_migrations";
    refuses(&control, &["--set", &setting, "--set", &wrong, "restore"], &["master key", "secrets.master_key"]);
    refuses_to_serve(&control, &[&setting, &wrong], "master key").await;
    assert_eq!(number(&mut there, newest).await, 7);
    does(&control, &["--set", &setting, "restore"]);
    assert!(number(&mut there, newest).await > 7, "with the right key it is brought up to date");
}

/// Those of before the eighth step do not say who they are: nobody without a name may be there.
#[tokio::test]
async fn settle_is_refused_while_a_server_may_run() {
    let postgres = Postgres::start().await;
    let url = postgres.database().await;
    let mut control = ControlPlane::start_with(&[&format!("database.url={url}")]).await;
    refuses(&control, &["restore"], &["control planes are connected", "stop all of them"]);
    control.terminate().await;
    let mut nameless = open(&url).await;
    nameless.execute("SET application_name = ''").await.unwrap();
    let named = "SELECT COUNT(*) FROM pg_stat_activity WHERE application_name = 'countersign-control-plane'";
    let gone = async || (number(&mut nameless, named).await == 0).then_some(());
    eventually("PostgreSQL has noticed", gone, || control.log()).await;
    refuses(&control, &["restore"], &["control planes are connected", "stop all of them"]);
    nameless.execute("SET application_name = 'psql'").await.unwrap();
    does(&control, &["restore"]);
}

/// Killed between two steps, it leaves a second name for the database that is in its place still.
#[tokio::test]
async fn hard_link_left_by_a_killed_restore_is_removed() {
    let (mut control, folder) = (ControlPlane::start().await, tempfile::tempdir().unwrap());
    let database = control.folder().join("countersign.db");
    let file = folder.path().join("backup").to_str().unwrap().to_owned();
    does(&control, &["backup", &file]);
    control.terminate().await;
    does(&control, &["restore", &file, "--replace"]);
    let before = |names: std::collections::BTreeSet<String>| {
        names.into_iter().filter(|name| name.contains(".before-")).collect::<Vec<_>>()
    };
    let kept = before(files_in(control.folder()));
    assert_eq!(kept.len(), 1);
    let second = control.folder().join("countersign.db.before-20300101T000000Z");
    // By the next start, and by the next command that has it alone.
    std::fs::hard_link(&database, &second).unwrap();
    control.restart().await;
    assert_eq!(before(files_in(control.folder())), kept);
    control.terminate().await;
    std::fs::hard_link(&database, &second).unwrap();
    does(&control, &["restore"]);
    assert_eq!(before(files_in(control.folder())), kept);
    assert_eq!(run_file(&control.folder().join(&kept[0]), "SELECT COUNT(*) FROM deployment").await, 1);
}

/// It was killed after it had put aside what SQLite keeps beside the database, which holds all that is newest.
#[tokio::test]
async fn database_set_aside_by_a_killed_restore_is_put_back() {
    let mut control = ControlPlane::start().await;
    control.create_role("newest", &["read"]).await;
    control.kill();
    let folder = control.folder().to_owned();
    let at = |more: &str| folder.join(format!("countersign.db{more}"));
    std::fs::hard_link(at(""), at(".before-20300101T000000Z")).unwrap();
    std::fs::rename(at("-wal"), at(".before-20300101T000000Z-wal")).unwrap();
    std::fs::remove_file(at("-shm")).unwrap();
    control.restart().await;
    let roles = control.api.get_as(control.key(), &control.path("/roles")).await.expect(200);
    assert!(roles.to_string().contains("newest"), "{roles}");
    assert!(!files_in(&folder).iter().any(|name| name.contains(".before-")));
}
