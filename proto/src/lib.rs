//! The gRPC contract of the sync stream, generated from `proto/countersign/sync/v1/sync.proto`, which documents every
//! field.
//!
//! `control-plane` encodes these messages, `ext-authz` decodes them. Invariant: no hand-written code except this file.

/// Version 1 of the contract.
pub mod v1 {
    #![allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated; the .proto file is the documentation")]
    tonic::include_proto!("countersign.sync.v1");
}
