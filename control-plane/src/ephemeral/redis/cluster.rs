//! Why a cluster cannot be used: the client library skips nodes that cannot be reached, without an error.

use super::endpoint::RedisEndpoint;
use redis::{ConnectionAddr, ConnectionInfo, RedisError, Value};

/// The first configured node that cannot be reached, or a node that the cluster announces and that cannot be reached. With TLS, the
/// certificate of a node must be valid for the announced name. `None` if there is neither, and for other topologies.
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
        let slots: Vec<Vec<Value>> = redis::cmd("CLUSTER").arg("SLOTS").query_async(&mut node).await.ok()?;
        // Each range of slots begins with its first and its last slot.
        for announced in slots.into_iter().flat_map(|range| range.into_iter().skip(2)) {
            let Some(announced) = with_announced_address(&configured, announced) else { continue };
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

/// The settings of a configured node, with the address that `CLUSTER SLOTS` has for another one. The host is empty for the node that
/// was asked, and `?` if it is unknown.
fn with_announced_address(configured: &ConnectionInfo, announced: Value) -> Option<ConnectionInfo> {
    let mut parts = redis::from_redis_value::<Vec<Value>>(announced).ok()?.into_iter();
    let host: Option<String> = redis::from_redis_value(parts.next()?).ok()?;
    let host = host.filter(|host| !host.is_empty() && host != "?")?;
    let port: u16 = redis::from_redis_value(parts.next()?).ok()?;
    Some(configured.clone().set_addr(match configured.addr() {
        ConnectionAddr::TcpTls { .. } => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
        _ => ConnectionAddr::Tcp(host, port),
    }))
}
