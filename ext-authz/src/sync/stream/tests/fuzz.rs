//! Property tests of streams with messages and pings in any order. No message causes a panic, a refused message changes nothing,
//! and the view contains only received data. [`StreamModel`] computes the expected state.

mod generators;

use super::*;
use countersign_identity::{Kid, P256PublicKey};
use countersign_mangle::{any_bytes, cases_divided_by, mutated_bytes};
use proptest::{collection::vec, prelude::*};
use prost::Message as _;

/// An event in the life of a stream.
#[derive(Debug, Clone)]
enum StreamEvent {
    /// The stream receives this message.
    Message(Box<v1::FollowResponse>),
    /// The stream receives the message that these bytes encode, if they are valid protobuf.
    Bytes(Vec<u8>),
    /// The stream sends a ping at this time, in seconds since boot.
    Ping(u64),
    /// The stream ends, and a new stream resumes at the revision of the local data.
    Resume,
}

/// The state of a stream, for comparison. Views are immutable, so their addresses are compared.
#[derive(Debug, PartialEq)]
struct StateSnapshot {
    view: Option<*const View>,
    service: Option<ServiceId>,
    /// The partial and the earlier snapshot.
    snapshots: [Option<PartialState>; 2],
    unanswered_pings: Vec<(u64, Duration)>,
    /// The last ping, the last answered ping, and the number of pings since the last message.
    numbers: (u64, u64, usize),
    /// The revision up to which changes were received, and the revision of the newest data.
    received: (Revision, Revision),
    /// Whether a ping is wanted, whether a pong was late, and whether a pong confirmed the view.
    flags: [bool; 3],
}

/// The state of an incomplete snapshot: its revision, its cursor and its size.
type PartialState = (Revision, Revision, [usize; 2]);

fn state_snapshot(stream: &StreamState) -> StateSnapshot {
    let StreamState {
        view,
        received,
        data_revision,
        service,
        max_staleness: _,
        partial_snapshot,
        earlier_snapshot,
        unanswered_pings,
        last_ping,
        pings_since_message,
        last_answered_ping,
        wants_ping,
        had_late_pong,
        confirmed,
        is_view_of_other_address: _,
    } = stream;
    let partial_state =
        |snapshot: &PartialSnapshot| (snapshot.view.revision(), snapshot.cursor, snapshot.view.counts());
    StateSnapshot {
        view: view.as_ref().map(Arc::as_ptr),
        service: *service,
        snapshots: [partial_snapshot, earlier_snapshot].map(|snapshot| snapshot.as_ref().map(partial_state)),
        unanswered_pings: unanswered_pings.iter().copied().collect(),
        numbers: (*last_ping, *last_answered_ping, *pings_since_message),
        received: (*received, *data_revision),
        flags: [*wants_ping, *had_late_pong, *confirmed],
    }
}

/// The expected state of pings and confirmations.
#[derive(Default)]
struct StreamModel {
    /// The numbers of the unanswered pings of this stream, and when they were sent, in seconds since boot.
    unanswered: Vec<(u64, u64)>,
    /// When the latest ping that confirmed the view was sent, in seconds since boot. A snapshot that is older than the view resets
    /// it to `None`.
    confirmed_at: Option<u64>,
}

impl StreamModel {
    fn apply(&mut self, stream: &mut StreamState, event: &StreamEvent) -> Result<(), TestCaseError> {
        let message = match event {
            StreamEvent::Ping(second) => {
                if let Ok(v1::FollowRequest { message: Some(v1::follow_request::Message::Ping(ping)) }) =
                    stream.ping(seconds(*second))
                {
                    self.unanswered.push((ping.number, *second));
                }
                return Ok(());
            }
            StreamEvent::Resume => return self.resume(stream),
            StreamEvent::Message(message) => v1::FollowResponse::clone(message),
            StreamEvent::Bytes(bytes) => match v1::FollowResponse::decode(&bytes[..]) {
                Ok(message) => message,
                Err(_) => return Ok(()),
            },
        };
        let (before, revision, within_snapshot) =
            (state_snapshot(stream), view_revision(stream), stream.partial_snapshot.is_some());
        let update = stream.apply(message.clone(), seconds(20));
        match (update, message.message) {
            (Err(_), _) => prop_assert_eq!(&state_snapshot(stream), &before, "a refused message changed the stream"),
            (Ok(_), Some(message)) if !generators::is_valid(&message) => {
                return Err(TestCaseError::fail("an invalid message was accepted"));
            }
            (Ok(_), None) => return Err(TestCaseError::fail("an empty message was accepted")),
            (Ok(ViewUpdate::NoChange), Some(Message::Snapshot(_))) => {
                prop_assert_eq!(state_snapshot(stream).view, before.view);
            }
            (Ok(ViewUpdate::View(_)), Some(Message::Snapshot(page))) => {
                prop_assert!(page.last && view_revision(stream) == page.revision);
                prop_assert_eq!(stream.data_revision().number(), page.revision);
                if page.revision < revision {
                    self.confirmed_at = None;
                }
            }
            (Ok(ViewUpdate::View(_)), Some(Message::Delta(delta))) => {
                prop_assert!(delta.revision >= revision && view_revision(stream) == delta.revision && !within_snapshot);
                prop_assert_eq!(stream.data_revision().number(), delta.revision);
            }
            (Ok(update), Some(Message::Pong(pong))) => self.apply_pong(stream, &pong, &update, revision)?,
            (update, message) => return Err(TestCaseError::fail(format!("{message:?} caused {update:?}"))),
        }
        prop_assert!(before.service.is_none() || before.service == stream.service, "the service of a stream changed");
        let confirmed_at = stream.view().and_then(|view| view.confirmed_at());
        prop_assert_eq!(confirmed_at, self.confirmed_at.map(seconds));
        Ok(())
    }

    /// The next stream begins, and offers the incomplete snapshot of the ended one.
    fn resume(&mut self, stream: &mut StreamState) -> Result<(), TestCaseError> {
        self.unanswered.clear();
        let ended = std::mem::replace(stream, StreamState::resume(None, None));
        let offered = ended.partial_snapshot.as_ref().or(ended.earlier_snapshot.as_ref());
        let offered = offered.map(|snapshot| (snapshot.view.revision(), snapshot.cursor));
        *stream = ended.into_next_stream();
        let Some(v1::follow_request::Message::Hello(hello)) =
            stream.hello(super::IDENTITY, super::FIRST_STREAM).message
        else {
            return Err(TestCaseError::fail("the first message is not Hello"));
        };
        let hello = hello.partial_snapshot.map(|progress| (progress.revision, progress.cursor));
        prop_assert_eq!(hello, offered.map(|(revision, cursor)| (revision.number(), cursor.number())));
        Ok(())
    }

    fn apply_pong(
        &mut self,
        stream: &StreamState,
        pong: &v1::Pong,
        update: &ViewUpdate,
        revision: i64,
    ) -> Result<(), TestCaseError> {
        let position = self.unanswered.iter().position(|(number, _)| *number == pong.number);
        prop_assert!(position.is_some(), "a pong for a ping that was not sent was accepted");
        let (_, sent_at) = self.unanswered.drain(..=position.unwrap()).next_back().unwrap();
        match update {
            ViewUpdate::Confirmed(view, ping_sent_at) => {
                prop_assert_eq!((*ping_sent_at, stream.partial_snapshot.is_some()), (seconds(sent_at), false));
                prop_assert!(stream.earlier_snapshot.is_none());
                prop_assert_eq!(view.revision().number(), revision.max(pong.revision));
                self.confirmed_at = Some(self.confirmed_at.map_or(sent_at, |earlier| earlier.max(sent_at)));
            }
            ViewUpdate::NoChange => {
                let is_incomplete = stream.partial_snapshot.is_some() || stream.earlier_snapshot.is_some();
                let is_late = |view: &Arc<crate::view::View>| stream.had_late_pong && view.server_clock().is_none();
                prop_assert!(stream.view.as_ref().is_none_or(is_late) || is_incomplete);
            }
            ViewUpdate::View(_) => {
                return Err(TestCaseError::fail("a pong created a view without a confirmation"));
            }
        }
        Ok(())
    }
}

fn events() -> BoxedStrategy<Vec<StreamEvent>> {
    let valid =
        || prop_oneof![4 => generators::any_response(), 1 => Just(response(Message::Snapshot(first_page(5, true))))];
    let mutated = valid().prop_flat_map(|message| mutated_bytes(&message.encode_to_vec()));
    let event = prop_oneof![
        12 => valid().prop_map(|message| StreamEvent::Message(Box::new(message))),
        2 => mutated.prop_map(StreamEvent::Bytes),
        1 => any_bytes().prop_map(StreamEvent::Bytes),
        5 => (0..100_u64).prop_map(StreamEvent::Ping),
        1 => Just(StreamEvent::Resume),
    ];
    vec(event, 1..25).boxed()
}

proptest! {
    #![proptest_config(cases_divided_by(1))]

    #[test]
    fn refused_messages_change_nothing_and_only_pongs_confirm_views(events in events()) {
        let (mut stream, mut model) = (StreamState::resume(None, None), StreamModel::default());
        let unknown_key = Kid::from_key(P256PublicKey::from_sec1(&generators::point(9)).unwrap());
        for event in &events {
            model.apply(&mut stream, event)?;
        }
        prop_assert!(stream.view().is_none_or(|view| view.keys().get(&unknown_key).is_none()), "the view has a key that was not sent");
    }
}
