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

/// How long one node may take to answer while the client looks up the slots.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);

/// How long connecting to one node may take, so that an unreachable node leaves time for the others.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_millis(400);

/// Retries of a request while a slot moves or the nodes elect a master, and the shortest and longest pause between them in
/// milliseconds. Together they take less time than a request has, so that a request that still receives a `TRYAGAIN`
/// fails with that error and not with a timeout.
const RETRIES: (u32, u64, u64) = (8, 10, 30);

/// A client that connects to the cluster through these nodes.
pub(super) fn client(nodes: Vec<ConnectionInfo>, certificates: Option<&TlsCertificates>) -> RedisResult<ClusterClient> {
    let secure = nodes.iter().any(uses_tls);
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
        Some(certificates) if secure => builder.certs(certificates.clone()).build(),
        Some(_) | None => builder.build(),
    }
}

/// Host and port of each node, as reported by a random node.
pub(super) async fn nodes(cluster: &mut ClusterConnection) -> RedisResult<Vec<(String, u16)>> {
    let random = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
    parse_slots(cluster.route_command(cluster_slots(), random).await?)
}

/// Host and port of each node, as reported by this node.
pub(super) async fn nodes_reported_by(node: &mut impl ConnectionLike) -> RedisResult<Vec<(String, u16)>> {
    parse_slots(node.req_packed_command(&cluster_slots()).await?)
}

fn cluster_slots() -> Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    command
}

/// The reply has one item per slot range: its first and last slot, and then its nodes. A node without a host is the one that
/// was asked, and the host `?` is unknown.
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
