//! Tests of `migrate --to`, which copies the embedded database to PostgreSQL.

use super::{assert_refused, assert_start_refused, execute_on_file, open_file, succeed};
use countersign_tests::{
    Agent, ControlPlane, Database, Postgres, Receiver, Reply, Sidecar, Target, agent::log_in_at, control_plane::text,
    eventually,
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, path::PathBuf};

fn database_path(control: &ControlPlane) -> PathBuf {
    control.folder().join("countersign.db")
}

/// All tables of the embedded database with their columns, except the table of migrations.
async fn tables(file: &mut Database) -> BTreeMap<String, Vec<String>> {
    let list_tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%' AND name <> '_sqlx_migrations'";
    let mut tables = BTreeMap::new();
    for name in file.text_column(list_tables).await {
        let columns = file.text_column(&format!("SELECT name FROM pragma_table_info('{name}')")).await;
        tables.insert(name, columns);
    }
    tables
}

/// Every row of every table as text, sorted.
async fn rows(database: &mut Database, tables: &BTreeMap<String, Vec<String>>) -> BTreeMap<String, Vec<String>> {
    let mut all_rows = BTreeMap::new();
    for (name, columns) in tables {
        let part = |column: &String| format!("COALESCE(CAST(\"{column}\" AS TEXT), '(none)')");
        // Only the source database has values in columns with the prefix `quarantine`.
        let columns = columns.iter().filter(|column| !column.starts_with("quarantine"));
        let row = columns.map(part).collect::<Vec<_>>().join(" || '|' || ");
        let mut rows = database.text_column(&format!("SELECT {row} FROM \"{name}\"")).await;
        rows.sort();
        all_rows.insert(name.clone(), rows);
    }
    all_rows
}

/// Fills every table, and returns an agent and its tokens.
async fn fill_every_table(control: &mut ControlPlane, receiver: &Receiver) -> (Agent, Value) {
    let agent = Agent::register(control, "agent ünïcode \u{1f600} ' \" \\ {}").await;
    let role = control.create_role("reader", &["read"]).await;
    control.assign(&agent.id, &role).await;
    let target = Target::create(control, &receiver.url).await;
    let body = json!({ "name": "twice", "description": "", "permissions": [] });
    let request = control.api.request("POST", &control.path("/roles")).bearer_auth(control.key()).json(&body);
    countersign_tests::HttpResponse::send(request.header("idempotency-key", "once")).await.expect(201);
    let feedback = json!({ "agentId": agent.id, "score": 80, "reason": "fine", "metadata": { "a": [1, null, "ü"] } });
    control.api.send_as(control.key(), "POST", "/trust/feedback", feedback).await.expect(200);
    agent.token_for(control.service()).await;
    let pair = log_in_at(&control.api, &agent.id, &agent.key).await;
    let challenge = control.api.post("/auth/challenge", json!({ "agentId": agent.id })).await.expect(200);
    let invalid_login = json!({ "challengeId": challenge["challengeId"], "signature": "00".repeat(64) });
    assert_eq!(control.api.post("/auth/authenticate", invalid_login).await.error().1, "INVALID_SIGNATURE");
    let other = Agent::register(control, "other").await.id;
    let departure = format!("/agents/{other}/services/{}", control.service());
    control.api.send_as(control.human(), "PUT", &departure, json!({ "mayAssignRoles": false })).await.expect(200);
    let uris = json!({ "resourceUris": ["https://api.example"] });
    control.api.send_as(control.human(), "PATCH", &control.path(""), uris).await.expect(200);
    let offer = control.path("/transfer");
    control.api.send_as(control.human(), "PUT", &offer, json!({ "subject": "receiver" })).await.expect(200);
    control.set_status(&other, "suspended").await.expect(200);
    eventually(
        "events are delivered",
        async || (target.count_deliveries("delivered").await > 0).then_some(()),
        || control.log(),
    )
    .await;
    control.kill();
    // Inserts rows of kinds that normally exist only briefly.
    let transient_rows = "INSERT INTO changed_trust_scores VALUES ('agent_x'); \
                   INSERT INTO webhook_outbox VALUES ('evt_x', 'agent.authenticated', '{}', 1, ''); \
                   INSERT INTO agent_deletions VALUES ('issuer', 'subject', 1, 1); \
                   INSERT INTO audit_floors VALUES ('svc_x', 1, '', ''); \
                   INSERT INTO audit_checkpoints VALUES ('svc_x', 1, '', ''); \
                   INSERT INTO previous_master_keys SELECT master_key_fingerprint, 1 FROM deployment; \
                   INSERT INTO suppressed_bursts VALUES ('agent_x', '', 1, 2, 3) ON CONFLICT DO NOTHING";
    execute_on_file(&database_path(control), transient_rows).await;
    (agent, pair)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfer_copies_all_data_and_the_server_continues() {
    let (postgres, receiver) = (Postgres::start().await, Receiver::start_ok().await);
    let (url, mut control) = (postgres.create_database().await, ControlPlane::start_process().await);
    let sidecar = Sidecar::start(&control).await;
    assert_refused(&control, &["migrate", "--to", &url], &["a control plane uses this database"]);
    let (agent, pair) = fill_every_table(&mut control, &receiver).await;
    let mut file = open_file(&database_path(&control)).await;
    let tables = tables(&mut file).await;
    let before = rows(&mut file, &tables).await;
    file.close().await;
    let empty: Vec<_> = before.iter().filter(|(_, rows)| rows.is_empty()).map(|(name, _)| name).collect();
    assert!(empty.is_empty(), "this test must fill every table, but {empty:?} are empty");

    let secret = url.replace("postgres@", "postgres:hunter2@");
    let message = succeed(&control, &["migrate", "--to", &secret]);
    assert!(!message.contains("hunter2") && message.contains("are equal in both databases"), "{message}");
    assert!(message.contains("database.url") && message.contains("master.key"), "{message}");
    for (name, rows) in &before {
        let line = message
            .lines()
            .find(|line| line.split(' ').next() == Some(name))
            .expect("the output has a line for each table");
        assert_eq!(line.split_whitespace().nth(1), Some(rows.len().to_string().as_str()), "{line}");
    }
    let mut target = Database::open(&url).await;
    assert_eq!(rows(&mut target, &tables).await, before, "the target has the same rows");
    let mut file = open_file(&database_path(&control)).await;
    assert_eq!(rows(&mut file, &tables).await, before, "the source is unchanged");
    file.close().await;
    assert_start_refused(&control, &[], "migrated to PostgreSQL").await;
    assert_refused(&control, &["migrate", "--to", &postgres.create_database().await], &["already migrated", "restore"]);
    let backup = control.folder().join("old.db");
    assert_refused(&control, &["backup", backup.to_str().unwrap()], &["migrated to PostgreSQL", "set database.url"]);
    assert!(!backup.exists());

    control.restart_with(&format!("database.url={url}")).await;
    control.verify(&text(&pair["accessToken"])).await.expect(200);
    assert_eq!(sidecar.check_token(&text(&pair["accessToken"])).await.status, 200);
    control.api.post("/auth/refresh", json!({ "refreshToken": pair["refreshToken"] })).await.expect(200);
    let verified = control.command(&["audit", "verify"]);
    assert!(verified.status.success(), "{verified:?}");
    // Logins and revocations work after the transfer.
    let token = text(&log_in_at(&control.api, &agent.id, &agent.key).await["accessToken"]);
    sidecar.wait_until_accepted(&token).await;
    control.set_status(&agent.id, "revoked").await.expect(200);
    sidecar.wait_until_refused(&token, "agent_revoked").await;
    assert_refused(&control, &["migrate", "--to", &url], &["pg_dump"]);
}

#[tokio::test]
async fn transfer_refuses_a_target_that_is_not_empty() {
    let postgres = Postgres::start().await;
    let (url, other_url) = (postgres.create_database().await, postgres.create_database().await);
    let mut control = ControlPlane::start_process().await;
    let other = ControlPlane::start_process_with(&[&format!("database.url={url}")]).await;
    control.terminate().await;
    assert_refused(&control, &["migrate", "--to", &url], &["is not empty", "rows in"]);
    other.create_role("later", &[]).await;
    let mut other_database = Database::open(&other_url).await;
    other_database.execute("CREATE TABLE theirs (id BIGINT)").await;
    assert_refused(&control, &["migrate", "--to", &other_url], &["`theirs`", "of another application"]);
    let tables = "information_schema.tables WHERE table_schema = 'public'";
    assert_eq!(other_database.count(tables).await, 1, "no table is created");
    assert_refused(&control, &["migrate", "--to", "sqlite://somewhere"], &["--to: must be postgres://"]);
    let unknown_database =
        url.replace("postgres@127.0.0.1", "postgres:hunter2@127.0.0.1").replace("countersign_0", "no_such_database");
    let message = assert_refused(&control, &["migrate", "--to", &unknown_database], &["no_such_database"]);
    assert!(!message.contains("hunter2"));
    // A target database with an empty schema is accepted, and so is a source database whose earlier transfers were refused.
    let url = postgres.create_database().await;
    succeed(&control, &["--set", &format!("database.url={url}"), "migrate"]);
    succeed(&control, &["migrate", "--to", &url]);
    // `restore` makes the source database usable again.
    assert!(succeed(&control, &["restore"]).contains("restore completed"));
    control.restart().await;
}

/// Another program, such as the SQLite shell, does not respect the lock of the control plane, and can write during a transfer.
#[tokio::test]
async fn transfer_refuses_a_source_in_use() {
    let (postgres, mut control) = (Postgres::start().await, ControlPlane::start_process().await);
    control.terminate().await;
    let mut writer = open_file(&database_path(&control)).await;
    writer.execute("BEGIN IMMEDIATE").await;
    let url = postgres.create_database().await;
    assert_refused(&control, &["migrate", "--to", &url], &["locked"]);
    writer.execute("ROLLBACK").await;
    writer.close().await;
    succeed(&control, &["migrate", "--to", &url]);
}

/// A server with the target database sends the deliveries that were pending in the source database.
#[tokio::test]
async fn pending_webhook_deliveries_survive_the_transfer() {
    let (postgres, receiver) = (Postgres::start().await, Receiver::start(Reply::Status(500)).await);
    let mut control = ControlPlane::start_process_with(&["webhooks.retry_seconds=1,1,1,1,1,1,1,1,1"]).await;
    let agent = Agent::register(&control, "agent").await;
    let role = control.create_role("reader", &[]).await;
    let _target = Target::create_for(&control, &receiver.url, &["agent.role_assigned"]).await;
    control.assign(&agent.id, &role).await;
    receiver.wait_for_requests(1).await;
    control.terminate().await;
    let url = postgres.create_database().await;
    succeed(&control, &["migrate", "--to", &url]);
    receiver.set_reply(Reply::Status(204));
    control.restart_with(&format!("database.url={url}")).await;
    let requests = receiver.wait_for_requests(2).await;
    assert_eq!(requests[0].header("webhook-id"), requests.last().unwrap().header("webhook-id"));
}
