//! Tests of the recipes in docs/run/proxies.md, whose configuration is read from the page: CORS, internal redirects, and two proxies in a
//! row. All run with the example configuration.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_tests::{
    ControlPlane, Environment, Envoy, HttpResponse, RawRequest, Sidecar, Upstream, envoy::replaced, tools,
};
use serde_json::json;
use std::fs;
use tokio::net::UnixListener;

const ORIGIN: &str = "https://app.example.com";

/// The YAML blocks of a section of the page.
fn blocks(section: &str) -> Vec<String> {
    let page = fs::read_to_string(tools::root().join("docs/run/proxies.md")).unwrap();
    let (_, rest) = page.split_once(&format!("\n## {section}\n")).unwrap();
    let section = rest.split("\n## ").next().unwrap();
    let blocks = section.split("```yaml\n").skip(1);
    blocks.map(|block| block.split_once("```").unwrap().0.to_owned()).collect()
}

/// The lines of a block after `start`, indented by `spaces` more than on the page.
fn lines_after(block: &str, start: &str, spaces: usize) -> String {
    let (_, lines) = block.split_once(start).unwrap();
    let indented = |line| format!("{}{line}\n", " ".repeat(spaces));
    lines.lines().map(indented).collect::<Vec<_>>().concat()
}

/// The example configuration with the settings of a virtual host on the page.
fn with_virtual_host(config: &str, block: &str) -> String {
    let domains = "domains: [\"*\"]\n";
    replaced(config, domains, &format!("{domains}{}", lines_after(block, domains, 18)))
}

fn with_cors(config: &str) -> String {
    let blocks = blocks("Pages of another origin (CORS)");
    let filters = "http_filters:\n";
    let config = replaced(config, filters, &format!("{filters}{}", lines_after(&blocks[0], filters, 16)));
    with_virtual_host(&config, &blocks[1])
}

fn from_page(method: &str, path: &str, origin: &str) -> RawRequest {
    RawRequest::new(method, path).with("origin", origin)
}

fn preflight(path: &str, origin: &str) -> RawRequest {
    let request = from_page("OPTIONS", path, origin).with("access-control-request-method", "GET");
    request.with("access-control-request-headers", "authorization")
}

/// Whether a browser shows a response to a page of the origin, with these headers.
fn is_readable(response: &HttpResponse) -> bool {
    let exposed = response.header("access-control-expose-headers");
    response.header("access-control-allow-origin") == ORIGIN
        && ["www-authenticate", "x-agent-reason", "retry-after"].iter().all(|name| exposed.contains(name))
}

#[tokio::test]
async fn page_of_a_listed_origin_can_send_tokens_and_read_refusals() {
    let environment = Environment::start().await;
    let (socket, upstream) = (environment.sidecar.socket(), environment.upstream.port);
    let envoy = Envoy::start_edited_example(&socket, upstream, |config| with_cors(&config)).await;
    let token = environment.agent("reader", &["read"]).await.0.token().await;

    for path in ["/", "/admin", "/open/x"] {
        let response = preflight(path, ORIGIN).send(&envoy.listener).await;
        assert_eq!((response.status, response.header("access-control-allow-origin")), (200, ORIGIN), "{response:?}");
        assert!(response.header("access-control-allow-headers").contains("authorization"), "{response:?}");
        assert!(response.header("access-control-allow-methods").contains("GET"), "{response:?}");
    }
    for request in [preflight("/", "https://evil.example"), from_page("OPTIONS", "/", ORIGIN)] {
        let response = request.send_until_checked(&envoy.listener).await;
        assert_eq!(response.reason(), (401, "token_missing"), "{response:?}");
    }
    assert_eq!(environment.upstream.received(), 0, "the service receives no preflight");

    for (request, expected) in [
        (from_page("GET", "/", ORIGIN), (401, "token_missing")),
        (from_page("GET", "/admin", ORIGIN).bearer(&token), (403, "permission_missing")),
        (from_page("GET", "/", ORIGIN).bearer(&token), (200, "")),
    ] {
        let response = request.send_until_checked(&envoy.listener).await;
        assert_eq!((response.status, response.header("x-agent-reason")), expected, "{response:?}");
        assert!(is_readable(&response), "{response:?}");
    }
    let other = from_page("GET", "/", "https://evil.example").bearer(&token);
    let response = other.send_until_checked(&envoy.listener).await;
    assert_eq!(response.header("access-control-allow-origin"), "", "{response:?}");
}

#[tokio::test]
async fn page_can_read_that_the_sidecar_does_not_answer() {
    let (folder, upstream) = (tempfile::tempdir().unwrap(), Upstream::start().await);
    let socket = folder.path().join("authz.sock");
    let _silent = UnixListener::bind(&socket).unwrap();
    let envoy = Envoy::start_edited_example(&socket, upstream.port, |config| with_cors(&config)).await;
    assert_eq!(preflight("/", ORIGIN).send(&envoy.listener).await.status, 200);
    let response = from_page("GET", "/", ORIGIN).send(&envoy.listener).await;
    assert!(response.status == 503 && is_readable(&response), "{response:?}");
    assert_eq!(upstream.received(), 0);
}

fn with_internal_redirects(config: &str) -> String {
    let block = &blocks("Internal redirects")[0];
    let route =
        "                        - match: { prefix: / }\n                          route: { cluster: service }\n";
    replaced(config, route, &lines_after(block, "", 24))
}

#[tokio::test]
async fn internal_redirect_is_checked_again() {
    let environment = Environment::start().await;
    let (socket, port) = (environment.sidecar.socket(), environment.upstream.port);
    let envoy = Envoy::start_edited_example(&socket, port, |config| with_internal_redirects(&config)).await;
    let token = environment.agent("reader", &["read"]).await.0.token().await;
    let follow = async |location: &str| {
        let request = RawRequest::get(&format!("/redirect?to={location}")).bearer(&token);
        let forged = request.with("x-agent-id", "forged").with("x_agent_roles", "admin");
        forged.send_until_checked(&envoy.listener).await
    };

    let response = follow("http://service.example.com/other").await;
    assert_eq!((response.status, response.header("x-upstream-path")), (200, "/other"), "{response:?}");
    let received = response.expect(200);
    assert_eq!(received["x-agent-roles"], json!(["reader"]), "{received}");
    assert!(received.get("x_agent_roles").is_none() && received["x-agent-id"][0] != "forged", "{received}");
    for path in ["/admin", "//admin", "/x/../admin", "/%61dmin/x", "/x/%2e%2e/admin"] {
        let response = follow(&format!("http://service.example.com{path}")).await;
        assert_eq!(response.reason(), (403, "permission_missing"), "{path}: {response:?}");
    }
    let passed_on = follow("/other").await;
    assert_eq!((passed_on.status, passed_on.header("location")), (302, "/other"), "{passed_on:?}");

    let without_token = |config: String| replaced(&with_internal_redirects(&config), "forward_token: \"true\"", "");
    let envoy = Envoy::start_edited_example(&socket, port, without_token).await;
    let request = RawRequest::get("/redirect?to=http://service.example.com/other").bearer(&token);
    let response = request.send_until_checked(&envoy.listener).await;
    assert_eq!(response.reason(), (401, "token_missing"), "{response:?}");
}

/// A second sidecar of the service, for the outer Envoy.
async fn outer_sidecar(control: &ControlPlane) -> Sidecar {
    let key = control.create_key(control.service(), "sync").await;
    let sidecar = Sidecar::start_with(control, &[&key], &[]);
    sidecar.wait_until_ready().await;
    sidecar
}

#[tokio::test]
async fn inner_proxy_verifies_the_token_that_the_outer_one_forwards() {
    let environment = Environment::start().await;
    let blocks = blocks("Two proxies in a row");
    let trusting = |config: String| {
        let line = "                use_remote_address: true\n";
        replaced(&config, line, &lines_after(&blocks[1], "", 16))
    };
    let inner = Envoy::start_edited_example(&environment.sidecar.socket(), environment.upstream.port, trusting).await;
    let inner_port = inner.listener.url.trim_end_matches('/').rsplit(':').next().unwrap().parse().unwrap();
    let sidecar = outer_sidecar(&environment.control).await;
    let forwarding = |config: String| with_virtual_host(&config, &blocks[0]);
    let outer = Envoy::start_edited_example(&sidecar.socket(), inner_port, forwarding).await;
    let token = environment.agent("reader", &["read"]).await.0.token().await;

    let request = RawRequest::get("/").bearer(&token).with("x-agent-id", "forged").with("x_agent_roles", "admin");
    let request = request.with("x-forwarded-for", "203.0.113.9").with("x-envoy-external-address", "203.0.113.9");
    let received = request.send_until_checked(&outer.listener).await.expect(200);
    assert_eq!(received["x-agent-roles"], json!(["reader"]), "{received}");
    assert!(received.get("x_agent_roles").is_none() && received.get("authorization").is_none(), "{received}");
    // The outer Envoy appends the address of its client, and the inner one the address of the outer one.
    let addresses: Vec<_> = received["x-forwarded-for"][0].as_str().unwrap().split(',').map(str::trim).collect();
    assert_eq!(addresses.len(), 3, "{received}");
    assert_eq!(received["x-envoy-external-address"][0], addresses[1], "{received}");

    for (path, expected) in [("/admin", (403, "permission_missing")), ("/open", (200, ""))] {
        let response = RawRequest::get(path).bearer(&token).send_until_checked(&outer.listener).await;
        assert_eq!((response.status, response.header("x-agent-reason")), expected, "{path}: {response:?}");
    }
    let forged = RawRequest::get("/").with("x-agent-id", "agent").send_until_checked(&inner.listener).await;
    assert_eq!(forged.reason(), (401, "token_missing"), "the inner sidecar trusts no identity headers: {forged:?}");

    let outer = Envoy::start_example(&sidecar.socket(), inner_port).await;
    let response = RawRequest::get("/").bearer(&token).send_until_checked(&outer.listener).await;
    assert_eq!(response.reason(), (401, "token_missing"), "{response:?}");
}
