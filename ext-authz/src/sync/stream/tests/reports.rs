//! Tests of what a stream knows for reports to the control plane.

use super::*;

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
        let stream_number = StreamNumber { key_index: 0, number: 3, applied: Revision::new(on_disk) };
        let Some(v1::follow_request::Message::Hello(hello)) = stream.hello(IDENTITY, stream_number).message else {
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
