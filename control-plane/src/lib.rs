//! The server that registers agents, challenges them and issues their tokens.
//!
//! The way of a request: `http` parses it, `operations` do one thing, `domain` holds the rules, `store`
//! keeps the outcome in one transaction with the change that sidecars must learn; `sync` tells them.
//! Neighbours: agents and services over HTTPS, `ext-authz` over the sync stream. The rule of the room:
//! parts meet in `app` and nowhere else.

mod app;
mod certificates;
mod config;
mod development;
mod domain;
mod ephemeral;
mod files;
mod http;
mod humans;
mod keyring;
mod metrics;
mod operations;
mod store;
mod sync;
mod webhooks;

pub use app::{
    App, AppError, AuditError, CommandReport, DatabaseCommandError, Surroundings, backup, export_audit, migrate,
    migrate_to_postgres, mint_human_token, restore, run, unreadable, verify_audit,
};
pub use config::{Config, ConfigError, Inspection};
pub use http::api_description;
pub use webhooks::{Found, Names, SystemNames};
