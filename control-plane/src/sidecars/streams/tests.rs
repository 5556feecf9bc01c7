use super::*;

fn revision(number: i64) -> Revision {
    Revision::new(number)
}

const NOW: Timestamp = Timestamp::from_micros(1000);

/// A stream that resumed at revision 10 and gets live changes.
fn live_stream() -> StreamStatus {
    let instance = SidecarInstance::from_bytes([1; 16]);
    let new = NewStream { revision: revision(10), applied: revision(10), ..NewStream::for_tests(instance) };
    let stream = StreamStatus::new(new, NOW);
    stream.resumes_at(revision(10));
    stream.sends(revision(10));
    stream.catches_up();
    stream
}

#[test]
fn changes_of_other_services_need_no_report() {
    let stream = live_stream();
    assert_eq!(stream.in_force(revision(50)), revision(50));
}

#[test]
fn change_is_in_force_when_it_is_reported_and_not_when_it_is_queued_or_sent() {
    let stream = live_stream();
    stream.queues(revision(20));
    assert_eq!(stream.in_force(revision(20)), revision(10));
    stream.sends(revision(20));
    stream.covers(revision(20));
    stream.confirm(NOW);
    assert_eq!(stream.in_force(revision(20)), revision(10));
    stream.report(revision(20), NOW).unwrap();
    assert_eq!(stream.in_force(revision(20)), revision(20));
    stream.queues(revision(30));
    assert_eq!(stream.in_force(revision(40)), revision(20), "a later change is queued");
}

#[test]
fn snapshot_is_in_force_when_it_is_reported() {
    let stream = StreamStatus::for_tests();
    stream.sends(revision(30));
    assert_eq!(stream.in_force(revision(30)), revision(0));
    stream.covers(revision(30));
    stream.catches_up();
    assert_eq!(stream.in_force(revision(35)), revision(0));
    stream.report(revision(30), NOW).unwrap();
    assert_eq!(stream.in_force(revision(35)), revision(35));
}

#[test]
fn stream_that_falls_behind_keeps_only_what_was_sent() {
    let stream = live_stream();
    stream.covers(revision(15));
    stream.falls_behind();
    assert_eq!(stream.in_force(revision(99)), revision(15));
    stream.end(Phase::Ended);
    assert_eq!(stream.in_force(revision(99)), revision(15));
}

#[test]
fn pages_without_changes_for_the_service_are_covered() {
    let stream = live_stream();
    stream.falls_behind();
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
fn first_report_forgets_the_previous_process() {
    let instance = SidecarInstance::from_bytes([1; 16]);
    let previous = SidecarInstance::from_bytes([2; 16]);
    let stream = StreamStatus::new(NewStream { previous: Some(previous), ..NewStream::for_tests(instance) }, NOW);
    stream.sends(revision(10));
    assert_eq!(stream.report(revision(10), NOW), Ok(Some(previous)));
    stream.sends(revision(20));
    assert_eq!(stream.report(revision(20), NOW), Ok(None));
}

#[test]
fn stream_that_ends_before_it_is_recorded_leaves_nothing() {
    let stream = live_stream();
    assert_eq!(stream.end(Phase::Ended), Some(Recording::Missing));
    assert_eq!(stream.begin_recording(), None);
    let stream = live_stream();
    assert!(stream.begin_recording().is_some());
    assert_eq!(stream.end(Phase::Ended), Some(Recording::Running));
}

#[test]
fn accepted_stream_is_recorded_also_after_its_end() {
    let stream = live_stream();
    stream.set_recording(Recording::Accepted);
    assert_eq!(stream.end(Phase::Ended), Some(Recording::Accepted));
    assert!(stream.begin_recording().is_some(), "the row has an earlier stream, which nobody ends");
}

#[test]
fn sidecar_that_has_left_does_not_end_again() {
    let stream = live_stream();
    assert!(stream.end(Phase::Left).is_some());
    assert_eq!((stream.end(Phase::Ended), stream.phase()), (None, Phase::Left));
}

/// The copy on disk may be older than the data with which the sidecar decides.
#[test]
fn resumed_stream_has_in_force_what_the_copy_has() {
    let instance = SidecarInstance::from_bytes([1; 16]);
    let new = NewStream { revision: revision(10), applied: revision(4), ..NewStream::for_tests(instance) };
    let stream = StreamStatus::new(new, NOW);
    stream.resumes_at(revision(10));
    stream.sends(revision(10));
    stream.catches_up();
    assert_eq!(stream.in_force(revision(10)), revision(4));
    stream.report(revision(10), NOW).unwrap();
    assert_eq!(stream.in_force(revision(12)), revision(12));
}

#[test]
fn resumed_view_counts_as_confirmed_until_now() {
    let instance = SidecarInstance::from_bytes([1; 16]);
    let with_view = NewStream { revision: revision(5), ..NewStream::for_tests(instance) };
    assert_eq!(StreamStatus::new(with_view, NOW).confirmed_at(), Some(NOW));
    assert_eq!(StreamStatus::for_tests().confirmed_at(), None);
}
