//! Rate limits and change messages of replicas that share a Redis.
//!
//! `shared_counts` tests the counts, `outages` a Redis that hangs, is killed, is full or is missing, `users`
//! passwords and permissions, `cluster` and `sentinels` failovers, `certificates` TLS, and `change_messages` the
//! messages about changes. `fixture` starts the replicas.

mod certificates;
mod change_messages;
mod cluster;
mod fixture;
mod outages;
mod sentinels;
mod shared_counts;
mod users;
