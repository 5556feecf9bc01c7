//! Trust scores: a Bayesian average of the feedback of services, with exponential forgetting.
//!
//! The computation follows A. Jøsang and R. Ismail, *The Beta Reputation System* (2002). Old feedback loses weight, and an
//! agent with little feedback stays near the initial score. One new feedback has the weight 1, and one service at most 8.
//!
//! Anyone can create services, so three limits keep strangers from moving the score of an agent. A service knows the agents that
//! used it recently (see `store::known_agents`).
//! - All services that do not know the agent weigh at most 1 together.
//! - All services of one owner weigh at most as much as the initial score and the services of all other owners together.
//! - The services of the agent's own owner weigh nothing.

use super::{
    agent::Owner,
    text::{Description, Metadata},
};
use countersign_identity::{AgentId, FeedbackId, ServiceId, Timestamp, TrustScore};
use std::{cmp::Reverse, collections::BTreeMap};

/// Weight of the initial score. One new feedback has the weight 1.
const PRIOR_WEIGHT: f64 = 4.0;

/// Maximum weight of one service.
const MAX_WEIGHT: f64 = 8.0;

/// Time after which feedback has half of its weight, in days.
const HALF_LIFE_DAYS: f64 = 90.0;

/// Maximum weight of all services together that do not know the agent.
const MAX_UNKNOWN_WEIGHT: f64 = 1.0;

/// Maximum number of ratings of an agent that we keep of services that do not know the agent.
const MAX_UNKNOWN_RATINGS: usize = 1000;

/// Maximum number of ratings that one feedback removes, so that a feedback is stored fast even if there are far too many ratings.
const MAX_REMOVED_RATINGS: usize = 10;

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
    pub id: FeedbackId,
    /// The rated agent.
    pub agent: AgentId,
    /// The service that gave the feedback.
    pub service: ServiceId,
    pub score: Score,
    /// Reason for the score; may be empty.
    pub reason: Description,
    /// Free-form JSON from the service.
    pub metadata: Metadata,
    /// Time of the feedback.
    pub created_at: Timestamp,
}

/// What one service thinks of an agent: the weighted mean of all feedback that the service gave.
#[derive(Debug, Clone, PartialEq)]
pub struct Rating {
    /// The service that gave the feedback.
    pub service: ServiceId,
    /// Weight at the time of the last feedback. One new feedback has the weight 1.
    pub weight: f64,
    /// Weighted mean of the scores, in points.
    pub mean: f64,
    /// Time of the last feedback.
    pub rated_at: Timestamp,
}

/// A rating, and what we need to limit its weight in the trust score.
#[derive(Debug, Clone, PartialEq)]
pub struct RatingBySource {
    pub rating: Rating,
    /// Owner of the service that gave the feedback.
    pub owner: Owner,
    /// Whether the service knows the agent.
    pub is_known: bool,
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
        if (0..=max).contains(&millionths) { Ok(Self(millionths)) } else { Err(InvalidScore) }
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
    pub const fn new(service: ServiceId, now: Timestamp) -> Self {
        Self { service, weight: 0.0, mean: 0.0, rated_at: now }
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

/// Removes ratings by services that do not know the agent, if there are too many. Returns these services. Each feedback reads all
/// ratings of its agent, so without a limit, anyone with many services could make it slow. We always remove the oldest rating of
/// the owner with the most ratings, so nobody can use many services to push out the ratings of others.
pub fn remove_excess_ratings(ratings: &mut Vec<RatingBySource>) -> Vec<ServiceId> {
    let mut by_owner = BTreeMap::<&Owner, Vec<(Reverse<Timestamp>, ServiceId)>>::new();
    for RatingBySource { rating, owner, .. } in ratings.iter().filter(|source| !source.is_known) {
        by_owner.entry(owner).or_default().push((Reverse(rating.rated_at), rating.service));
    }
    let total: usize = by_owner.values().map(Vec::len).sum();
    let mut by_owner: Vec<_> = by_owner.into_values().collect();
    for ratings in &mut by_owner {
        ratings.sort_unstable();
    }
    // The ratings of each owner are sorted from new to old, so `pop` removes the oldest.
    let remove_oldest = |_| by_owner.iter_mut().max_by_key(|ratings| ratings.len())?.pop();
    let count = total.saturating_sub(MAX_UNKNOWN_RATINGS).min(MAX_REMOVED_RATINGS);
    let removed: Vec<_> = (0..count).filter_map(remove_oldest).map(|(_, service)| service).collect();
    ratings.retain(|source| !removed.contains(&source.rating.service));
    removed
}

/// Computes the trust score of an agent from all its ratings. `agent_owner` is the user who registered the agent.
pub fn trust_score(ratings: &[RatingBySource], agent_owner: Option<&Owner>) -> TrustScore {
    let owners = limited_weights(ratings, agent_owner);
    let weight = PRIOR_WEIGHT + owners.iter().map(|owner| owner.weight).sum::<f64>();
    let sum = PRIOR_WEIGHT * TrustScore::INITIAL.points()
        + owners.iter().map(|owner| owner.weight * owner.mean()).sum::<f64>();
    // Only a rounding error can move the weighted mean of the scores out of the range from 0 to 100.
    TrustScore::from_points((sum / weight).clamp(0.0, 100.0)).unwrap_or(TrustScore::INITIAL)
}

/// The ratings by all services of one owner.
#[derive(Debug, Default)]
struct OwnerRatings {
    /// Weight in the trust score.
    weight: f64,
    /// Weight before the limit for one owner.
    unlimited_weight: f64,
    /// Sum of the scores, each multiplied by its weight before the limit for one owner.
    sum: f64,
}

impl OwnerRatings {
    fn add(&mut self, weight: f64, mean: f64) {
        self.weight += weight;
        self.unlimited_weight += weight;
        self.sum += weight * mean;
    }

    /// The mean of the scores; 0 if their weight is 0, because then the mean does not matter.
    fn mean(&self) -> f64 {
        if self.unlimited_weight > 0.0 { self.sum / self.unlimited_weight } else { 0.0 }
    }
}

/// Adds up the ratings of each owner and limits the weights. We go through the owners in a fixed order, so that rounding does not
/// depend on the order of the feedback.
fn limited_weights(ratings: &[RatingBySource], agent_owner: Option<&Owner>) -> Vec<OwnerRatings> {
    let counted = || ratings.iter().filter(|source| agent_owner != Some(&source.owner));
    let unknown_weight: f64 = counted().filter(|source| !source.is_known).map(|source| source.rating.weight).sum();
    let unknown_factor = MAX_UNKNOWN_WEIGHT / unknown_weight.max(MAX_UNKNOWN_WEIGHT);
    let mut by_owner = BTreeMap::<&Owner, OwnerRatings>::new();
    for RatingBySource { rating, owner, is_known } in counted() {
        let factor = if *is_known { 1.0 } else { unknown_factor };
        by_owner.entry(owner).or_default().add(rating.weight * factor, rating.mean);
    }
    let mut owners: Vec<_> = by_owner.into_values().collect();
    let total: f64 = PRIOR_WEIGHT + owners.iter().map(|owner| owner.weight).sum::<f64>();
    // At most one owner has more than half of the total weight, so the limit of one owner does not lower the limit of another.
    for owner in &mut owners {
        owner.weight = owner.weight.min(total - owner.weight);
    }
    owners
}

#[cfg(test)]
mod tests;
