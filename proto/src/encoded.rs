//! Responses of the sync stream that are encoded before they are queued.
//!
//! Many streams send the same changes, but each page of a snapshot also has fields of its own stream. If we encode two parts of a
//! protobuf message and join the bytes, we get the encoded message. So an [`EncodedResponse`] has a head, which belongs to one
//! stream, and a body, which is encoded once for all streams.

use crate::v1::{Delta, FollowRequest, Pong, SnapshotPage};
use bytes::{BufMut, Bytes, BytesMut};
use prost::{
    Message,
    encoding::{WireType, encode_key, encode_varint},
};
use tonic::{
    Status,
    codec::{BufferSettings, Codec, EncodeBuf, Encoder},
};
use tonic_prost::{ProstCodec, ProstDecoder};

/// The numbers of the fields of `FollowResponse`.
const SNAPSHOT_FIELD: u32 = 1;
const DELTA_FIELD: u32 = 2;
const PONG_FIELD: u32 = 3;

/// The most bytes that the key of a field and a length need: two varints of 10 bytes.
const MAX_PREFIX: usize = 20;

/// The initial size of the two buffers of a stream. Small, because a server has thousands of streams, but pings and most deltas fit.
const BUFFER_SIZE: usize = 512;

/// A stream collects encoded responses until it has this many bytes, then sends them.
const YIELD_THRESHOLD: usize = 32 * 1024;

/// An encoded `FollowResponse`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedResponse {
    head: Bytes,
    body: Bytes,
}

impl EncodedResponse {
    /// A page of a snapshot: the fields of `head`, and `body`, which is an encoded `SnapshotPage`.
    pub fn snapshot(head: &SnapshotPage, body: Bytes) -> Self {
        Self::new(SNAPSHOT_FIELD, head, body)
    }

    /// A delta: the fields of `head`, and `body`, which is an encoded `Delta`.
    pub fn delta(head: &Delta, body: Bytes) -> Self {
        Self::new(DELTA_FIELD, head, body)
    }

    /// A pong.
    pub fn pong(pong: &Pong) -> Self {
        Self::new(PONG_FIELD, pong, Bytes::new())
    }

    fn new(field: u32, fields: &impl Message, body: Bytes) -> Self {
        let fields_len = fields.encoded_len();
        let mut head = BytesMut::with_capacity(MAX_PREFIX + fields_len);
        encode_key(field, WireType::LengthDelimited, &mut head);
        encode_varint((fields_len + body.len()) as u64, &mut head);
        fields.encode_raw(&mut head);
        Self { head: head.freeze(), body }
    }
}

/// The codec of a server that sends encoded responses.
#[derive(Debug, Default)]
pub struct EncodedCodec;

impl Codec for EncodedCodec {
    type Encode = EncodedResponse;
    type Decode = FollowRequest;
    type Encoder = EncodedResponseEncoder;
    type Decoder = ProstDecoder<FollowRequest>;

    fn encoder(&mut self) -> Self::Encoder {
        EncodedResponseEncoder
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<FollowRequest, FollowRequest>::raw_decoder(buffer_settings())
    }
}

fn buffer_settings() -> BufferSettings {
    BufferSettings::new(BUFFER_SIZE, YIELD_THRESHOLD)
}

/// Copies encoded responses to the stream.
#[derive(Debug)]
pub struct EncodedResponseEncoder;

impl Encoder for EncodedResponseEncoder {
    type Item = EncodedResponse;
    type Error = Status;

    fn encode(
        &mut self,
        EncodedResponse { head, body }: EncodedResponse,
        buffer: &mut EncodeBuf<'_>,
    ) -> Result<(), Status> {
        buffer.put(head);
        buffer.put(body);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffer_settings()
    }
}

/// The gRPC service for a server that sends encoded responses.
pub mod service {
    #![allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
    include!(concat!(env!("OUT_DIR"), "/countersign.sync.v1.Sync.rs"));

    pub use sync_server::{Sync, SyncServer};
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::{AgentChanges, FollowResponse, Revocation, follow_response};

    fn encode(response: EncodedResponse) -> FollowResponse {
        let EncodedResponse { head, body } = response;
        FollowResponse::decode(&[head, body].concat()[..]).unwrap()
    }

    #[test]
    fn encoded_responses_decode_to_the_fields_of_head_and_body() {
        for agents in [0, 1, 1000] {
            let agents = vec![AgentChanges { agent_hash: vec![7; 16], ..AgentChanges::default() }; agents];
            let head = SnapshotPage { revision: 9, floor: i64::MAX, last: true, ..SnapshotPage::default() };
            let body = SnapshotPage { agents: agents.clone(), ..SnapshotPage::default() };
            let whole = SnapshotPage { agents: agents.clone(), ..head.clone() };
            let encoded = EncodedResponse::snapshot(&head, body.encode_to_vec().into());
            assert_eq!(encode(encoded).message, Some(follow_response::Message::Snapshot(whole)));

            let (head, revocations) = (Delta { revision: 9, ..Delta::default() }, vec![Revocation::default()]);
            let body = Delta { agents: agents.clone(), revocations: revocations.clone(), ..Delta::default() };
            let encoded = EncodedResponse::delta(&head, body.encode_to_vec().into());
            let whole = Delta { agents, revocations, ..head };
            assert_eq!(encode(encoded).message, Some(follow_response::Message::Delta(whole)));
        }
        let pong = Pong { number: 1, revision: 2, floor: 3, time_micros: 4 };
        assert_eq!(encode(EncodedResponse::pong(&pong)).message, Some(follow_response::Message::Pong(pong)));
    }
}
