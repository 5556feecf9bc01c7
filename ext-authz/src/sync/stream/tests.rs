//! Tests of `StreamState`: how single messages change it.

mod fuzz;
mod reports;

use super::*;
use crate::{
    fixtures::SERVICE_ID,
    sync::{
        decode::{MessageError::OutOfOrder, tests::info},
        instance::Instance,
    },
};
use countersign_proto::PROTOCOL_VERSION;

const AGENT_HASH_KEY: [u8; 32] = [7; 32];
const IDENTITY: ProcessIdentity =
    ProcessIdentity { instance: Instance::from_bytes([1; 16]), previous: Some(Instance::from_bytes([2; 16])) };

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn first_page(revision: i64, last: bool) -> v1::SnapshotPage {
    v1::SnapshotPage {
        revision,
        floor: 1,
        info: Some(info(SERVICE_ID)),
        keys: Some(v1::Keys::default()),
        roles: Some(v1::Roles::default()),
        last,
        ..v1::SnapshotPage::default()
    }
}

fn agent_page(revision: i64, agent: u128, last: bool) -> v1::SnapshotPage {
    let trust = Some(v1::TrustFacet { revision, hundredths: 10 });
    let agent = v1::AgentChanges { agent_hash: agent.to_be_bytes().to_vec(), trust, ..v1::AgentChanges::default() };
    v1::SnapshotPage { revision, floor: 1, agents: vec![agent], last, ..v1::SnapshotPage::default() }
}

fn response(message: Message) -> v1::FollowResponse {
    v1::FollowResponse { message: Some(message) }
}

fn apply_page(stream: &mut StreamState, page: v1::SnapshotPage) -> Result<ViewUpdate, MessageError> {
    stream.apply(response(Message::Snapshot(page)), seconds(20))
}

fn apply_delta(stream: &mut StreamState, revision: i64) -> Result<ViewUpdate, MessageError> {
    stream.apply(response(Message::Delta(v1::Delta { revision, ..v1::Delta::default() })), seconds(20))
}

fn apply_pong(stream: &mut StreamState, number: u64, revision: i64) -> Result<ViewUpdate, MessageError> {
    stream.apply(response(Message::Pong(v1::Pong { number, revision, floor: 1, time_micros: 0 })), seconds(20))
}

fn stream_with_view(revision: i64) -> StreamState {
    let mut stream = StreamState::resume(None, None);
    assert!(matches!(apply_page(&mut stream, first_page(revision, true)), Ok(ViewUpdate::View(_))));
    stream
}

fn view_revision(stream: &StreamState) -> i64 {
    stream.view().map_or(0, |view| view.revision().number())
}

fn page_up_to(cursor: i64, agent: u128) -> v1::SnapshotPage {
    v1::SnapshotPage { cursor, ..agent_page(9, agent, false) }
}

fn continued_page(agent: u128, last: bool) -> v1::SnapshotPage {
    v1::SnapshotPage { info: Some(info(SERVICE_ID)), ..agent_page(9, agent, last) }
}

const FIRST_STREAM: i64 = 1;

/// The state of a new stream. The earlier stream ended within the snapshot of revision 9, when it had received changes up to 5.
fn stream_after_cut() -> StreamState {
    let mut stream = stream_with_view(5);
    apply_page(&mut stream, first_page(9, false)).unwrap();
    apply_page(&mut stream, page_up_to(6, 1)).unwrap();
    apply_page(&mut stream, agent_page(9, 2, false)).unwrap();
    stream.into_next_stream()
}

fn offered_snapshot(stream: &StreamState) -> Option<v1::SnapshotProgress> {
    match stream.hello(IDENTITY, FIRST_STREAM).message {
        Some(v1::follow_request::Message::Hello(hello)) => hello.partial_snapshot,
        other => panic!("not a Hello: {other:?}"),
    }
}

#[test]
fn next_stream_continues_the_snapshot() {
    let mut stream = stream_after_cut();
    assert_eq!(offered_snapshot(&stream), Some(v1::SnapshotProgress { revision: 9, cursor: 6 }));
    assert!(matches!(apply_page(&mut stream, continued_page(3, false)), Ok(ViewUpdate::NoChange)));
    assert_eq!(view_revision(&stream), 5, "an incomplete snapshot is not used");
    apply_page(&mut stream, agent_page(9, 4, true)).unwrap();
    assert_eq!((view_revision(&stream), stream.view().unwrap().agent_count()), (9, 4));
    assert_eq!(offered_snapshot(&stream.into_next_stream()), None);
}

#[test]
fn next_stream_can_be_cut_before_the_snapshot_continues() {
    let mut stream = stream_after_cut().into_next_stream();
    assert_eq!(offered_snapshot(&stream), Some(v1::SnapshotProgress { revision: 9, cursor: 6 }));
    apply_page(&mut stream, continued_page(3, true)).unwrap();
    assert_eq!(view_revision(&stream), 9);
}

#[test]
fn other_data_replaces_the_incomplete_snapshot() {
    let mut stream = stream_after_cut();
    apply_delta(&mut stream, 8).unwrap();
    assert!(apply_page(&mut stream, continued_page(3, true)).is_err());
    assert_eq!((view_revision(&stream), offered_snapshot(&stream)), (8, None));
    let mut stream = stream_after_cut();
    apply_page(&mut stream, first_page(9, true)).unwrap();
    assert_eq!((view_revision(&stream), stream.view().unwrap().agent_count()), (9, 0));
}

#[test]
fn only_the_offered_snapshot_continues() {
    let mut stream = stream_after_cut();
    assert!(apply_page(&mut stream, agent_page(9, 3, true)).is_err(), "the page has no settings");
    assert!(apply_page(&mut stream, v1::SnapshotPage { revision: 10, ..continued_page(3, true) }).is_err());
    let other_key = v1::ServiceInfo { agent_hash_key: vec![8; 32], ..info(SERVICE_ID) };
    let page = v1::SnapshotPage { info: Some(other_key), ..continued_page(3, true) };
    assert_eq!(apply_page(&mut stream, page).unwrap_err(), MessageError::AgentHashKeyChanged);
    assert!(apply_page(&mut stream_with_view(5), continued_page(3, true)).is_err());
    stream.ping(seconds(10)).unwrap();
    assert!(
        matches!(apply_pong(&mut stream, 1, 9), Ok(ViewUpdate::NoChange)),
        "the changes after revision 5 are missing"
    );
    apply_page(&mut stream, continued_page(3, true)).unwrap();
}

#[test]
fn floor_of_a_snapshot_is_the_highest_of_its_pages() {
    let mut stream = StreamState::resume(None, None);
    for (floor, last) in [(2, false), (4, false), (3, true)] {
        let page = if floor == 2 { first_page(9, false) } else { agent_page(9, 1, last) };
        apply_page(&mut stream, v1::SnapshotPage { floor, ..page }).unwrap();
    }
    assert_eq!(stream.view().unwrap().floor(), Revision::new(4));
}

#[test]
fn pages_and_deltas_show_that_the_server_is_alive() {
    let mut stream = stream_with_view(5);
    for second in 0..100 {
        stream.ping(seconds(second)).unwrap();
        apply_delta(&mut stream, 5).unwrap();
    }
    apply_page(&mut stream, first_page(9, false)).unwrap();
    for second in 100..130 {
        stream.ping(seconds(second)).unwrap();
    }
    assert_eq!(stream.ping(seconds(130)), Err(PingTimeout));
    apply_page(&mut stream, agent_page(9, 1, true)).unwrap();
    let Ok(ViewUpdate::Confirmed(view, _)) = apply_pong(&mut stream, 130, 9) else { panic!("not confirmed") };
    assert_eq!(view.confirmed_at(), Some(seconds(129)));
}

#[test]
fn out_of_order_messages_are_refused_and_change_nothing() {
    let mut stream = stream_with_view(5);
    assert!(matches!(apply_delta(&mut stream, 4), Err(OutOfOrder(_))));
    assert!(matches!(apply_page(&mut stream, agent_page(9, 1, true)), Err(OutOfOrder(_))));
    assert!(matches!(apply_pong(&mut stream, 1, 9), Err(OutOfOrder(_))));
    let page_of_other_service = v1::SnapshotPage { info: Some(info(ServiceId::from_bits(2))), ..first_page(9, true) };
    assert!(matches!(apply_page(&mut stream, page_of_other_service), Err(OutOfOrder(_))));
    assert_eq!(view_revision(&stream), 5);
    apply_page(&mut stream, first_page(9, false)).unwrap();
    assert!(matches!(apply_delta(&mut stream, 9), Err(OutOfOrder(_))));
    assert_eq!(view_revision(&stream), 5);
    assert!(apply_delta(&mut StreamState::resume(None, None), 1).is_err());
}

#[test]
fn pong_after_a_refused_page_does_not_confirm_the_old_view() {
    for unexpected_page in [agent_page(8, 1, true), first_page(9, false)] {
        let mut stream = stream_with_view(5);
        stream.ping(seconds(10)).unwrap();
        apply_page(&mut stream, first_page(9, false)).unwrap();
        assert!(matches!(apply_page(&mut stream, unexpected_page), Err(OutOfOrder(_))));
        assert!(matches!(apply_pong(&mut stream, 1, 9), Ok(ViewUpdate::NoChange)));
        assert_eq!(stream.view().unwrap().confirmed_at(), None);
        assert!(matches!(apply_page(&mut stream, agent_page(9, 1, true)), Ok(ViewUpdate::View(_))));
    }
}

#[test]
fn resumed_stream_sends_its_revision_and_accepts_a_snapshot_with_a_lower_one() {
    let view = stream_with_view(5).view();
    let mut stream = StreamState::resume(view, None);
    let hello = v1::Hello {
        revision: 5,
        protocol_version: PROTOCOL_VERSION,
        partial_snapshot: None,
        instance: vec![1; 16],
        release: env!("CARGO_PKG_VERSION").to_owned(),
        previous_instance: vec![2; 16],
        stream_number: 1,
    };
    assert_eq!(stream.hello(IDENTITY, FIRST_STREAM).message, Some(v1::follow_request::Message::Hello(hello)));
    apply_page(&mut stream, first_page(3, true)).unwrap();
    assert_eq!(view_revision(&stream), 3);
}

#[test]
fn another_address_does_not_replace_the_view_by_older_or_other_data() {
    let other_address = || {
        let mut stream = StreamState::resume(stream_with_view(5).view(), None);
        stream.keep_view_of_other_address();
        stream
    };
    let mut stream = other_address();
    assert_eq!(apply_page(&mut stream, first_page(4, true)).unwrap_err(), MessageError::OlderThanView);
    assert_eq!(view_revision(&stream), 5);
    apply_page(&mut stream, first_page(6, true)).unwrap();
    assert_eq!(view_revision(&stream), 6, "a snapshot that is not older is used");
    let of_other_key = v1::ServiceInfo { agent_hash_key: vec![8; 32], ..info(SERVICE_ID) };
    let of_other_issuer = v1::ServiceInfo { issuer: "https://other.example".into(), ..info(SERVICE_ID) };
    for info in [of_other_key, of_other_issuer] {
        let mut stream = other_address();
        let page = v1::SnapshotPage { info: Some(info.clone()), ..first_page(9, true) };
        assert_eq!(apply_page(&mut stream, page).unwrap_err(), MessageError::OtherDeployment);
        let delta = v1::Delta { revision: 9, info: Some(info), ..v1::Delta::default() };
        let refusal = stream.apply(response(Message::Delta(delta)), seconds(20)).unwrap_err();
        assert_eq!((refusal, view_revision(&stream)), (MessageError::OtherDeployment, 5));
    }
}

#[test]
fn delta_with_another_agent_hash_key_is_refused() {
    let mut stream = stream_with_view(5);
    let info = v1::ServiceInfo { agent_hash_key: vec![8; 32], ..info(SERVICE_ID) };
    let delta = v1::Delta { revision: 6, info: Some(info), ..v1::Delta::default() };
    let refusal = stream.apply(response(Message::Delta(delta)), seconds(20)).unwrap_err();
    assert_eq!((refusal, view_revision(&stream)), (MessageError::AgentHashKeyChanged, 5));
}

#[test]
fn pong_sets_the_clock_of_the_control_plane_after_a_short_round_trip() {
    let mut stream = stream_with_view(5);
    let mut pong = |sent: u64, received: u64, time: i64| {
        stream.ping(seconds(sent)).unwrap();
        let number = stream.last_ping;
        let time_micros = time * 1_000_000;
        let pong = Message::Pong(v1::Pong { number, revision: 5, floor: 1, time_micros });
        stream.apply(response(pong), seconds(received)).unwrap();
        stream.view().unwrap().server_clock().map(|clock| clock.now(seconds(100)).seconds())
    };
    assert_eq!(pong(10, 10, 0), None, "a pong without a time sets no clock");
    assert_eq!(pong(15, 20, 1000), None, "the next pong may be precise");
    assert_eq!(pong(20, 30, 1000), Some(1080), "a second imprecise time is better than none");
    assert_eq!(pong(40, 40, 1015), Some(1075), "a precise time replaces it");
    assert_eq!(pong(50, 60, 1035), Some(1075), "an imprecise time replaces no clock that may be right");
    assert_eq!(pong(60, 65, 1100), Some(1140), "an imprecise time proves that the clock is slow");
    assert_eq!(pong(66, 70, 1000), Some(1034), "an imprecise time proves that the clock is fast");
    assert_eq!(pong(70, 71, 2000), Some(2030), "the clock of the control plane has jumped");
}

#[test]
fn fourth_ping_fails_if_three_are_unanswered() {
    let mut stream = stream_with_view(5);
    stream.ping(seconds(0)).unwrap();
    apply_pong(&mut stream, 1, 5).unwrap();
    for second in 1..4 {
        stream.ping(seconds(second)).unwrap();
    }
    assert_eq!(stream.ping(seconds(4)), Err(PingTimeout));
    apply_pong(&mut stream, 3, 5).unwrap();
    assert!(stream.ping(seconds(4)).is_ok());
}

/// The server waits for its turn to read before the first page, and before each page of missed changes.
#[test]
fn pings_may_be_unanswered_for_longer_until_the_first_pong() {
    for view in [None, stream_with_view(5).view()] {
        let mut stream = StreamState::resume(view.clone(), None);
        for second in 0..30 {
            stream.ping(seconds(second)).unwrap();
        }
        assert_eq!(stream.ping(seconds(30)), Err(PingTimeout));
        if view.is_some() {
            apply_delta(&mut stream, 6).unwrap();
            for second in 30..60 {
                stream.ping(seconds(second)).unwrap();
            }
            assert_eq!(stream.ping(seconds(60)), Err(PingTimeout));
        }
    }
}

#[test]
fn max_staleness_is_the_smaller_of_both_limits() {
    for (limit, effective) in [(10, 10), (3600, 60)] {
        let mut stream = StreamState::resume(None, Some(seconds(limit)));
        apply_page(&mut stream, first_page(5, true)).unwrap();
        assert_eq!(stream.view().unwrap().max_staleness(), seconds(effective));
    }
}
