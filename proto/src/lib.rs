//! The sync contract between control plane and sidecar, generated from
//! `proto/countersign/sync/v1/sync.proto`, where every field is described.
//!
//! Neighbours: `control-plane` encodes into it, `ext-authz` decodes out of it. The rule of the room:
//! nothing by hand but this page.

/// Version 1 of the contract.
pub mod v1 {
    #![allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated; the .proto file is the documentation")]
    tonic::include_proto!("countersign.sync.v1");
}
