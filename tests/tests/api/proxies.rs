//! Behind proxies: whose word about the client is believed, and who may speak plain HTTP.

#![expect(clippy::unwrap_used, reason = "a test says what it expects")]

use countersign_tests::{ControlPlane, HttpResponse, eventually, http::HttpClient};
use reqwest::Client;
use std::net::{IpAddr, Ipv4Addr};

/// The address of the listed proxy; a stranger comes from the ordinary loopback address.
const PROXY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const STRANGER: Ipv4Addr = Ipv4Addr::LOCALHOST;

const LISTED: &str = "proxies.trusted=127.0.0.2";

fn port(at: &ControlPlane) -> &str {
    at.env["URL"].rsplit(':').next().unwrap()
}

/// Plain HTTP to the API from an address.
fn plain_from(address: Ipv4Addr, at: &ControlPlane) -> HttpClient {
    let client = Client::builder().local_address(IpAddr::from(address)).build().unwrap();
    HttpClient { client, ..HttpClient::plain(format!("http://127.0.0.1:{}", port(at))) }
}

/// HTTPS to the API from an address.
fn https_from(address: Ipv4Addr, at: &ControlPlane) -> HttpClient {
    let authority = reqwest::Certificate::from_pem(&at.authority()).unwrap();
    let client = Client::builder().tls_certs_only([authority]).local_address(IpAddr::from(address)).build().unwrap();
    HttpClient { url: format!("https://127.0.0.1:{}", port(at)), client }
}

async fn get(site: &HttpClient, headers: &[(&str, &str)]) -> HttpResponse {
    let request = site.request("GET", "/.well-known/jwks.json");
    HttpResponse::send(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))).await
}

#[tokio::test]
async fn plain_http_is_accepted_only_from_trusted_proxies_with_https_clients() {
    let control = ControlPlane::start_with(&["tls.mode=terminated", LISTED]).await;
    let (proxy, stranger) = (plain_from(PROXY, &control), plain_from(STRANGER, &control));
    get(&proxy, &[("x-forwarded-proto", "https")]).await.expect(200);
    for (site, headers) in [
        (&proxy, &[][..]),
        (&proxy, &[("x-forwarded-proto", "http")]),
        (&proxy, &[("x-forwarded-proto", "https, http")]),
        (&proxy, &[("x-forwarded-proto", "https"), ("x-forwarded-proto", "http")]),
        (&stranger, &[("x-forwarded-proto", "https")]),
        (&stranger, &[("x-forwarded-proto", "https"), ("x-forwarded-for", "127.0.0.2")]),
        (&stranger, &[]),
    ] {
        let refused = get(site, headers).await;
        assert_eq!(refused.error(), (400, "HTTPS_REQUIRED", ""), "{headers:?}");
        assert!(!refused.header("x-request-id").is_empty() && refused.header("location").is_empty());
    }
    // Nothing is done for them either, whatever they ask.
    let body = serde_json::json!({ "name": "Service" });
    let refused = stranger.send_as(control.human(), "POST", "/services", body).await;
    assert_eq!(refused.error(), (400, "HTTPS_REQUIRED", ""));
}

#[tokio::test]
async fn trusted_proxy_may_use_http2() {
    let control = ControlPlane::start_with(&["tls.mode=terminated", LISTED]).await;
    let client = Client::builder().http2_prior_knowledge().local_address(IpAddr::from(PROXY)).build().unwrap();
    let site = HttpClient { client, ..plain_from(PROXY, &control) };
    get(&site, &[("x-forwarded-proto", "https")]).await.expect(200);
    assert_eq!(get(&site, &[]).await.error(), (400, "HTTPS_REQUIRED", ""));
}

/// The address of the client as the log has it.
async fn logged_client(at: &ControlPlane, site: &HttpClient, forwarded: &str) -> String {
    let id = format!("from-{}", forwarded.replace([',', ' ', ':'], "-"));
    get(site, &[("x-forwarded-for", forwarded), ("x-forwarded-proto", "https"), ("x-request-id", &id)])
        .await
        .expect(200);
    let line = || at.log().lines().find(|line| line.contains(&id) && line.contains("answered")).map(str::to_owned);
    let line = eventually("the request is logged", async || line(), || at.log()).await;
    let client = line.split("client=\"").nth(1).unwrap_or_else(|| panic!("{line}"));
    client.split('"').next().unwrap().to_owned()
}

#[tokio::test]
async fn forwarded_address_is_used_only_from_a_trusted_proxy() {
    for mode in ["serve", "terminated"] {
        let control = ControlPlane::start_with(&[&format!("tls.mode={mode}"), LISTED]).await;
        let from = if mode == "serve" { https_from } else { plain_from };
        let proxy = from(PROXY, &control);
        assert_eq!(logged_client(&control, &proxy, "203.0.113.9, 198.51.100.7").await, "198.51.100.7");
        assert_eq!(logged_client(&control, &proxy, "198.51.100.8, 127.0.0.2").await, "198.51.100.8");
        assert_eq!(logged_client(&control, &proxy, "words").await, "127.0.0.2");
        if mode == "serve" {
            assert_eq!(logged_client(&control, &from(STRANGER, &control), "198.51.100.9").await, "127.0.0.1");
        }
    }
}
