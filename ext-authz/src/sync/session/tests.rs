//! Tests of sessions, message by message.

mod fuzz;

use super::*;
use crate::sync::decode::MessageError::OutOfOrder;

const SERVICE: ServiceId = ServiceId::from_bits(1);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
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

fn snapshot(session: &mut Session, page: v1::SnapshotPage) -> Result<SessionUpdate, MessageError> {
    session.apply(response(Message::Snapshot(page)))
}

fn delta(session: &mut Session, revision: i64) -> Result<SessionUpdate, MessageError> {
    session.apply(response(Message::Delta(v1::Delta { revision, ..v1::Delta::default() })))
}

fn pong(session: &mut Session, number: u64, revision: i64) -> Result<SessionUpdate, MessageError> {
    session.apply(response(Message::Pong(v1::Pong { number, revision, floor: 1 })))
}

fn session_with_view(revision: i64) -> Session {
    let mut session = Session::resume(None, None);
    assert!(matches!(snapshot(&mut session, first_page(revision, true)), Ok(SessionUpdate::View(_))));
    session
}

fn revision(session: &Session) -> i64 {
    session.view().map_or(0, |view| view.revision().number())
}

#[test]
fn snapshot_is_applied_with_its_last_page() {
    let mut session = Session::resume(None, None);
    assert!(matches!(snapshot(&mut session, first_page(5, false)), Ok(SessionUpdate::NoChange)));
    assert!(matches!(snapshot(&mut session, agent_page(5, 1, false)), Ok(SessionUpdate::NoChange)));
    assert!(session.view().is_none());
    let Ok(SessionUpdate::View(view)) = snapshot(&mut session, agent_page(5, 2, true)) else { panic!("a view") };
    assert_eq!(view.agent_count(), 2);
}

#[test]
fn out_of_order_messages_change_nothing() {
    let mut session = session_with_view(5);
    assert!(matches!(delta(&mut session, 4), Err(OutOfOrder(_))));
    assert!(matches!(snapshot(&mut session, agent_page(9, 1, true)), Err(OutOfOrder(_))));
    assert!(matches!(pong(&mut session, 1, 9), Err(OutOfOrder(_))));
    let other = v1::SnapshotPage { info: Some(info(ServiceId::from_bits(2))), ..first_page(9, true) };
    assert!(matches!(snapshot(&mut session, other), Err(OutOfOrder(_))));
    assert_eq!(revision(&session), 5);
    snapshot(&mut session, first_page(9, false)).unwrap();
    assert!(matches!(delta(&mut session, 9), Err(OutOfOrder(_))));
    assert_eq!(revision(&session), 5);
    assert!(delta(&mut Session::resume(None, None), 1).is_err());
}

#[test]
fn refused_page_keeps_the_snapshot_open_so_that_no_pong_confirms_the_old_view() {
    for unexpected in [agent_page(8, 1, true), first_page(9, false)] {
        let mut session = session_with_view(5);
        session.ping(at(10)).unwrap();
        snapshot(&mut session, first_page(9, false)).unwrap();
        assert!(matches!(snapshot(&mut session, unexpected), Err(OutOfOrder(_))));
        assert!(matches!(pong(&mut session, 1, 9), Ok(SessionUpdate::NoChange)));
        assert_eq!(session.view().unwrap().confirmed_at(), None);
        assert!(matches!(snapshot(&mut session, agent_page(9, 1, true)), Ok(SessionUpdate::View(_))));
    }
}

#[test]
fn resumed_stream_sends_its_revision_and_accepts_a_lower_snapshot() {
    let view = session_with_view(5).view();
    let mut session = Session::resume(view, None);
    let hello = v1::follow_request::Message::Hello(v1::Hello { revision: 5 });
    assert_eq!(session.hello().message, Some(hello));
    snapshot(&mut session, first_page(3, true)).unwrap();
    assert_eq!(revision(&session), 3);
}

#[test]
fn pong_confirms_as_of_when_its_ping_was_sent() {
    let mut session = session_with_view(5);
    session.ping(at(10)).unwrap();
    session.ping(at(13)).unwrap();
    let Ok(SessionUpdate::Confirmed(view, ping_sent_at)) = pong(&mut session, 1, 8) else { panic!("a confirmation") };
    assert_eq!((view.revision().number(), view.confirmed_at(), ping_sent_at), (8, Some(at(10)), at(10)));
    assert!(matches!(delta(&mut session, 7), Err(OutOfOrder(_))), "the pong confirmed revision 8");
}

#[test]
fn pong_confirms_nothing_within_a_snapshot() {
    let mut session = session_with_view(5);
    session.ping(at(10)).unwrap();
    snapshot(&mut session, first_page(9, false)).unwrap();
    assert!(matches!(pong(&mut session, 1, 9), Ok(SessionUpdate::NoChange)));
    assert_eq!(session.view().unwrap().confirmed_at(), None);
}

#[test]
fn three_unanswered_pings_end_the_stream() {
    let mut session = session_with_view(5);
    for second in 0..3 {
        session.ping(at(second)).unwrap();
    }
    assert_eq!(session.ping(at(3)), Err(PingTimeout));
    pong(&mut session, 2, 5).unwrap();
    assert!(session.ping(at(3)).is_ok());
}

#[test]
fn sidecar_can_only_lower_max_staleness() {
    for (limit, effective) in [(10, 10), (3600, 60)] {
        let mut session = Session::resume(None, Some(at(limit)));
        snapshot(&mut session, first_page(5, true)).unwrap();
        assert_eq!(session.view().unwrap().settings().max_staleness, at(effective));
    }
}
