//! The gRPC service and messages of the sync stream, generated from `proto/countersign/sync/v1/sync.proto`,
//! which documents every field, and those of Envoy's external authorization API in [`envoy`].
//!
//! `control-plane` encodes the messages of the sync stream, and `ext-authz` decodes them. Invariant: this file, `encoded.rs` and
//! the modules in `envoy.rs` are the only hand-written code of the crate `proto`, and none changes a protocol.

pub mod encoded;
pub mod envoy;

/// The only version of the protocol that this code speaks, for `Hello.protocol_version` and `ServiceInfo.protocol_version`. The .proto
/// file says when another one follows.
pub const PROTOCOL_VERSION: u32 = 1;

/// The messages of the sync protocol.
pub mod v1 {
    #![allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated; the .proto file is the documentation")]
    tonic::include_proto!("countersign.sync.v1");
}

/// The messages of Google's API that are part of Envoy's.
pub mod google {
    #![allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated; Google's API is the documentation")]
    pub mod rpc {
        tonic::include_proto!("google.rpc");
    }
}
