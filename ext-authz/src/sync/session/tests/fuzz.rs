//! Whatever the stream says: no panic, what is refused changes nothing, and nothing that was not said is known.
//!
//! A message of the other end and a ping of ours come in any order; what must then be true is kept beside
//! it in [`Story`], which knows no more than numbers.

use super::*;
use countersign_identity::{AgentKey, Claims, Kid, Permission, SessionId, Standing, TokenId, TrustScore};
use countersign_mangle::{bytes, bytes_like, cases, text};
use proptest::{collection::vec, option, prelude::*, sample::select};
use prost::Message as _;
use v1::revocation::Subject;

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
            (Err(_), _) => prop_assert_eq!(seen(session), before, "it was refused"),
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

/// Revisions that are near each other, and some that are nowhere.
fn number() -> BoxedStrategy<i64> {
    prop_oneof![8 => 0..12_i64, 1 => select(&[-1, i64::MIN, i64::MAX][..])].boxed()
}

/// Mostly ids that are met again.
fn id(prefix: &'static str) -> BoxedStrategy<String> {
    let good = (0..4_u128).prop_map(move |bits| AgentId::from_bits(bits).to_string().replace("agent_", prefix));
    prop_oneof![40 => good, 1 => text()].boxed()
}

fn infos() -> BoxedStrategy<v1::ServiceInfo> {
    let seconds = prop_oneof![9 => 1..100_u32, 1 => Just(0)];
    let service_id = prop_oneof![9 => Just(SERVICE.to_string()), 1 => id("svc_")];
    (service_id, seconds, any::<bool>())
        .prop_map(|(service_id, max_staleness_seconds, accepts_unbound_tokens)| v1::ServiceInfo {
            service_id,
            issuer: "https://issuer.test".into(),
            accepts_unbound_tokens,
            max_staleness_seconds,
        })
        .boxed()
}

fn roles() -> BoxedStrategy<v1::Roles> {
    let name = prop_oneof![20 => select(&["reader", "writer"][..]).prop_map(str::to_owned), 1 => text()];
    let role = (id("role_"), name, number()).prop_map(|(id, name, made_at)| {
        let permissions = vec![format!("use:{id}")];
        v1::Role { id, name, permissions, made_at }
    });
    vec(role, 0..3).prop_map(|roles| v1::Roles { roles }).boxed()
}

fn agents() -> BoxedStrategy<Vec<v1::AgentRecord>> {
    let grant = (id("role_"), any::<Option<i64>>()).prop_map(|(role_id, until)| v1::Grant { role_id, until });
    let roles = (number(), vec(grant, 0..3)).prop_map(|(revision, grants)| v1::RolesFacet { revision, grants });
    let trust = (number(), prop_oneof![9 => 0..=10_000, 1 => any::<i32>()])
        .prop_map(|(revision, hundredths)| v1::TrustFacet { revision, hundredths });
    let status = (number(), prop_oneof![9 => 1..4, 1 => any::<i32>()], number())
        .prop_map(|(revision, status, cutoff)| v1::StatusFacet { revision, status, cutoff });
    let record = (id("agent_"), option::of(roles), option::of(trust), option::of(status))
        .prop_map(|(agent_id, roles, trust, status)| v1::AgentRecord { agent_id, roles, trust, status });
    vec(record, 0..3).boxed()
}

fn deaths() -> BoxedStrategy<Vec<v1::Revocation>> {
    let subject = prop_oneof![
        9 => id("tok_").prop_map(|token| Some(Subject::TokenId(token))),
        9 => id("ses_").prop_map(|session| Some(Subject::SessionId(session))),
        1 => Just(None),
    ];
    vec((number(), subject).prop_map(|(revision, subject)| v1::Revocation { revision, subject }), 0..3).boxed()
}

fn point(seed: u8) -> Vec<u8> {
    p256::SecretKey::from_slice(&[seed; 32]).unwrap().public_key().to_sec1_bytes().to_vec()
}

/// Messages of the right form, most of them of the right content.
fn messages() -> BoxedStrategy<v1::FollowResponse> {
    let key = prop_oneof![
        9 => (1..4_u8).prop_map(point),
        1 => bytes(),
    ];
    let keys = vec(key, 0..3).prop_map(|points| v1::Keys { points }).boxed();
    let head = (infos(), keys.clone(), roles()).prop_map(|(info, keys, roles)| (Some(info), Some(keys), Some(roles)));
    let some_head = (option::of(infos()), option::of(keys.clone()), option::of(roles()));
    let head = prop_oneof![5 => head, 4 => Just((None, None, None)), 1 => some_head];
    let page = (0..12_i64, number(), head, agents(), deaths(), any::<bool>());
    let page = page.prop_map(|(revision, floor, (info, keys, roles), agents, revocations, last)| {
        Message::Snapshot(v1::SnapshotPage { revision, floor, info, keys, roles, agents, revocations, last })
    });
    let delta = (
        number(),
        option::weighted(0.2, infos()),
        option::weighted(0.2, keys),
        option::weighted(0.3, roles()),
        agents(),
        deaths(),
    );
    let delta = delta.prop_map(|(revision, info, keys, roles, agents, revocations)| {
        Message::Delta(v1::Delta { revision, info, keys, roles, agents, revocations })
    });
    let pong = (0..5_u64, number(), number())
        .prop_map(|(number, revision, floor)| Message::Pong(v1::Pong { number, revision, floor }));
    prop_oneof![page, delta, pong].prop_map(response).boxed()
}

fn events() -> BoxedStrategy<Vec<Event>> {
    let whole = || prop_oneof![4 => messages(), 1 => Just(response(Message::Snapshot(first_page(5, true))))];
    let near = whole().prop_flat_map(|message| bytes_like(&message.encode_to_vec()));
    let event = prop_oneof![
        12 => whole().prop_map(Event::Told),
        2 => near.prop_map(Event::Bytes),
        1 => bytes().prop_map(Event::Bytes),
        5 => (0..100_u64).prop_map(Event::Ping),
        1 => Just(Event::Resume),
    ];
    vec(event, 1..25).boxed()
}

/// What a view makes of an agent's token: as far as two sidecars could differ.
fn judged(session: &Session) -> Vec<Result<Standing, countersign_identity::Refusal>> {
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
        view.as_ref().map(|view| Standing::of(&claims, &view.facts_for(&claims), now))
    };
    (0..4).filter_map(judge).collect()
}

proptest! {
    #![proptest_config(cases(1))]

    #[test]
    fn what_is_refused_changes_nothing_and_only_a_pong_confirms(events in events()) {
        let (mut session, mut story) = (Session::resume(None, None), Story::default());
        let stranger = Kid::of(AgentKey::from_sec1(&point(9)).unwrap());
        for event in &events {
            story.goes_on(&mut session, event)?;
        }
        prop_assert!(session.view().is_none_or(|view| view.keys().get(&stranger).is_none()), "nobody named that key");
    }

    #[test]
    fn no_bytes_make_it_panic(first in bytes(), second in bytes_like(&response(Message::Snapshot(first_page(5, true))).encode_to_vec())) {
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
