//! The limits of the port to which Envoy connects.

use countersign_process::server::{
    ConnectionCaps, LINGER, PortSettings, ProtocolLimits, RESERVED_DESCRIPTORS, fit_to_descriptors,
    raise_descriptor_limit,
};
use std::time::Duration;

/// The largest number of connections to the port for checks. Each worker thread of an Envoy opens at least one.
const MAX_CHECK_CONNECTIONS: usize = 4096;

/// The largest number of connections to the port for checks that have not sent a request yet.
const MAX_PENDING_CONNECTIONS: usize = 256;

/// How long a client may take to send its first check.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a connection may wait for the next check: as long as Envoy keeps an idle connection.
const IDLE_TIMEOUT: Duration = Duration::from_hours(1);

/// The largest head of a gRPC request, which contains no header of the checked request.
const MAX_HEAD_SIZE: u32 = 16 * 1024;

/// The largest number of concurrent checks of one connection. Envoy opens another connection for more checks.
const MAX_CONCURRENT_CHECKS: u32 = 1024;

/// The HTTP/2 flow-control window of a connection: several checks of the largest size that Envoy sends by default.
const RECEIVE_WINDOW: u32 = 1024 * 1024;

/// The limits of the port for checks. One client may use all connections, because few clients connect, usually one Envoy.
pub fn settings() -> PortSettings {
    let [total] = fit_to_descriptors([MAX_CHECK_CONNECTIONS], RESERVED_DESCRIPTORS, raise_descriptor_limit());
    PortSettings {
        name: "check",
        caps: ConnectionCaps { total, per_client: total, pending: MAX_PENDING_CONNECTIONS.min(total) },
        trusted_proxies: Vec::new(),
        first_request_timeout: FIRST_REQUEST_TIMEOUT,
        idle_timeout: IDLE_TIMEOUT,
        linger: LINGER,
        protocol: ProtocolLimits {
            allows_http1: false,
            max_head_size: MAX_HEAD_SIZE,
            max_streams: MAX_CONCURRENT_CHECKS,
            ends_stalled_streams: true,
            receive_window: RECEIVE_WINDOW,
        },
    }
}
