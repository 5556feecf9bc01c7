//! Whatever the stream says: no panic, what is refused changes nothing, and nothing that was not said is known.
//!
//! A message of the other end and a ping of ours come in any order; what must then be true is kept beside
//! it in [`Story`], which knows no more than numbers.

mod messages;

use super::*;
use countersign_identity::{Claims, Kid, P256PublicKey, Permission, SessionId, TokenId, TrustScore, VerifiedIdentity};
use countersign_mangle::{any_bytes, cases_divided_by, mutated_bytes};
use proptest::{collection::vec, prelude::*};
use prost::Message as _;

/// What happens on a stream.
#[derive(Debug, Clone)]
enum Event {
    Told(v1::FollowResponse),
    /// Bytes that may be a message.
    Bytes(Vec<u8>),
    /// A ping of ours, at this second.
    Ping(u64),
    /// The stream breaks, and another one goes on where it ended.
    Resume,
}

/// All that can be seen of a session; views by their place in memory, since they never change.
type Sight =
    (Option<*const View>, Option<ServiceId>, Option<(i64, i64, usize, usize)>, Vec<(u64, Duration)>, u64, bool);

fn seen(session: &Session) -> Sight {
    let Session { view, service, max_staleness: _, pages, pings, last_ping, confirmed } = session;
    let pages = pages.as_ref().map(|Snapshot { revision, floor, agents, revoked, .. }| {
        (revision.number(), floor.number(), agents.len(), revoked.len())
    });
    (view.as_ref().map(Arc::as_ptr), *service, pages, pings.iter().copied().collect(), *last_ping, *confirmed)
}

/// What has happened so far.
#[derive(Default)]
struct Story {
    /// Pings of this stream that nobody has answered, and the seconds at which they were sent.
    asked: Vec<(u64, u64)>,
    /// The latest second whose ping was answered while a view stood whole, since the view last went back.
    confirmed: Option<u64>,
}

impl Story {
    fn goes_on(&mut self, session: &mut Session, event: &Event) -> Result<(), TestCaseError> {
        let message = match event {
            Event::Ping(second) => {
                if let Ok(v1::FollowRequest { message: Some(v1::follow_request::Message::Ping(ping)) }) =
                    session.ping(at(*second))
                {
                    self.asked.push((ping.number, *second));
                }
                return Ok(());
            }
            Event::Resume => {
                self.asked.clear();
                *session = Session::resume(session.view(), session.max_staleness);
                return Ok(());
            }
            Event::Told(message) => message.clone(),
            Event::Bytes(bytes) => match v1::FollowResponse::decode(&bytes[..]) {
                Ok(message) => message,
                Err(_) => return Ok(()),
            },
        };
        let (before, revision, half_read) = (seen(session), revision(session), session.pages.is_some());
        let news = session.take(message.clone());
        match (news, message.message) {
            (Err(_), _) => prop_assert_eq!(&seen(session), &before, "it was refused"),
            (Ok(_), Some(message)) if !messages::is_sound(&message) => {
                return Err(TestCaseError::fail("a part of it cannot be understood"));
            }
            (Ok(_), None) => return Err(TestCaseError::fail("nothing was understood")),
            (Ok(News::Nothing), Some(Message::Snapshot(_))) => prop_assert_eq!(seen(session).0, before.0),
            (Ok(News::View(_)), Some(Message::Snapshot(page))) => {
                prop_assert!(page.last && self::revision(session) == page.revision);
                if page.revision < revision {
                    self.confirmed = None;
                }
            }
            (Ok(News::View(_)), Some(Message::Delta(delta))) => {
                prop_assert!(delta.revision >= revision && self::revision(session) == delta.revision && !half_read);
            }
            (Ok(news), Some(Message::Pong(pong))) => self.answered(session, &pong, &news, revision)?,
            (news, message) => return Err(TestCaseError::fail(format!("{news:?} came of {message:?}"))),
        }
        prop_assert!(before.1.is_none() || before.1 == session.service, "one stream, one service");
        let confirmed = session.view().and_then(|view| view.confirmed_at());
        prop_assert_eq!(confirmed, self.confirmed.map(at));
        Ok(())
    }

    fn answered(&mut self, session: &Session, pong: &v1::Pong, news: &News, before: i64) -> Result<(), TestCaseError> {
        let position = self.asked.iter().position(|(number, _)| *number == pong.number);
        prop_assert!(position.is_some(), "nobody asked");
        let (_, second) = self.asked.drain(..=position.unwrap()).next_back().unwrap();
        match news {
            News::Confirmed(view, asked_at) => {
                prop_assert_eq!((*asked_at, session.pages.is_some()), (at(second), false));
                prop_assert_eq!(view.revision().number(), before.max(pong.revision));
                self.confirmed = Some(self.confirmed.map_or(second, |earlier| earlier.max(second)));
            }
            News::Nothing => prop_assert!(session.view.is_none() || session.pages.is_some()),
            News::View(_) => return Err(TestCaseError::fail("a pong brings no news")),
        }
        Ok(())
    }
}

fn events() -> BoxedStrategy<Vec<Event>> {
    let whole = || prop_oneof![4 => messages::any(), 1 => Just(response(Message::Snapshot(first_page(5, true))))];
    let near = whole().prop_flat_map(|message| mutated_bytes(&message.encode_to_vec()));
    let event = prop_oneof![
        12 => whole().prop_map(Event::Told),
        2 => near.prop_map(Event::Bytes),
        1 => any_bytes().prop_map(Event::Bytes),
        5 => (0..100_u64).prop_map(Event::Ping),
        1 => Just(Event::Resume),
    ];
    vec(event, 1..25).boxed()
}

/// What a view makes of an agent's token: as far as two sidecars could differ.
fn judged(session: &Session) -> Vec<Result<VerifiedIdentity, countersign_identity::Refusal>> {
    let view = session.view();
    let judge = |agent: u128| {
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
    (0..4).filter_map(judge).collect()
}

proptest! {
    #![proptest_config(cases_divided_by(1))]

    #[test]
    fn what_is_refused_changes_nothing_and_only_a_pong_confirms(events in events()) {
        let (mut session, mut story) = (Session::resume(None, None), Story::default());
        let stranger = Kid::from_key(P256PublicKey::from_sec1(&messages::point(9)).unwrap());
        for event in &events {
            story.goes_on(&mut session, event)?;
        }
        prop_assert!(session.view().is_none_or(|view| view.keys().get(&stranger).is_none()), "nobody named that key");
    }

    #[test]
    fn no_bytes_make_it_panic(first in any_bytes(), second in mutated_bytes(&response(Message::Snapshot(first_page(5, true))).encode_to_vec())) {
        let mut session = followed(5);
        for bytes in [first, second] {
            if let Ok(message) = v1::FollowResponse::decode(&bytes[..]) {
                let _either_way = session.take(message);
            }
        }
    }

    #[test]
    fn two_that_are_told_the_same_judge_the_same(events in events()) {
        let mut sessions = [Session::resume(None, None), Session::resume(None, None)];
        for event in &events {
            for session in &mut sessions {
                if let Event::Told(message) = event {
                    let _either_way = session.take(message.clone());
                }
            }
        }
        let [one, other] = sessions.each_ref().map(judged);
        prop_assert_eq!(one, other);
    }
}
