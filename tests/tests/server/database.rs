//! The database commands for operators: migrate, back up, restore, transfer to PostgreSQL. What operators see in an outage.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests panic on unexpected values")]

mod backup;
mod full_output;
mod killed_transfer;
mod outage;
mod refusals;
mod restore;
mod schema;
mod transfer;

use countersign_tests::{ControlPlane, tools};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor};
use std::{collections::BTreeSet, path::Path, process::Output, time::Duration};

/// Runs a command that must succeed, and returns its output.
#[track_caller]
pub fn succeed(control: &ControlPlane, arguments: &[&str]) -> String {
    let output = control.command(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must fail with exit code 1 and one line of error output that contains all of these texts.
#[track_caller]
fn assert_refused(control: &ControlPlane, arguments: &[&str], expected_texts: &[&str]) -> String {
    let output = control.command(arguments);
    let message = error_line(&output);
    assert!(
        expected_texts.iter().all(|text| message.contains(text)),
        "{arguments:?}: expected {expected_texts:?}: {message}"
    );
    message
}

/// The error output of a failed command, which must be one line.
#[track_caller]
fn error_line(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let message = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(message.trim_end().lines().count(), 1, "{message}");
    message
}

/// Opens the database at a URL.
async fn open(url: &str) -> AnyConnection {
    sqlx::any::install_default_drivers();
    AnyConnection::connect(url).await.expect("the database accepts connections")
}

/// Opens a database file.
async fn open_file(file: &Path) -> AnyConnection {
    open(&format!("sqlite://{}", file.display())).await
}

async fn query_number(database: &mut AnyConnection, sql: &str) -> i64 {
    let result = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(database).await;
    result.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

async fn query_texts(database: &mut AnyConnection, sql: &str) -> Vec<String> {
    let result = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(database).await;
    result.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// Executes a statement on a database file without a server. Creates the file if it does not exist.
async fn execute_on_file(file: &Path, sql: &str) {
    let mut database = open(&format!("sqlite://{}?mode=rwc", file.display())).await;
    let result = database.execute(AssertSqlSafe(sql.to_owned())).await;
    result.unwrap_or_else(|error| panic!("{sql}: {error}"));
    database.close().await.unwrap();
}

/// Reverts the schema to version 8.
const REVERT_MIGRATIONS_FROM_9: &str = "DROP TABLE resource_uris; ALTER TABLE sessions DROP COLUMN scope; \
    ALTER TABLE services DROP COLUMN resource_uris; ALTER TABLE service_keys DROP COLUMN managed_by; ALTER TABLE services DROP COLUMN managed_by; \
    ALTER TABLE roles DROP COLUMN managed_by; ALTER TABLE assignments DROP COLUMN managed_by; \
    ALTER TABLE webhook_targets DROP COLUMN managed_by; DROP TABLE control_planes; DROP TABLE sidecars; DROP TABLE unconfirmed_changes; ALTER TABLE changes DROP COLUMN agent_state; DROP INDEX sessions_of_agent; CREATE INDEX refresh_tokens_by_session ON refresh_tokens (session_id); \
    ALTER TABLE deployment DROP COLUMN write_checked_at; DROP TABLE audit_floors; DROP TABLE agent_deletions; DROP TABLE unused_agents; \
    DROP INDEX trust_feedback_by_service; DROP INDEX agents_to_remove; ALTER TABLE agents DROP COLUMN referenced_at; \
    DROP INDEX roles_to_purge_by_turn; DROP INDEX services_to_purge_by_turn; \
    DROP INDEX agents_to_purge_by_turn; DROP INDEX webhook_deliveries_by_event; DROP INDEX deleted_webhook_targets; \
    ALTER TABLE roles DROP COLUMN purge_turn; DROP INDEX webhook_outbox_by_id; DROP TABLE webhook_set_aside_events; \
    DROP INDEX service_keys_by_age; \
    DROP INDEX refresh_tokens_by_access_expiry; DROP INDEX live_service_keys; DROP INDEX revoked_service_keys; \
    DROP INDEX pending_webhook_deliveries; DROP INDEX delivered_webhook_deliveries; DROP INDEX dead_webhook_deliveries; \
    DROP INDEX audit_links_of_chain_by_time; DROP INDEX assignments_of_role; DROP INDEX assignments_of_agent_by_service; \
    DROP INDEX live_services; DROP INDEX roles_to_purge; DROP INDEX changes_by_time; \
    DROP INDEX assignments_by_reported_end; DROP INDEX webhook_targets_by_previous_secret; \
    ALTER TABLE roles DROP COLUMN deleted_at; ALTER TABLE roles DROP COLUMN deleted_name; DROP INDEX agents_by_registration; \
    DROP INDEX settings_changes; DROP INDEX role_changes; DROP INDEX agents_by_owner; DROP TABLE quota_locks; DROP TABLE agent_departures; DROP TABLE service_transfers; DROP TABLE totals; \
    DROP TABLE known_agents; DROP TABLE token_audiences; DROP INDEX changes_of_recipient; DROP INDEX changes_by_recipient; \
    DROP INDEX refresh_tokens_without_audience; ALTER TABLE refresh_tokens DROP COLUMN audience; \
    ALTER TABLE refresh_tokens DROP COLUMN access_expires_at; ALTER TABLE deployment DROP COLUMN agent_hash_secret; ALTER TABLE agents DROP COLUMN last_service_id; \
    DROP INDEX deleted_services_by_owner; DROP INDEX services_to_purge; \
    DROP INDEX agents_to_purge; DROP INDEX live_services_by_owner; ALTER TABLE services DROP COLUMN deleted_at; \
    ALTER TABLE agents DROP COLUMN deleted_at; ALTER TABLE services DROP COLUMN purge_at; ALTER TABLE agents DROP COLUMN purge_at; \
    DROP TABLE previous_master_keys; DROP TABLE audit_checkpoints; ALTER TABLE deployment DROP COLUMN first_master_key_fingerprint; \
    ALTER TABLE agents DROP COLUMN superseded_at; DELETE FROM _sqlx_migrations WHERE version >= 9";

/// Queries a number from a database file.
async fn query_file(file: &Path, sql: &str) -> i64 {
    let mut database = open_file(file).await;
    let result = query_number(&mut database, sql).await;
    database.close().await.unwrap();
    result
}

/// The names of all files in a folder.
fn files_in(folder: &Path) -> BTreeSet<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

/// Asserts that the server refuses to start and reports this reason.
async fn assert_start_refused(control: &ControlPlane, settings: &[&str], reason: &str) {
    let mut command = tokio::process::Command::new(tools::binary("countersign-control-plane"));
    command.args(["--dev", "--set", &format!("data_dir={}", control.folder().display())]).kill_on_drop(true);
    let url = format!("database.url={}", control.database_url());
    let listen = ["api", "sync", "admin"].map(|port| format!("listen.{port}=127.0.0.1:0"));
    for setting in listen.iter().chain([&url]).map(String::as_str).chain(settings.iter().copied()) {
        command.args(["--set", setting]);
    }
    let output = tokio::time::timeout(Duration::from_secs(20), command.output())
        .await
        .expect("the server must not start")
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && message.contains(reason), "expected {reason}: {output:?}");
}
