//! Faults of each part and between the parts: kills, stops, cut networks, wrong clocks, failed writes to disk.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]
#![expect(clippy::print_stdout, reason = "prints measurements")]

mod clocks;
mod crashes;
mod disk;
mod edge;
mod failover;
mod ledger;
