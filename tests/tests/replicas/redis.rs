//! Limits that replicas count together in a Redis, and what is so while it is not there.
//!
//! `together` is about what is counted, `lost` about a Redis that hangs, dies, is full or is not there yet, `places` about
//! passwords and a first cluster, `cluster` and `sentinels` about what becomes of real ones, `certificates` about TLS, `wakes`
//! about the word that something changed; `fixture` has the replicas.

#![expect(clippy::unwrap_used, reason = "a test says what it expects")]

mod certificates;
mod cluster;
mod fixture;
mod lost;
mod places;
mod sentinels;
mod together;
mod wakes;
