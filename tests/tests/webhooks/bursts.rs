//! Failed logins that come thick and fast: ten are told, the rest together when the minute is over; and nobody else
//! is held up.

use countersign_process::{Clock, SystemClock};
use countersign_tests::{Agent, ControlPlane, EventSource, HttpClient, HttpResponse, Receiver, Target, eventually};
use reqwest::Client;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};
use tokio::task::JoinSet;

/// Where the storm comes from.
const ADDRESSES: [Ipv4Addr; 4] =
    [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3), Ipv4Addr::new(127, 0, 0, 4)];

/// From each of them.
const FAILURES: usize = 25;

/// How long failures are counted together.
const MINUTE: Duration = Duration::from_mins(1);

fn from(control: &ControlPlane, address: Ipv4Addr) -> HttpClient {
    let authority = reqwest::Certificate::from_pem(&control.authority()).unwrap();
    let client = Client::builder().tls_certs_only([authority]).local_address(IpAddr::from(address)).build().unwrap();
    let port = control.env["URL"].rsplit(':').next().unwrap();
    HttpClient { url: format!("https://127.0.0.1:{port}"), client }
}

async fn storm(control: &ControlPlane, challenge: &Value, signature: &str) {
    let body = json!({ "challengeId": challenge["challengeId"], "signature": signature });
    let mut crowd = JoinSet::new();
    for address in ADDRESSES {
        let (site, body) = (from(control, address), body.clone());
        crowd.spawn(async move {
            for _ in 0..FAILURES {
                let answer = HttpResponse::send(site.request("POST", "/auth/authenticate").json(&body)).await;
                assert_eq!((answer.status, answer.text("/error/code")), (400, "INVALID_SIGNATURE"));
            }
        });
    }
    crowd.join_all().await;
}

/// What was told of an agent's failed logins at a service, or at none: how many one by one, and the summaries.
fn told(receiver: &Receiver, agent: &str, service: &Value) -> (Vec<Value>, Vec<Value>) {
    let failed = receiver.of_kind("agent.authentication_failed");
    let all = failed.iter().map(countersign_tests::Received::data);
    let all = all.filter(|data| data["agentId"] == agent && data["serviceId"] == *service);
    all.partition(|data| data["suppressed"].is_null())
}

// Both in one test, for both take a minute.
#[tokio::test(flavor = "multi_thread")]
async fn failed_logins_above_the_burst_limit_are_summarised() {
    tokio::join!(storm_has_a_summary(), ten_have_none_and_the_next_minute_counts_anew());
}

async fn storm_has_a_summary() {
    let mut control = ControlPlane::start().await;
    let receiver = Receiver::good().await;
    Target::create_for_deployment(&control, &receiver.url).await;
    let began = SystemClock.since_boot();
    let (victim, service) = {
        let source = EventSource::new(&control).await;
        let service = json!(control.service());
        let wrong = source.agent.key.sign("another nonce");
        let challenge = source.challenge(Some(control.service())).await;
        let unbound = source.challenge(None).await;
        let storms = async { tokio::join!(storm(&control, &challenge, &wrong), storm(&control, &unbound, &wrong)) };
        let (_, ()) = tokio::join!(storms, others(&control, &receiver));
        receiver.until(20).await;
        for service in [&service, &Value::Null] {
            let ten = async || (told(&receiver, &source.agent.id, service).0.len() == 10).then_some(());
            eventually("ten come", ten, || format!("{:?}", told(&receiver, &source.agent.id, service))).await;
        }
        (source.agent.id.clone(), service)
    };
    // What was counted is not lost when the process stops.
    assert!(control.terminate().await.success());
    control.restart().await;
    tokio::time::sleep((began + MINUTE).saturating_sub(SystemClock.since_boot())).await;
    for service in [&service, &Value::Null] {
        let summary = async || told(&receiver, &victim, service).1.pop();
        let summary = eventually("a summary comes", summary, String::new).await;
        let suppressed = ADDRESSES.len() * FAILURES - 10;
        assert_eq!(
            summary,
            json!({
                "agentId": victim, "serviceId": service, "reason": "suppressed", "ipAddress": null, "suppressed": suppressed
            })
        );
        let (one_by_one, summaries) = told(&receiver, &victim, service);
        assert_eq!((one_by_one.len(), summaries.len()), (10, 1));
        let mut addresses = BTreeMap::new();
        for data in one_by_one {
            assert_eq!(data["reason"], "invalid_signature");
            let address: Ipv4Addr = data["ipAddress"].as_str().unwrap().parse().unwrap();
            *addresses.entry(address).or_insert(0) += 1;
        }
        assert!(addresses.keys().all(|address| ADDRESSES.contains(address)), "{addresses:?}");
    }
}

/// While a storm is on, others log in and get roles, and that is told at once.
async fn others(control: &ControlPlane, receiver: &Receiver) {
    let role = control.create_role("other", &[]).await;
    for _ in 0..5 {
        let other = Agent::register(control, "Other").await;
        let began = SystemClock.since_boot();
        other.token_for(control.service()).await;
        control.assign(&other.id, &role).await;
        let mine = async || {
            let all = receiver.received();
            (all.iter().filter(|one| one.data()["agentId"] == other.id.as_str()).count() == 2).then_some(())
        };
        eventually("both are told", mine, String::new).await;
        let took = SystemClock.since_boot().saturating_sub(began);
        println!("during a burst of failures, a login and a role assignment were done and delivered in {took:.2?}");
    }
}

async fn ten_have_none_and_the_next_minute_counts_anew() {
    let control = ControlPlane::start().await;
    let receiver = Receiver::good().await;
    Target::create(&control, &receiver.url).await;
    let source = EventSource::new(&control).await;
    let service = json!(control.service());
    for _ in 0..10 {
        source.fail_login(Some(control.service())).await;
    }
    receiver.until(10).await;
    tokio::time::sleep(MINUTE + Duration::from_secs(3)).await;
    assert_eq!(told(&receiver, &source.agent.id, &service).1, Vec::<Value>::new());
    source.fail_login(Some(control.service())).await;
    receiver.until(11).await;
    assert_eq!(told(&receiver, &source.agent.id, &service).0.len(), 11);
}
