//! The database: one SQL for SQLite and PostgreSQL, a file per subject.
//!
//! Neighbours: `operations` asks through [`Store::read`] and [`Store::write`]; `sync` reads the feed.
//! The rule of the room: each query stands once; a write is a named transaction that appends what
//! sidecars must learn to `changes`, under a revision taken last.

pub mod agents;
pub mod assignments;
pub mod audit;
mod conn;
pub mod deliveries;
pub mod deployment;
mod engine;
mod failure;
pub mod feed;
pub mod idempotency;
pub mod outbox;
mod pools;
pub mod roles;
mod row;
pub mod schema;
pub mod services;
pub mod sessions;
pub mod signing_keys;
pub mod sqlite_file;
pub mod trust;
mod watch;
pub mod webhook_targets;

pub use conn::Conn;
pub use engine::{Committed, Equipment, Purpose, Store, Write};
pub use failure::{StoreError, StoreFailure};

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
}
