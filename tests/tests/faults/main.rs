//! Tests of faults: killed and stopped processes, wrong clocks, writes that a disk fails to store, a failover of PostgreSQL.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]
#![expect(clippy::print_stdout, reason = "prints measurements")]

mod addresses;
mod clocks;
mod crashes;
mod disk;
mod edge;
mod failover;
mod ledger;
mod offline;
