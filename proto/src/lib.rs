//! The gRPC service and messages of the sync stream, generated from `proto/countersign/sync/v1/sync.proto`,
//! which documents every field.
//!
//! `control-plane` encodes these messages, and `ext-authz` decodes them. Invariant: this file is the only hand-written
//! code of the crate `proto`.

/// Version 1 of the sync protocol.
pub mod v1 {
    #![allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated; the .proto file is the documentation")]
    tonic::include_proto!("countersign.sync.v1");
}
