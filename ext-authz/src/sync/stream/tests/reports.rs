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

/// The control plane takes the revision in Hello for that of the copy, too.
#[test]
fn stream_resumes_at_an_older_copy_and_receives_changes_again() {
    let mut stream = StreamState::resume(stream_with_view(9).view(), None);
    stream.resume_at_copy(Revision::new(12));
    assert_eq!(stream.data().revision, Revision::new(9), "the copy is not older");
    stream.resume_at_copy(Revision::new(5));
    let Some(v1::follow_request::Message::Hello(hello)) = stream.hello(IDENTITY, StreamRole::InUse).message else {
        panic!("not a Hello")
    };
    assert_eq!(hello.revision, 5);
    for revision in [6, 8] {
        apply_delta(&mut stream, revision).unwrap();
        assert_eq!((view_revision(&stream), stream.data().revision), (9, Revision::new(revision)));
    }
    assert!(apply_delta(&mut stream, 7).is_err(), "the changes of a stream are in order");
    apply_delta(&mut stream, 10).unwrap();
    assert_eq!(view_revision(&stream), 10);
}
