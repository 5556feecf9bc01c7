//! Tests of webhooks, from the API to the receivers.
//!
//! `events` tests content and recipients of events, `strangers` what a service is not told, `role_losses` lost roles, `bursts` bursts of failed logins,
//! `signatures` signatures and secrets, `delivery` attempts and retries, `clocks` behaviour over days, `targets`
//! pause, replay and deletion, `isolation` that targets do not affect each other, and `address_guard` forbidden
//! addresses. `outbox` tests the fan-out of events and large replays. `crashes` kills the control plane, `backlog` has thousands of pending deliveries.

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
