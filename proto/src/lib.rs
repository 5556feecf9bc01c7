//! The gRPC service and messages of the sync stream, generated from `proto/countersign/sync/v1/sync.proto`,
//! which documents every field.
//!
//! `control-plane` encodes these messages, and `ext-authz` decodes them. Invariant: this file and `encoded.rs` are the only
//! hand-written code of the crate `proto`, and neither changes the protocol.

pub mod encoded;

/// The version of the protocol that this code implements, for `Hello.protocol_version` and `ServiceInfo.protocol_version`. The package name `v1` changes only if
/// messages become incompatible.
pub const PROTOCOL_VERSION: u32 = 3;

/// The messages of the sync protocol.
pub mod v1 {
    #![allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated; the .proto file is the documentation")]
    tonic::include_proto!("countersign.sync.v1");
}
