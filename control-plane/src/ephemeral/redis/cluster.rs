//! The nodes that a cluster announces in its replies to `CLUSTER SLOTS`.

use super::{connection::RedisConnection, endpoint::RedisEndpoint};
use redis::{
    ConnectionAddr, ConnectionInfo, RedisError, RedisResult, Value,
    cluster_routing::{RoutingInfo, SingleNodeRoutingInfo},
};
use std::collections::BTreeSet;

/// Host and port of a node.
pub(super) type NodeAddress = (String, u16);

/// Remembers the nodes that a cluster announces now, because the configured nodes may be gone when the client connects again.
pub(super) async fn remember_cluster_nodes(endpoint: &RedisEndpoint, connection: &mut RedisConnection) {
    let RedisConnection::Cluster(cluster) = connection else { return };
    let any_node = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
    if let Ok(slots) = cluster.route_command(cluster_slots(), any_node).await
        && let Ok(nodes) = announced_nodes(slots)
        && !nodes.is_empty()
    {
        endpoint.set_announced_nodes(nodes);
    }
}

/// Diagnoses a failure to connect to a cluster: the client library skips nodes that it cannot reach, without an error. Tries the
/// known nodes until one answers, and then the nodes that it announces. With TLS, the certificates of nodes must be valid for the
/// announced names. `None` if no problem was found, if the answer cannot be read, and for other topologies.
pub(super) async fn find_unreachable_node(endpoint: &RedisEndpoint) -> Option<RedisError> {
    let mut unreachable = None;
    for configured in endpoint.cluster_nodes().ok()? {
        let mut node = match endpoint.connect_to_node(configured.clone()).await {
            Ok(node) => node,
            Err(error) => {
                unreachable.get_or_insert(describe("a node cannot be reached", &configured, &error));
                continue;
            }
        };
        for address in announced_nodes(cluster_slots().query_async(&mut node).await.ok()?).ok()? {
            let announced = with_address(&configured, address);
            if let Err(error) = endpoint.connect_to_node(announced.clone()).await {
                return Some(describe("the cluster announces a node that cannot be reached", &announced, &error));
            }
        }
        break;
    }
    unreachable
}

fn describe(problem: &'static str, node: &ConnectionInfo, error: &RedisError) -> RedisError {
    (error.kind(), problem, format!("{}: {error}", node.addr())).into()
}

fn cluster_slots() -> redis::Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    command
}

/// The nodes in a reply to `CLUSTER SLOTS`. Each item has the first and the last slot of a range, and then its nodes. Leaves out
/// nodes without a usable host: the host is empty for the node that replies, and `?` if it is unknown.
fn announced_nodes(reply: Value) -> RedisResult<BTreeSet<NodeAddress>> {
    let ranges: Vec<Vec<Value>> = redis::from_redis_value(reply.extract_error()?)?;
    let nodes = ranges.into_iter().flat_map(|range| range.into_iter().skip(2));
    let address = |node| {
        let mut parts = redis::from_redis_value::<Vec<Value>>(node).ok()?.into_iter();
        let host: Option<String> = redis::from_redis_value(parts.next()?).ok()?;
        let port = redis::from_redis_value(parts.next()?).ok()?;
        Some((host.filter(|host| !host.is_empty() && host != "?")?, port))
    };
    Ok(nodes.filter_map(address).collect())
}

/// The settings of a configured node, with another address.
pub(super) fn with_address(configured: &ConnectionInfo, (host, port): NodeAddress) -> ConnectionInfo {
    configured.clone().set_addr(match configured.addr() {
        ConnectionAddr::TcpTls { .. } => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
        _ => ConnectionAddr::Tcp(host, port),
    })
}
