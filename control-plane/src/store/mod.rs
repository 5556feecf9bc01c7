//! Access to the database. The same SQL runs on SQLite and PostgreSQL. Each subject, such as agents, has its own file.
//!
//! Other modules use the store through [`Store::read`] and [`Store::write`]. The store depends on `domain` and `metrics`.
//!
//! Invariants: every statement is a constant in a list of its file, and the conformance tests prepare it on each engine that runs
//! it. A write transaction appends its changes for sidecars to the table `changes` under one revision. It takes the revision as
//! late as possible, because this locks the change feed until the commit.

pub mod agents;
pub mod assignments;
pub mod audit;
pub mod changed_data;
pub mod changed_roles;
mod commit_signals;
#[cfg(test)]
mod conformance;
mod conn;
mod connection_pool;
pub mod deleted_agents;
pub mod deliveries;
pub mod departures;
pub mod deployment;
pub mod due_targets;
mod engine;
mod failure;
pub mod feed;
mod group_commit;
pub mod idempotency;
pub mod known_agents;
pub mod logins;
pub mod master_keys;
pub mod outbox;
mod pools;
pub mod postgres;
pub mod purge;
mod query;
pub mod quotas;
pub mod recent_changes;
pub mod resource_uris;
mod retention;
pub mod roles;
mod row;
mod row_lists;
pub mod schema;
pub mod sealed_secrets;
pub mod service_transfers;
pub mod services;
pub mod sessions;
mod shared_read;
pub mod sidecars;
pub mod signing_keys;
pub mod sqlite_file;
mod statements;
pub mod token_audiences;
pub mod totals;
mod transaction;
mod transaction_timer;
pub mod transfer;
pub mod trust;
pub mod unbound_roles;
pub mod unconfirmed_changes;
pub mod unused_agents;
pub mod webhook_cleanup;
pub mod webhook_targets;

pub use conn::Conn;
pub use connection_pool::ConnectionFailures;
pub use engine::{OpenMode, Store, StoreOptions};
pub use failure::{StoreError, StoreFailure};
pub use shared_read::{SHARED_READ_TIMEOUT, SharedRead};
pub use transaction::{ReadTransaction, WriteTransaction};

#[cfg(test)]
mod tests {
    /// The column types that behave alike on both engines.
    const COLUMN_TYPES: [&str; 2] = ["TEXT", "BIGINT"];

    #[test]
    fn every_column_is_text_or_bigint() {
        let mut columns = 0;
        for (_, lines) in migrations() {
            for line in lines.iter().filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase())) {
                let column_type = line.split([' ', ',']).nth(1).unwrap_or_default();
                assert!(COLUMN_TYPES.contains(&column_type), "{line}");
                columns += 1;
            }
        }
        assert!(columns > 50, "only {columns} columns were read");
    }

    /// The schema version and the lines of each migration, without comments.
    fn migrations() -> Vec<(u32, Vec<String>)> {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
        let read = |entry: std::io::Result<std::fs::DirEntry>| {
            let path = entry.unwrap().path();
            let version = path.file_name().unwrap().to_str().unwrap()[..4].parse().unwrap();
            let sql = std::fs::read_to_string(&path).unwrap();
            let lines = sql.lines().map(str::trim).filter(|line| !line.starts_with("--"));
            (version, lines.map(str::to_owned).collect())
        };
        std::fs::read_dir(folder).unwrap().map(read).collect()
    }

    /// The first words of the statements that a migration may contain. Replicas of the previous version, which still run during a
    /// rolling upgrade, need everything that exists.
    const ALLOWED_STATEMENTS: [&str; 6] =
        ["CREATE TABLE", "CREATE INDEX", "CREATE UNIQUE INDEX", "ALTER TABLE", "INSERT INTO", "UPDATE"];

    #[test]
    fn migrations_only_add() {
        for (version, statement) in migration_statements() {
            assert!(ALLOWED_STATEMENTS.iter().any(|prefix| statement.starts_with(prefix)), "{version}: {statement}");
            if let Some((_, change)) = statement.strip_prefix("ALTER TABLE ").and_then(|rest| rest.split_once(' ')) {
                let optional = !change.contains("NOT NULL") || change.contains("DEFAULT");
                assert!(change.starts_with("ADD COLUMN ") && optional, "{version}: {statement}");
            }
        }
    }

    /// All statements of the migrations, each with the schema version.
    fn migration_statements() -> Vec<(u32, String)> {
        let statements_of = |(version, lines): (u32, Vec<String>)| {
            let sql = lines.join(" ");
            let statements = sql.split(';').map(str::trim).filter(|statement| !statement.is_empty());
            statements.map(|statement| (version, statement.to_owned())).collect::<Vec<_>>()
        };
        migrations().into_iter().flat_map(statements_of).collect()
    }
}
