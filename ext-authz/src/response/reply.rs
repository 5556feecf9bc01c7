//! The response to a check, which the gRPC server encodes.

use super::encoded::VerifiedReply;
use countersign_proto::envoy::service::auth::v3::CheckResponse;
use prost::{Message, bytes::BufMut};

/// The response to a check.
#[derive(Debug)]
pub enum Reply {
    /// The request is allowed with an identity.
    Verified(VerifiedReply),
    /// The request is denied, or allowed without an identity.
    Other(Box<CheckResponse>),
}

impl Reply {
    /// Encodes the response as a `CheckResponse`.
    pub fn encode(&self, buffer: &mut impl BufMut) {
        match self {
            Self::Verified(reply) => reply.encode(buffer),
            Self::Other(response) => response.encode_raw(buffer),
        }
    }

    /// The response as Envoy decodes it.
    #[cfg(test)]
    #[expect(clippy::missing_panics_doc, reason = "for tests")]
    pub fn into_response(self) -> CheckResponse {
        let mut bytes = Vec::new();
        self.encode(&mut bytes);
        CheckResponse::decode(&bytes[..]).unwrap()
    }
}
