//! Rate limits and change messages of replicas that share a Redis.
//!
//! `fixture` starts the replicas.

mod certificates;
mod change_messages;
mod cluster;
mod fixture;
mod outages;
mod sentinels;
mod shared_counts;
mod users;
