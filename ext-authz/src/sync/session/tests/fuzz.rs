//! Property tests of sessions with messages and pings in any order: no message causes a panic, a refused message
//! changes nothing, and the view contains only received data. [`Model`] computes the expected state.

mod generators;

use super::*;
use countersign_identity::{Claims, Kid, P256PublicKey, Permission, SessionId, TokenId, TrustScore, VerifiedIdentity};
use countersign_mangle::{any_bytes, cases_divided_by, mutated_bytes};
use proptest::{collection::vec, prelude::*};
use prost::Message as _;

/// An event in the life of a session.
#[derive(Debug, Clone)]
enum Event {
    /// The session receives this message.
    Message(v1::FollowResponse),
    /// The session receives the message that these bytes encode, if they are valid protobuf.
    Bytes(Vec<u8>),
    /// The session sends a ping at this time, in seconds since boot.
    Ping(u64),
    /// The stream ends, and a new one resumes at the view.
    Resume,
}

/// The state of a session, for comparison. Views are immutable, so their addresses are compared.
type State =
    (Option<*const View>, Option<ServiceId>, Option<(i64, i64, usize, usize)>, Vec<(u64, Duration)>, u64, bool);

fn state(session: &Session) -> State {
    let Session { view, service, max_staleness: _, partial_snapshot, unanswered_pings, last_ping, confirmed } = session;
    let partial = partial_snapshot.as_ref().map(|Snapshot { revision, floor, agents, revocations, .. }| {
        (revision.number(), floor.number(), agents.len(), revocations.len())
    });
    (
        view.as_ref().map(Arc::as_ptr),
        *service,
        partial,
        unanswered_pings.iter().copied().collect(),
        *last_ping,
        *confirmed,
    )
}

/// The expected state of pings and confirmations.
#[derive(Default)]
struct Model {
    /// The numbers of the unanswered pings of this stream, and when they were sent, in seconds since boot.
    unanswered: Vec<(u64, u64)>,
    /// When the latest ping that confirmed the view was sent, in seconds since boot. A snapshot with a lower revision
    /// resets it.
    confirmed_at: Option<u64>,
}

impl Model {
    fn apply(&mut self, session: &mut Session, event: &Event) -> Result<(), TestCaseError> {
        let message = match event {
            Event::Ping(second) => {
                if let Ok(v1::FollowRequest { message: Some(v1::follow_request::Message::Ping(ping)) }) =
                    session.ping(seconds(*second))
                {
                    self.unanswered.push((ping.number, *second));
                }
                return Ok(());
            }
            Event::Resume => {
                self.unanswered.clear();
                *session = Session::resume(session.view(), session.max_staleness);
                return Ok(());
            }
            Event::Message(message) => message.clone(),
            Event::Bytes(bytes) => match v1::FollowResponse::decode(&bytes[..]) {
                Ok(message) => message,
                Err(_) => return Ok(()),
            },
        };
        let (before, revision, within_snapshot) =
            (state(session), view_revision(session), session.partial_snapshot.is_some());
        let update = session.apply(message.clone());
        match (update, message.message) {
            (Err(_), _) => prop_assert_eq!(&state(session), &before, "a refused message changed the session"),
            (Ok(_), Some(message)) if !generators::is_valid(&message) => {
                return Err(TestCaseError::fail("an invalid message was accepted"));
            }
            (Ok(_), None) => return Err(TestCaseError::fail("an empty message was accepted")),
            (Ok(SessionUpdate::NoChange), Some(Message::Snapshot(_))) => prop_assert_eq!(state(session).0, before.0),
            (Ok(SessionUpdate::View(_)), Some(Message::Snapshot(page))) => {
                prop_assert!(page.last && view_revision(session) == page.revision);
                if page.revision < revision {
                    self.confirmed_at = None;
                }
            }
            (Ok(SessionUpdate::View(_)), Some(Message::Delta(delta))) => {
                prop_assert!(
                    delta.revision >= revision && view_revision(session) == delta.revision && !within_snapshot
                );
            }
            (Ok(update), Some(Message::Pong(pong))) => self.apply_pong(session, &pong, &update, revision)?,
            (update, message) => return Err(TestCaseError::fail(format!("{message:?} caused {update:?}"))),
        }
        prop_assert!(before.1.is_none() || before.1 == session.service, "the service of a stream changed");
        let confirmed_at = session.view().and_then(|view| view.confirmed_at());
        prop_assert_eq!(confirmed_at, self.confirmed_at.map(seconds));
        Ok(())
    }

    fn apply_pong(
        &mut self,
        session: &Session,
        pong: &v1::Pong,
        update: &SessionUpdate,
        revision: i64,
    ) -> Result<(), TestCaseError> {
        let position = self.unanswered.iter().position(|(number, _)| *number == pong.number);
        prop_assert!(position.is_some(), "a pong for a ping that was not sent was accepted");
        let (_, sent_at) = self.unanswered.drain(..=position.unwrap()).next_back().unwrap();
        match update {
            SessionUpdate::Confirmed(view, ping_sent_at) => {
                prop_assert_eq!((*ping_sent_at, session.partial_snapshot.is_some()), (seconds(sent_at), false));
                prop_assert_eq!(view.revision().number(), revision.max(pong.revision));
                self.confirmed_at = Some(self.confirmed_at.map_or(sent_at, |earlier| earlier.max(sent_at)));
            }
            SessionUpdate::NoChange => prop_assert!(session.view.is_none() || session.partial_snapshot.is_some()),
            SessionUpdate::View(_) => return Err(TestCaseError::fail("a pong created a view without a confirmation")),
        }
        Ok(())
    }
}

fn events() -> BoxedStrategy<Vec<Event>> {
    let valid =
        || prop_oneof![4 => generators::any_response(), 1 => Just(response(Message::Snapshot(first_page(5, true))))];
    let mutated = valid().prop_flat_map(|message| mutated_bytes(&message.encode_to_vec()));
    let event = prop_oneof![
        12 => valid().prop_map(Event::Message),
        2 => mutated.prop_map(Event::Bytes),
        1 => any_bytes().prop_map(Event::Bytes),
        5 => (0..100_u64).prop_map(Event::Ping),
        1 => Just(Event::Resume),
    ];
    vec(event, 1..25).boxed()
}

/// Evaluates one token of each of several agents with the view of the session.
fn evaluate_tokens(session: &Session) -> Vec<Result<VerifiedIdentity, countersign_identity::Refusal>> {
    let view = session.view();
    let evaluate = |agent: u128| {
        let claims = Claims {
            iss: "https://issuer.test".into(),
            sub: AgentId::from_bits(agent),
            aud: SERVICE.to_string(),
            iat: 0,
            nbf: 0,
            exp: 3600,
            jti: TokenId::from_bits(agent),
            sid: SessionId::from_bits(agent),
            rev: Revision::new(6),
            name: "agent".into(),
            roles: vec!["reader".try_into().unwrap(), "writer".try_into().unwrap()],
            permissions: vec![Permission::try_from("claimed").unwrap()],
            trust_score: TrustScore::INITIAL,
            until: [].into(),
        };
        let now = countersign_identity::Timestamp::from_seconds(60);
        view.as_ref().map(|view| VerifiedIdentity::evaluate(&claims, &view.evaluation_context(&claims), now))
    };
    (0..4).filter_map(evaluate).collect()
}

proptest! {
    #![proptest_config(cases_divided_by(1))]

    #[test]
    fn refused_messages_change_nothing_and_only_pongs_confirm_views(events in events()) {
        let (mut session, mut model) = (Session::resume(None, None), Model::default());
        let unknown_key = Kid::from_key(P256PublicKey::from_sec1(&generators::point(9)).unwrap());
        for event in &events {
            model.apply(&mut session, event)?;
        }
        prop_assert!(session.view().is_none_or(|view| view.keys().get(&unknown_key).is_none()), "the view has a key that was not sent");
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(first in any_bytes(), second in mutated_bytes(&response(Message::Snapshot(first_page(5, true))).encode_to_vec())) {
        let mut session = session_with_view(5);
        for bytes in [first, second] {
            if let Ok(message) = v1::FollowResponse::decode(&bytes[..]) {
                let _result = session.apply(message);
            }
        }
    }

    #[test]
    fn sessions_that_apply_the_same_messages_evaluate_tokens_equally(events in events()) {
        let mut sessions = [Session::resume(None, None), Session::resume(None, None)];
        for event in &events {
            for session in &mut sessions {
                if let Event::Message(message) = event {
                    let _result = session.apply(message.clone());
                }
            }
        }
        let [first, second] = sessions.each_ref().map(evaluate_tokens);
        prop_assert_eq!(first, second);
    }
}
