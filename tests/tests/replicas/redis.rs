//! Rate limits and change messages of replicas that share a Redis.
//!
//! `together` tests the counts, `lost` a Redis that hangs, dies, is full or is missing, `places` passwords, users and
//! a single-node cluster, `cluster` and `sentinels` failovers, `certificates` TLS, and `wakes` the messages about
//! changes. `fixture` starts the replicas.

#![expect(clippy::unwrap_used, reason = "a test says what it expects")]

mod certificates;
mod cluster;
mod fixture;
mod lost;
mod places;
mod sentinels;
mod together;
mod wakes;
