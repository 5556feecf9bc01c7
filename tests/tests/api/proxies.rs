//! Tests which peers may forward a client address or use plain HTTP.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_tests::{ControlPlane, HttpResponse, eventually, http::HttpClient};
use reqwest::Client;
use std::net::{IpAddr, Ipv4Addr};

/// The address of the trusted proxy. Clients that use no trusted proxy have the address 127.0.0.1.
const PROXY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const OTHER_CLIENT: Ipv4Addr = Ipv4Addr::LOCALHOST;

const TRUSTED_PROXY: &str = "proxies.trusted=127.0.0.2";

/// The base URLs of the replicas without TLS.
fn plain_urls(control: &ControlPlane) -> Vec<String> {
    control.urls().iter().map(|url| url.replace("https://localhost:", "http://127.0.0.1:")).collect()
}

/// A plain HTTP client at this address.
fn plain_client_from(address: Ipv4Addr, control: &ControlPlane) -> HttpClient {
    let client = Client::builder().local_address(IpAddr::from(address)).build().unwrap();
    HttpClient::of_replicas(plain_urls(control), client)
}

async fn get(client: &HttpClient, headers: &[(&str, &str)]) -> HttpResponse {
    let request = client.request("GET", "/.well-known/jwks.json");
    HttpResponse::send(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))).await
}

#[tokio::test]
async fn plain_http_is_accepted_only_from_trusted_proxies_with_https_clients() {
    let control = ControlPlane::start_with(&["tls.mode=terminated", TRUSTED_PROXY]).await;
    let (proxy, other_client) = (plain_client_from(PROXY, &control), plain_client_from(OTHER_CLIENT, &control));
    get(&proxy, &[("x-forwarded-proto", "https")]).await.expect(200);
    for (client, headers) in [
        (&proxy, &[][..]),
        (&proxy, &[("x-forwarded-proto", "http")]),
        (&other_client, &[("x-forwarded-proto", "https")]),
        (&other_client, &[("x-forwarded-proto", "https"), ("x-forwarded-for", "127.0.0.2")]),
        (&other_client, &[]),
    ] {
        let refused = get(client, headers).await;
        assert_eq!(refused.error(), (400, "HTTPS_REQUIRED", ""), "{headers:?}");
        assert!(!refused.header("x-request-id").is_empty() && refused.header("location").is_empty());
    }
    // A refused request is not executed.
    let body = serde_json::json!({ "name": "Service" });
    let refused = other_client.send_as(control.human(), "POST", "/services", body).await;
    assert_eq!(refused.error(), (400, "HTTPS_REQUIRED", ""));
}

#[tokio::test]
async fn trusted_proxy_may_use_http2() {
    let control = ControlPlane::start_with(&["tls.mode=terminated", TRUSTED_PROXY]).await;
    let client = Client::builder().http2_prior_knowledge().local_address(IpAddr::from(PROXY)).build().unwrap();
    let client = HttpClient::of_replicas(plain_urls(&control), client);
    get(&client, &[("x-forwarded-proto", "https")]).await.expect(200);
    assert_eq!(get(&client, &[]).await.error(), (400, "HTTPS_REQUIRED", ""));
}

/// Sends a request with `X-Forwarded-For` and returns the client address from the log.
async fn logged_client(control: &ControlPlane, client: &HttpClient, forwarded: &str) -> String {
    let id = format!("from-{}", forwarded.replace([',', ' ', ':'], "-"));
    get(client, &[("x-forwarded-for", forwarded), ("x-forwarded-proto", "https"), ("x-request-id", &id)])
        .await
        .expect(200);
    let line = || {
        control.log().lines().find(|line| line.contains(&id) && line.contains("request completed")).map(str::to_owned)
    };
    let line = eventually("the request is logged", async || line(), || control.log()).await;
    let client = line.split("client=\"").nth(1).unwrap_or_else(|| panic!("{line}"));
    client.split('"').next().unwrap().to_owned()
}

#[tokio::test]
async fn forwarded_address_is_used_only_from_a_trusted_proxy() {
    for mode in ["serve", "terminated"] {
        let control = ControlPlane::start_with(&[&format!("tls.mode={mode}"), TRUSTED_PROXY]).await;
        let proxy = if mode == "serve" { control.client_at(PROXY) } else { plain_client_from(PROXY, &control) };
        assert_eq!(logged_client(&control, &proxy, "203.0.113.9, 198.51.100.7").await, "198.51.100.7");
        assert_eq!(logged_client(&control, &proxy, "198.51.100.8, 127.0.0.2").await, "198.51.100.8");
        assert_eq!(logged_client(&control, &proxy, "words").await, "127.0.0.2");
        if mode == "serve" {
            let other = control.client_at(OTHER_CLIENT);
            assert_eq!(logged_client(&control, &other, "198.51.100.9").await, "127.0.0.1");
        }
    }
}
