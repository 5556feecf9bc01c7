//! Tests of bursts of failed logins: the server delivers ten events and, at the end of the minute, one summary. Events
//! of other kinds or agents are not delayed. A shutdown neither loses nor repeats the counts of a burst.

use countersign_process::{Clock, SystemClock};
use countersign_tests::{
    Agent, ControlPlane, EventSource, HttpResponse, Postgres, Received, Receiver, Target, eventually,
};
use serde_json::{Value, json};
use sqlx::{Connection, Executor, PgConnection, Row};
use std::{collections::BTreeMap, net::Ipv4Addr, time::Duration};
use tokio::task::JoinSet;

/// Source addresses of the burst.
const ADDRESSES: [Ipv4Addr; 4] =
    [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3), Ipv4Addr::new(127, 0, 0, 4)];

/// Number of failed logins from each address.
const FAILURES_PER_ADDRESS: usize = 25;

/// The time window of a burst.
const MINUTE: Duration = Duration::from_mins(1);

async fn send_failures(control: &ControlPlane, challenge: &Value, signature: &str) {
    let body = json!({ "challengeId": challenge["challengeId"], "signature": signature });
    let mut clients = JoinSet::new();
    for address in ADDRESSES {
        let (client, body) = (control.client_at(address), body.clone());
        clients.spawn(async move {
            for _ in 0..FAILURES_PER_ADDRESS {
                let response = HttpResponse::send(client.request("POST", "/auth/authenticate").json(&body)).await;
                assert_eq!(response.code(), (400, "INVALID_SIGNATURE"));
            }
        });
    }
    clients.join_all().await;
}

/// The delivered single events and summaries of an agent's failed logins at a service, or without a service.
fn delivered_events(receiver: &Receiver, agent: &str, service: &Value) -> (Vec<Value>, Vec<Value>) {
    let failed = receiver.of_kind("agent.authentication_failed");
    let all = failed.iter().map(Received::data);
    let all = all.filter(|data| data["agentId"] == agent && data["serviceId"] == *service);
    all.partition(|data| data["suppressed"].is_null())
}

// One test runs all cases, above and below the burst limit, concurrently, because each case takes a minute.
#[tokio::test(flavor = "multi_thread")]
async fn failed_logins_above_the_burst_limit_are_summarized() {
    tokio::join!(burst_has_a_summary(), ten_failures_have_no_summary());
}

async fn burst_has_a_summary() {
    let mut control = ControlPlane::start_process().await;
    let receiver = Receiver::start_ok().await;
    Target::create_for_deployment(&control, &receiver.url).await;
    let started = SystemClock.since_boot();
    let (agent_id, service) = {
        let source = EventSource::new(&control).await;
        source.agent.token_for(control.service()).await;
        let service = json!(control.service());
        let invalid_signature = source.agent.key.sign("another nonce");
        let challenge = source.challenge(Some(control.service())).await;
        let unbound = source.challenge(None).await;
        let bursts = async {
            tokio::join!(
                send_failures(&control, &challenge, &invalid_signature),
                send_failures(&control, &unbound, &invalid_signature)
            )
        };
        let (_, ()) = tokio::join!(bursts, deliver_other_events(&control, &receiver));
        receiver.wait_for_requests(20).await;
        for service in [&service, &Value::Null] {
            let ten_delivered =
                async || (delivered_events(&receiver, &source.agent.id, service).0.len() == 10).then_some(());
            eventually("ten events are delivered", ten_delivered, || {
                format!("{:?}", delivered_events(&receiver, &source.agent.id, service))
            })
            .await;
        }
        (source.agent.id.clone(), service)
    };
    // The count of failed logins survives a restart.
    assert!(control.terminate().await.success());
    control.restart().await;
    tokio::time::sleep((started + MINUTE).saturating_sub(SystemClock.since_boot())).await;
    for service in [&service, &Value::Null] {
        let summary = async || delivered_events(&receiver, &agent_id, service).1.pop();
        let summary = eventually("a summary is delivered", summary, String::new).await;
        let suppressed = ADDRESSES.len() * FAILURES_PER_ADDRESS - 10;
        assert_eq!(
            summary,
            json!({
                "agentId": agent_id, "serviceId": service, "reason": "suppressed", "ipAddress": null, "suppressed": suppressed
            })
        );
        let (single, summaries) = delivered_events(&receiver, &agent_id, service);
        assert_eq!((single.len(), summaries.len()), (10, 1));
        let mut addresses = BTreeMap::new();
        for data in single {
            assert_eq!(data["reason"], "invalid_signature");
            let address: Ipv4Addr = data["ipAddress"].as_str().unwrap().parse().unwrap();
            *addresses.entry(address).or_insert(0) += 1;
        }
        assert!(addresses.keys().all(|address| ADDRESSES.contains(address)), "{addresses:?}");
    }
}

/// During a burst, events of other agents are delivered immediately.
async fn deliver_other_events(control: &ControlPlane, receiver: &Receiver) {
    let role = control.create_role("other", &[]).await;
    for _ in 0..5 {
        let other = Agent::register(control, "Other").await;
        other.token_for(control.service()).await;
        control.assign(&other.id, &role).await;
        let of_other = |request: &&Received| request.data()["agentId"] == other.id;
        let both_delivered = async || (receiver.received().iter().filter(of_other).count() == 2).then_some(());
        eventually("both events are delivered", both_delivered, String::new).await;
    }
}

async fn ten_failures_have_no_summary() {
    let control = ControlPlane::start().await;
    let receiver = Receiver::start_ok().await;
    Target::create(&control, &receiver.url).await;
    let source = EventSource::new(&control).await;
    source.agent.token_for(control.service()).await;
    let service = json!(control.service());
    for _ in 0..10 {
        source.fail_login(Some(control.service())).await;
    }
    receiver.wait_for_requests(11).await;
    tokio::time::sleep(MINUTE + Duration::from_secs(3)).await;
    assert_eq!(delivered_events(&receiver, &source.agent.id, &service).1, Vec::<Value>::new());
    source.fail_login(Some(control.service())).await;
    receiver.wait_for_requests(12).await;
    assert_eq!(delivered_events(&receiver, &source.agent.id, &service).0.len(), 11);
}

/// Makes each commit that stores counts of a burst take two seconds.
const SLOW_COMMIT: &str =
    "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(2); RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER slow_commit AFTER UPDATE ON suppressed_bursts DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.suppressed > OLD.suppressed) EXECUTE FUNCTION wait()";

/// The shutdown is requested while a transaction with counts is committed.
#[tokio::test(flavor = "multi_thread")]
async fn counts_in_a_transaction_at_shutdown_are_stored_once() {
    let postgres = Postgres::start().await;
    let mut control = ControlPlane::start_replica(&postgres.create_database().await, &[]).await;
    let mut database = PgConnection::connect(&control.database_url()).await.unwrap();
    let receiver = Receiver::start_ok().await;
    Target::create_for_deployment(&control, &receiver.url).await;
    {
        let source = EventSource::new(&control).await;
        let (challenge, signature) = (source.challenge(None).await, source.agent.key.sign("another nonce"));
        send_failures(&control, &challenge, &signature).await;
        // The burst has reached its limit, so failed logins are only counted in memory from now on.
        database.execute(SLOW_COMMIT).await.unwrap();
        send_failures(&control, &challenge, &signature).await;
    }
    let commits = "SELECT COUNT(*) FROM pg_stat_activity WHERE query = 'COMMIT' AND wait_event = 'PgSleep'";
    let committing = async || (database.fetch_one(commits).await.unwrap().get::<i64, _>(0) > 0).then_some(());
    eventually("counts are committed", committing, || control.log()).await;
    assert!(control.terminate().await.success());
    let stored = database.fetch_one("SELECT suppressed FROM suppressed_bursts").await.unwrap().get::<i64, _>(0);
    assert_eq!(usize::try_from(stored).unwrap(), 2 * ADDRESSES.len() * FAILURES_PER_ADDRESS - 10);
}
