//! Tests that the running control plane responds to or closes fuzzed sync streams, and then serves the next stream.

#![expect(clippy::expect_used, reason = "tests panic on unexpected values")]

use countersign_mangle::{any_bytes, cases_divided_by, mutated_bytes};
use countersign_proto::v1::{
    FollowRequest, FollowResponse, Ping, follow_request::Message as ClientMessage,
    follow_response::Message as ServerMessage,
};
use countersign_tests::{
    ControlPlane, eventually,
    follower::{channel, follow_request, hello},
};
use proptest::{collection::vec, prelude::*, sample::select, test_runner::TestRunner};
use prost::{
    Message,
    bytes::{Buf, BufMut},
};
use std::time::Duration;
use tokio::{runtime::Runtime, time::timeout};
use tonic::{
    Code, Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::http::uri::PathAndQuery,
    transport::Channel,
};

/// Timeout of one stream, with a margin for busy machines.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A codec that passes bytes unchanged in both directions.
#[derive(Default)]
struct RawCodec;

impl Codec for RawCodec {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining()).to_vec()))
    }
}

/// Sends these messages and ends the request stream. Returns the responses and the final status.
async fn follow(channel: Channel, key: &str, messages: Vec<Vec<u8>>) -> (Vec<ServerMessage>, Code) {
    let mut client = Grpc::new(channel);
    client.ready().await.expect("the server listens");
    let mut request = Request::new(tokio_stream::iter(messages));
    request.metadata_mut().insert("authorization", format!("Bearer {key}").parse().expect("the header is valid"));
    let path = PathAndQuery::from_static("/countersign.sync.v1.Sync/Follow");
    let mut responses = Vec::new();
    let mut stream = match client.streaming(request, path, RawCodec).await {
        Ok(response) => response.into_inner(),
        Err(status) => return (responses, status.code()),
    };
    loop {
        match stream.message().await {
            Ok(Some(bytes)) => {
                let message = FollowResponse::decode(&bytes[..]).expect("the server sends a valid message");
                responses.push(message.message.expect("the message is not empty"));
            }
            Ok(None) => return (responses, Code::Ok),
            Err(status) => return (responses, status.code()),
        }
    }
}

fn encode(message: ClientMessage) -> Vec<u8> {
    follow_request(message).encode_to_vec()
}

/// Sequences of valid, mutated and random messages.
fn message_sequences() -> BoxedStrategy<Vec<Vec<u8>>> {
    let number = || prop_oneof![select(&[0, 1, -1, i64::MIN, i64::MAX][..]), any::<i64>()];
    let hello = || number().prop_map(|revision| encode(ClientMessage::Hello(hello(revision))));
    let ping = any::<u64>().prop_map(|number| encode(ClientMessage::Ping(Ping { number })));
    let mutated = prop_oneof![hello(), ping.clone()].prop_flat_map(|valid| mutated_bytes(&valid));
    let any_message = prop_oneof![6 => ping, 1 => hello(), 2 => mutated, 1 => any_bytes()];
    let first = prop_oneof![6 => hello(), 1 => any_message.clone()];
    // Some message sequences have more pings than the server reads at once.
    let count = prop_oneof![12 => 0..5_usize, 1 => 18..24_usize];
    let rest = count.prop_flat_map(move |count| vec(any_message.clone(), count));
    (first, rest).prop_map(|(first, rest)| [vec![first], rest].concat()).boxed()
}

/// Requires that the server responds only after Hello, first with something other than a pong, and then sends pongs in
/// the order of the pings. A pong may answer several pings.
fn check_responses(messages: &[Vec<u8>], responses: &[ServerMessage]) -> Result<(), TestCaseError> {
    let decode = |bytes: &Vec<u8>| FollowRequest::decode(&bytes[..]).ok().and_then(|request| request.message);
    let starts_with_hello = matches!(messages.first().and_then(decode), Some(ClientMessage::Hello(_)));
    let is_ping = |message: &Vec<u8>| matches!(decode(message), Some(ClientMessage::Ping(_)));
    let is_valid = starts_with_hello && messages.iter().skip(1).all(is_ping);
    prop_assert!(responses.is_empty() || starts_with_hello, "{:?}", responses);
    // An invalid message can end the stream before the server has responded to Hello.
    prop_assert!(!responses.is_empty() || !is_valid, "the server does not respond");
    prop_assert!(responses.first().is_none_or(|first| !matches!(first, ServerMessage::Pong(_))), "{:?}", responses);
    let mut pings = messages.iter().skip(1).map_while(decode).map_while(|message| match message {
        ClientMessage::Ping(ping) => Some(ping.number),
        ClientMessage::Hello(_) | ClientMessage::Applied(_) | ClientMessage::Leaving(_) => None,
    });
    let pong_numbers: Vec<u64> = responses
        .iter()
        .filter_map(|response| if let ServerMessage::Pong(pong) = response { Some(pong.number) } else { None })
        .collect();
    let are_in_order = pong_numbers.iter().all(|number| pings.any(|ping| ping == *number));
    prop_assert!(are_in_order, "{:?}", pong_numbers);
    Ok(())
}

#[test]
fn fuzzed_streams_do_not_disturb_the_server() {
    let runtime = Runtime::new().expect("the runtime can be built");
    let control = runtime.block_on(ControlPlane::start_process());
    let channel = runtime.block_on(channel(&control));
    let outcome = TestRunner::new(cases_divided_by(4)).run(&message_sequences(), |messages| {
        let responses_of_stream = follow(channel.clone(), control.key(), messages.clone());
        let (responses, _) =
            runtime.block_on(async { timeout(TIMEOUT, responses_of_stream).await }).expect("the stream ends");
        check_responses(&messages, &responses)
    });
    runtime.block_on(async {
        assert_eq!(control.api.get("/health").await.expect(200)["status"], "healthy");
        assert!(!control.log().contains("panicked"), "{}", control.log());
        let no_streams = async || control.metric("countersign_sync_streams ").await.filter(|count| *count == 0.0);
        eventually("every stream has ended", no_streams, || control.log()).await;
        let valid = vec![encode(ClientMessage::Hello(hello(0))), encode(ClientMessage::Ping(Ping { number: 7 }))];
        let (responses, code) = follow(channel.clone(), control.key(), valid).await;
        assert_eq!(code, Code::Ok);
        assert!(matches!(responses[..], [ServerMessage::Snapshot(_), ServerMessage::Pong(_)]), "{responses:?}");
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}
