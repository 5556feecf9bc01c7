//! Compares two servers or cases (the sides) in rounds, each of which measures both. If the speed of the machine changes, it
//! changes for both sides.

use crate::{scale, servers::ServerCoreTime};
use countersign_tests::quantiles::{quantile, sorted};
use serde::Serialize;

/// The ratios of all rounds of one comparison.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// The median of the rounds.
    pub ratio: f64,
    /// Half of the distance between the quartiles of the rounds.
    pub spread: f64,
    /// The ratio of each round.
    pub rounds: Vec<f64>,
    /// The medians of both sides, in the unit of the comparison. They depend on the machine.
    pub sides: [f64; 2],
    /// The medians of the busy share of the servers' processor, for both sides. Below about 0.95, something else is the limit.
    pub busy: [f64; 2],
}

/// The result of one side in one round.
#[derive(Debug, Clone, Copy, Default)]
pub struct Measured {
    /// The figure, in the unit of the comparison.
    pub value: f64,
    /// The share of the time in which the processor of the servers worked.
    pub busy: f64,
}

/// Measures a figure, and how busy the processor of the servers is meanwhile.
pub async fn measured(figure: impl Future<Output = f64>) -> Measured {
    let started = ServerCoreTime::now();
    let value = figure.await;
    Measured { value, busy: started.busy_since() }
}

impl Comparison {
    /// Compares pairs of measurements. The first of each pair is of Countersign, and the second of the other side.
    pub fn new(pairs: &[[Measured; 2]]) -> Self {
        let rounds: Vec<_> = pairs.iter().map(|[ours, other]| ours.value / other.value).collect();
        let [lower, ratio, upper] = quartiles(rounds.clone());
        let median = |part: fn(&Measured) -> f64| {
            [0, 1].map(|side: usize| quartiles(pairs.iter().map(|pair| part(&pair[side])).collect())[1])
        };
        let (sides, busy) = (median(|side| side.value), median(|side| side.busy));
        Self { ratio, spread: (upper - lower) / 2.0, rounds, sides, busy }
    }
}

/// Measures both sides in each round, in an order that changes with each round.
pub async fn alternate(
    rounds: usize,
    mut ours: impl AsyncFnMut() -> f64,
    mut other: impl AsyncFnMut() -> f64,
) -> Comparison {
    alternate_measured(rounds, async || measured(ours()).await, async || measured(other()).await).await
}

/// Like `alternate`, for sides that prepare something before they measure.
pub async fn alternate_measured(
    rounds: usize,
    mut ours: impl AsyncFnMut() -> Measured,
    mut other: impl AsyncFnMut() -> Measured,
) -> Comparison {
    let mut pairs = Vec::new();
    for round in 0..scale::warm_up_rounds() + rounds {
        pairs.push(if round.is_multiple_of(2) {
            [ours().await, other().await]
        } else {
            let other = other().await;
            [ours().await, other]
        });
    }
    Comparison::new(&pairs[scale::warm_up_rounds()..])
}

/// Parts between 0 and 1 that are spread evenly and are the same in every run (Weyl, with the golden ratio).
pub fn spread_part(number: u64) -> f64 {
    (number as f64 * 0.618_033_988_749_894_9).fract()
}

/// The quartiles.
pub fn quartiles(values: Vec<f64>) -> [f64; 3] {
    let values = sorted(values);
    [0.25, 0.5, 0.75].map(|part| quantile(&values, part))
}
