//! How much is measured: everything, or just enough to show that every part still works (`make bench-check`).
//!
//! A check sets `BENCH_CHECK`. Its times and numbers are so small that its figures mean nothing, and nobody judges them. The names
//! of the figures are the same, so a check shows if one is missing.

use std::time::Duration;

/// In a check, no measurement is longer than this. Only `wrk` measures for at least a second.
const CHECK_TIME: Duration = Duration::from_millis(100);

/// Whether this is a check.
pub fn is_check() -> bool {
    std::env::var_os("BENCH_CHECK").is_some()
}

/// The number of rounds that count: 10, or `BENCH_ROUNDS`.
pub fn rounds() -> usize {
    let default = if is_check() { 1 } else { 10 };
    std::env::var("BENCH_ROUNDS").map_or(Ok(default), |rounds| rounds.parse()).unwrap_or_default()
}

/// The number of rounds before the rounds that count. In the first round, servers and processors are slower.
pub fn warm_up_rounds() -> usize {
    usize::from(!is_check())
}

/// For how long a round measures each of the two things that it compares: `full`, or less in a check.
pub fn time(full: Duration) -> Duration {
    if is_check() { full.min(CHECK_TIME) } else { full }
}

/// A number of agents, tokens, streams and so on: `full`, or less in a check.
pub fn count(full: u32) -> u32 {
    if is_check() { (full / 1000).max(full.min(10)) } else { full }
}
