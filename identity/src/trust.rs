//! The trust score of an agent: 0 to 100 points, stored in hundredths of a point.
//!
//! A score is an integer, so that the database, tokens, the sync stream and headers contain the same number.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// A trust score from 0 to 100 points with two decimals.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrustScore(u16);

/// The number is not between 0 and 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be a number from 0 to 100")]
pub struct InvalidTrustScore;

impl TrustScore {
    /// The score of a new agent.
    pub const INITIAL: Self = Self(5_000);

    /// The highest score.
    pub const MAX: Self = Self(10_000);

    /// Creates a score from hundredths of a point, the unit of the database and the sync stream.
    pub fn from_hundredths(hundredths: i64) -> Result<Self, InvalidTrustScore> {
        u16::try_from(hundredths).ok().map(Self).filter(|score| *score <= Self::MAX).ok_or(InvalidTrustScore)
    }

    /// Creates a score from points, rounded to two decimals.
    pub fn from_points(points: f64) -> Result<Self, InvalidTrustScore> {
        if !(0.0..=100.0).contains(&points) {
            return Err(InvalidTrustScore);
        }
        #[expect(clippy::cast_possible_truncation, reason = "bounded by the check above")]
        Self::from_hundredths((points * 100.0).round() as i64)
    }

    /// The score in hundredths of a point, the unit of the database and the sync stream.
    pub const fn hundredths(self) -> i64 {
        self.0 as i64
    }

    /// The score in points, the unit of JSON.
    pub fn points(self) -> f64 {
        f64::from(self.0) / 100.0
    }
}

impl fmt::Display for TrustScore {
    /// Writes the shortest decimal number: `50`, `62.5`, `71.43`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.points().fmt(f)
    }
}

impl fmt::Debug for TrustScore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for TrustScore {
    /// Writes a JSON number, as an integer if the score has no decimals.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_multiple_of(100) {
            serializer.serialize_u16(self.0 / 100)
        } else {
            serializer.serialize_f64(self.points())
        }
    }
}

impl<'de> Deserialize<'de> for TrustScore {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_points(f64::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_round_trip_through_json_as_shortest_decimals() {
        for hundredths in 0..=10_000 {
            let score = TrustScore::from_hundredths(hundredths).unwrap();
            let json = serde_json::to_string(&score).unwrap();
            assert_eq!(serde_json::from_str::<TrustScore>(&json).unwrap(), score);
            assert_eq!(score.to_string(), json);
        }
        assert_eq!(TrustScore::INITIAL.to_string(), "50");
        assert_eq!(TrustScore::from_points(62.5).unwrap().to_string(), "62.5");
    }
}
