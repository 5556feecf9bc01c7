//! Envoy's external authorization API, generated from the `.proto` files in `proto/envoy`.
//!
//! `ext-authz` implements the service, and tests call it. Invariant: names, numbers and types are the same as Envoy's, and no field is
//! missing in a message that a check or its response can contain.

#![allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated; Envoy's API is the documentation")]

pub mod config {
    pub mod core {
        pub mod v3 {
            tonic::include_proto!("envoy.config.core.v3");
        }
    }
}

pub mod service {
    pub mod auth {
        pub mod v3 {
            tonic::include_proto!("envoy.service.auth.v3");
        }
    }
}

pub mod r#type {
    pub mod v3 {
        tonic::include_proto!("envoy.r#type.v3");
    }
}
