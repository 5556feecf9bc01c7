//! Tests of forbidden target addresses: webhooks must not reach hosts that only this server can reach.
//! `name_resolution` tests the check of resolved addresses at connection time.

use countersign_tests::{
    ControlPlane, HttpResponse, ProductionServer, Receiver, Target, control_plane::text, http::items,
};
use serde_json::json;

/// Hosts outside the public Internet, in every spelling that a parser may accept.
const PRIVATE_HOSTS: &str = "
    127.0.0.1 127.1 127.0.1 127.255.255.254 2130706433 0x7f000001 0x7f.1 0177.0.0.1 017700000001
    0x7f.0.0.0x1 0177.0x0.0.1 127.0.0.1. 127。0。0。1 １２７.０.０.１ %31%32%37.0.0.1 0.0.0.0 0 0.0.0.1 10.0.0.1
    10.255.255.255 012.0.0.1 167772161 172.16.0.1 172.31.255.255 192.168.0.1 0xc0a80001 169.254.169.254
    2852039166 0xa9fea9fe 0251.0376.0251.0376 100.64.0.1 100.127.255.255 192.0.0.1 192.0.2.1 192.88.99.1
    198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 [::1] [::]
    [0:0:0:0:0:0:0:1] [::ffff:127.0.0.1] [::ffff:7f00:1] [::ffff:10.0.0.1] [::ffff:a9fe:a9fe]
    [::127.0.0.1] [64:ff9b::7f00:1] [64:ff9b::10.0.0.1] [64:ff9b:1::1] [fe80::1] [fec0::1] [fc00::1]
    [fd00::1] [ff02::1] [2002:7f00:1::] [2001:db8::1] [2001::1] [100::1]
";

/// Host names that resolve to this host or do not resolve.
const LOCAL_OR_UNKNOWN_NAMES: [&str; 5] =
    ["localhost", "LOCALHOST", "localhost.", "sub.localhost", "no-such-host.invalid"];

/// Invalid or forbidden URLs without a space.
const INVALID_URLS: &str = "
    hook /hook //1.1.1.1/hook ftp://1.1.1.1/ file:///etc/passwd gopher://1.1.1.1/ ws://1.1.1.1/ http://1.1.1.1/
    http://1.1.1.1:443/ HTTP://1.1.1.1/ http://127.0.0.1/ unix:///run/docker.sock javascript:alert(1) data:text/plain,x
    https:// https:///hook https://user@1.1.1.1/ https://user:word@1.1.1.1/ https://:word@1.1.1.1/ https://1.1.1.1/#part
    https://1.1.1.1:22/ https://1.1.1.1:0/ https://1.1.1.1:25/ https://1.1.1.1:80/ https://1.1.1.1:1023/
    https://1.1.1.1:65536/ https://1.1.1.1:-1/ https://[::1/ https://127.0.0.1\\.example/ https://256.256.256.256/
    https://1.1.1.1.1/
";

fn webhooks(server: &ProductionServer) -> String {
    format!("/services/{}/webhooks", server.service)
}

async fn create(server: &ProductionServer, url: &str) -> HttpResponse {
    server.api.send_as(&server.key, "POST", &webhooks(server), json!({ "url": url })).await
}

#[track_caller]
fn assert_refused(response: &HttpResponse, url: &str) {
    assert_eq!(response.code(), (400, "VALIDATION_ERROR"), "{url}: {}", response.body);
    assert!(!response.text("/error/details/fields/url").is_empty(), "{url}: {}", response.body);
}

#[tokio::test]
async fn private_addresses_are_refused_in_every_spelling() {
    let server = ProductionServer::start(&["limits.management_per_minute=100000"]).await;
    let receiver = Receiver::start_ok().await;
    let port = receiver.port();
    for host in PRIVATE_HOSTS.split_whitespace().chain(LOCAL_OR_UNKNOWN_NAMES) {
        for url in [format!("https://{host}:{port}/hook"), format!("https://{host}/")] {
            assert_refused(&create(&server, &url).await, &url);
        }
    }
    assert_eq!((receiver.count(), receiver.connections()), (0, 0), "requests and connections to the receiver");
    let listed = server.api.get_as(&server.key, &webhooks(&server)).await.expect(200);
    assert_eq!(listed, json!({ "data": [] }));
}

#[tokio::test]
async fn invalid_target_urls_are_refused() {
    let server = ProductionServer::start(&["limits.management_per_minute=100000"]).await;
    let long_url = format!("https://1.1.1.1/{}", "a".repeat(3000));
    let with_spaces = ["", "https://exa mple.com/", "https://1.1.1.1/\r\nx: y", "https://1.1.1.1/\u{0}", &long_url];
    for url in INVALID_URLS.split_whitespace().chain(with_spaces) {
        assert_refused(&create(&server, url).await, url);
    }
    // Public addresses are accepted, and the server sends no request when a target is created.
    for url in ["https://1.1.1.1/hook?x=1", "https://1.1.1.1:8443/", "https://[2606:4700::1111]/"] {
        let created = create(&server, url).await.expect(201);
        assert_eq!(created["serviceId"], json!(server.service));
        let path = format!("{}/{}", webhooks(&server), text(&created["webhookId"]));
        let response = server.api.send_as(&server.key, "PATCH", &path, json!({ "url": "https://127.0.0.1/" })).await;
        assert_refused(&response, "a change");
        assert_eq!(server.api.get_as(&server.key, &path).await.expect(200)["url"], created["url"]);
    }
}

#[tokio::test]
async fn targets_in_allowed_networks_are_reached_and_other_private_addresses_refused() {
    let receiver = Receiver::start_ok().await;
    let server = ProductionServer::start(&["webhooks.allowed_networks=127.0.0.1/32"]).await;
    let target = Target::create_in(&server.api, &server.key, &webhooks(&server), &receiver.url, &["*"]).await;
    let event = target.send_test_event().await;
    target.wait_for_delivery_status(&event, "delivered").await;
    assert_eq!(receiver.count(), 1);
    // Private addresses outside of the allowed networks are refused.
    let port = receiver.port();
    for url in [format!("http://127.0.0.2:{port}"), "https://10.0.0.1/".to_owned(), "http://1.1.1.1/".to_owned()] {
        assert_refused(&create(&server, &url).await, &url);
    }
}

#[tokio::test]
async fn dev_mode_reaches_loopback_but_no_other_private_host() {
    let control = ControlPlane::start().await;
    let receiver = Receiver::start_ok().await;
    Target::create(&control, &receiver.url).await;
    Target::create(&control, &receiver.url.replace("127.0.0.1", "localhost")).await;
    for url in [
        "http://10.0.0.1/",
        "https://192.168.0.1/",
        "https://169.254.169.254/",
        "http://1.1.1.1/",
        "https://[fd00::1]/",
    ] {
        let response = control.send("POST", "/webhooks", json!({ "url": url })).await;
        assert_refused(&response, url);
    }
    assert_eq!(items(&control.get("/webhooks").await.expect(200)).len(), 2);
    assert_eq!(receiver.connections(), 0, "no request is sent when a target is created");
}
