//! Generates the messages with `protox`, which makes an installed `protoc` unnecessary.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const SYNC: &str = "proto/countersign/sync/v1/sync.proto";
    println!("cargo:rerun-if-changed={SYNC}");
    tonic_prost_build::configure().compile_fds(protox::compile([SYNC], ["proto"])?)?;
    Ok(())
}
