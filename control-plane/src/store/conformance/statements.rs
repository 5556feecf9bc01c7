//! Prepares every statement of the store on each engine that executes it.

use super::StoreFixture;
use crate::store::{
    agents, assignments, audit, changed_data, changed_roles, conn, deleted_agents, deliveries, departures, deployment,
    due_targets, engine, feed, group_commit, idempotency, known_agents, logins, master_keys, outbox, pools, postgres,
    purge, quotas, recent_changes, resource_uris, roles, row_lists::RowListStatement, schema::MIGRATIONS_TABLE,
    sealed_secrets, service_transfers, services, sessions, sidecars, signing_keys, sqlite_file, token_audiences,
    totals, transfer, trust, unbound_roles, unconfirmed_changes, unused_agents, webhook_cleanup, webhook_targets,
};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor, PgConnection, Row, SqlSafeStr, SqliteConnection};

/// A list of statements: file, name of the list, statements.
pub type StatementList = (&'static str, &'static str, &'static [&'static str]);

/// The statements for both engines.
pub const COMMON_LISTS: [StatementList; 38] = [
    ("agents.rs", "STATEMENTS", agents::STATEMENTS),
    ("assignments.rs", "STATEMENTS", assignments::STATEMENTS),
    ("audit.rs", "STATEMENTS", audit::STATEMENTS),
    ("audit/checkpoints.rs", "STATEMENTS", audit::CHECKPOINT_STATEMENTS),
    ("audit/floors.rs", "STATEMENTS", audit::FLOOR_STATEMENTS),
    ("audit/list.rs", "STATEMENTS", audit::LIST_STATEMENTS),
    ("changed_data.rs", "STATEMENTS", changed_data::STATEMENTS),
    ("conn.rs", "STATEMENTS", conn::STATEMENTS),
    ("deleted_agents.rs", "STATEMENTS", deleted_agents::STATEMENTS),
    ("deliveries.rs", "STATEMENTS", deliveries::STATEMENTS),
    ("departures.rs", "STATEMENTS", departures::STATEMENTS),
    ("deployment.rs", "STATEMENTS", deployment::STATEMENTS),
    ("due_targets.rs", "STATEMENTS", due_targets::STATEMENTS),
    ("feed.rs", "STATEMENTS", feed::STATEMENTS),
    ("idempotency.rs", "STATEMENTS", idempotency::STATEMENTS),
    ("known_agents.rs", "STATEMENTS", known_agents::STATEMENTS),
    ("logins.rs", "STATEMENTS", logins::STATEMENTS),
    ("master_keys.rs", "STATEMENTS", master_keys::STATEMENTS),
    ("outbox.rs", "STATEMENTS", outbox::STATEMENTS),
    ("purge.rs", "STATEMENTS", purge::STATEMENTS),
    ("quotas.rs", "STATEMENTS", quotas::STATEMENTS),
    ("recent_changes.rs", "STATEMENTS", recent_changes::STATEMENTS),
    ("resource_uris.rs", "STATEMENTS", resource_uris::STATEMENTS),
    ("roles.rs", "STATEMENTS", roles::STATEMENTS),
    ("sealed_secrets.rs", "STATEMENTS", sealed_secrets::STATEMENTS),
    ("service_transfers.rs", "STATEMENTS", service_transfers::STATEMENTS),
    ("services.rs", "STATEMENTS", services::STATEMENTS),
    ("sessions.rs", "STATEMENTS", sessions::STATEMENTS),
    ("sidecars.rs", "STATEMENTS", sidecars::STATEMENTS),
    ("signing_keys.rs", "STATEMENTS", signing_keys::STATEMENTS),
    ("token_audiences.rs", "STATEMENTS", token_audiences::STATEMENTS),
    ("totals.rs", "STATEMENTS", totals::STATEMENTS),
    ("trust.rs", "STATEMENTS", trust::STATEMENTS),
    ("unbound_roles.rs", "STATEMENTS", unbound_roles::STATEMENTS),
    ("unconfirmed_changes.rs", "STATEMENTS", unconfirmed_changes::STATEMENTS),
    ("unused_agents.rs", "STATEMENTS", unused_agents::STATEMENTS),
    ("webhook_cleanup.rs", "STATEMENTS", webhook_cleanup::STATEMENTS),
    ("webhook_targets.rs", "STATEMENTS", webhook_targets::STATEMENTS),
];

/// The statements for SQLite only.
const SQLITE_LISTS: [StatementList; 6] = [
    ("engine.rs", "SQLITE_STATEMENTS", engine::SQLITE_STATEMENTS),
    ("group_commit.rs", "SQLITE_STATEMENTS", group_commit::SQLITE_STATEMENTS),
    ("pools.rs", "SQLITE_STATEMENTS", pools::SQLITE_STATEMENTS),
    ("sqlite_file.rs", "SQLITE_STATEMENTS", sqlite_file::SQLITE_STATEMENTS),
    ("transfer.rs", "SQLITE_STATEMENTS", transfer::SQLITE_STATEMENTS),
    ("transfer/tables.rs", "SQLITE_STATEMENTS", transfer::SQLITE_CATALOG),
];

/// The statements for PostgreSQL only.
const POSTGRES_LISTS: [StatementList; 6] = [
    ("engine.rs", "POSTGRES_STATEMENTS", engine::POSTGRES_STATEMENTS),
    ("logins.rs", "POSTGRES_STATEMENTS", logins::POSTGRES_STATEMENTS),
    ("pools.rs", "POSTGRES_STATEMENTS", pools::POSTGRES_STATEMENTS),
    ("postgres.rs", "POSTGRES_STATEMENTS", postgres::POSTGRES_STATEMENTS),
    ("transfer.rs", "POSTGRES_STATEMENTS", transfer::POSTGRES_STATEMENTS),
    ("transfer/tables.rs", "POSTGRES_STATEMENTS", transfer::POSTGRES_CATALOG),
];

/// The statements with a list of rows, for both engines.
pub const ROW_LISTS: [(&str, &[RowListStatement]); 8] = [
    ("assignments.rs", assignments::ROW_LISTS),
    ("changed_roles.rs", changed_roles::ROW_LISTS),
    ("feed.rs", feed::ROW_LISTS),
    ("outbox.rs", outbox::ROW_LISTS),
    ("services.rs", services::ROW_LISTS),
    ("sessions.rs", sessions::ROW_LISTS),
    ("unbound_roles.rs", unbound_roles::ROW_LISTS),
    ("unused_agents.rs", unused_agents::ROW_LISTS),
];

/// All lists of statements without a list of rows.
pub fn statement_lists() -> impl Iterator<Item = StatementList> {
    COMMON_LISTS.into_iter().chain(SQLITE_LISTS).chain(POSTGRES_LISTS)
}

/// The statements for both engines that are built at run time, with all numbers of rows.
pub fn dynamic_statements() -> impl Iterator<Item = String> {
    ROW_LISTS.into_iter().flat_map(|(_, list)| list).flat_map(|statement| statement.texts())
}

const INSERT_CHANGES: &str = "WITH RECURSIVE numbers(n) AS (SELECT CAST(1 AS BIGINT) UNION ALL SELECT n + 1 FROM numbers \
     WHERE n < 100000) INSERT INTO changes (revision, position, facet, subject, recipient, recorded_at) \
     SELECT n, 0, 'status', 'agent', 'svc_x', 0 FROM numbers";

/// The tables of the schema with their columns, and for each column whether it contains numbers.
pub async fn tables(connection: &mut AnyConnection, is_sqlite: bool) -> Vec<(String, Vec<(String, bool)>)> {
    let sql = if is_sqlite {
        "SELECT m.name AS t, c.name AS c, lower(c.type) AS kind FROM sqlite_master m JOIN pragma_table_info(m.name) c \
         WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%' ORDER BY m.name, c.name"
    } else {
        "SELECT CAST(table_name AS TEXT) AS t, CAST(column_name AS TEXT) AS c, CAST(data_type AS TEXT) AS kind \
         FROM information_schema.columns WHERE table_schema = current_schema() ORDER BY 1, 2"
    };
    let rows = connection.fetch_all(sql).await.unwrap();
    let mut tables: Vec<(String, Vec<(String, bool)>)> = Vec::new();
    for row in &rows {
        let [table, column, kind]: [String; 3] = ["t", "c", "kind"].map(|name| row.try_get(name).unwrap());
        if table == MIGRATIONS_TABLE {
            continue;
        }
        let column = (column, kind == "bigint");
        match tables.last_mut() {
            Some((name, columns)) if *name == table => columns.push(column),
            _ => tables.push((table, vec![column])),
        }
    }
    tables
}

impl StoreFixture {
    pub fn is_sqlite(&self) -> bool {
        self.first.engine_name() == "sqlite"
    }

    /// Background work finds and deletes rows in small transactions, by statements that use an index. [`super::query_plans`] checks
    /// the statements of webhooks, because SQLite reports a read in the order of an index as a scan.
    pub async fn deletions_in_batches_use_indexes(&self) {
        if !self.is_sqlite() {
            return;
        }
        let mut connection = AnyConnection::connect(&self.url).await.unwrap();
        let is_batch = |sql: &String| sql.starts_with("DELETE FROM") && sql.contains("LIMIT $");
        let is_oldest = |sql: &String| sql.contains("AS oldest FROM") && sql.starts_with("SELECT ");
        let mut checked = 0;
        for sql in statement_texts(COMMON_LISTS).filter(|sql| is_batch(sql) || is_oldest(sql)) {
            let is_about = |table: &&str| sql.contains(table);
            if ["webhook_outbox", "webhook_targets"].iter().any(is_about) {
                continue;
            }
            // SQLite takes NULL for parameters that are not bound. The plan does not depend on their values.
            let plan = connection.fetch_all(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"))).await.unwrap();
            for row in plan {
                let step: String = row.try_get("detail").unwrap();
                assert!(!step.starts_with("SCAN"), "{step}: {sql}");
            }
            checked += 1;
        }
        assert!(checked > 20, "only {checked} statements");
    }

    /// The planner must choose the index without statistics, and with statistics that all changes have the same recipient.
    pub async fn changes_of_a_recipient_are_read_by_their_index(&self) {
        let mut connection = AnyConnection::connect(&self.url).await.unwrap();
        connection.execute("BEGIN").await.unwrap();
        let statement = changed_data::STATEMENTS.iter().find(|sql| sql.contains("$4")).unwrap();
        let explain = if self.is_sqlite() { "EXPLAIN QUERY PLAN" } else { "EXPLAIN" };
        let values = [("$1", "10"), ("$2", "90000"), ("$3", "2000"), ("$4", "'svc_x'"), ("$5", "'svc_y'")];
        let sql = values.iter().fold((*statement).to_owned(), |sql, (name, value)| sql.replace(name, value));
        for statistics in [false, true] {
            if statistics {
                connection.execute(INSERT_CHANGES).await.unwrap();
                connection.execute("ANALYZE").await.unwrap();
            }
            let plan = connection.fetch_all(AssertSqlSafe(format!("{explain} {sql}"))).await.unwrap();
            let column = if self.is_sqlite() { "detail" } else { "QUERY PLAN" };
            let steps: Vec<String> = plan.iter().map(|row| row.try_get(column).unwrap()).collect();
            let plan = steps.join("\n");
            assert_eq!(plan.matches("changes_of_recipient").count(), 3, "with statistics: {statistics}\n{plan}");
            assert!(!plan.contains("Seq Scan on changes") && !plan.contains("changes_pkey"), "{plan}");
        }
        connection.execute("ROLLBACK").await.unwrap();
    }

    pub async fn engine_accepts_every_statement(&self) {
        let mut connection = AnyConnection::connect(&self.url).await.unwrap();
        let common = statement_texts(COMMON_LISTS).chain(dynamic_statements()).collect::<Vec<_>>();
        assert!(common.len() > 100, "only {} statements", common.len());
        check_statements(&mut connection, common).await;
        if self.is_sqlite() {
            check_statements(&mut SqliteConnection::connect(&self.url).await.unwrap(), statement_texts(SQLITE_LISTS))
                .await;
            return;
        }
        let tables = tables(&mut connection, false).await;
        let transfer = tables.iter().flat_map(|(table, columns)| transfer::statements_of_table(table, columns));
        let statements = statement_texts(POSTGRES_LISTS).chain(pools::dynamic_statements()).chain(transfer);
        check_statements(&mut PgConnection::connect(&self.url).await.unwrap(), statements).await;
    }
}

pub fn statement_texts(lists: impl IntoIterator<Item = StatementList>) -> impl Iterator<Item = String> {
    lists.into_iter().flat_map(|(_, _, list)| list).map(ToString::to_string)
}

/// Prepares statements without running them.
async fn check_statements<C>(connection: &mut C, statements: impl IntoIterator<Item = String>)
where
    for<'e> &'e mut C: Executor<'e>,
{
    for sql in statements {
        let result = connection.prepare(AssertSqlSafe(sql.clone()).into_sql_str()).await;
        assert!(result.is_ok(), "{:?}: {sql}", result.err());
    }
}
