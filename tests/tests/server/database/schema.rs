//! Tests of `migrate`, which migrates the schema before a server starts.

use super::{REVERT_MIGRATIONS_FROM_9, assert_refused, assert_start_refused, open, open_file, query_number, succeed};
use countersign_tests::{Agent, ControlPlane, Postgres, control_plane::text, tools};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, Executor};
use std::process::Command;

/// The versions of all migrations.
fn migrations() -> impl Iterator<Item = i64> {
    let files = std::fs::read_dir(tools::root().join("control-plane/migrations")).unwrap();
    let number = |name: String| name.split('_').next().unwrap().parse::<i64>().unwrap();
    files.map(move |entry| number(entry.unwrap().file_name().into_string().unwrap()))
}

/// The version of the newest migration.
fn newest_migration() -> i64 {
    migrations().max().unwrap()
}

/// The number of migrations.
fn count_migrations() -> i64 {
    i64::try_from(migrations().count()).unwrap()
}

#[tokio::test]
async fn migrate_creates_the_schema_and_reports_it_once() {
    let (postgres, folder) = (Postgres::start().await, tempfile::tempdir().unwrap());
    let url = postgres.create_database().await;
    let file = folder.path().join("data").join("countersign.db");
    let on_postgres = format!("database.url={url}");
    let data = format!("data_dir={}", folder.path().join("data").display());
    for setting in [None, Some(&on_postgres)] {
        let migrate = || {
            let mut command = Command::new(tools::binary("countersign-control-plane"));
            command.args(["--dev", "--set", &data, "migrate"]);
            command.args(setting.iter().flat_map(|setting| ["--set", setting]));
            let output = command.output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let newest = newest_migration();
        assert_eq!(migrate(), format!("The schema was migrated from version 0 to version {newest}.\n"));
        assert_eq!(migrate(), format!("The schema version was already {newest}: nothing to do.\n"));
        let mut database = if setting.is_some() { open(&url).await } else { open_file(&file).await };
        assert_eq!(
            query_number(&mut database, "SELECT COUNT(*) FROM deployment").await,
            0,
            "there is no deployment yet"
        );
    }
}

/// Operators run `migrate` before an upgrade, while replicas are running.
#[tokio::test]
async fn migrate_does_not_disturb_a_running_server() {
    let postgres = Postgres::start().await;
    let setting = format!("database.url={}", postgres.create_database().await);
    for control in [ControlPlane::start().await, ControlPlane::start_with(&[&setting]).await] {
        assert!(succeed(&control, &["migrate"]).contains("nothing to do"));
        control.create_role("after", &[]).await;
    }
}

/// A standby may be behind the primary and accepts no writes.
#[tokio::test]
async fn commands_refuse_a_standby() {
    let (mut postgres, mut control) = (Postgres::start().await, ControlPlane::start().await);
    control.terminate().await;
    let url = postgres.create_database().await;
    let setting = format!("database.url={url}");
    succeed(&control, &["--set", &setting, "migrate"]);
    postgres.become_standby().await;
    for command in ["migrate", "restore"] {
        assert_refused(&control, &["--set", &setting, command], &["standby", "name the primary"]);
    }
    assert_refused(&control, &["migrate", "--to", &url], &["is a standby", "name the primary"]);
    assert_start_refused(&control, &[&setting], "standby").await;
}

#[tokio::test]
async fn concurrent_migrations_create_one_schema() {
    let postgres = Postgres::start().await;
    let url = postgres.create_database().await;
    let folder = tempfile::tempdir().unwrap();
    let data = format!("data_dir={}", folder.path().display());
    let migrate = |_| {
        let mut command = tokio::process::Command::new(tools::binary("countersign-control-plane"));
        command.args(["--dev", "--set", &data, "--set", &format!("database.url={url}"), "migrate"]).output()
    };
    let outputs = futures_util::future::join_all((0..10).map(migrate)).await;
    for output in outputs {
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let mut database = open(&url).await;
    assert_eq!(
        query_number(&mut database, "SELECT COUNT(*) FROM _sqlx_migrations WHERE success").await,
        count_migrations()
    );
}

/// Before version 9, identical registrations at the same time could create several agents on PostgreSQL, and the relation
/// between agents and services was not recorded.
#[tokio::test]
async fn migration_keeps_repeated_agents_and_derives_the_relation_from_sessions() {
    let postgres = Postgres::start().await;
    let setting = format!("database.url={}", postgres.create_database().await);
    for mut control in [ControlPlane::start().await, ControlPlane::start_with(&[&setting]).await] {
        let agent = Agent::register(&control, "agent").await;
        agent.token_for(control.service()).await;
        let (other, other_key) = control.create_service(json!({ "name": "other" })).await;
        agent.token_for(&other).await;
        let (path, role) = (format!("/services/{other}/roles"), json!({ "name": "reader", "permissions": [] }));
        let role = control.api.send_as(&other_key, "POST", &path, role).await.expect(201);
        let assignment = json!({ "roleId": role["roleId"] });
        let assign = format!("/services/{other}/agents/{}/roles", agent.id);
        control.api.send_as(&other_key, "POST", &assign, assignment).await.expect(200);
        let role = control.create_role("reader", &[]).await;
        control.assign(&agent.id, &role).await;
        control.terminate().await;
        let mut database = open(&control.database_url()).await;
        let repeated = "agent_7zzzzzzzzzzzzzzzzzzzzzzzzz";
        let columns = "owner_issuer, owner_subject, email, name, public_key, public_key_hash, status, cutoff, trust, \
                       metadata, created_at, updated_at, last_seen_at";
        let repeat = format!(
            "INSERT INTO agents (id, {columns}) SELECT '{repeated}', {columns} FROM agents WHERE name = 'agent'"
        );
        for sql in [REVERT_MIGRATIONS_FROM_9, &repeat] {
            database.execute(AssertSqlSafe(sql.to_owned())).await.unwrap();
        }
        database.close().await.unwrap();
        control.restart().await;

        let body =
            json!({ "email": "owner@example.org", "name": "agent", "publicKey": agent.key.public_pem().unwrap() });
        assert_eq!(text(&control.api.post("/auth/register", body).await.expect(201)["agentId"]), agent.id);
        let tokens = agent.api().login(&agent.key, repeated, Some(control.service())).await;
        assert!(tokens.is_ok(), "the repeated agent can still log in");
        let token = agent.token().await;
        control.verify_at(&other, &other_key, &token).await.expect(200);
        for _ in 0..3 {
            let body = json!({ "agentId": agent.id, "score": 100 });
            control.api.send_as(control.key(), "POST", "/trust/feedback", body).await.expect(200);
        }
        let record =
            control.api.get_as(control.key(), &control.path(&format!("/agents/{}", agent.id))).await.expect(200);
        assert_eq!(record["trustScore"], json!(71.43), "the agent is known to the service");
    }
}
