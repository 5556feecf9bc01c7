use super::*;

fn revision(number: i64) -> Revision {
    Revision::new(number)
}

const NOW: Timestamp = Timestamp::from_micros(1000);

/// A stream that resumed at revision 10 and gets live changes.
fn live_stream() -> Arc<StreamStatus> {
    let stream = StreamStatus::for_tests();
    stream.resumes_at(revision(10));
    stream.sends(revision(10));
    stream.catches_up();
    stream
}

#[test]
fn changes_of_other_services_need_no_report() {
    let stream = live_stream();
    assert_eq!(stream.in_force(revision(50)), Some(revision(50)));
}

#[test]
fn change_is_in_force_when_it_is_reported_and_not_when_it_is_queued_or_sent() {
    let stream = live_stream();
    stream.queues(revision(20));
    assert_eq!(stream.in_force(revision(20)), Some(revision(10)));
    stream.sends(revision(20));
    stream.covers(revision(20));
    stream.confirm(NOW);
    assert_eq!(stream.in_force(revision(20)), Some(revision(10)));
    stream.report(revision(20), NOW).unwrap();
    assert_eq!(stream.in_force(revision(20)), Some(revision(20)));
    stream.queues(revision(30));
    assert_eq!(stream.in_force(revision(40)), Some(revision(20)), "a later change is queued");
}

#[test]
fn snapshot_is_in_force_when_it_is_reported() {
    let stream = StreamStatus::for_tests();
    stream.sends(revision(30));
    assert_eq!(stream.in_force(revision(30)), Some(revision(0)));
    stream.covers(revision(30));
    stream.catches_up();
    assert_eq!(stream.in_force(revision(35)), Some(revision(0)));
    stream.report(revision(30), NOW).unwrap();
    assert_eq!(stream.in_force(revision(35)), Some(revision(35)));
}

#[test]
fn stream_that_falls_behind_keeps_only_what_was_sent() {
    let stream = live_stream();
    stream.covers(revision(15));
    stream.falls_behind();
    assert_eq!(stream.in_force(revision(99)), Some(revision(15)));
    stream.end(Phase::Ended);
    assert_eq!(stream.in_force(revision(99)), Some(revision(15)));
}

#[test]
fn pages_without_changes_for_the_service_are_covered() {
    let stream = StreamStatus::for_tests();
    stream.resumes_at(revision(10));
    stream.covers(revision(40));
    stream.catches_up();
    assert_eq!(stream.progress().applied, revision(40));
}

#[test]
fn report_of_data_that_was_not_sent_is_refused() {
    let stream = live_stream();
    assert_eq!(stream.report(revision(11), NOW).err(), Some(NotSent));
    stream.sends(revision(20));
    stream.report(revision(20), NOW).unwrap();
    assert_eq!(stream.report(revision(20), NOW).err(), Some(NotSent), "one report for each message");
}

#[test]
fn standby_stream_is_used_from_its_first_report_on() {
    let instance = SidecarInstance::from_bytes([1; 16]);
    let previous = SidecarInstance::from_bytes([2; 16]);
    let new = NewStream { is_standby: true, previous: Some(previous), ..NewStream::for_tests(instance) };
    let stream = StreamStatus::new(new, instance, (0, NOW));
    assert!(!stream.counts());
    stream.resumes_at(revision(10));
    stream.sends(revision(10));
    let Report { begins_use, previous: forgotten } = stream.report(revision(10), NOW).unwrap();
    assert!(begins_use && stream.counts());
    assert_eq!(forgotten, Some(previous));
    stream.sends(revision(20));
    let Report { begins_use, previous: forgotten } = stream.report(revision(20), NOW).unwrap();
    assert!(!begins_use && forgotten.is_none());
}

#[test]
fn sidecar_that_has_left_does_not_decide() {
    let stream = live_stream();
    assert_eq!(stream.end(Phase::Left), Phase::InUse);
    assert_eq!(stream.end(Phase::Ended), Phase::Left);
    assert!(!stream.counts());
}

#[test]
fn sidecar_of_an_earlier_version_reports_nothing() {
    let instance = SidecarInstance::from_bytes([1; 16]);
    let new = NewStream { protocol_version: 2, is_standby: true, ..NewStream::for_tests(instance) };
    let stream = StreamStatus::new(new, instance, (0, NOW));
    assert_eq!((stream.in_force(revision(10)), stream.counts()), (None, true));
}

#[test]
fn resumed_view_counts_as_confirmed_until_now() {
    let instance = SidecarInstance::from_bytes([1; 16]);
    let with_view = NewStream { revision: revision(5), ..NewStream::for_tests(instance) };
    assert_eq!(StreamStatus::new(with_view, instance, (0, NOW)).confirmed_at(), Some(NOW));
    assert_eq!(StreamStatus::for_tests().confirmed_at(), None);
}
