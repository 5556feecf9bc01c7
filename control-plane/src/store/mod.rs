//! The database: one SQL for SQLite and PostgreSQL, a file per subject.
//!
//! Neighbours: `operations` asks through [`Store::read`] and [`Store::write`]; `sync` reads the feed.
//! The rule of the room: each query stands once; a write is a named transaction that appends what
//! sidecars must learn to `changes`, under a revision taken last.

pub mod agents;
pub mod assignments;
pub mod audit;
#[cfg(test)]
mod conformance;
mod conn;
pub mod deliveries;
pub mod deployment;
mod engine;
mod failure;
pub mod feed;
pub mod idempotency;
pub mod outbox;
mod pools;
pub mod postgres_place;
pub mod roles;
mod row;
pub mod schema;
pub mod services;
pub mod sessions;
pub mod signing_keys;
pub mod sqlite_file;
mod statements;
mod transaction;
pub mod transfer;
pub mod trust;
mod watch;
pub mod webhook_targets;

pub use conn::Conn;
pub use engine::{Equipment, Purpose, Store};
pub use failure::{StoreError, StoreFailure};
pub use transaction::{Committed, Read, Write};

#[cfg(test)]
mod tests {
    /// What both engines understand alike; the rest is in no migration.
    const TYPES: [&str; 2] = ["TEXT", "BIGINT"];

    #[test]
    fn every_column_is_text_or_bigint() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
        let mut columns = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let sql = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            let lines = sql.lines().map(str::trim).filter(|line| !line.starts_with("--"));
            for line in lines.filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase())) {
                let kind = line.split([' ', ',']).nth(1).unwrap_or_default();
                assert!(TYPES.contains(&kind), "{line}");
                columns += 1;
            }
        }
        assert!(columns > 50, "the test reads the schema");
    }

    /// The last one that was made when no two versions had to serve one database.
    const ALONE: u32 = 7;

    /// What the version before does not notice: in a rolling upgrade it goes on serving.
    const ADDITIONS: [&str; 6] =
        ["CREATE TABLE", "CREATE INDEX", "CREATE UNIQUE INDEX", "ALTER TABLE", "INSERT INTO", "UPDATE"];

    #[test]
    fn a_migration_takes_nothing_away_from_the_version_before() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if name[..4].parse::<u32>().unwrap() <= ALONE {
                continue;
            }
            let sql = std::fs::read_to_string(&path).unwrap();
            let lines: Vec<_> = sql.lines().map(str::trim).filter(|line| !line.starts_with("--")).collect();
            for statement in lines.join(" ").split(';').map(str::trim).filter(|statement| !statement.is_empty()) {
                assert!(ADDITIONS.iter().any(|begin| statement.starts_with(begin)), "{name}: {statement}");
                if let Some((_, change)) = statement.strip_prefix("ALTER TABLE ").and_then(|rest| rest.split_once(' '))
                {
                    let blank = !change.contains("NOT NULL") || change.contains("DEFAULT");
                    assert!(change.starts_with("ADD COLUMN ") && blank, "{name}: {statement}");
                }
            }
        }
    }
}
