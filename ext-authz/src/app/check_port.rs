//! The limits of the port to which Envoy connects.

use countersign_process::server::{
    ConnectionCaps, ConnectionMetrics, LINGER, MessageLimits, PortSettings, ProtocolLimits, RESERVED_DESCRIPTORS,
    SharedMemory, fit_to_descriptors, raise_descriptor_limit,
};
use prometheus::IntCounter;
use std::{sync::Arc, time::Duration};
use tonic::Status;

/// The largest number of connections to the port for checks. Each worker thread of an Envoy opens at least one.
const MAX_CHECK_CONNECTIONS: usize = 4096;

/// The largest number of connections on which no check has arrived yet.
const MAX_PENDING_CONNECTIONS: usize = 256;

/// How long a client may take to send its first check.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a connection may stay open without a check: as long as Envoy keeps an idle connection by default.
const IDLE_TIMEOUT: Duration = Duration::from_hours(1);

/// The largest head of a gRPC request, in bytes. The headers of the checked request do not count: they are in the message.
const MAX_HEAD_SIZE: u32 = 16 * 1024;

/// The largest number of concurrent checks of one connection. Envoy opens another connection for more checks.
const MAX_CONCURRENT_CHECKS: u32 = 1024;

/// The HTTP/2 flow-control window of a connection: room for several checks of the largest size that Envoy sends by default.
const RECEIVE_WINDOW: u32 = 1024 * 1024;

/// The largest accepted `CheckRequest` in bytes: twice the largest request head that Envoy can be configured to accept.
/// A larger `CheckRequest` would cause a gRPC error, and Envoy may be configured to allow requests on errors.
pub const MAX_CHECK_BYTES: usize = 16 * 1024 * 1024;

/// The memory for checks that have not arrived completely, in bytes.
const UNFINISHED_CHECKS_CAPACITY: usize = 64 << 20;

/// The memory for the unfinished checks of one client, in bytes: half, so that one client always leaves memory for another.
const UNFINISHED_CHECKS_PER_CLIENT: usize = UNFINISHED_CHECKS_CAPACITY / 2;

/// The limits of the port to which Envoy connects. One client may use all connections, because usually one Envoy is the only
/// client. `overloaded` counts the checks that are refused because unfinished checks take too much memory.
pub fn settings(overloaded: IntCounter, metrics: ConnectionMetrics) -> PortSettings {
    let [total] = fit_to_descriptors([MAX_CHECK_CONNECTIONS], RESERVED_DESCRIPTORS, raise_descriptor_limit());
    PortSettings {
        name: "check",
        connections_setting: None,
        caps: ConnectionCaps { total, per_client: total, pending: MAX_PENDING_CONNECTIONS.min(total) },
        trusted_proxies: Vec::new(),
        first_request_timeout: FIRST_REQUEST_TIMEOUT,
        idle_timeout: IDLE_TIMEOUT,
        linger: LINGER,
        protocol: ProtocolLimits {
            allows_http1: false,
            max_head_size: MAX_HEAD_SIZE,
            max_streams: MAX_CONCURRENT_CHECKS,
            responses_last: false,
            receive_window: RECEIVE_WINDOW,
        },
        messages: Some(Arc::new(MessageLimits {
            memory: SharedMemory::new(UNFINISHED_CHECKS_CAPACITY, UNFINISHED_CHECKS_PER_CLIENT, overloaded),
            max_message: MAX_CHECK_BYTES,
            refusal: || Status::resource_exhausted("this client has too many unfinished checks").into(),
        })),
        metrics,
    }
}
