//! Tests of webhooks, from the API to the receivers.
//!
//! The first line of each module says what it tests.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]
#![expect(clippy::print_stdout, reason = "prints measurements")]

mod address_guard;
mod backlog;
mod bursts;
mod clocks;
mod crashes;
mod delivery;
mod events;
mod health;
mod isolation;
mod name_resolution;
mod outbox;
mod replicas;
mod role_losses;
mod signatures;
mod strangers;
mod targets;
