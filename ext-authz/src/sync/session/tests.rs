//! Streams, message by message.

mod fuzz;

use super::*;
use crate::sync::decode::MessageError::OutOfPlace;

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

fn snapshot(session: &mut Session, page: v1::SnapshotPage) -> Result<News, MessageError> {
    session.take(response(Message::Snapshot(page)))
}

fn delta(session: &mut Session, revision: i64) -> Result<News, MessageError> {
    session.take(response(Message::Delta(v1::Delta { revision, ..v1::Delta::default() })))
}

fn pong(session: &mut Session, number: u64, revision: i64) -> Result<News, MessageError> {
    session.take(response(Message::Pong(v1::Pong { number, revision, floor: 1 })))
}

fn followed(revision: i64) -> Session {
    let mut session = Session::resume(None, None);
    assert!(matches!(snapshot(&mut session, first_page(revision, true)), Ok(News::View(_))));
    session
}

fn revision(session: &Session) -> i64 {
    session.view().map_or(0, |view| view.revision().number())
}

#[test]
fn pages_become_a_view_only_with_the_last_one() {
    let mut session = Session::resume(None, None);
    assert!(matches!(snapshot(&mut session, first_page(5, false)), Ok(News::Nothing)));
    assert!(matches!(snapshot(&mut session, agent_page(5, 1, false)), Ok(News::Nothing)));
    assert!(session.view().is_none());
    let Ok(News::View(view)) = snapshot(&mut session, agent_page(5, 2, true)) else { panic!("a view") };
    assert_eq!(view.remembered_agents(), 2);
}

#[test]
fn what_is_out_of_place_changes_nothing() {
    let mut session = followed(5);
    assert!(matches!(delta(&mut session, 4), Err(OutOfPlace(_))));
    assert!(matches!(snapshot(&mut session, agent_page(9, 1, true)), Err(OutOfPlace(_))));
    assert!(matches!(pong(&mut session, 1, 9), Err(OutOfPlace(_))));
    let other = v1::SnapshotPage { info: Some(info(ServiceId::from_bits(2))), ..first_page(9, true) };
    assert!(matches!(snapshot(&mut session, other), Err(OutOfPlace(_))));
    assert_eq!(revision(&session), 5);
    snapshot(&mut session, first_page(9, false)).unwrap();
    assert!(matches!(delta(&mut session, 9), Err(OutOfPlace(_))));
    assert_eq!(revision(&session), 5);
    assert!(delta(&mut Session::resume(None, None), 1).is_err());
}

#[test]
fn a_page_that_is_refused_does_not_end_the_snapshot_so_that_a_pong_could_confirm_the_old_view() {
    for stray in [agent_page(8, 1, true), first_page(9, false)] {
        let mut session = followed(5);
        session.ping(at(10)).unwrap();
        snapshot(&mut session, first_page(9, false)).unwrap();
        assert!(matches!(snapshot(&mut session, stray), Err(OutOfPlace(_))));
        assert!(matches!(pong(&mut session, 1, 9), Ok(News::Nothing)));
        assert_eq!(session.view().unwrap().confirmed_at(), None);
        assert!(matches!(snapshot(&mut session, agent_page(9, 1, true)), Ok(News::View(_))));
    }
}

#[test]
fn a_resumed_stream_says_where_it_stands_and_takes_even_a_lower_snapshot() {
    let view = followed(5).view();
    let mut session = Session::resume(view, None);
    let hello = v1::follow_request::Message::Hello(v1::Hello { revision: 5 });
    assert_eq!(session.hello().message, Some(hello));
    snapshot(&mut session, first_page(3, true)).unwrap();
    assert_eq!(revision(&session), 3);
}

#[test]
fn a_pong_confirms_as_of_the_sending_of_its_ping() {
    let mut session = followed(5);
    session.ping(at(10)).unwrap();
    session.ping(at(13)).unwrap();
    let Ok(News::Confirmed(view, asked_at)) = pong(&mut session, 1, 8) else { panic!("a confirmation") };
    assert_eq!((view.revision().number(), view.confirmed_at(), asked_at), (8, Some(at(10)), at(10)));
    assert!(matches!(delta(&mut session, 7), Err(OutOfPlace(_))), "it has been confirmed that nothing is missing");
}

#[test]
fn a_pong_confirms_nothing_while_a_snapshot_is_half_read() {
    let mut session = followed(5);
    session.ping(at(10)).unwrap();
    snapshot(&mut session, first_page(9, false)).unwrap();
    assert!(matches!(pong(&mut session, 1, 9), Ok(News::Nothing)));
    assert_eq!(session.view().unwrap().confirmed_at(), None);
}

#[test]
fn three_missed_pongs_end_the_stream() {
    let mut session = followed(5);
    for second in 0..3 {
        session.ping(at(second)).unwrap();
    }
    assert_eq!(session.ping(at(3)), Err(Silent));
    pong(&mut session, 2, 5).unwrap();
    assert!(session.ping(at(3)).is_ok());
}

#[test]
fn a_sidecar_may_be_stricter_than_the_control_plane_and_not_laxer() {
    for (ours, used) in [(10, 10), (3600, 60)] {
        let mut session = Session::resume(None, Some(at(ours)));
        snapshot(&mut session, first_page(5, true)).unwrap();
        assert_eq!(session.view().unwrap().terms().max_staleness, at(used));
    }
}
