//! Limits that replicas count together in a Redis, and what is so while it is not there.
//!
//! `together` is about what is counted, `lost` about a Redis that hangs, dies, is full or is not there yet, `places` about
//! TLS, passwords, clusters and Sentinels, `wakes` about the word that something changed; `stage` has the replicas.

#![expect(clippy::unwrap_used, reason = "a test says what it expects")]

mod lost;
mod places;
mod stage;
mod together;
mod wakes;
