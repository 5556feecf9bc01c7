//! Access to the database. The same SQL runs on SQLite and PostgreSQL. Each subject of the store, such as agents, has its own
//! file.
//!
//! `operations` and `webhooks` use the store through [`Store::read`] and [`Store::write`], `sync` reads the change feed. The
//! store depends on `domain` and `metrics`.
//!
//! Invariants: every statement is a constant in the list of its file, and the conformance tests prepare it on both engines. A
//! write is a named transaction. A write appends the changes for sidecars to the table `changes`, under a revision that is
//! assigned late in the transaction.

pub mod agents;
pub mod assignments;
pub mod audit;
pub mod changed_data;
mod changed_roles;
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
pub mod idempotency;
pub mod known_agents;
pub mod master_keys;
pub mod outbox;
mod pools;
pub mod postgres;
pub mod purge;
pub mod quotas;
pub mod roles;
mod row;
pub mod schema;
pub mod sealed_secrets;
pub mod service_transfers;
pub mod services;
pub mod sessions;
pub mod signing_keys;
pub mod sqlite_file;
mod statements;
pub mod token_audiences;
pub mod totals;
mod transaction;
mod transaction_timer;
pub mod transfer;
pub mod trust;
pub mod unused_agents;
pub mod webhook_cleanup;
pub mod webhook_targets;

pub use conn::Conn;
pub use connection_pool::ConnectionFailures;
pub use engine::{OpenMode, Store, StoreOptions};
pub use failure::{StoreError, StoreFailure};
pub use transaction::{CommittedTransaction, ReadTransaction, WriteTransaction};

#[cfg(test)]
mod tests {
    /// The column types that behave alike on both engines.
    const COLUMN_TYPES: [&str; 2] = ["TEXT", "BIGINT"];

    #[test]
    fn every_column_is_text_or_bigint() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
        let mut columns = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let sql = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            let lines = sql.lines().map(str::trim).filter(|line| !line.starts_with("--"));
            for line in lines.filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase())) {
                let column_type = line.split([' ', ',']).nth(1).unwrap_or_default();
                assert!(COLUMN_TYPES.contains(&column_type), "{line}");
                columns += 1;
            }
        }
        assert!(columns > 50, "only {columns} columns were read");
    }

    /// The last migration that was written before rolling upgrades were supported.
    const LAST_UNCHECKED_MIGRATION: u32 = 7;

    /// Statements that do not affect a replica of the previous version, which still runs during a rolling upgrade.
    const ALLOWED_STATEMENTS: [&str; 6] =
        ["CREATE TABLE", "CREATE INDEX", "CREATE UNIQUE INDEX", "ALTER TABLE", "INSERT INTO", "UPDATE"];

    #[test]
    fn migrations_remove_nothing_that_the_previous_version_needs() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if name[..4].parse::<u32>().unwrap() <= LAST_UNCHECKED_MIGRATION {
                continue;
            }
            let sql = std::fs::read_to_string(&path).unwrap();
            let lines: Vec<_> = sql.lines().map(str::trim).filter(|line| !line.starts_with("--")).collect();
            for statement in lines.join(" ").split(';').map(str::trim).filter(|statement| !statement.is_empty()) {
                assert!(ALLOWED_STATEMENTS.iter().any(|prefix| statement.starts_with(prefix)), "{name}: {statement}");
                if let Some((_, change)) = statement.strip_prefix("ALTER TABLE ").and_then(|rest| rest.split_once(' '))
                {
                    let optional = !change.contains("NOT NULL") || change.contains("DEFAULT");
                    assert!(change.starts_with("ADD COLUMN ") && optional, "{name}: {statement}");
                }
            }
        }
    }
}
