//! The commands of `countersign`: a module per noun, a subcommand per verb.
//!
//! Depends on the library of this crate for all requests. Imports have one direction: `parse` reads the command line, `commands` runs
//! a command, and `report` prints its error. Invariant: data goes to standard output, everything else to standard error; only
//! commands that create or request a secret print secrets.

mod agent;
mod apply;
mod args;
mod audit;
mod call;
mod commands;
mod complete;
mod confirm;
mod context;
mod credentials;
mod doctor;
mod enforcement;
mod environment;
mod envoy;
mod error;
mod help;
mod hints;
mod human;
mod ids;
mod key;
mod login;
mod loopback;
mod messages;
mod oauth;
mod output;
mod parse;
mod placeholders;
mod prelude;
mod report;
mod role;
mod secret_file;
mod service;
mod sidecar;
mod signing_key;
mod stored_login;
mod table;
mod time;
mod token;
mod trace;
mod transfer;
mod usage;
mod webhook;

pub use commands::{Arguments, run};
pub use messages::Messages;
pub use output::{CommandOutput, OutputFormat};
pub use parse::{complete_from_environment, parse};
pub use report::report;
