//! What must be true of any history of feedback.

use super::*;
use proptest::{collection::vec, prelude::*};
use std::time::Duration;

const DAY: Duration = Duration::from_hours(24);

/// One of five services, of which the first three have one owner; points; days since the feedback before.
type Told = (u8, f64, u32);

fn histories() -> impl Strategy<Value = Vec<Told>> {
    vec((0..5_u8, 0.0..=100.0, prop_oneof![3 => Just(0), 1 => 0..400_u32]), 0..40)
}

fn opinions(history: &[Told]) -> Vec<Opinion> {
    let (mut opinions, mut now) = (Vec::<Opinion>::new(), Timestamp::from_seconds(0));
    for (service, points, days) in history {
        now = now.saturating_add(DAY * *days);
        hear(&mut opinions, *service, *points, now);
    }
    opinions
}

fn hear(opinions: &mut Vec<Opinion>, service: u8, points: f64, now: Timestamp) {
    let id = ServiceId::from_bits(service.into());
    let owner = Owner { issuer: "i".into(), subject: service.saturating_sub(2).to_string() };
    let at = opinions.iter().position(|opinion| opinion.service == id);
    let before = at.map_or_else(|| Opinion::first(id, owner, now), |at| opinions.swap_remove(at));
    opinions.push(before.heard(Score::from_points(points).unwrap(), now));
}

fn weight_of(opinions: &[Opinion], owner: &str) -> (f64, f64) {
    let share = shares(opinions);
    let counts = |opinion: &Opinion| opinion.weight * share(&opinion.owner);
    let own = opinions.iter().filter(|opinion| opinion.owner.subject == owner).map(counts).sum();
    (own, opinions.iter().map(counts).sum())
}

proptest! {
    #[test]
    fn trust_is_bounded_and_starts_in_the_middle(history in histories()) {
        let trust = trust(&opinions(&history));
        prop_assert!(trust <= TrustScore::MAX);
        if history.is_empty() {
            prop_assert_eq!(trust, TrustScore::INITIAL);
        }
    }

    #[test]
    fn a_better_score_never_lowers_trust(mut history in histories(), at in any::<prop::sample::Index>(), more in 0.0..=100.0_f64) {
        prop_assume!(!history.is_empty());
        let before = trust(&opinions(&history));
        let at = at.index(history.len());
        let told = &mut history[at];
        told.1 = (told.1 + more).min(100.0);
        prop_assert!(trust(&opinions(&history)) >= before);
    }

    #[test]
    fn no_owner_has_more_than_half_once_three_have_rated(history in histories()) {
        let opinions = opinions(&history);
        let owners: std::collections::HashSet<_> = opinions.iter().map(|opinion| &opinion.owner).collect();
        prop_assume!(owners.len() >= ENOUGH_OWNERS);
        for owner in owners {
            let (own, all) = weight_of(&opinions, &owner.subject);
            prop_assert!(own <= all / 2.0 + 1e-9, "{own} of {all}");
        }
    }

    #[test]
    fn no_service_counts_for_more_than_eight(history in histories()) {
        prop_assert!(opinions(&history).iter().all(|opinion| opinion.weight <= MOST));
    }

    #[test]
    fn a_score_reads_back_as_itself(points in 0.0..=100.0) {
        let score = Score::from_points(points).unwrap();
        prop_assert_eq!(Score::from_millionths(score.millionths()), Ok(score));
        prop_assert!((score.points() - points).abs() <= 5e-7);
    }
}

#[test]
fn one_feedback_moves_trust_by_a_fifth_of_the_way() {
    assert_eq!(trust(&opinions(&[(0, 100.0, 0)])).to_string(), "60");
    assert_eq!(trust(&opinions(&[(0, 0.0, 0)])).to_string(), "40");
}

#[test]
fn what_was_said_fades_by_half_in_ninety_days() {
    let mut told = opinions(&[(0, 100.0, 0), (0, 100.0, 0)]);
    assert!((told[0].weight - 2.0).abs() < 1e-9);
    hear(&mut told, 0, 0.0, Timestamp::from_seconds(0).saturating_add(DAY * 90));
    assert!((told[0].weight - 2.0).abs() < 1e-9 && (told[0].mean - 50.0).abs() < 1e-9, "{told:?}");
}

#[test]
fn a_clock_that_goes_back_makes_nothing_count_for_more() {
    let mut told = opinions(&[(0, 100.0, 300)]);
    hear(&mut told, 0, 100.0, Timestamp::from_seconds(0));
    assert!((told[0].weight - 2.0).abs() < 1e-9, "{told:?}");
}

#[test]
fn what_is_no_score_is_refused() {
    for points in [-0.1, 100.1, f64::NAN, f64::INFINITY, -1.0] {
        assert_eq!(Score::from_points(points), Err(InvalidScore), "{points}");
    }
}
