//! Requests through Envoy with one worker thread, which answers them itself, so that only Envoy and its filters work.
//!
//! All filters are in one Envoy, each at a port of its own. Envoy has a processor of its own; the authorizers share the other one
//! with `wrk`, which needs little of it. In the cases `_one_core`, the authorizers share the processor of Envoy instead: there,
//! the figure counts all work for a request.
//!
//! One of the authorizers is oauth2-proxy, which a user might pick instead, if it is installed.

use crate::{
    allow_all::empty_response,
    direct::allowed_response,
    oauth2_proxy::OAuth2Proxy,
    rounds::{Comparison, Measured, measured},
    scale,
    servers::{ChildServer, LOAD_CORE, SERVER_CORE, pin},
    tokens::TokenIssuer,
    wrk::wrk,
};
use countersign_tests::{
    Sidecar, envoy,
    process::{Process, eventually, free_port},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, path::Path};
use tempfile::TempDir;
use tokio::net::TcpStream;

/// Connections of `wrk`.
const CONNECTIONS: &str = "64";

/// The listeners without an authorizer, by what their filter does.
const WITHOUT_AUTHORIZER: [&str; 3] = ["none", "jwt_authn", "jwt_authn_cached"];

/// The listener with oauth2-proxy, if that is installed.
const PEER: &str = "oauth2_proxy";

struct Proxy {
    process: Process,
    _folder: TempDir,
    ports: BTreeMap<&'static str, u16>,
}

/// Measures each filter in alternation with the filter that it is compared with.
pub async fn measure(rounds: usize) -> BTreeMap<String, Comparison> {
    let issuer = TokenIssuer::start(1).await;
    let tcp = free_port();
    let by_socket = issuer.start_sidecar(&[]).await;
    let by_tcp = issuer.start_sidecar(&[&format!("listen.grpc=127.0.0.1:{tcp}")]).await;
    let allow_all = ChildServer::start_allow_all(&empty_response()).await;
    let same_response = ChildServer::start_allow_all(&allowed_response(&by_socket, &issuer).await).await;
    let peer = OAuth2Proxy::start(&issuer).await;
    let authorizers = BTreeMap::from([
        ("allow_all", pipe(&allow_all.socket())),
        ("same_response", pipe(&same_response.socket())),
        ("ours", pipe(&by_socket.socket())),
        ("ours_again", pipe(&by_socket.socket())),
        ("ours_tcp", local_port(tcp)),
    ]);
    let proxy = Proxy::start(&issuer, &authorizers, peer.as_ref().map(OAuth2Proxy::port)).await;
    pin(proxy.process.id(), SERVER_CORE);
    let bearer = format!("authorization: Bearer {}", issuer.token(1, 1));
    let mut results = BTreeMap::new();
    for (suffix, core) in [("", LOAD_CORE), ("_one_core", SERVER_CORE)] {
        let peer = peer.as_ref().map(OAuth2Proxy::id);
        for process in [by_socket.id(), by_tcp.id(), allow_all.id(), same_response.id()].into_iter().chain(peer) {
            pin(process, core);
        }
        let mut pairs: BTreeMap<String, Vec<[Measured; 2]>> = BTreeMap::new();
        for round in 0..scale::warm_up_rounds() {
            proxy.round(round, &bearer).await;
        }
        for round in 0..rounds {
            let per_second = proxy.round(round, &bearer).await;
            for (name, ours, other) in [
                ("envoy_vs_allow", "ours", "allow_all"),
                ("envoy_vs_same_response", "ours", "same_response"),
                ("envoy_tcp_vs_allow", "ours_tcp", "allow_all"),
                ("envoy_vs_jwt_authn", "ours", "jwt_authn"),
                ("envoy_vs_jwt_authn_cached", "ours", "jwt_authn_cached"),
                ("envoy_vs_no_filter", "ours", "none"),
                ("envoy_vs_oauth2_proxy", "ours", PEER),
                ("envoy_control", "ours", "ours_again"),
            ] {
                let Some(other) = per_second.get(other) else { continue };
                pairs.entry(format!("{name}{suffix}")).or_default().push([per_second[ours], *other]);
            }
        }
        results.extend(pairs.into_iter().map(|(name, pairs)| (name, Comparison::new(&pairs))));
    }
    assert_used(&by_socket).await;
    assert_used(&by_tcp).await;
    results
}

/// Asserts that the sidecar has decided the requests by verified tokens.
async fn assert_used(sidecar: &Sidecar) {
    let allowed = sidecar.metric(r#"countersign_authz_checks_total{decision="allow",reason="verified""#).await;
    assert!(allowed.is_some_and(|count| count > 10.0), "{allowed:?}");
}

impl Proxy {
    /// Starts Envoy with a listener for each authorizer, by the address of its gRPC server. `peer` is the port of oauth2-proxy.
    async fn start(issuer: &TokenIssuer, authorizers: &BTreeMap<&'static str, Value>, peer: Option<u16>) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        let names = WITHOUT_AUTHORIZER.into_iter().chain(authorizers.keys().copied()).chain(peer.map(|_| PEER));
        let ports: BTreeMap<_, _> = names.map(|name| (name, free_port())).collect();
        let jwt = issuer.jwt_provider().await;
        let mut cached = jwt.clone();
        cached["jwt_cache_config"] = json!({ "jwt_cache_size": 1000 });
        let filter = |name: &str| match name {
            "jwt_authn" => Some(jwt_authn(&jwt)),
            "jwt_authn_cached" => Some(jwt_authn(&cached)),
            "none" => None,
            PEER => Some(ext_authz(&json!({ "http_service": http_service(name) }))),
            authorizer => Some(ext_authz(&json!({ "grpc_service": grpc_service(authorizer) }))),
        };
        let listeners: Vec<_> = ports.iter().map(|(name, port)| listener(*port, filter(name))).collect();
        let grpc = authorizers.iter().map(|(name, address)| http2(cluster(name, address)));
        let clusters: Vec<_> = grpc.chain(peer.map(|port| cluster(PEER, &local_port(port)))).collect();
        let config = json!({ "static_resources": { "listeners": listeners, "clusters": clusters } });
        let file = folder.path().join("envoy.json");
        std::fs::write(&file, config.to_string()).expect("the configuration can be written");
        let mut process = envoy::launch(&file);
        for port in ports.values() {
            let listens = async || {
                process.assert_running();
                TcpStream::connect(("127.0.0.1", *port)).await.ok()
            };
            eventually("Envoy listens", listens, String::new).await;
        }
        Self { process, _folder: folder, ports }
    }

    /// The requests per second of all listeners, in an order that changes with each round.
    async fn round(&self, round: usize, bearer: &str) -> BTreeMap<&'static str, Measured> {
        let mut names: Vec<_> = self.ports.keys().copied().collect();
        let count = names.len();
        names.rotate_left(round % count);
        if round % 2 == 1 {
            names.reverse();
        }
        let mut per_second = BTreeMap::new();
        for name in names {
            let url = format!("http://127.0.0.1:{}/invoices/4711?expand=lines", self.ports[name]);
            let headers = [bearer, "accept: application/json", "user-agent: invoice-agent/2.1"];
            per_second.insert(name, measured(wrk(&url, &headers, CONNECTIONS)).await);
        }
        per_second
    }
}

fn pipe(socket: &Path) -> Value {
    json!({ "pipe": { "path": socket } })
}

fn local_port(port: u16) -> Value {
    json!({ "socket_address": { "address": "127.0.0.1", "port_value": port } })
}

fn listener(port: u16, filter: Option<Value>) -> Value {
    let router = json!({
        "name": "envoy.filters.http.router",
        "typed_config": { "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router" },
    });
    let filters: Vec<_> = filter.into_iter().chain([router]).collect();
    let answers = json!([{ "match": { "prefix": "/" }, "direct_response": { "status": 200 } }]);
    let manager = json!({
        "@type":
            "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "route_config": { "virtual_hosts": [{ "name": "all", "domains": ["*"], "routes": answers }] },
        "http_filters": filters,
    });
    json!({
        "address": local_port(port),
        "filter_chains": [{
            "filters": [{ "name": "envoy.filters.network.http_connection_manager", "typed_config": manager }],
        }],
    })
}

fn http2(mut cluster: Value) -> Value {
    let options = json!({
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": { "http2_protocol_options": {} },
    });
    cluster["typed_extension_protocol_options"] =
        json!({ "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options });
    cluster
}

fn cluster(name: &str, address: &Value) -> Value {
    json!({
        "name": name,
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": address } }] }],
        },
    })
}

/// The configuration of the filter `ext_authz`. `service` is the part that names the server for the checks.
fn ext_authz(service: &Value) -> Value {
    let mut config = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz",
        "transport_api_version": "V3",
    });
    for (name, value) in service.as_object().into_iter().flatten() {
        config[name] = value.clone();
    }
    json!({ "name": "envoy.filters.http.ext_authz", "typed_config": config })
}

fn grpc_service(cluster: &str) -> Value {
    json!({ "envoy_grpc": { "cluster_name": cluster }, "timeout": "5s" })
}

/// Names a server whose HTTP status decides whether Envoy allows a request.
fn http_service(cluster: &str) -> Value {
    json!({ "server_uri": { "uri": "http://127.0.0.1", "cluster": cluster, "timeout": "5s" } })
}

fn jwt_authn(provider: &Value) -> Value {
    json!({
        "name": "envoy.filters.http.jwt_authn",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
            "providers": { "countersign": provider },
            "rules": [{ "match": { "prefix": "/" }, "requires": { "provider_name": "countersign" } }],
        },
    })
}
