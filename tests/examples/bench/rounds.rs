//! Compares two sides in alternating rounds, so that a machine whose speed changes changes both.

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
}

impl Comparison {
    /// The comparison of measured pairs: ours, and what it is compared with.
    pub fn new(pairs: &[[f64; 2]]) -> Self {
        let rounds: Vec<_> = pairs.iter().map(|[ours, other]| ours / other).collect();
        let [lower, ratio, upper] = quartiles(rounds.clone());
        let side = |place: usize| quartiles(pairs.iter().map(|pair| pair[place]).collect())[1];
        Self { ratio, spread: (upper - lower) / 2.0, rounds, sides: [side(0), side(1)] }
    }
}

/// Measures both sides in each round, in an order that changes with each round. The first round does not count: in it, the servers
/// get their memory, and the processors their speed.
pub async fn alternate(
    rounds: usize,
    mut ours: impl AsyncFnMut() -> f64,
    mut other: impl AsyncFnMut() -> f64,
) -> Comparison {
    let mut pairs = Vec::new();
    for round in 0..=rounds {
        let pair = if round.is_multiple_of(2) {
            [ours().await, other().await]
        } else {
            let other = other().await;
            [ours().await, other]
        };
        if round > 0 {
            pairs.push(pair);
        }
    }
    Comparison::new(&pairs)
}

/// Parts between 0 and 1 that are spread evenly and are the same in every run (Weyl, with the golden ratio).
pub fn spread_part(number: u64) -> f64 {
    (number as f64 * 0.618_033_988_749_894_9).fract()
}

/// The quartiles.
pub fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [0.25, 0.5, 0.75].map(|part| quantile(&values, part))
}

/// A quantile of values in ascending order, interpolated.
pub fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = part * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    low + (high - low) * place.fract()
}
