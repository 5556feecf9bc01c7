//! Generates code from the .proto file with `protox`, so that `protoc` need not be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const SYNC_PROTO: &str = "proto/countersign/sync/v1/sync.proto";
    println!("cargo:rerun-if-changed={SYNC_PROTO}");
    tonic_prost_build::configure().compile_fds(protox::compile([SYNC_PROTO], ["proto"])?)?;
    Ok(())
}
