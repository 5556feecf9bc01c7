//! Trust scores: a Bayesian average of the feedback of services, with exponential forgetting.
//!
//! The computation follows A. Jøsang and R. Ismail, *The Beta Reputation System* (2002). Old feedback loses weight, and an
//! agent with little feedback stays near the initial score. The unit of weight is one new feedback; one service has a weight of
//! at most eight. Once three owners have rated the agent, the services of one owner together have at most half of the total
//! weight.

use super::{
    agent::Owner,
    text::{Description, Metadata},
};
use countersign_identity::{AgentId, FeedbackId, ServiceId, Timestamp, TrustScore};
use std::collections::HashMap;

/// Weight of the initial score. One new feedback has the weight 1.
const PRIOR_WEIGHT: f64 = 4.0;

/// Maximum weight of one service. One new feedback has the weight 1.
const MAX_WEIGHT: f64 = 8.0;

/// Time after which feedback has half of its weight, in days.
const HALF_LIFE_DAYS: f64 = 90.0;

/// Minimum number of owners for which the weight of a single owner is limited.
const MIN_OWNERS_FOR_LIMIT: usize = 3;

const SECONDS_PER_DAY: f64 = 86_400.0;

/// The score in a feedback: 0 to 100 points, stored in millionths of a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score(i64);

/// Error for a score that is not a number from 0 to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be a number from 0 to 100")]
pub struct InvalidScore;

/// One feedback that a service gave about an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct Feedback {
    /// Unique identifier.
    pub id: FeedbackId,
    /// The rated agent.
    pub agent: AgentId,
    /// The service that gave the feedback.
    pub service: ServiceId,
    /// The score.
    pub score: Score,
    /// Reason for the score; may be empty.
    pub reason: Description,
    /// Free-form JSON from the service.
    pub metadata: Metadata,
    /// Time of the feedback.
    pub created_at: Timestamp,
}

/// The weighted mean of all feedback of one service about an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct Rating {
    /// The service that gave the feedback.
    pub service: ServiceId,
    /// Owner of the service.
    pub owner: Owner,
    /// Weight at the time of the last feedback. One new feedback has the weight 1.
    pub weight: f64,
    /// Weighted mean of the scores, in points.
    pub mean: f64,
    /// Time of the last feedback.
    pub rated_at: Timestamp,
}

impl Score {
    /// Minimum and maximum score, in points.
    pub const RANGE: (u8, u8) = (0, 100);

    const MILLION: f64 = 1e6;

    /// Converts points, as received in JSON. Rounds to six decimals.
    pub fn from_points(points: f64) -> Result<Self, InvalidScore> {
        let (min, max) = Self::RANGE;
        if !(f64::from(min)..=f64::from(max)).contains(&points) {
            return Err(InvalidScore);
        }
        #[expect(clippy::cast_possible_truncation, reason = "bounded by the check above")]
        Ok(Self((points * Self::MILLION).round() as i64))
    }

    /// Converts millionths of a point, as stored.
    pub fn from_millionths(millionths: i64) -> Result<Self, InvalidScore> {
        let max = i64::from(Self::RANGE.1) * 1_000_000;
        Some(Self(millionths)).filter(|_| (0..=max).contains(&millionths)).ok_or(InvalidScore)
    }

    /// Millionths of a point, as stored.
    pub const fn millionths(self) -> i64 {
        self.0
    }

    /// Points, as sent in JSON.
    #[expect(clippy::cast_precision_loss, reason = "the value is at most 100 million")]
    pub fn points(self) -> f64 {
        self.0 as f64 / Self::MILLION
    }
}

impl Rating {
    /// The rating of a service before its first feedback.
    pub const fn new(service: ServiceId, owner: Owner, now: Timestamp) -> Self {
        Self { service, owner, weight: 0.0, mean: 0.0, rated_at: now }
    }

    /// Adds one feedback. The weight of earlier feedback decays with the time since the last feedback.
    #[must_use]
    pub fn with_feedback(self, score: Score, now: Timestamp) -> Self {
        let days = now.duration_since(self.rated_at).as_secs_f64() / SECONDS_PER_DAY;
        let decayed = self.weight * (-days / HALF_LIFE_DAYS).exp2();
        let mean = (decayed * self.mean + score.points()) / (decayed + 1.0);
        Self { weight: MAX_WEIGHT.min(decayed + 1.0), mean, rated_at: now.max(self.rated_at), ..self }
    }
}

/// Computes the trust score of an agent from all its ratings.
pub fn trust_score(ratings: &[Rating]) -> TrustScore {
    let owner_factor = owner_factors(ratings);
    let (mut weight, mut sum) = (PRIOR_WEIGHT, PRIOR_WEIGHT * TrustScore::INITIAL.points());
    for rating in ratings {
        let effective_weight = rating.weight * owner_factor(&rating.owner);
        weight += effective_weight;
        sum += effective_weight * rating.mean;
    }
    // Only a rounding error can move the weighted mean of the scores out of the range from 0 to 100.
    TrustScore::from_points((sum / weight).clamp(0.0, 100.0)).unwrap_or(TrustScore::INITIAL)
}

/// Returns the factor for the weights of the ratings by services of an owner. The factor is below 1 only for an owner with more
/// than half of the total weight. At most one owner can have more than half of the total weight.
fn owner_factors(ratings: &[Rating]) -> impl Fn(&Owner) -> f64 {
    let mut weight_by_owner = HashMap::<Owner, f64>::new();
    for rating in ratings {
        *weight_by_owner.entry(rating.owner.clone()).or_default() += rating.weight;
    }
    let total: f64 = weight_by_owner.values().sum();
    let limited = weight_by_owner.len() >= MIN_OWNERS_FOR_LIMIT;
    move |owner| {
        let own_weight = weight_by_owner.get(owner).copied().unwrap_or_default();
        let other_weight = total - own_weight;
        if limited && own_weight > other_weight { other_weight / own_weight } else { 1.0 }
    }
}

#[cfg(test)]
mod tests;
