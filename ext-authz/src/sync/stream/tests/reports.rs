//! Tests of what a stream knows for reports to the control plane.

use super::*;

fn delta_with_version(stream: &mut StreamState, protocol_version: u32) -> Result<ViewUpdate, MessageError> {
    let info = Some(v1::ServiceInfo { protocol_version, ..info(SERVICE_ID) });
    stream.apply(response(Message::Delta(v1::Delta { revision: 9, info, ..v1::Delta::default() })), seconds(20))
}

#[test]
fn each_stream_learns_the_version_of_its_control_plane() {
    let mut stream = stream_with_view(5);
    assert!(stream.accepts_reports());
    apply_delta(&mut stream, 6).unwrap();
    assert!(stream.accepts_reports(), "a message without a version changes nothing");
    for (version, accepts) in [(0, false), (2, false), (3, true), (4, true)] {
        let mut next = StreamState::resume(stream.view(), None);
        assert!(!next.accepts_reports(), "the next stream may be at another control plane");
        delta_with_version(&mut next, version).unwrap();
        assert_eq!(next.accepts_reports(), accepts, "version {version}");
    }
    let mut next = stream.into_next_stream();
    assert!(!next.accepts_reports());
    let refused = v1::Delta { revision: 1, info: Some(info(SERVICE_ID)), ..v1::Delta::default() };
    assert!(next.apply(response(Message::Delta(refused)), seconds(20)).is_err());
    assert!(!next.accepts_reports(), "a refused message says nothing");
}

#[test]
fn data_of_a_stream_has_the_revision_of_a_message_and_not_of_a_pong() {
    let data = |stream: &StreamState| (stream.data().revision.number(), stream.data().is_snapshot);
    let mut stream = stream_with_view(5);
    assert_eq!(data(&stream), (5, true));
    stream.ping(seconds(10)).unwrap();
    apply_pong(&mut stream, 1, 8).unwrap();
    assert_eq!((view_revision(&stream), data(&stream)), (8, (5, true)));
    apply_delta(&mut stream, 9).unwrap();
    assert_eq!(data(&stream), (9, false));
    assert_eq!(data(&stream.into_next_stream()), (9, false));
    assert_eq!(data(&StreamState::resume(None, None)), (0, false));
}

/// The copy on disk may be older than the view, so the control plane must not take the revision at which the stream resumes for that
/// with which later processes decide.
#[test]
fn stream_resumes_at_its_view_and_states_an_older_copy() {
    let stream = StreamState::resume(stream_with_view(9).view(), None);
    for (on_disk, stated) in [(5, 5), (9, 9), (12, 9)] {
        let role = StreamRole::InUse { key_index: 0, number: 3, applied: Revision::new(on_disk) };
        let Some(v1::follow_request::Message::Hello(hello)) = stream.hello(IDENTITY, role).message else {
            panic!("not a Hello")
        };
        assert_eq!((hello.revision, hello.applied_revision, hello.stream_number), (9, stated, 3));
    }
}

/// A copy that cannot be written in time does not keep a sidecar from another address.
#[test]
fn another_address_continues_the_view_whatever_copy_there_is() {
    let mut stream = stream_with_view(5);
    stream.ping(seconds(10)).unwrap();
    apply_pong(&mut stream, 1, 8).unwrap();
    let mut next = stream.into_next_stream();
    next.keep_view_of_other_address();
    let settings = v1::Delta { revision: 8, info: Some(info(SERVICE_ID)), ..v1::Delta::default() };
    next.apply(response(Message::Delta(settings)), seconds(20)).unwrap();
    assert_eq!(view_revision(&next), 8);
}
