//! Webhooks, from what happens at the API to what receivers get.
//!
//! `events` is about what is told and to whom, `losses` about roles that are lost, `bursts` about failed logins that come
//! thick and fast; `signatures` about how a receiver knows who speaks; `delivery` about tries, `clocks` about what takes days,
//! `targets` about holding, replaying and ending them, `neighbours` about what one does to others; `guard` about where nothing
//! is ever sent. `crashes` kills the control plane, `backlog` has thousands of deliveries pending, `dead_targets` has targets that
//! never answer.

#![expect(clippy::unwrap_used, reason = "a test says what it expects")]
#![expect(clippy::print_stdout, reason = "what is measured here is worth reading")]

mod backlog;
mod bursts;
mod clocks;
mod crashes;
mod dead_targets;
mod delivery;
mod events;
mod guard;
mod health;
mod losses;
mod name_resolution;
mod neighbours;
mod replicas;
mod signatures;
mod targets;
