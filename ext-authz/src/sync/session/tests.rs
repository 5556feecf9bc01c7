//! Tests of `Session`: how single messages change it.

mod fuzz;

use super::*;
use crate::sync::decode::MessageError::OutOfOrder;

const SERVICE: ServiceId = ServiceId::from_bits(1);

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn info(service: ServiceId) -> v1::ServiceInfo {
    v1::ServiceInfo {
        service_id: service.to_string(),
        issuer: "https://issuer.test".into(),
        accepts_unbound_tokens: true,
        max_staleness_seconds: 60,
    }
}

fn first_page(revision: i64, last: bool) -> v1::SnapshotPage {
    v1::SnapshotPage {
        revision,
        floor: 1,
        info: Some(info(SERVICE)),
        keys: Some(v1::Keys::default()),
        roles: Some(v1::Roles::default()),
        last,
        ..v1::SnapshotPage::default()
    }
}

fn agent_page(revision: i64, agent: u128, last: bool) -> v1::SnapshotPage {
    let trust = Some(v1::TrustFacet { revision, hundredths: 10 });
    let agent =
        v1::AgentChanges { agent_id: AgentId::from_bits(agent).to_string(), trust, ..v1::AgentChanges::default() };
    v1::SnapshotPage { revision, floor: 1, agents: vec![agent], last, ..v1::SnapshotPage::default() }
}

fn response(message: Message) -> v1::FollowResponse {
    v1::FollowResponse { message: Some(message) }
}

fn apply_page(session: &mut Session, page: v1::SnapshotPage) -> Result<SessionUpdate, MessageError> {
    session.apply(response(Message::Snapshot(page)))
}

fn apply_delta(session: &mut Session, revision: i64) -> Result<SessionUpdate, MessageError> {
    session.apply(response(Message::Delta(v1::Delta { revision, ..v1::Delta::default() })))
}

fn apply_pong(session: &mut Session, number: u64, revision: i64) -> Result<SessionUpdate, MessageError> {
    session.apply(response(Message::Pong(v1::Pong { number, revision, floor: 1 })))
}

fn session_with_view(revision: i64) -> Session {
    let mut session = Session::resume(None, None);
    assert!(matches!(apply_page(&mut session, first_page(revision, true)), Ok(SessionUpdate::View(_))));
    session
}

fn view_revision(session: &Session) -> i64 {
    session.view().map_or(0, |view| view.revision().number())
}

#[test]
fn snapshot_is_applied_after_its_last_page() {
    let mut session = Session::resume(None, None);
    assert!(matches!(apply_page(&mut session, first_page(5, false)), Ok(SessionUpdate::NoChange)));
    assert!(matches!(apply_page(&mut session, agent_page(5, 1, false)), Ok(SessionUpdate::NoChange)));
    assert!(session.view().is_none());
    let Ok(SessionUpdate::View(view)) = apply_page(&mut session, agent_page(5, 2, true)) else {
        panic!("no view was created")
    };
    assert_eq!(view.agent_count(), 2);
}

#[test]
fn out_of_order_messages_are_refused_and_change_nothing() {
    let mut session = session_with_view(5);
    assert!(matches!(apply_delta(&mut session, 4), Err(OutOfOrder(_))));
    assert!(matches!(apply_page(&mut session, agent_page(9, 1, true)), Err(OutOfOrder(_))));
    assert!(matches!(apply_pong(&mut session, 1, 9), Err(OutOfOrder(_))));
    let page_of_other_service = v1::SnapshotPage { info: Some(info(ServiceId::from_bits(2))), ..first_page(9, true) };
    assert!(matches!(apply_page(&mut session, page_of_other_service), Err(OutOfOrder(_))));
    assert_eq!(view_revision(&session), 5);
    apply_page(&mut session, first_page(9, false)).unwrap();
    assert!(matches!(apply_delta(&mut session, 9), Err(OutOfOrder(_))));
    assert_eq!(view_revision(&session), 5);
    assert!(apply_delta(&mut Session::resume(None, None), 1).is_err());
}

#[test]
fn pong_after_a_refused_page_does_not_confirm_the_old_view() {
    for unexpected in [agent_page(8, 1, true), first_page(9, false)] {
        let mut session = session_with_view(5);
        session.ping(seconds(10)).unwrap();
        apply_page(&mut session, first_page(9, false)).unwrap();
        assert!(matches!(apply_page(&mut session, unexpected), Err(OutOfOrder(_))));
        assert!(matches!(apply_pong(&mut session, 1, 9), Ok(SessionUpdate::NoChange)));
        assert_eq!(session.view().unwrap().confirmed_at(), None);
        assert!(matches!(apply_page(&mut session, agent_page(9, 1, true)), Ok(SessionUpdate::View(_))));
    }
}

#[test]
fn resumed_stream_sends_its_revision_and_accepts_a_snapshot_with_a_lower_one() {
    let view = session_with_view(5).view();
    let mut session = Session::resume(view, None);
    let hello = v1::follow_request::Message::Hello(v1::Hello { revision: 5 });
    assert_eq!(session.hello().message, Some(hello));
    apply_page(&mut session, first_page(3, true)).unwrap();
    assert_eq!(view_revision(&session), 3);
}

#[test]
fn pong_confirms_the_view_as_of_the_time_of_its_ping() {
    let mut session = session_with_view(5);
    session.ping(seconds(10)).unwrap();
    session.ping(seconds(13)).unwrap();
    let Ok(SessionUpdate::Confirmed(view, ping_sent_at)) = apply_pong(&mut session, 1, 8) else {
        panic!("the pong confirmed no view")
    };
    assert_eq!((view.revision().number(), view.confirmed_at(), ping_sent_at), (8, Some(seconds(10)), seconds(10)));
    assert!(matches!(apply_delta(&mut session, 7), Err(OutOfOrder(_))), "the pong confirmed revision 8");
}

#[test]
fn pong_before_the_last_page_confirms_nothing() {
    let mut session = session_with_view(5);
    session.ping(seconds(10)).unwrap();
    apply_page(&mut session, first_page(9, false)).unwrap();
    assert!(matches!(apply_pong(&mut session, 1, 9), Ok(SessionUpdate::NoChange)));
    assert_eq!(session.view().unwrap().confirmed_at(), None);
}

#[test]
fn fourth_ping_fails_if_three_are_unanswered() {
    let mut session = session_with_view(5);
    for second in 0..3 {
        session.ping(seconds(second)).unwrap();
    }
    assert_eq!(session.ping(seconds(3)), Err(PingTimeout));
    apply_pong(&mut session, 2, 5).unwrap();
    assert!(session.ping(seconds(3)).is_ok());
}

#[test]
fn max_staleness_is_the_smaller_of_both_limits() {
    for (limit, effective) in [(10, 10), (3600, 60)] {
        let mut session = Session::resume(None, Some(seconds(limit)));
        apply_page(&mut session, first_page(5, true)).unwrap();
        assert_eq!(session.view().unwrap().settings().max_staleness, seconds(effective));
    }
}
