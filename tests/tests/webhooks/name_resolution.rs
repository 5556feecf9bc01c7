//! Names that lead elsewhere after they were checked: a delivery goes to an address that was found good for this very
//! connection, or nowhere.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use countersign_control_plane::{Dependencies, HostResolver, ResolveFuture};
use countersign_tests::{HttpResponse, InProcessServer, Receiver, Reply, eventually};
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{Arc, Mutex},
};
use tempfile::TempDir;

/// With `--dev` this address is a good one.
const GOOD: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Not a good one anywhere, but whoever connects to it gets to this machine.
const BAD: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Names that the test leads where it likes.
#[derive(Default)]
struct Led(Mutex<HashMap<String, Vec<IpAddr>>>);

impl Led {
    fn lead(&self, host: &str, addresses: &[IpAddr]) {
        self.0.lock().unwrap().insert(host.to_owned(), addresses.to_vec());
    }
}

impl HostResolver for Led {
    fn resolve<'a>(&'a self, host: &'a str) -> ResolveFuture<'a> {
        let found = self.0.lock().unwrap().get(host).cloned();
        Box::pin(async move { found.ok_or_else(|| io::Error::other("no such name")) })
    }
}

struct Fixture {
    plane: InProcessServer,
    names: Arc<Led>,
    folder: TempDir,
    receiver: Receiver,
}

/// A receiver on all addresses that closes each connection, so that the next event needs another.
async fn new_connections() -> Receiver {
    let receiver = Receiver::on_all_addresses().await;
    receiver.set_reply(Reply::Full(200, vec![("connection", "close".to_owned())], String::new()));
    receiver
}

impl Fixture {
    async fn new() -> Self {
        let (names, folder, receiver) =
            (Arc::new(Led::default()), tempfile::tempdir().unwrap(), new_connections().await);
        let dependencies = Dependencies { resolver: names.clone(), ..Dependencies::default() };
        let plane = InProcessServer::start_with(folder.path(), &[], dependencies).await;
        Self { plane, names, folder, receiver }
    }

    async fn send(&self, method: &str, below: &str, body: Value) -> HttpResponse {
        let env = |name| InProcessServer::env(self.folder.path(), name);
        let path = format!("/services/{}/webhooks{below}", env("SERVICE_ID"));
        self.plane.api.send_as(&env("SERVICE_KEY"), method, &path, body).await
    }

    async fn make(&self, url: &str) -> HttpResponse {
        self.send("POST", "", json!({ "url": url })).await
    }

    /// What comes of a test.
    async fn try_out(&self, webhook: &str) -> Value {
        let sent = self.send("POST", &format!("/{webhook}/test"), json!({})).await.expect(202);
        let path = format!("/{webhook}/deliveries/{}", sent["eventId"].as_str().unwrap());
        let ended = async || {
            let delivery = self.send("GET", &path, json!({})).await.expect(200);
            (delivery["status"] != "pending").then_some(delivery)
        };
        eventually("the test is delivered or dead", ended, String::new).await
    }
}

#[tokio::test]
async fn address_change_after_the_check_is_refused() {
    let fixture = Fixture::new().await;
    let url = format!("http://hooks.example:{}/", fixture.receiver.port());
    fixture.names.lead("hooks.example", &[GOOD]);
    let made = fixture.make(&url).await.expect(201);
    let webhook = made["webhookId"].as_str().unwrap();
    assert_eq!(fixture.try_out(webhook).await["status"], "delivered");
    assert_eq!(fixture.receiver.connections(), 1);

    fixture.names.lead("hooks.example", &[BAD]);
    let refused = fixture.try_out(webhook).await;
    assert_eq!((&refused["status"], &refused["failure"]), (&json!("dead"), &json!("address_refused")));
    let mapped = IpAddr::V6(Ipv4Addr::UNSPECIFIED.to_ipv6_mapped());
    fixture.names.lead("hooks.example", &[mapped, IpAddr::V6(Ipv6Addr::UNSPECIFIED), BAD]);
    assert_eq!(fixture.try_out(webhook).await["failure"], "address_refused");
    assert_eq!(fixture.receiver.connections(), 1, "the address is not connected to");

    // Of several, those that are good.
    fixture.names.lead("hooks.example", &[BAD, GOOD]);
    assert_eq!(fixture.try_out(webhook).await["status"], "delivered");
    assert_eq!(fixture.receiver.connections(), 2);
}

#[tokio::test]
async fn host_names_with_forbidden_addresses_are_refused_on_create_and_change() {
    let fixture = Fixture::new().await;
    let port = fixture.receiver.port();
    fixture.names.lead("good.example", &[GOOD]);
    fixture.names.lead("bad.example", &[BAD]);
    fixture.names.lead("public.example", &[IpAddr::V4(Ipv4Addr::new(1, 1, 1, 1))]);
    fixture.names.lead("empty.example", &[]);
    let made = fixture.make(&format!("http://good.example:{port}/")).await.expect(201);
    let webhook = format!("/{}", made["webhookId"].as_str().unwrap());
    for (url, said) in [
        ("https://bad.example/", "not public"),
        ("https://unheard.example/", "does not resolve"),
        ("https://empty.example/", "does not resolve"),
        ("http://public.example/", "must be https"),
    ] {
        for refused in [fixture.make(url).await, fixture.send("PATCH", &webhook, json!({ "url": url })).await] {
            assert_eq!(refused.error(), (400, "VALIDATION_ERROR", ""), "{url}");
            assert!(refused.text("/error/details/fields/url").contains(said), "{url}: {}", refused.body);
        }
    }
    assert_eq!(fixture.send("GET", &webhook, json!({})).await.text("/url"), format!("http://good.example:{port}/"));
    fixture.send("PATCH", &webhook, json!({ "url": "https://public.example/" })).await.expect(200);
    assert_eq!(fixture.receiver.connections(), 0, "nobody is called to be checked");
}
