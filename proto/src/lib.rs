//! Two gRPC APIs: the sync stream, which `proto/countersign/sync/v1/sync.proto` defines and documents, and Envoy's external
//! authorization API in [`envoy`].
//!
//! `control-plane` encodes the messages of the sync stream, and `ext-authz` decodes them. Invariant: the `.proto` files define both
//! protocols, and no hand-written code of this crate changes them.

pub mod encoded;
pub mod envoy;

/// The only version of the sync protocol that this code speaks. `sync.proto` says which changes need a new version.
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
