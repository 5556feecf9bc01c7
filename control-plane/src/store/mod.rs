//! The database: one SQL for SQLite and PostgreSQL, a file per subject.
//!
//! Neighbours: `operations` asks through [`Store::read`] and [`Store::write`]; `sync` reads the feed.
//! The rule of the room: each query stands once; a write is a named transaction that appends what
//! sidecars must learn to `changes`, under a revision taken last.

pub mod agents;
pub mod assignments;
pub mod deployment;
mod engine;
pub mod feed;
pub mod roles;
mod row;
pub mod services;
pub mod sessions;
pub mod signing_keys;

pub use engine::{Committed, Store, StoreError, Transient, Write};
