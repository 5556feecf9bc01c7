//! Generates code from the .proto files with `protox`, so that `protoc` need not be installed.

use tonic_build::manual;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The imports of these files are compiled with them.
    const SERVICES: [&str; 2] =
        ["proto/countersign/sync/v1/sync.proto", "proto/envoy/service/auth/v3/external_auth.proto"];
    println!("cargo:rerun-if-changed=proto");
    tonic_prost_build::configure().compile_fds(protox::compile(SERVICES, ["proto"])?)?;
    // The control plane encodes responses before it queues them, so it needs another version of the service: see `src/encoded.rs`.
    let follow = manual::Method::builder()
        .name("follow")
        .route_name("Follow")
        .input_type("crate::v1::FollowRequest")
        .output_type("crate::encoded::EncodedResponse")
        .codec_path("crate::encoded::EncodedCodec")
        .client_streaming()
        .server_streaming()
        .build();
    let service = manual::Service::builder().name("Sync").package("countersign.sync.v1").method(follow).build();
    manual::Builder::new().build_client(false).compile(&[service]);
    Ok(())
}
