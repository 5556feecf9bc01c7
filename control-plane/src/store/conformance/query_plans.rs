//! Tests that no statement reads all rows of a table that a tenant can make large, with and without statistics of the database.

use super::{
    options,
    statements::{COMMON_LISTS, dynamic_statements, statement_texts},
};
use crate::store::{OpenMode, Store, WriteTransaction, pools, query::params, row, sessions};
use countersign_identity::Timestamp;
use countersign_test_engines::Postgres;
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor, PgConnection, Row, any::AnyRow};
use std::collections::BTreeSet;

/// The tables that are checked.
const TABLES: [&str; 11] = [
    "sessions",
    "service_keys",
    "webhook_outbox",
    "webhook_deliveries",
    "assignments",
    "agent_departures",
    "audit_entries",
    "trust_feedback",
    "trust_ratings",
    "webhook_targets",
    "sidecars",
];

/// Parts of statements that may read a table without an index, because they stop at a limit, or because no request runs them.
const UNCHECKED: [&str; 6] = [
    // PostgreSQL reads the table up to the limit if most entries are in the range of times.
    "FROM audit_entries WHERE (at + 0) >= $2 AND (at + 0) <= $3 AND $1 = '' LIMIT $4 + 0",
    // Finds the first row.
    "SELECT chain FROM audit_entries LIMIT 1",
    // Runs in the commands `audit verify` and `audit export`.
    "SELECT DISTINCT chain FROM audit_entries",
    // Finds the first row.
    "SELECT 1 AS one FROM webhook_outbox LIMIT 1",
    // The metrics count pending deliveries up to this limit, once in several seconds.
    "FROM webhook_deliveries WHERE due_at IS NOT NULL LIMIT 100000",
    // Runs in the command `restore`.
    "AS longest FROM sidecars",
];

/// Parts of statements of background work that PostgreSQL runs with an index only if it has statistics of the table.
const NEED_STATISTICS: [&str; 1] = [
    // Only the rotation of the master key runs this statement.
    "SELECT id, secret, previous_secret FROM webhook_targets",
];

/// Parts of statements, and the index that such a statement must use. With another index, it would read rows only to skip them.
const REQUIRED_INDEXES: [(&str, &str); 29] = [
    (
        "DELETE FROM trust_feedback WHERE id IN (SELECT id FROM trust_feedback WHERE agent_id = $1 AND service_id",
        "trust_feedback_by_service",
    ),
    ("FROM assignments a WHERE a.service_id = $1 AND a.agent_id < $2", "assignments_by_service"),
    ("FROM assignments a WHERE a.role_id = $1 AND a.agent_id < $2", "assignments_of_role"),
    ("FROM assignments WHERE service_id = $1 AND agent_id < $2", "assignments_by_service"),
    ("FROM assignments WHERE role_id = $1 AND agent_id < $2", "assignments_of_role"),
    ("FROM assignments WHERE agent_id = $1 AND service_id < $", "assignments_of_agent_by_service"),
    ("at >= $2 AND at <= $3 AND chain = $1", "audit_entries_of_chain_by_time"),
    ("at >= $2 AND at <= $3 AND agent_id = $1", "audit_entries_by_agent"),
    ("(at + 0) >= $2 AND (at + 0) <= $3 AND $1 = ''", "audit_entries_by_time"),
    // Both indexes of the table begin with the agent, so either one is good.
    ("FROM trust_feedback WHERE agent_id = $1 LIMIT", "trust_feedback_by_"),
    ("FROM trust_feedback WHERE agent_id = $1 AND (created_at", "trust_feedback_by_agent"),
    ("SELECT id FROM sessions WHERE agent_id = $1 AND ended_at IS NULL", "sessions_of_agent"),
    ("FROM service_keys WHERE service_id = $1 AND revoked_at IS NULL LIMIT", "live_service_keys"),
    ("UPDATE service_keys SET revoked_at = $1 WHERE service_id = $2", "live_service_keys"),
    (
        "DELETE FROM service_keys WHERE id IN (SELECT id FROM service_keys WHERE service_id = $1 AND revoked_at IS NOT NULL",
        "revoked_service_keys",
    ),
    ("DELETE FROM webhook_outbox", "webhook_outbox_by_id"),
    ("WHERE d.target_id = $1 AND d.delivered_at IS NOT NULL", "delivered_webhook_deliveries"),
    ("WHERE d.target_id = $1 AND d.dead_since IS NOT NULL", "dead_webhook_deliveries"),
    ("AND d.event_id > $2 AND d.dead_since IS NOT NULL", "dead_webhook_deliveries"),
    (">= $5 AND delivered_at IS NOT NULL", "delivered_webhook_deliveries"),
    (">= $5 AND dead_since IS NOT NULL", "dead_webhook_deliveries"),
    ("FROM webhook_deliveries d WHERE d.event_id < $1", "webhook_deliveries_by_event"),
    ("FROM webhook_targets w WHERE w.deleted_at IS NOT NULL", "deleted_webhook_targets"),
    ("WITH RECURSIVE pending", "webhook_deliveries_due"),
    ("WHERE control_plane_id = $2 AND ended_at IS NULL", "sidecars_by_control_plane"),
    ("FROM sidecars WHERE expires_at >= $1 AND", "sidecars_by_expiry"),
    ("WHERE d.test_requested_at IS NOT NULL AND d.due_at <= $1", "webhook_deliveries_tests"),
    ("DELETE FROM assignments WHERE agent_id = $1 AND role_id = $2", AGENT_AND_ROLE),
    ("UPDATE assignments SET expiry_reported_at = $1 WHERE agent_id = $2", AGENT_AND_ROLE),
];

/// Stands for an index of the agent and the role: the primary key of `assignments`, or `assignments_of_role` with both columns.
const AGENT_AND_ROLE: &str = "agent and role";

fn uses_index_of_agent_and_role(plan: &str) -> bool {
    let on_sqlite = ["sqlite_autoindex_assignments", "assignments_of_role (role_id=? AND agent_id=?)"];
    on_sqlite.iter().any(|text| plan.contains(text))
        || plan.contains("assignments_pkey")
        || (plan.contains("using assignments_of_role") && plan.contains(" AND (agent_id = "))
}

/// Only statements with the maximum number of rows have this parameter. We do not check these statements: to find 256 rows,
/// PostgreSQL reads a small table as a whole.
const LAST_PARAMETER: &str = "$256";

/// Fills the tables with rows of 60 tenants. Only a few rows are live.
const FILL: [&str; 14] = [
    "INSERT INTO agents (id, email, name, public_key, public_key_hash, status, cutoff, trust, metadata, created_at, updated_at) \
     SELECT 'agt_' || n, '', '', '', n, 'active', 0, 0, '{}', 0, 0 FROM numbers WHERE n <= 400",
    "INSERT INTO services (id, owner_issuer, owner_subject, name, created_at) SELECT 'svc_' || n, '', '', '', 0 \
     FROM numbers WHERE n <= 60",
    "INSERT INTO sessions (id, challenge_id, agent_id, started_at, started_revision, expires_at, ended_at, audiences, \
     refresh_common_hash, refresh_hash) SELECT 'ses_' || n, n, 'agt_' || (n % 60 + 1), n, 0, n + 9, CASE WHEN n % 100 = 0 THEN NULL ELSE n + 5 END, \
     '', '', '' FROM numbers",
    "INSERT INTO service_keys (id, service_id, name, scope, secret_hash, created_at, revoked_at) \
     SELECT 'key_' || n, 'svc_' || (n % 60 + 1), '', 'full', '', n, CASE WHEN n % 100 = 0 THEN NULL ELSE n END FROM numbers",
    "INSERT INTO trust_feedback SELECT 'feedback_' || (n + 100000), 'agt_' || (n % 60 + 1), 'svc_' || (n % 7 + 1), 0, '', '{}', n \
     FROM numbers",
    "INSERT INTO trust_ratings (agent_id, service_id, weight, mean, rated_at) \
     SELECT 'agt_' || (n % 400 + 1), 'svc_' || (n / 400 + 1), 1, 1, n FROM numbers",
    "INSERT INTO webhook_outbox (id, kind, body, occurred_at, service_id) \
     SELECT 'evt_' || (n + 100000), 'agent.authenticated', '{}', n, '' FROM numbers",
    "INSERT INTO webhook_deliveries (target_id, event_id, due_at, attempts, delivered_at, dead_since) \
     SELECT 'wh_' || (n % 60 + 1), 'evt_' || (n + 100000), CASE WHEN n % 3 = 0 THEN n END, 1, CASE WHEN n % 3 = 1 THEN n END, \
     CASE WHEN n % 3 = 2 THEN n END FROM numbers",
    "INSERT INTO roles (id, service_id, name, description, permissions, created_revision, created_at) \
     SELECT 'role_' || n, 'svc_' || n, '', '', '[]', 0, 0 FROM numbers WHERE n <= 60",
    "INSERT INTO assignments (agent_id, role_id, service_id, assigned_at) \
     SELECT 'agt_' || (n % 400 + 1), 'role_' || (n / 400 + 1), 'svc_' || (n / 400 + 1), n FROM numbers",
    "INSERT INTO agent_departures (agent_id, service_id, left_at) \
     SELECT 'agt_' || (n % 400 + 1), 'svc_' || (n / 400 + 1), n FROM numbers",
    "INSERT INTO audit_entries (chain, sequence, at, action, actor_kind, agent_id, details, previous_hash, hash, mac) \
     SELECT 'svc_' || (n % 60 + 1), n, n, '', '', 'agt_' || (n % 60 + 1), '', '', '', '' FROM numbers",
    "INSERT INTO webhook_targets (id, service_id, url, events, description, secret, created_at, updated_at, active_since, deleted_at) \
     SELECT 'wh_' || n, 'svc_' || (n % 6000 + 1), '', '', '', '', 0, 0, 0, CASE WHEN n % 100 = 0 THEN n END FROM numbers",
    "INSERT INTO sidecars (instance, key_id, service_id, control_plane_id, stream, address, release, \
     connected_at, applied_revision, required_revision, ended_at, expires_at, max_staleness) SELECT 'instance_' || n, 'key_' || n, \
     'svc_' || (n % 60 + 1), n % 3, n, '', '', n, n, n, CASE WHEN n % 3 = 1 THEN n END, CASE WHEN n % 3 = 1 THEN n END, 1 \
     FROM numbers",
];

/// The numbers that [`FILL`] selects from.
const NUMBERS: &str = "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 20000) ";

#[tokio::test]
async fn no_statement_scans_a_table_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("countersign.db");
    drop(Store::open_sqlite(OpenMode::Serve, &file, options("ours")).await.unwrap());
    let url = format!("sqlite://{}", file.display());
    let mut connection = AnyConnection::connect(&url).await.unwrap();
    check_sqlite_plans(&mut connection).await;
    fill(&mut connection).await;
    connection.execute("ANALYZE").await.unwrap();
    // SQLite reads the statistics when it opens a connection, so we open a new one.
    check_sqlite_plans(&mut AnyConnection::connect(&url).await.unwrap()).await;
}

#[tokio::test]
async fn no_statement_scans_a_table_on_postgresql() {
    let server = Postgres::start().await;
    let url = server.create_database().await;
    drop(Store::open_postgres(OpenMode::Serve, &url.clone().into(), 8, options("ours")).await.unwrap());
    fill(&mut AnyConnection::connect(&url).await.unwrap()).await;
    let mut connection = connect_as_pool(&url).await;
    check_postgres_plans(&mut connection, |sql| !NEED_STATISTICS.iter().any(|part| sql.contains(part))).await;
    connection.execute("VACUUM ANALYZE").await.unwrap();
    check_postgres_plans(&mut connection, |_| true).await;
}

async fn connect_as_pool(url: &str) -> PgConnection {
    let mut connection = PgConnection::connect(url).await.unwrap();
    for setting in pools::dynamic_statements() {
        connection.execute(AssertSqlSafe(setting)).await.unwrap();
    }
    connection
}

/// A prepared statement keeps its plan when the table grows, so even the plan for an empty table must use an index.
#[tokio::test]
async fn no_statement_of_an_empty_table_scans_it_on_postgresql() {
    let server = Postgres::start().await;
    let url = server.create_database().await;
    let store = Store::open_postgres(OpenMode::Serve, &url.clone().into(), 8, options("ours")).await.unwrap();
    let mut connection = connect_as_pool(&url).await;
    connection.execute("VACUUM ANALYZE").await.unwrap();
    let problems = problems_of_postgres_plans(&mut connection, |_| true).await;
    // All indexes of an empty table cost the same, so PostgreSQL may use another one than the required index.
    let scans: Vec<_> = problems.into_iter().filter(|problem| problem.contains("Seq Scan on")).collect();
    assert!(scans.is_empty(), "{}", scans.join("\n\n"));
    drop(store);
}

#[tokio::test]
async fn statements_are_planned_once_on_postgresql() {
    let server = Postgres::start().await;
    let url = server.create_database().await;
    let store = Store::open_postgres(OpenMode::Serve, &url.clone().into(), 8, options("ours")).await.unwrap();
    fill(&mut AnyConnection::connect(&url).await.unwrap()).await;
    let work = async |mut tx: WriteTransaction| {
        assert!(store.try_begin_job(&mut tx, "a job").await?);
        for _ in 0..10 {
            let (from, until) = (Timestamp::from_micros(0), Timestamp::from_micros(20_000));
            assert!(sessions::EXPIRED.delete(tx.conn(), from, until, 10).await? > 0);
        }
        let sql = "SELECT CAST(SUM(generic_plans) AS BIGINT) AS generic, CAST(SUM(custom_plans) AS BIGINT) AS custom \
             FROM pg_prepared_statements WHERE statement LIKE 'DELETE FROM %'";
        let plans = |row: &AnyRow| Ok(["generic", "custom"].map(|name| row::get::<i64>(row, name).unwrap()));
        let [generic, custom] = tx.conn().read_row(sql, params![], plans).await?;
        assert_eq!((generic, custom), (10, 0));
        tx.commit(()).await
    };
    store.write("delete_sessions", work).await.unwrap();
}

async fn fill(connection: &mut AnyConnection) {
    for sql in FILL {
        connection.execute(AssertSqlSafe(format!("{NUMBERS}{sql}"))).await.unwrap();
    }
}

/// The statements that read one of [`TABLES`].
fn checked_statements() -> Vec<String> {
    let reads = |sql: &str| !sql.starts_with("INSERT INTO") || sql.contains("SELECT");
    let is_checked = |sql: &String| {
        reads(sql) && words(sql).any(|word| TABLES.contains(&word)) && !UNCHECKED.iter().any(|part| sql.contains(part))
    };
    let dynamic = dynamic_statements().filter(|sql| !sql.contains(LAST_PARAMETER));
    let statements: Vec<_> = statement_texts(COMMON_LISTS).chain(dynamic).filter(is_checked).collect();
    assert!(statements.len() > 45, "only {} statements", statements.len());
    for (part, _) in REQUIRED_INDEXES {
        assert!(statements.iter().any(|sql| sql.contains(part)), "no statement contains: {part}");
    }
    statements
}

fn words(sql: &str) -> impl Iterator<Item = &str> {
    sql.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// The names in a statement of the checked tables: their own names, and their aliases of one letter.
fn names_of_tables(sql: &str) -> BTreeSet<&str> {
    let pairs = words(sql).zip(words(sql).skip(1)).filter(|(table, _)| TABLES.contains(table));
    pairs.flat_map(|(table, next)| [Some(table), (next.len() == 1).then_some(next)].into_iter().flatten()).collect()
}

/// The index that a statement must use but does not, if any.
fn unused_index(sql: &str, plan: &str) -> Option<&'static str> {
    let required = REQUIRED_INDEXES.iter().filter(|(part, _)| sql.contains(part));
    let is_used =
        |index: &str| if index == AGENT_AND_ROLE { uses_index_of_agent_and_role(plan) } else { plan.contains(index) };
    required.map(|(_, index)| *index).find(|index| !is_used(index))
}

async fn check_sqlite_plans(connection: &mut AnyConnection) {
    let mut problems = Vec::new();
    for sql in checked_statements() {
        // SQLite takes NULL for parameters that are not bound. The plan does not depend on their values.
        let rows = connection.fetch_all(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"))).await.unwrap();
        let plan: Vec<String> = rows.iter().map(|row| row.try_get("detail").unwrap()).collect();
        let scans = plan.iter().enumerate().filter(|(number, step)| {
            let scanned = step.strip_prefix("SCAN ").and_then(|rest| rest.split(' ').next());
            // A scan in the order of an index ends at the limit of its SELECT. The first step of a DELETE or UPDATE has no limit.
            let is_bounded =
                step.contains("USING") && sql.contains("LIMIT") && (*number > 0 || sql.starts_with("SELECT"));
            scanned.is_some_and(|name| names_of_tables(&sql).contains(name)) && !is_bounded
        });
        if scans.count() > 0 || unused_index(&sql, &plan.join("\n")).is_some() {
            problems.push(format!("{sql}\n{}", plan.join("\n")));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
}

async fn check_postgres_plans(connection: &mut PgConnection, includes: fn(&str) -> bool) {
    let problems = problems_of_postgres_plans(connection, includes).await;
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
}

/// The statements that scan a table or do not use the index that they must use, with their plans.
async fn problems_of_postgres_plans(connection: &mut PgConnection, includes: fn(&str) -> bool) -> Vec<String> {
    let mut problems = Vec::new();
    for sql in checked_statements().into_iter().filter(|sql| includes(sql)) {
        connection.execute(AssertSqlSafe(format!("PREPARE checked AS {sql}"))).await.unwrap();
        let count = "SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = 'checked'";
        let count: i32 = connection.fetch_one(count).await.unwrap().get(0);
        // The plans do not depend on the values of the parameters, so we pass NULL.
        let values = (0..count).map(|_| "NULL").collect::<Vec<_>>().join(", ");
        let execute = if values.is_empty() { "checked".to_owned() } else { format!("checked({values})") };
        let rows = connection.fetch_all(AssertSqlSafe(format!("EXPLAIN EXECUTE {execute}"))).await.unwrap();
        let plan: Vec<String> = rows.iter().map(|row| row.try_get(0).unwrap()).collect();
        let plan = plan.join("\n");
        let is_scan = TABLES.iter().any(|table| plan.contains(&format!("Seq Scan on {table}")));
        if is_scan || unused_index(&sql, &plan).is_some() {
            problems.push(format!("{sql}\n{plan}"));
        }
        connection.execute("DEALLOCATE checked").await.unwrap();
    }
    problems
}
