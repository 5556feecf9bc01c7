//! How much an agent is trusted, from what services say of it: a Bayesian average with forgetting.
//!
//! After A. Jøsang and R. Ismail, *The Beta Reputation System* (2002): old feedback fades, and whoever is
//! rated little stays near where everybody starts. A service counts as eight feedbacks at the most,
//! and the services of one owner together as half of all, once three owners have rated.

use super::{
    agent::Owner,
    text::{Description, Metadata},
};
use countersign_identity::{AgentId, FeedbackId, ServiceId, Timestamp, TrustScore};
use std::collections::HashMap;

/// What the initial score counts for, in feedbacks.
const PRIOR: f64 = 4.0;

/// What one service counts for at the most, in feedbacks.
const MOST: f64 = 8.0;

/// After so many days a feedback counts for half.
const HALF_LIFE: f64 = 90.0;

/// Owners that must have rated before the share of one is limited.
const ENOUGH_OWNERS: usize = 3;

const SECONDS_A_DAY: f64 = 86_400.0;

/// What a service says of an agent: 0 to 100 points, in millionths of a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score(i64);

/// The number is not between 0 and 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be a number from 0 to 100")]
pub struct InvalidScore;

/// A feedback as it was told.
#[derive(Debug, Clone)]
pub struct Feedback {
    /// Its identifier.
    pub id: FeedbackId,
    /// Of whom it speaks.
    pub agent: AgentId,
    /// Who speaks.
    pub service: ServiceId,
    /// What it says.
    pub score: Score,
    /// Why; may be empty.
    pub reason: Description,
    /// What the service attached.
    pub metadata: Metadata,
    /// When.
    pub created_at: Timestamp,
}

/// What all that a service said of an agent amounts to.
#[derive(Debug, Clone, PartialEq)]
pub struct Opinion {
    /// Who speaks.
    pub service: ServiceId,
    /// Whose service that is.
    pub owner: Owner,
    /// What it counts for, in feedbacks, when it was last heard.
    pub weight: f64,
    /// Its mean, in points.
    pub mean: f64,
    /// When it was last heard.
    pub rated_at: Timestamp,
}

impl Score {
    /// The lowest and the highest, in points.
    pub const RANGE: (u8, u8) = (0, 100);

    const MILLION: f64 = 1e6;

    /// From points, as a service sends them; more than six decimals are rounded.
    pub fn from_points(points: f64) -> Result<Self, InvalidScore> {
        let (least, most) = Self::RANGE;
        if !(f64::from(least)..=f64::from(most)).contains(&points) {
            return Err(InvalidScore);
        }
        #[expect(clippy::cast_possible_truncation, reason = "bounded by the check above")]
        Ok(Self((points * Self::MILLION).round() as i64))
    }

    /// From millionths of a point, as stored.
    pub fn from_millionths(millionths: i64) -> Result<Self, InvalidScore> {
        let most = i64::from(Self::RANGE.1) * 1_000_000;
        Some(Self(millionths)).filter(|_| (0..=most).contains(&millionths)).ok_or(InvalidScore)
    }

    /// Millionths of a point, as stored.
    pub const fn millionths(self) -> i64 {
        self.0
    }

    /// Points, as shown in JSON.
    #[expect(clippy::cast_precision_loss, reason = "at most 100 million")]
    pub fn points(self) -> f64 {
        self.0 as f64 / Self::MILLION
    }
}

impl Opinion {
    /// The opinion of a service that speaks for the first time.
    pub const fn first(service: ServiceId, owner: Owner, now: Timestamp) -> Self {
        Self { service, owner, weight: 0.0, mean: 0.0, rated_at: now }
    }

    /// The opinion after one more feedback: what was said before has faded.
    #[must_use]
    pub fn heard(self, score: Score, now: Timestamp) -> Self {
        let days = now.duration_since(self.rated_at).as_secs_f64() / SECONDS_A_DAY;
        let faded = self.weight * (-days / HALF_LIFE).exp2();
        let mean = (faded * self.mean + score.points()) / (faded + 1.0);
        Self { weight: MOST.min(faded + 1.0), mean, rated_at: now.max(self.rated_at), ..self }
    }
}

/// The trust score that the opinions about an agent amount to.
pub fn trust(opinions: &[Opinion]) -> TrustScore {
    let share = shares(opinions);
    let (mut weight, mut sum) = (PRIOR, PRIOR * TrustScore::INITIAL.points());
    for opinion in opinions {
        let counts = opinion.weight * share(&opinion.owner);
        weight += counts;
        sum += counts * opinion.mean;
    }
    // A mean of numbers from 0 to 100 is one, but for the last bit of a float.
    TrustScore::from_points((sum / weight).clamp(0.0, 100.0)).unwrap_or(TrustScore::INITIAL)
}

/// By which part each owner's opinions count. Only one of them can hold more than half.
fn shares(opinions: &[Opinion]) -> impl Fn(&Owner) -> f64 {
    let mut by_owner = HashMap::<Owner, f64>::new();
    for opinion in opinions {
        *by_owner.entry(opinion.owner.clone()).or_default() += opinion.weight;
    }
    let total: f64 = by_owner.values().sum();
    let limited = by_owner.len() >= ENOUGH_OWNERS;
    move |owner| {
        let own = by_owner.get(owner).copied().unwrap_or_default();
        let others = total - own;
        if limited && own > others { others / own } else { 1.0 }
    }
}

#[cfg(test)]
mod tests;
