//! Tests of the sidecar with Envoy: the requests they allow, the headers that the service receives, and how the
//! sidecar follows the control plane.

mod check_tls;
mod commit_wakeups;
mod costs;
mod end_to_end;
mod enforcement;
mod example_envoy;
mod forgeries;
mod frozen_sidecar;
mod fuzz;
mod identity_headers;
mod largest_identity;
mod oauth;
mod oauth_clients;
mod parity;
mod proxy_configs;
mod readiness;
mod rotation;
mod route_rules;
mod second_service;
mod sidecar;
mod silent_streams;
mod stream_limits;
mod streams;
mod sync;
mod sync_pages;
mod sync_reads;
mod sync_recipients;
mod view_copy;
