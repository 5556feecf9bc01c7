//! Fuzzed sync streams are answered or closed, and the next stream is served.

use super::{PATIENCE, figure, is_well};
use countersign_mangle::{any_bytes, cases_divided_by, mutated_bytes};
use countersign_proto::v1::{
    FollowRequest, FollowResponse, Hello, Ping, follow_request::Message as Ask, follow_response::Message as Told,
};
use countersign_tests::{ControlPlane, eventually};
use proptest::{collection::vec, prelude::*, sample::select, test_runner::TestRunner};
use prost::{
    Message,
    bytes::{Buf, BufMut},
};
use tokio::{runtime::Runtime, time::timeout};
use tonic::{
    Code, Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::http::uri::PathAndQuery,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};

/// A codec that passes bytes unchanged in both directions.
#[derive(Default)]
struct Raw;

impl Codec for Raw {
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

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining()).to_vec()))
    }
}

async fn channel(control: &ControlPlane) -> Channel {
    let authority = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(control.authority()));
    let endpoint = Endpoint::from_shared(control.env["SYNC_URL"].clone()).expect("a URL");
    endpoint.tls_config(authority).expect("TLS").connect().await.expect("the sync port answers")
}

/// Sends these messages and ends the request stream. Returns the responses and the final status.
async fn follow(channel: Channel, key: &str, said: Vec<Vec<u8>>) -> (Vec<Told>, Code) {
    let mut client = Grpc::new(channel);
    client.ready().await.expect("the server listens");
    let mut request = Request::new(tokio_stream::iter(said));
    request.metadata_mut().insert("authorization", format!("Bearer {key}").parse().expect("a header"));
    let path = PathAndQuery::from_static("/countersign.sync.v1.Sync/Follow");
    let mut told = Vec::new();
    let mut stream = match client.streaming(request, path, Raw).await {
        Ok(response) => response.into_inner(),
        Err(status) => return (told, status.code()),
    };
    loop {
        match stream.message().await {
            Ok(Some(bytes)) => {
                let message = FollowResponse::decode(&bytes[..]).expect("the server keeps to the contract");
                told.push(message.message.expect("the server says something"));
            }
            Ok(None) => return (told, Code::Ok),
            Err(status) => return (told, status.code()),
        }
    }
}

fn ask(message: Ask) -> Vec<u8> {
    FollowRequest { message: Some(message) }.encode_to_vec()
}

fn said() -> BoxedStrategy<Vec<Vec<u8>>> {
    let number = || prop_oneof![select(&[0, 1, -1, i64::MIN, i64::MAX][..]), any::<i64>()];
    let hello = || number().prop_map(|revision| ask(Ask::Hello(Hello { revision })));
    let ping = any::<u64>().prop_map(|number| ask(Ask::Ping(Ping { number })));
    let near = prop_oneof![hello(), ping.clone()].prop_flat_map(|good| mutated_bytes(&good));
    let any_message = prop_oneof![6 => ping, 1 => hello(), 2 => near, 1 => any_bytes()];
    let first = prop_oneof![6 => hello(), 1 => any_message.clone()];
    // Sometimes more pings than the server queues.
    let count = prop_oneof![8 => 0..5_usize, 1 => 60..80_usize];
    let rest = count.prop_flat_map(move |count| vec(any_message.clone(), count));
    (first, rest).prop_map(|(first, rest)| [vec![first], rest].concat()).boxed()
}

/// The stream sends a snapshot only after Hello, and answers a prefix of the pings.
fn makes_sense(said: &[Vec<u8>], told: &[Told]) -> Result<(), TestCaseError> {
    let asked = |bytes: &Vec<u8>| FollowRequest::decode(&bytes[..]).ok().and_then(|request| request.message);
    let begun = matches!(said.first().and_then(asked), Some(Ask::Hello(_)));
    prop_assert_eq!(!told.is_empty(), begun, "{:?}", told);
    prop_assert!(told.first().is_none_or(|first| !matches!(first, Told::Pong(_))), "{:?}", told);
    let pings = said.iter().skip(1).map_while(asked).map_while(|message| match message {
        Ask::Ping(ping) => Some(ping.number),
        Ask::Hello(_) => None,
    });
    let answered: Vec<u64> =
        told.iter().filter_map(|it| if let Told::Pong(pong) = it { Some(pong.number) } else { None }).collect();
    prop_assert!(pings.take(answered.len()).eq(answered.iter().copied()), "{:?}", answered);
    Ok(())
}

#[test]
fn fuzzed_streams_do_not_disturb_the_server() {
    let runtime = Runtime::new().expect("a runtime");
    let control = runtime.block_on(ControlPlane::start());
    let channel = runtime.block_on(channel(&control));
    let outcome = TestRunner::new(cases_divided_by(4)).run(&said(), |said| {
        let followed = follow(channel.clone(), control.key(), said.clone());
        let (told, _) = runtime.block_on(async { timeout(PATIENCE, followed).await }).expect("the stream ends");
        makes_sense(&said, &told)
    });
    runtime.block_on(async {
        is_well(&control).await;
        let none = async || figure(&control, "countersign_sync_streams ").await.filter(|count| *count == 0.0);
        eventually("every stream has ended", none, || control.log()).await;
        let good = vec![ask(Ask::Hello(Hello { revision: 0 })), ask(Ask::Ping(Ping { number: 7 }))];
        let (told, code) = follow(channel.clone(), control.key(), good).await;
        assert_eq!(code, Code::Ok);
        assert!(matches!(told[..], [Told::Snapshot(_), Told::Pong(_)]), "{told:?}");
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}
