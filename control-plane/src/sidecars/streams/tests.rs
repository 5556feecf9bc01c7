use super::*;

fn revision(number: i64) -> Revision {
    Revision::new(number)
}

fn stream_with(new: NewStream) -> StreamStatus {
    StreamStatus::new(new, Arc::new(countersign_process::SystemClock))
}

fn new_stream() -> NewStream {
    NewStream::for_tests(SidecarInstance::from_bytes([1; 16]))
}

/// A stream that resumed at revision 10, has reported it, and gets live changes.
fn live_stream() -> StreamStatus {
    let stream = stream_with(NewStream { has_view: true, ..new_stream() });
    stream.resumes_at(revision(10));
    stream.sends(revision(10));
    stream.catches_up();
    stream.report(revision(10)).unwrap();
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
    stream.will_confirm();
    assert_eq!(stream.in_force(revision(20)), revision(10));
    stream.report(revision(20)).unwrap();
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
    stream.report(revision(30)).unwrap();
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
    assert_eq!(stream.report(revision(11)), Err(NotSent));
    stream.sends(revision(20));
    stream.report(revision(20)).unwrap();
    assert_eq!(stream.report(revision(20)), Err(NotSent), "one report for each message");
}

#[test]
fn previous_process_is_forgotten_after_the_first_report() {
    let previous = SidecarInstance::from_bytes([2; 16]);
    let stream = stream_with(NewStream { previous: Some(previous), ..new_stream() });
    assert_eq!(stream.process_to_forget(), None);
    stream.sends(revision(10));
    stream.report(revision(10)).unwrap();
    assert_eq!(stream.process_to_forget(), Some(previous));
    stream.clear_previous();
    assert_eq!(stream.process_to_forget(), None);
}

#[test]
fn sidecar_that_has_left_does_not_end_again() {
    let stream = live_stream();
    stream.leave();
    stream.end(Phase::Ended);
    assert_eq!(stream.phase(), Phase::Left);
}

/// A sidecar that resumes may have loaded an old copy from disk, so its data counts only after its first report.
#[test]
fn resumed_data_is_in_force_when_it_is_reported() {
    let stream = stream_with(NewStream { has_view: true, ..new_stream() });
    stream.resumes_at(revision(10));
    stream.sends(revision(10));
    stream.catches_up();
    assert_eq!(stream.in_force(revision(12)), revision(0));
    stream.report(revision(10)).unwrap();
    assert_eq!(stream.in_force(revision(12)), revision(12));
}

#[test]
fn view_and_earlier_streams_count_as_confirmed_until_now() {
    assert_eq!(stream_with(new_stream()).latest_confirmation(), None);
    assert!(stream_with(NewStream { has_view: true, ..new_stream() }).latest_confirmation().is_some());
    assert!(stream_with(NewStream { number: 2, ..new_stream() }).latest_confirmation().is_some());
}
