//! Property tests over random sequences of feedback.

use super::*;
use proptest::{collection::vec, prelude::*};
use std::time::Duration;

const DAY: Duration = Duration::from_hours(24);

/// One feedback: the index of the service, the points, and the days since the previous feedback. Services 0 to 2 have the same
/// owner; the agent is known to all services except 2, 5 and 6.
type FeedbackStep = (u8, f64, u32);

fn feedback_histories() -> impl Strategy<Value = Vec<FeedbackStep>> {
    vec((0..7_u8, 0.0..=100.0, prop_oneof![3 => Just(0), 1 => 0..400_u32]), 0..40)
}

fn ratings(history: &[FeedbackStep]) -> Vec<RatingBySource> {
    let (mut ratings, mut now) = (Vec::new(), Timestamp::from_seconds(0));
    for (service, points, days) in history {
        now = now.saturating_add(DAY * *days);
        apply_feedback(&mut ratings, *service, *points, now);
    }
    ratings
}

fn apply_feedback(ratings: &mut Vec<RatingBySource>, service: u8, points: f64, now: Timestamp) {
    let id = ServiceId::from_bits(service.into());
    let position = ratings.iter().position(|source| source.rating.service == id);
    let before = position.map_or_else(|| Rating::new(id, now), |position| ratings.swap_remove(position).rating);
    let rating = before.with_feedback(Score::from_points(points).unwrap(), now);
    ratings.push(rating_by(rating, service.saturating_sub(2), ![2, 5, 6].contains(&service)));
}

fn owner(number: u8) -> Owner {
    Owner { issuer: "i".into(), subject: number.to_string() }
}

fn rating_by(rating: Rating, owner_number: u8, is_known: bool) -> RatingBySource {
    RatingBySource { rating, owner: owner(owner_number), is_known }
}

/// A rating by a service with a weight of eight, the maximum.
fn full_rating(service: u8, owner_number: u8, mean: f64, is_known: bool) -> RatingBySource {
    let (service, rated_at) = (ServiceId::from_bits(service.into()), Timestamp::from_seconds(0));
    rating_by(Rating { service, weight: MAX_WEIGHT, mean, rated_at }, owner_number, is_known)
}

fn points(ratings: &[RatingBySource]) -> f64 {
    trust_score(ratings, None).points()
}

#[test]
fn oldest_rating_of_the_owner_with_the_most_is_removed() {
    // The higher the number of a service, the earlier it rated the agent.
    let rating = |number: u16, owner, is_known| {
        let rated_at = Timestamp::from_seconds(i64::from(u16::MAX - number));
        let service = ServiceId::from_bits(number.into());
        rating_by(Rating { service, weight: 1.0, mean: 1.0, rated_at }, owner, is_known)
    };
    let id = |number: u16| ServiceId::from_bits(number.into());
    let mut ratings: Vec<_> = (5000..6000).map(|number| rating(number, 1, true)).collect();
    ratings.extend((0..600).map(|number| rating(number, 1, false)));
    ratings.extend((1000..1400).map(|number| rating(number, 2, false)));
    assert!(remove_excess_ratings(&mut ratings).is_empty());
    ratings.push(rating(2000, 3, false));
    assert_eq!(remove_excess_ratings(&mut ratings), [id(599)], "the ratings of the other owners are older");
    assert_eq!(ratings.len(), 2000);
    ratings.extend((3000..3020).map(|number| rating(number, 1, false)));
    assert_eq!(remove_excess_ratings(&mut ratings), (3010..3020).rev().map(id).collect::<Vec<_>>());
}

proptest! {
    #[test]
    fn trust_is_bounded_and_starts_at_the_initial_score(history in feedback_histories()) {
        let trust = trust_score(&ratings(&history), None);
        prop_assert!(trust <= TrustScore::MAX);
        if history.is_empty() {
            prop_assert_eq!(trust, TrustScore::INITIAL);
        }
    }

    #[test]
    fn a_higher_score_never_lowers_trust(mut history in feedback_histories(), index in any::<prop::sample::Index>(), increase in 0.0..=100.0_f64) {
        prop_assume!(!history.is_empty());
        let before = trust_score(&ratings(&history), None);
        let index = index.index(history.len());
        let step = &mut history[index];
        step.1 = (step.1 + increase).min(100.0);
        prop_assert!(trust_score(&ratings(&history), None) >= before);
    }

    #[test]
    fn no_owner_weighs_more_than_the_prior_and_all_other_owners(history in feedback_histories()) {
        let owners = limited_weights(&ratings(&history), None);
        let total = PRIOR_WEIGHT + owners.iter().map(|owner| owner.weight).sum::<f64>();
        for owner in owners {
            prop_assert!(owner.weight <= total - owner.weight + 1e-9, "{owner:?} of {total}");
        }
    }

    #[test]
    fn unknown_services_together_weigh_at_most_one_feedback(history in feedback_histories()) {
        let mut unknown = ratings(&history);
        unknown.retain(|source| !source.is_known);
        let weight: f64 = limited_weights(&unknown, None).iter().map(|owner| owner.weight).sum();
        prop_assert!(weight <= 1.0 + 1e-9, "{weight}");
    }

    #[test]
    fn no_service_has_a_weight_above_eight(history in feedback_histories()) {
        prop_assert!(ratings(&history).iter().all(|source| source.rating.weight <= MAX_WEIGHT));
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
    for service in [0, 2] {
        assert_eq!(trust_score(&ratings(&[(service, 100.0, 0)]), None).to_string(), "60");
        assert_eq!(trust_score(&ratings(&[(service, 0.0, 0)]), None).to_string(), "40");
    }
}

#[test]
fn strangers_move_trust_like_one_feedback_and_one_owner_at_most_by_half() {
    assert!((points(&[full_rating(0, 0, 0.0, false)]) - 40.0).abs() < 0.01);
    let strangers: Vec<_> = (0..200).map(|number| full_rating(number, number, 0.0, false)).collect();
    assert!((points(&strangers) - 40.0).abs() < 0.01, "a stranger with many accounts weighs like one feedback");
    let one_owner: Vec<_> = (0..200).map(|number| full_rating(number, 0, 0.0, true)).collect();
    assert!((points(&one_owner) - 25.0).abs() < 0.01, "one owner weighs at most like the prior");
    let honest = (1..=3).map(|number| full_rating(number, number, 90.0, true));
    let mut ratings: Vec<_> = honest.collect();
    let before = points(&ratings);
    ratings.extend([full_rating(10, 10, 0.0, false), full_rating(11, 11, 0.0, false)]);
    assert!(before - points(&ratings) < 3.0, "two strangers cannot outweigh three owners");
}

#[test]
fn services_of_the_own_owner_weigh_nothing() {
    let ratings = [full_rating(0, 0, 100.0, true), full_rating(1, 1, 100.0, false)];
    assert_eq!(trust_score(&ratings[..1], Some(&owner(0))), TrustScore::INITIAL);
    assert_eq!(trust_score(&ratings, Some(&owner(0))), trust_score(&ratings[1..], None));
    assert_eq!(trust_score(&ratings, Some(&owner(7))), trust_score(&ratings, None));
}

#[test]
fn weight_halves_in_ninety_days() {
    let mut ratings = ratings(&[(0, 100.0, 0), (0, 100.0, 0)]);
    assert!((ratings[0].rating.weight - 2.0).abs() < 1e-9);
    apply_feedback(&mut ratings, 0, 0.0, Timestamp::from_seconds(0).saturating_add(DAY * 90));
    let rating = &ratings[0].rating;
    assert!((rating.weight - 2.0).abs() < 1e-9 && (rating.mean - 50.0).abs() < 1e-9, "{ratings:?}");
}

#[test]
fn weight_does_not_grow_if_the_clock_goes_back() {
    let mut ratings = ratings(&[(0, 100.0, 300)]);
    apply_feedback(&mut ratings, 0, 100.0, Timestamp::from_seconds(0));
    assert!((ratings[0].rating.weight - 2.0).abs() < 1e-9, "{ratings:?}");
}

#[test]
fn refuses_scores_out_of_range() {
    for points in [-0.1, 100.1, f64::NAN, f64::INFINITY, -1.0] {
        assert_eq!(Score::from_points(points), Err(InvalidScore), "{points}");
    }
}
