//! Tests that the database commands report why they refuse and which action resolves it.

use super::{
    assert_refused, assert_start_refused, error_line, execute_on_file, files_in, open_file, path_in, query_file,
    succeed,
};
use countersign_tests::{Agent, ControlPlane, Database, Postgres, eventually, tools};
use sqlx::{Connection, PgConnection, migrate::Migrator};
use std::{process::Command, time::Duration};

#[tokio::test]
async fn backup_that_is_not_a_regular_file_is_refused() {
    let (mut control, folder) = (ControlPlane::start_process().await, tempfile::tempdir().unwrap());
    control.terminate().await;
    let pipe = path_in(&folder, "pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let before = files_in(control.folder());
    for path in [&pipe, folder.path().to_str().unwrap(), "/dev/zero"] {
        let mut command = tokio::process::Command::from(control.prepare(&["restore", path, "--replace"]));
        let output = tokio::time::timeout(Duration::from_secs(20), command.kill_on_drop(true).output()).await;
        let message = error_line(&output.expect("the command must not block").unwrap());
        assert!(message.contains(path) && message.contains("not a regular file: pass a backup"), "{message}");
    }
    let after = files_in(control.folder());
    assert!(after.iter().all(|name| before.contains(name) || name == "countersign.db.lock"), "{after:?}");
}

#[tokio::test]
async fn second_server_on_one_sqlite_file_is_refused() {
    let mut control = ControlPlane::start_process_with(&["database.url="]).await;
    let agent = Agent::register(&control, "agent").await;
    let before = files_in(control.folder());
    let file = control.folder().join("countersign.db");
    for expected in [file.to_str().unwrap(), "SQLite supports only one", "PostgreSQL"] {
        assert_start_refused(&control, &[], expected).await;
    }
    assert_eq!(files_in(control.folder()), before);
    agent.token().await;
    succeed(&control, &["secrets", "rotate"]);
    assert!(control.terminate().await.success());
    control.restart().await;
    control.kill();
    control.restart().await;
}

#[tokio::test]
async fn missing_master_key_is_reported_with_its_locations() {
    let (mut control, postgres) = (ControlPlane::start_process().await, Postgres::start().await);
    control.terminate().await;
    let (key, url) = (control.folder().join("master.key"), postgres.create_database().await);
    let saved = std::fs::read(&key).unwrap();
    std::fs::remove_file(&key).unwrap();
    let expected = [key.to_str().unwrap(), "there is no master key", "data_dir", "secrets.master_key"];
    for command in [&["restore"][..], &["migrate", "--to", &url], &["audit", "verify"]] {
        assert_refused(&control, command, &expected);
        assert!(!key.exists(), "no new key is created");
    }
    assert_start_refused(&control, &[], "there is no master key").await;
    let created = files_in(control.folder()).into_iter().find(|name| name.starts_with("master.key"));
    assert_eq!(created, None, "the start leaves no useless key behind");
    std::fs::write(&key, saved).unwrap();
    succeed(&control, &["restore"]);
}

/// Since version 15 of PostgreSQL, only the owner of a database may create tables in it.
#[tokio::test]
async fn missing_table_privilege_is_reported_with_the_grant() {
    let (mut control, postgres) = (ControlPlane::start_process().await, Postgres::start().await);
    control.terminate().await;
    let url = postgres.create_database().await;
    postgres.execute("CREATE ROLE app LOGIN".to_owned()).await;
    postgres.execute("CREATE ROLE other LOGIN".to_owned()).await;
    let (app, other) = (url.replace("postgres@", "app@"), url.replace("postgres@", "other@"));
    let (target, other_setting) = (format!("database.url={app}"), format!("database.url={other}"));
    let expected = ["permission denied for schema public", "GRANT CREATE ON SCHEMA public TO"];
    assert_refused(&control, &["--set", &target, "migrate"], &expected);
    assert_refused(&control, &["migrate", "--to", &app], &expected);
    assert_start_refused(&control, &[&target], expected[1]).await;
    let mut database = Database::open(&url).await;
    database.execute("GRANT CREATE ON SCHEMA public TO app, other").await;
    succeed(&control, &["--set", &target, "migrate"]);
    assert_refused(
        &control,
        &["--set", &other_setting, "migrate"],
        &["permission denied for table", "must own the tables"],
    );
    succeed(&control, &["migrate", "--to", &app]);
}

/// SQLite stores NUL characters, PostgreSQL does not.
#[tokio::test]
async fn character_unsupported_by_postgresql_is_reported_with_its_row() {
    let (mut control, postgres) = (ControlPlane::start_process().await, Postgres::start().await);
    let agent = Agent::register(&control, "agent").await;
    control.terminate().await;
    let (database, url) = (control.folder().join("countersign.db"), postgres.create_database().await);
    execute_on_file(&database, "UPDATE agents SET name = 'a' || char(0) || 'b'").await;
    let row = format!("id = \"{}\"", agent.id);
    assert_refused(
        &control,
        &["migrate", "--to", &url],
        &["NUL", "column `name` of table `agents`", &row, "remove it"],
    );
    execute_on_file(&database, "UPDATE agents SET name = 'ab'").await;
    succeed(&control, &["migrate", "--to", &url]);
}

#[tokio::test]
async fn restore_leaves_an_empty_postgresql_database_empty() {
    let (control, postgres) = (ControlPlane::start_process().await, Postgres::start().await);
    let url = postgres.create_database().await;
    let target = format!("database.url={url}");
    assert_refused(&control, &["--set", &target, "restore"], &["this database is empty", "pg_restore"]);
    let tables = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'public'";
    assert_eq!(Database::open(&url).await.number(tables).await, 0);
    succeed(&control, &["--set", &target, "migrate"]);
    assert_refused(&control, &["--set", &target, "restore"], &["this database is empty", "pg_restore"]);
}

/// No migration is recorded in the database of this test, so a control plane with the correct master key would run them.
#[tokio::test]
async fn wrong_master_key_is_refused_before_the_schema_changes() {
    let (mut control, postgres) = (ControlPlane::start_process().await, Postgres::start().await);
    let url = postgres.create_database().await;
    let psql_url = format!("{url}?application_name=psql");
    let migrator = Migrator::new(tools::root().join("control-plane/migrations")).await.unwrap();
    migrator.run(&mut PgConnection::connect(&psql_url).await.unwrap()).await.unwrap();
    let fingerprint = "SELECT master_key_fingerprint FROM deployment";
    let database = control.folder().join("countersign.db");
    let saved = open_file(&database).await.text_column(fingerprint).await.remove(0);
    control.terminate().await;
    let mut target = Database::open(&psql_url).await;
    let insert_deployment = format!(
        "INSERT INTO deployment (id, created_at, master_key_fingerprint, dev_since) VALUES (1, 1, '{saved}', 1)"
    );
    target.execute(&insert_deployment).await;
    target.execute("INSERT INTO feed (id, revision, floor) VALUES (1, 1, 0)").await;
    target.execute("DELETE FROM _sqlx_migrations").await;

    let setting = format!("database.url={url}");
    let wrong_master_key = format!("secrets.master_key={}", "ab".repeat(32));
    assert_refused(
        &control,
        &["--set", &setting, "--set", &wrong_master_key, "restore"],
        &["master key", "secrets.master_key"],
    );
    assert_start_refused(&control, &[&setting, &wrong_master_key], "master key").await;
    assert_eq!(target.number("SELECT COUNT(*) FROM _sqlx_migrations").await, 0);
}

/// A pooler can hide the name of a connection, so an unnamed one may belong to a control plane.
#[tokio::test]
async fn restore_is_refused_while_a_control_plane_may_be_connected() {
    let postgres = Postgres::start().await;
    let url = postgres.create_database().await;
    let mut control = ControlPlane::start_process_with(&[&format!("database.url={url}")]).await;
    assert_refused(&control, &["restore"], &["control planes are connected", "stop all of them"]);
    control.terminate().await;
    let mut unnamed = Database::open(&url).await;
    unnamed.execute("SET application_name = ''").await;
    let named_connections =
        "SELECT COUNT(*) FROM pg_stat_activity WHERE application_name = 'countersign-control-plane'";
    let disconnected = async || (unnamed.number(named_connections).await == 0).then_some(());
    eventually("PostgreSQL has closed the connection", disconnected, || control.log()).await;
    assert_refused(&control, &["restore"], &["control planes are connected", "stop all of them"]);
    unnamed.execute("SET application_name = 'psql'").await;
    succeed(&control, &["restore"]);
}

/// A restore that is killed between two steps leaves a second hard link to the current database.
#[tokio::test]
async fn hard_link_left_by_a_killed_restore_is_removed() {
    let (mut control, folder) = (ControlPlane::start_process().await, tempfile::tempdir().unwrap());
    let database = control.folder().join("countersign.db");
    let file = path_in(&folder, "backup");
    succeed(&control, &["backup", &file]);
    control.terminate().await;
    succeed(&control, &["restore", &file, "--replace"]);
    let replaced_databases = |names: std::collections::BTreeSet<String>| {
        names.into_iter().filter(|name| name.contains(".before-")).collect::<Vec<_>>()
    };
    let saved = replaced_databases(files_in(control.folder()));
    assert_eq!(saved.len(), 1);
    let hard_link = control.folder().join("countersign.db.before-20300101T000000Z");
    // The next start and the next command with exclusive access remove the hard link.
    std::fs::hard_link(&database, &hard_link).unwrap();
    control.restart().await;
    assert_eq!(replaced_databases(files_in(control.folder())), saved);
    control.terminate().await;
    std::fs::hard_link(&database, &hard_link).unwrap();
    succeed(&control, &["restore"]);
    assert_eq!(replaced_databases(files_in(control.folder())), saved);
    assert_eq!(query_file(&control.folder().join(&saved[0]), "SELECT COUNT(*) FROM deployment").await, 1);
}

/// A restore was killed after it moved the write-ahead log, which contains the newest changes.
#[tokio::test]
async fn database_moved_by_a_killed_restore_is_moved_back() {
    let mut control = ControlPlane::start_process().await;
    control.create_role("newest", &["read"]).await;
    control.kill();
    let folder = control.folder().to_owned();
    let database_path = |suffix: &str| folder.join(format!("countersign.db{suffix}"));
    std::fs::hard_link(database_path(""), database_path(".before-20300101T000000Z")).unwrap();
    std::fs::rename(database_path("-wal"), database_path(".before-20300101T000000Z-wal")).unwrap();
    std::fs::remove_file(database_path("-shm")).unwrap();
    control.restart().await;
    let roles = control.api.get_as(control.key(), &control.path("/roles")).await.expect(200);
    assert!(roles.to_string().contains("newest"), "{roles}");
    assert!(!files_in(&folder).iter().any(|name| name.contains(".before-")));
}
