//! Property tests over random sequences of feedback.

use super::*;
use proptest::{collection::vec, prelude::*};
use std::time::Duration;

const DAY: Duration = Duration::from_hours(24);

/// One feedback: the index of the service (0 to 4; services 0 to 2 have the same owner), the points, and the days since the
/// previous feedback.
type FeedbackStep = (u8, f64, u32);

fn feedback_histories() -> impl Strategy<Value = Vec<FeedbackStep>> {
    vec((0..5_u8, 0.0..=100.0, prop_oneof![3 => Just(0), 1 => 0..400_u32]), 0..40)
}

fn ratings(history: &[FeedbackStep]) -> Vec<Rating> {
    let (mut ratings, mut now) = (Vec::<Rating>::new(), Timestamp::from_seconds(0));
    for (service, points, days) in history {
        now = now.saturating_add(DAY * *days);
        apply_feedback(&mut ratings, *service, *points, now);
    }
    ratings
}

fn apply_feedback(ratings: &mut Vec<Rating>, service: u8, points: f64, now: Timestamp) {
    let id = ServiceId::from_bits(service.into());
    let owner = Owner { issuer: "i".into(), subject: service.saturating_sub(2).to_string() };
    let position = ratings.iter().position(|rating| rating.service == id);
    let before = position.map_or_else(|| Rating::new(id, owner, now), |position| ratings.swap_remove(position));
    ratings.push(before.with_feedback(Score::from_points(points).unwrap(), now));
}

/// The total weight of the ratings by an owner's services, and the total weight of all ratings.
fn owner_and_total_weight(ratings: &[Rating], owner: &str) -> (f64, f64) {
    let owner_factor = owner_factors(ratings);
    let effective = |rating: &Rating| rating.weight * owner_factor(&rating.owner);
    let own = ratings.iter().filter(|rating| rating.owner.subject == owner).map(effective).sum();
    (own, ratings.iter().map(effective).sum())
}

proptest! {
    #[test]
    fn trust_is_bounded_and_starts_at_the_initial_score(history in feedback_histories()) {
        let trust = trust_score(&ratings(&history));
        prop_assert!(trust <= TrustScore::MAX);
        if history.is_empty() {
            prop_assert_eq!(trust, TrustScore::INITIAL);
        }
    }

    #[test]
    fn a_higher_score_never_lowers_trust(mut history in feedback_histories(), index in any::<prop::sample::Index>(), increase in 0.0..=100.0_f64) {
        prop_assume!(!history.is_empty());
        let before = trust_score(&ratings(&history));
        let index = index.index(history.len());
        let step = &mut history[index];
        step.1 = (step.1 + increase).min(100.0);
        prop_assert!(trust_score(&ratings(&history)) >= before);
    }

    #[test]
    fn no_owner_has_more_than_half_of_the_weight_after_three_have_rated(history in feedback_histories()) {
        let ratings = ratings(&history);
        let owners: std::collections::HashSet<_> = ratings.iter().map(|rating| &rating.owner).collect();
        prop_assume!(owners.len() >= MIN_OWNERS_FOR_LIMIT);
        for owner in owners {
            let (own, all) = owner_and_total_weight(&ratings, &owner.subject);
            prop_assert!(own <= all / 2.0 + 1e-9, "{own} of {all}");
        }
    }

    #[test]
    fn no_service_has_a_weight_above_eight(history in feedback_histories()) {
        prop_assert!(ratings(&history).iter().all(|rating| rating.weight <= MAX_WEIGHT));
    }

    #[test]
    fn score_round_trips_through_storage(points in 0.0..=100.0) {
        let score = Score::from_points(points).unwrap();
        prop_assert_eq!(Score::from_millionths(score.millionths()), Ok(score));
        prop_assert!((score.points() - points).abs() <= 5e-7);
    }
}

#[test]
fn first_feedback_moves_trust_by_a_fifth_of_the_difference() {
    assert_eq!(trust_score(&ratings(&[(0, 100.0, 0)])).to_string(), "60");
    assert_eq!(trust_score(&ratings(&[(0, 0.0, 0)])).to_string(), "40");
}

#[test]
fn weight_halves_in_ninety_days() {
    let mut ratings = ratings(&[(0, 100.0, 0), (0, 100.0, 0)]);
    assert!((ratings[0].weight - 2.0).abs() < 1e-9);
    apply_feedback(&mut ratings, 0, 0.0, Timestamp::from_seconds(0).saturating_add(DAY * 90));
    assert!((ratings[0].weight - 2.0).abs() < 1e-9 && (ratings[0].mean - 50.0).abs() < 1e-9, "{ratings:?}");
}

#[test]
fn weight_does_not_grow_if_the_clock_goes_back() {
    let mut ratings = ratings(&[(0, 100.0, 300)]);
    apply_feedback(&mut ratings, 0, 100.0, Timestamp::from_seconds(0));
    assert!((ratings[0].weight - 2.0).abs() < 1e-9, "{ratings:?}");
}

#[test]
fn refuses_scores_out_of_range() {
    for points in [-0.1, 100.1, f64::NAN, f64::INFINITY, -1.0] {
        assert_eq!(Score::from_points(points), Err(InvalidScore), "{points}");
    }
}
