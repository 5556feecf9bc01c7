//! Clients of a Redis Cluster, and discovery of its nodes.

use super::connection::{tcp_settings, uses_tls};
use redis::{
    Cmd, ConnectionInfo, RedisResult, TlsCertificates, Value,
    aio::ConnectionLike,
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
    cluster_routing::{RoutingInfo, SingleNodeRoutingInfo},
};
use std::time::Duration;

/// Timeout for the response of one node while the client looks up the slots.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Timeout for connecting to one node. The timeout is short, so that an unreachable node leaves time for the other nodes.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_millis(400);

/// Number of retries of a request while a slot moves or the nodes elect a master; minimum and maximum pause between retries in
/// milliseconds. All retries together are shorter than the timeout of a request: a request that still receives `TRYAGAIN` then
/// fails with that error and not with a timeout.
const RETRIES: (u32, u64, u64) = (8, 10, 30);

/// Builds a client that connects to the cluster through the given nodes.
pub(super) fn build_client(
    nodes: Vec<ConnectionInfo>,
    certificates: Option<&TlsCertificates>,
) -> RedisResult<ClusterClient> {
    let is_tls = nodes.iter().any(uses_tls);
    let (retries, shortest, longest) = RETRIES;
    let builder = ClusterClient::builder(nodes)
        .tcp_settings(tcp_settings())
        .connection_timeout(CONNECT_TIMEOUT)
        .response_timeout(RESPONSE_TIMEOUT)
        .overall_response_timeout(None)
        .retries(retries)
        .min_retry_wait(shortest)
        .max_retry_wait(longest);
    match certificates {
        Some(certificates) if is_tls => builder.certs(certificates.clone()).build(),
        Some(_) | None => builder.build(),
    }
}

/// Host and port of each node, as reported by a random node.
pub(super) async fn nodes(cluster: &mut ClusterConnection) -> RedisResult<Vec<(String, u16)>> {
    let random = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
    parse_slots(cluster.route_command(cluster_slots(), random).await?)
}

/// Host and port of each node, as reported by one given node.
pub(super) async fn nodes_reported_by(node: &mut impl ConnectionLike) -> RedisResult<Vec<(String, u16)>> {
    parse_slots(node.req_packed_command(&cluster_slots()).await?)
}

fn cluster_slots() -> Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    command
}

/// Parses the reply to `CLUSTER SLOTS`: per slot range the first and last slot, and then the nodes. An empty host in the reply
/// means the node that sent the reply, and `?` means an unknown host; nodes with such hosts are skipped.
fn parse_slots(reply: Value) -> RedisResult<Vec<(String, u16)>> {
    let ranges: Vec<Vec<Value>> = redis::from_redis_value(reply.extract_error()?)?;
    let mut nodes: Vec<_> =
        ranges.into_iter().flat_map(|range| range.into_iter().skip(2)).filter_map(parse_address).collect();
    nodes.sort_unstable();
    nodes.dedup();
    Ok(nodes)
}

fn parse_address(node: Value) -> Option<(String, u16)> {
    let mut parts = redis::from_redis_value::<Vec<Value>>(node).ok()?.into_iter();
    let host: Option<String> = redis::from_redis_value(parts.next()?).ok()?;
    let port: u16 = redis::from_redis_value(parts.next()?).ok()?;
    host.filter(|host| !host.is_empty() && host != "?").map(|host| (host, port))
}
