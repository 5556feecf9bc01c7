//! Tests that replicas of the old version can run and start with a newer schema, as a rolling upgrade requires.

use super::{FleetAgent, Replicas, replica};
use countersign_tests::{ControlPlane, Database};
use serde_json::json;
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor};

/// Additive schema changes, which CONTRIBUTING.md allows in a later version.
const LATER_CHANGES: [&str; 5] = [
    "ALTER TABLE agents ADD COLUMN later_text TEXT",
    "ALTER TABLE services ADD COLUMN later_number BIGINT NOT NULL DEFAULT 7",
    "ALTER TABLE feed ADD COLUMN later_time BIGINT",
    "CREATE TABLE later (id TEXT PRIMARY KEY, agent_id TEXT NOT NULL REFERENCES agents (id))",
    "CREATE INDEX later_by_agent ON later (agent_id)",
];

/// Applies the changes and records a schema version that the replicas do not support yet.
async fn upgrade(database: &str, postgres: bool) {
    sqlx::any::install_default_drivers();
    let mut connection = AnyConnection::connect(database).await.unwrap();
    for sql in LATER_CHANGES {
        connection.execute(sql).await.unwrap();
    }
    let (success, checksum) = if postgres { ("true", r"'\x00'::bytea") } else { ("1", "x'00'") };
    let insert_version = format!(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
         VALUES (9000, 'later', {success}, {checksum}, 1)"
    );
    connection.execute(AssertSqlSafe(insert_version)).await.unwrap();
    connection.close().await.unwrap();
}

/// Calls endpoints that use the changed tables.
async fn use_changed_tables(first: &ControlPlane, second: &ControlPlane, role: &str) {
    let agent = FleetAgent::register(first).await;
    let path = first.path(&format!("/agents/{}/roles", agent.id));
    second.api.send_as(first.key(), "POST", &path, json!({ "roleId": role })).await.expect(200);
    let token = agent.token(second).await;
    first.verify(&token).await.expect(200);
    second.revoke_token(&token).await;
    assert_eq!(first.verify(&token).await.error().2, "token_revoked");
    first.create_service(json!({ "name": "another" })).await;
    first.set_status(&agent.id, "suspended").await.expect(200);
}

/// Calls these endpoints so often that every connection of the pools has prepared their SQL statements.
async fn use_on_every_connection(first: &ControlPlane, second: &ControlPlane, role: &str) {
    for _ in 0..5 {
        use_changed_tables(first, second, role).await;
    }
}

async fn assert_newer_version_is_applied(database: &str) {
    let versions =
        Database::connect(database).await.text_column("SELECT CAST(MAX(version) AS TEXT) FROM _sqlx_migrations").await;
    assert_eq!(versions, ["9000"], "the newer version stays applied");
}

#[tokio::test(flavor = "multi_thread")]
async fn replica_runs_with_a_newer_schema_on_postgresql() {
    let Replicas { _postgres, database, first, mut second } = Replicas::start().await;
    let role = first.create_role("reader", &["read"]).await;
    use_on_every_connection(&first, &second, &role).await;
    upgrade(&database, true).await;
    use_on_every_connection(&first, &second, &role).await;
    // A replica of the old version must also start with the newer schema.
    second.restart().await;
    use_changed_tables(&first, &second, &role).await;
    use_changed_tables(&first, &replica(&database).await, &role).await;
    assert_newer_version_is_applied(&database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_runs_with_a_newer_schema_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let database = format!("sqlite://{}", folder.path().join("other.db").display());
    let mut control = replica(&database).await;
    let role = control.create_role("reader", &["read"]).await;
    use_on_every_connection(&control, &control, &role).await;
    upgrade(&database, false).await;
    use_on_every_connection(&control, &control, &role).await;
    control.restart().await;
    use_changed_tables(&control, &control, &role).await;
    assert_newer_version_is_applied(&database).await;
}
