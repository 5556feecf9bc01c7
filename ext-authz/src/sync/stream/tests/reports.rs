//! Tests of what a stream knows for reports to the control plane.

use super::*;

#[test]
fn data_of_a_stream_has_the_revision_of_a_message_and_not_of_a_pong() {
    let data = |stream: &StreamState| stream.data_revision().number();
    let mut stream = stream_with_view(5);
    assert_eq!(data(&stream), 5);
    stream.ping(seconds(10)).unwrap();
    apply_pong(&mut stream, 1, 8).unwrap();
    assert_eq!((view_revision(&stream), data(&stream)), (8, 5));
    apply_delta(&mut stream, 9).unwrap();
    assert_eq!(data(&stream), 9);
    assert_eq!(data(&stream.into_next_stream()), 9);
    assert_eq!(data(&StreamState::resume(None, None)), 0);
}

/// Even if its copy is not written in time, a sidecar moves on to another address.
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
