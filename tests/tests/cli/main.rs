//! The command line `countersign`, and clients in other languages.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests panic on unexpected values")]

mod agent_exec;
mod agent_oauth;
mod client_advice;
mod client_commands;
mod client_enforcement;
mod client_errors;
mod client_interface;
mod client_listen;
mod client_usage;
mod client_webhooks;
mod declared_state;
mod doctor;
mod foreign_clients;
mod generated_clients;
mod human_login;
mod human_login_errors;
mod human_login_refresh;
mod kubernetes_secrets;
mod tenants;

use countersign_tests::{ControlPlane, Shell};
use std::{fs, os::unix::fs::PermissionsExt, path::Path};

/// A control plane, and a shell with these variables of its `dev.env`.
async fn control_and_shell(variables: &[&str]) -> (ControlPlane, Shell) {
    let control = ControlPlane::start().await;
    let shell = Shell::with_env(&control, variables);
    (control, shell)
}

/// The permissions of a file.
fn mode(path: impl AsRef<Path>) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}
