//! Inserts many rows into the database of a stopped control plane, for benchmarks.

use countersign_process::{Clock, SystemClock};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor};

/// Number of rows that one statement inserts.
const BATCH: i64 = 100_000;

/// The database, and the agent whose copies are inserted.
pub struct BulkInserts<'a> {
    /// The connection.
    pub database: AnyConnection,
    /// The id of the agent.
    pub template: &'a str,
}

impl<'a> BulkInserts<'a> {
    /// Connects to a database.
    pub async fn connect(url: &str, template: &'a str) -> Self {
        sqlx::any::install_default_drivers();
        Self { database: AnyConnection::connect(url).await.expect("the database accepts connections"), template }
    }

    /// Whether the database is SQLite. Otherwise, it is PostgreSQL.
    pub fn is_sqlite(&self) -> bool {
        self.database.backend_name() == "SQLite"
    }

    /// Makes SQLite faster and less durable for this connection.
    pub async fn prepare(&mut self) {
        if self.is_sqlite() {
            self.execute("PRAGMA synchronous = OFF").await;
            self.execute("PRAGMA cache_size = -1000000").await;
        }
    }

    /// Executes a statement.
    pub async fn execute(&mut self, sql: &str) {
        let result = self.database.execute(AssertSqlSafe(sql)).await;
        result.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// Inserts copies of the template agent, numbered from `first` to `last`, all with this status.
    pub async fn agents(&mut self, (first, last): (i64, i64), status: &str) {
        let (template, id) = (self.template, self.agent_id("n"));
        for (first, last) in batches(first, last) {
            let numbers = numbers(first, last);
            self.execute(&format!(
                "{numbers} INSERT INTO agents (id, email, name, public_key, public_key_hash, status, cutoff, trust, metadata, \
                 created_at, updated_at, superseded_at) SELECT {id}, email, name, public_key, public_key_hash, '{status}', \
                 cutoff, trust, metadata, created_at, updated_at, created_at FROM agents, numbers WHERE id = '{template}'"
            ))
            .await;
        }
    }

    /// Inserts one change of each copy from `first` to `last`, for a service. `facet` is what has changed: `status`, `trust` or
    /// `roles`.
    pub async fn changes(&mut self, (first, last): (i64, i64), facet: &str, service: &str) {
        let (now, id) = (SystemClock.now().micros(), self.agent_id("n"));
        for (first, last) in batches(first, last) {
            let (count, numbers) = (last - first + 1, numbers(first, last));
            // Each change gets a revision of its own, up to the new revision of the feed.
            self.execute(&format!("UPDATE feed SET revision = revision + {count}")).await;
            self.execute(&format!(
                "{numbers} INSERT INTO changes (revision, position, facet, subject, recipient, recorded_at, agent_state) SELECT \
                 (SELECT revision FROM feed) - {last} + n, 0, '{facet}', id, '{service}', {now}, \
                 CASE WHEN '{facet}' <> 'roles' THEN trust || '|' || status || '|' || cutoff END \
                 FROM numbers JOIN agents ON id = {id}"
            ))
            .await;
        }
    }

    /// Assigns roles of a service to each copy from number `first` to `last`.
    pub async fn assignments(&mut self, (first, last): (i64, i64), service: &str, roles: &[String]) {
        let id = self.agent_id("n");
        for role in roles {
            for (first, last) in batches(first, last) {
                self.execute(&format!(
                    "{} INSERT INTO assignments (agent_id, role_id, service_id, assigned_at) \
                     SELECT {id}, '{role}', '{service}', 0 FROM numbers",
                    numbers(first, last)
                ))
                .await;
            }
        }
    }

    /// Collects statistics about the tables, by which the database plans queries. A database in use has them.
    pub async fn analyze(&mut self) {
        self.execute(if self.is_sqlite() { "PRAGMA optimize" } else { "VACUUM ANALYZE" }).await;
    }

    /// Copies the inserted rows from the write-ahead log to the files of the tables. Otherwise, the first commits of the control plane
    /// would copy them.
    pub async fn checkpoint(&mut self) {
        self.execute(if self.is_sqlite() { "PRAGMA wal_checkpoint(TRUNCATE)" } else { "CHECKPOINT" }).await;
    }

    /// A SQL expression for the id of the copy with this number.
    pub fn agent_id(&self, number: &str) -> String {
        let template = self.template;
        format!("substr('{template}', 1, 16) || substr(CAST(10000000000000000 + {number} AS TEXT), 2)")
    }
}

/// The id of the copy of an agent with this number.
pub fn copy_id(template: &str, number: i64) -> String {
    format!("{}{number:016}", &template[..16])
}

/// The first and the last number of each batch.
pub fn batches(first: i64, last: i64) -> impl Iterator<Item = (i64, i64)> {
    std::iter::successors(Some(first), |first| Some(first + BATCH))
        .take_while(move |first| *first <= last)
        .map(move |first| (first, (first + BATCH - 1).min(last)))
}

/// SQL of a table `numbers (n)` with these numbers.
pub fn numbers(first: i64, last: i64) -> String {
    format!(
        "WITH RECURSIVE numbers(n) AS (SELECT CAST({first} AS BIGINT) UNION ALL SELECT n + 1 FROM numbers WHERE n < {last})"
    )
}
