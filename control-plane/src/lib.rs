//! The control plane: registers agents, authenticates them with challenges, issues their access tokens and verifies them.
//!
//! `http` parses a request and calls one of the `operations`, which apply the rules of `domain` and write the result to `store`
//! in one transaction, together with the change that sidecars must receive; `sync` sends the changes to the sidecars. Only
//! `app` depends on all modules and assembles them.

mod address_guard;
mod app;
mod certificates;
mod config;
mod domain;
mod ephemeral;
mod files;
mod http;
mod humans;
mod keyring;
mod metrics;
mod operations;
mod sidecars;
mod store;
mod sync;
mod webhooks;

pub use address_guard::{HostResolver, ResolveFuture, SystemResolver};
pub use app::{
    Addresses, App, AppError, CommandReport, Dependencies, archive_audit, backup, backup_to_directory, check_files,
    describe_master_keys, export_audit, migrate, migrate_to_postgres, mint_human_token, mint_human_token_to_file,
    restore, rotate_secrets, run, verify_audit,
};
pub use config::{Config, ConfigError, ConfigInspection};
pub use http::api_description;
