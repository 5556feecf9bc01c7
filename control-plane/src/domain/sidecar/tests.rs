use super::*;
use countersign_identity::ApiKeyId;

const STALENESS: Duration = Duration::from_mins(1);
const COMMIT: i64 = 1_000_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(COMMIT + seconds * 1_000_000)
}

/// The revision of a change that was committed at 0 s.
const REVISION: Revision = Revision::new(COMMIT);

/// A sidecar that has the changes up to `in_force`, and was last confirmed at `confirmed`.
fn sidecar(in_force: i64, confirmed: i64) -> Sidecar {
    Sidecar {
        identity: SidecarIdentity {
            instance: SidecarInstance::from_bytes([1; 16]),
            api_key: ApiKeyId::from_bits(1),
            service: ServiceId::from_bits(1),
            address: "192.0.2.1:1000".to_owned(),
            release: "0.1.0".to_owned(),
        },
        connected_at: at(-100),
        is_connected: true,
        in_force: Revision::new(at(in_force).micros()),
        applied_at: Some(at(2)),
        last_known_confirmation: None,
        refuses_by: Some(at(confirmed).saturating_add(STALENESS)),
        max_staleness: STALENESS,
    }
}

fn receipt(now: i64, sidecars: impl IntoIterator<Item = Sidecar>) -> Enforcement {
    let mut receipt = Enforcement::new(REVISION, at(now));
    for sidecar in sidecars {
        receipt.add(sidecar);
    }
    receipt
}

#[test]
fn receipt_is_complete_when_all_sidecars_report_the_revision() {
    let complete = receipt(10, [sidecar(0, -1), sidecar(3, -1)]);
    assert!(complete.is_complete() && complete.refuses_by.is_none() && complete.unconfirmed.is_empty());
    assert_eq!((complete.sidecars, complete.enforced), (2, 2));
    assert_eq!(complete.elapsed(), Some(Duration::from_secs(2)));
    let incomplete = receipt(10, [sidecar(0, -1), sidecar(-1, -1)]);
    assert_eq!((incomplete.sidecars, incomplete.enforced, incomplete.is_complete()), (2, 1, false));
    assert_eq!(incomplete.elapsed(), None);
    assert_eq!(receipt(10, []).elapsed(), None);
    assert!(receipt(10, []).is_complete());
}

#[test]
fn silent_sidecar_counts_until_it_refuses_by_itself() {
    let frozen = || sidecar(-5, -3);
    let before = receipt(56, [frozen()]);
    assert_eq!((before.sidecars, before.refuses_by), (1, Some(at(57))));
    assert_eq!(before.unconfirmed[0].refuses_by, Some(at(57)));
    let after = receipt(57, [frozen()]);
    assert_eq!((after.sidecars, after.is_complete(), after.refuses_by), (0, true, None));
    assert_eq!((after.expired, after.elapsed()), (1, Some(Duration::from_secs(57))), "until then, it could decide");
    assert_eq!(receipt(57, [sidecar(0, 50), frozen()]).elapsed(), Some(Duration::from_secs(57)));
    let long_ago = sidecar(-90, -60);
    assert_eq!((receipt(1, [long_ago.clone()]).expired, receipt(1, [long_ago]).elapsed()), (0, None));
}

#[test]
fn time_that_is_not_known_any_more_is_not_stated() {
    let reported_later = Sidecar { applied_at: Some(at(390)), ..sidecar(380, 395) };
    assert_eq!(receipt(400, [reported_later]).elapsed(), None);
}

/// A sidecar that lacks the change was last confirmed before the commit, even if another clock gives a later time.
#[test]
fn confirmation_long_after_the_change_does_not_prolong_the_time() {
    let stated = at(0).saturating_add(CLOCK_MARGIN).saturating_add(STALENESS);
    for confirmed in [301, 1000] {
        let receipt = receipt(350, [sidecar(-5, confirmed)]);
        assert_eq!((receipt.refuses_by, receipt.unconfirmed[0].refuses_by), (Some(stated), Some(stated)));
    }
}

#[test]
fn sidecar_that_was_never_confirmed_does_not_count() {
    for in_force in [-1, 1] {
        let sidecar = Sidecar { refuses_by: None, ..sidecar(in_force, 0) };
        assert_eq!(receipt(1, [sidecar]).sidecars, 0);
    }
}

#[test]
fn receipt_names_a_bounded_number_of_sidecars() {
    let many = receipt(1, (0..150).map(|_| sidecar(-1, 0)));
    assert_eq!((many.sidecars, many.unconfirmed.len()), (150, MAX_NAMED_SIDECARS));
}

#[test]
fn revision_is_in_force_when_all_changes_that_concern_the_sidecar_are_applied() {
    let revision = |number| Revision::new(number);
    let progress = |applied, required| SidecarProgress {
        applied: revision(applied),
        required: revision(required),
        applied_at: None,
    };
    assert_eq!(progress(5, 5).in_force(revision(9)), revision(9));
    assert_eq!(progress(5, 6).in_force(revision(9)), revision(5));
    assert_eq!(progress(12, 5).in_force(revision(9)), revision(12));
    let behind = SidecarProgress { required: SidecarProgress::NOT_KNOWN, ..progress(5, 0) };
    assert_eq!(behind.in_force(revision(9)), revision(5));
}

#[test]
fn confirmations_alone_do_not_change_the_progress() {
    let progress = |applied, required| SidecarProgress {
        applied: Revision::new(applied),
        required: Revision::new(required),
        applied_at: None,
    };
    assert!(progress(5, 5).is_equivalent(progress(9, 5)));
    for changed in [progress(9, 9), progress(4, 5), progress(5, 6)] {
        assert!(!progress(5, 5).is_equivalent(changed), "{changed:?}");
    }
    assert!(!progress(3, 5).is_equivalent(progress(4, 5)));
}

#[test]
fn instances_are_read_back() {
    let instance = SidecarInstance::from_bytes([0xab; 16]);
    assert_eq!(instance.to_string().parse(), Ok(instance));
    for text in ["", "ab", &format!("{instance}.0")] {
        assert!(text.parse::<SidecarInstance>().is_err(), "{text}");
    }
}
