//! Tests against DNS rebinding: each connection uses only addresses that were checked for that connection. Also tests that hanging
//! lookups for one owner do not prevent lookups for others.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_control_plane::{Dependencies, HostResolver, ResolveFuture};
use countersign_tests::{ControlPlane, HttpResponse, Receiver, Reply, Tenant, control_plane::text, eventually};
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};
use tokio::{sync::watch, task::JoinSet};

/// An address to which `--dev` allows webhooks.
const ALLOWED: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// An address to which webhooks are never allowed, although connections to the address reach this machine.
const FORBIDDEN: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Lookups of hosts in this zone hang until the test answers them.
const HANGING_ZONE: &str = ".hanging.example";

/// Number of requests whose lookups hang. The control plane runs fewer lookups at the same time, even for all owners together.
const HANGING_LOOKUPS: usize = 40;

/// A fake resolver. The test sets the addresses that it returns.
#[derive(Default)]
struct FakeResolver {
    addresses: Mutex<HashMap<String, Vec<IpAddr>>>,
    answers_hanging: watch::Sender<bool>,
    /// Number of lookups that hang.
    hanging: AtomicUsize,
}

impl FakeResolver {
    fn set(&self, host: &str, addresses: &[IpAddr]) {
        self.addresses.lock().unwrap().insert(host.to_owned(), addresses.to_vec());
    }
}

impl HostResolver for FakeResolver {
    fn resolve<'a>(&'a self, host: &'a str) -> ResolveFuture<'a> {
        let addresses = self.addresses.lock().unwrap().get(host).cloned();
        Box::pin(async move {
            if host.ends_with(HANGING_ZONE) {
                self.hanging.fetch_add(1, SeqCst);
                self.answers_hanging.subscribe().wait_for(|answers| *answers).await.unwrap();
                self.hanging.fetch_sub(1, SeqCst);
            }
            addresses.ok_or_else(|| io::Error::other("no such name"))
        })
    }
}

struct Fixture {
    control: ControlPlane,
    resolver: Arc<FakeResolver>,
    receiver: Receiver,
}

/// Starts a receiver on all addresses that closes each connection after its response, so that each event needs a new connection.
async fn start_closing_receiver() -> Receiver {
    let receiver = Receiver::on_all_addresses().await;
    receiver.set_reply(Reply::Full(200, vec![("connection", "close".to_owned())], String::new()));
    receiver
}

impl Fixture {
    async fn new() -> Self {
        let (resolver, receiver) = (Arc::new(FakeResolver::default()), start_closing_receiver().await);
        let dependencies = Dependencies { resolver: resolver.clone(), ..Dependencies::default() };
        Self { control: ControlPlane::start_with_dependencies(dependencies, &[]).await, resolver, receiver }
    }

    async fn send(&self, method: &str, subpath: &str, body: Value) -> HttpResponse {
        self.control.send(method, &format!("/webhooks{subpath}"), body).await
    }

    async fn create(&self, url: &str) -> HttpResponse {
        self.send("POST", "", json!({ "url": url })).await
    }

    /// Sends a test event and returns the finished delivery.
    async fn send_test(&self, webhook: &str) -> Value {
        let sent = self.send("POST", &format!("/{webhook}/test"), json!({})).await.expect(202);
        let path = format!("/{webhook}/deliveries/{}", text(&sent["eventId"]));
        let finished = async || {
            let delivery = self.send("GET", &path, json!({})).await.expect(200);
            (delivery["status"] != "pending").then_some(delivery)
        };
        eventually("the test event is delivered or dead", finished, String::new).await
    }
}

#[tokio::test]
async fn address_change_after_the_check_is_refused() {
    let fixture = Fixture::new().await;
    let url = format!("http://hooks.example:{}/", fixture.receiver.port());
    fixture.resolver.set("hooks.example", &[ALLOWED]);
    let created = fixture.create(&url).await.expect(201);
    let webhook = created["webhookId"].as_str().unwrap();
    assert_eq!(fixture.send_test(webhook).await["status"], "delivered");
    assert_eq!(fixture.receiver.connections(), 1);

    fixture.resolver.set("hooks.example", &[FORBIDDEN]);
    let refused = fixture.send_test(webhook).await;
    assert_eq!((&refused["status"], &refused["failure"]), (&json!("dead"), &json!("address_refused")));
    let mapped = IpAddr::V6(Ipv4Addr::UNSPECIFIED.to_ipv6_mapped());
    fixture.resolver.set("hooks.example", &[mapped, IpAddr::V6(Ipv6Addr::UNSPECIFIED), FORBIDDEN]);
    assert_eq!(fixture.send_test(webhook).await["failure"], "address_refused");
    assert_eq!(fixture.receiver.connections(), 1, "no connection is made to the forbidden address");

    // If a host has several addresses, the server connects to the allowed addresses.
    fixture.resolver.set("hooks.example", &[FORBIDDEN, ALLOWED]);
    assert_eq!(fixture.send_test(webhook).await["status"], "delivered");
    assert_eq!(fixture.receiver.connections(), 2);
}

#[tokio::test]
async fn host_names_with_forbidden_addresses_are_refused_on_create_and_change() {
    let fixture = Fixture::new().await;
    let port = fixture.receiver.port();
    fixture.resolver.set("allowed.example", &[ALLOWED]);
    fixture.resolver.set("forbidden.example", &[FORBIDDEN]);
    fixture.resolver.set("public.example", &[IpAddr::V4(Ipv4Addr::new(1, 1, 1, 1))]);
    fixture.resolver.set("empty.example", &[]);
    let created = fixture.create(&format!("http://allowed.example:{port}/")).await.expect(201);
    let webhook = format!("/{}", created["webhookId"].as_str().unwrap());
    for (url, message) in [
        ("https://forbidden.example/", "not public"),
        ("https://unknown.example/", "does not resolve"),
        ("https://empty.example/", "does not resolve"),
        ("http://public.example/", "must be https"),
    ] {
        for refused in [fixture.create(url).await, fixture.send("PATCH", &webhook, json!({ "url": url })).await] {
            assert_eq!(refused.error(), (400, "VALIDATION_ERROR", ""), "{url}");
            assert!(refused.text("/error/details/fields/url").contains(message), "{url}: {}", refused.body);
        }
    }
    assert_eq!(fixture.send("GET", &webhook, json!({})).await.text("/url"), format!("http://allowed.example:{port}/"));
    fixture.send("PATCH", &webhook, json!({ "url": "https://public.example/" })).await.expect(200);
    assert_eq!(fixture.receiver.connections(), 0, "the check makes no connection");
}

/// The name server of an owner's zone does not answer. The lookups for this owner hang even after their callers have stopped
/// waiting, but the lookups for others still run.
#[tokio::test(flavor = "multi_thread")]
async fn hanging_lookups_of_one_owner_leave_lookups_for_others() {
    let fixture = Fixture::new().await;
    let port = fixture.receiver.port();
    fixture.resolver.set("allowed.example", &[ALLOWED]);
    let Tenant { human: owner, service, .. } = Tenant::new(&fixture.control, "owner of the zone").await;
    let (api, path) = (&fixture.control.api, format!("/services/{service}/webhooks"));
    let mut requests = JoinSet::new();
    for number in 0..HANGING_LOOKUPS {
        let (api, owner, path) = (api.clone(), owner.clone(), path.clone());
        let body = json!({ "url": format!("https://{number}{HANGING_ZONE}/") });
        requests.spawn(async move { api.send_as(&owner, "POST", &path, body).await });
    }
    let mut refused = 0;
    for response in requests.join_all().await {
        match response.status {
            400 => assert!(response.text("/error/details/fields/url").contains("does not resolve"), "{response:?}"),
            503 => {
                assert!(response.text("/error/message").contains("try again"), "{response:?}");
                assert!(!response.header("retry-after").is_empty(), "{response:?}");
                refused += 1;
            }
            _ => panic!("{response:?}"),
        }
    }
    let hanging = fixture.resolver.hanging.load(SeqCst);
    assert_eq!(hanging + refused, HANGING_LOOKUPS, "lookups continue although nobody waits for them");
    assert!((1..10).contains(&hanging), "{hanging} lookups of one owner");

    // This webhook belongs to the service of another owner.
    let url = format!("http://allowed.example:{port}/");
    let created = fixture.create(&url).await.expect(201);
    assert_eq!(fixture.send_test(created["webhookId"].as_str().unwrap()).await["status"], "delivered");

    fixture.resolver.answers_hanging.send_replace(true);
    let ended = async || (fixture.resolver.hanging.load(SeqCst) == 0).then_some(());
    eventually("the lookups end", ended, String::new).await;
    api.send_as(&owner, "POST", &path, json!({ "url": url })).await.expect(201);
}
