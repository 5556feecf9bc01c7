//! How a cluster is asked, and which nodes it says it has.

use super::place::{at_once, is_secure};
use redis::{
    Cmd, ConnectionInfo, RedisResult, TlsCertificates, Value,
    aio::ConnectionLike,
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
    cluster_routing::{RoutingInfo, SingleNodeRoutingInfo},
};
use std::time::Duration;

/// How long one node may take for one answer, while it is looked where slots are.
const ANSWER: Duration = Duration::from_millis(500);

/// How long one node may take until it is connected to: one that is gone must not use up the time of the others.
pub(super) const CONNECTING: Duration = Duration::from_millis(400);

/// How often a question is asked again, and after how many milliseconds, while a slot moves or nodes agree on a master.
/// All of it takes less time than a call has, so that who is still told to try again later is told so at once.
const AGAIN: (u32, u64, u64) = (8, 10, 30);

/// A client that begins at these nodes.
pub(super) fn client(nodes: Vec<ConnectionInfo>, certificates: Option<&TlsCertificates>) -> RedisResult<ClusterClient> {
    let secure = nodes.iter().any(is_secure);
    let (retries, shortest, longest) = AGAIN;
    let builder = ClusterClient::builder(nodes)
        .tcp_settings(at_once())
        .connection_timeout(CONNECTING)
        .response_timeout(ANSWER)
        .overall_response_timeout(None)
        .retries(retries)
        .min_retry_wait(shortest)
        .max_retry_wait(longest);
    match certificates {
        Some(certificates) if secure => builder.certs(certificates.clone()).build(),
        Some(_) | None => builder.build(),
    }
}

/// Host and port of the nodes there are, as any of them says it.
pub(super) async fn nodes(cluster: &mut ClusterConnection) -> RedisResult<Vec<(String, u16)>> {
    let anywhere = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
    read(cluster.route_command(question(), anywhere).await?)
}

/// The same, as this one says it.
pub(super) async fn nodes_by(node: &mut impl ConnectionLike) -> RedisResult<Vec<(String, u16)>> {
    read(node.req_packed_command(&question()).await?)
}

fn question() -> Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    command
}

/// Of each range of slots its first and last, and then the nodes that have it. Who has no name is where we came from,
/// and `?` is nowhere.
fn read(answer: Value) -> RedisResult<Vec<(String, u16)>> {
    let ranges: Vec<Vec<Value>> = redis::from_redis_value(answer.extract_error()?)?;
    let mut nodes: Vec<_> =
        ranges.into_iter().flat_map(|range| range.into_iter().skip(2)).filter_map(address).collect();
    nodes.sort_unstable();
    nodes.dedup();
    Ok(nodes)
}

fn address(node: Value) -> Option<(String, u16)> {
    let mut parts = redis::from_redis_value::<Vec<Value>>(node).ok()?.into_iter();
    let host: Option<String> = redis::from_redis_value(parts.next()?).ok()?;
    let port: u16 = redis::from_redis_value(parts.next()?).ok()?;
    host.filter(|host| !host.is_empty() && host != "?").map(|host| (host, port))
}
