//! Receipts: at which sidecars a change is in force, and what the sidecars do until then.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

mod processes;

use countersign_process::{Clock, SystemClock};
use countersign_proto::v1::Hello;
use countersign_tests::{
    Agent, ControlPlane, Follower, HttpResponse, Sidecar, eventually,
    follower::{self, hello},
};
use serde_json::{Value, json};
use std::time::Duration;

/// A control plane with sidecars, and an agent with a role and a token.
struct Fixture {
    control: ControlPlane,
    sidecars: Vec<Sidecar>,
    agent: Agent,
    role: String,
    token: String,
}

impl Fixture {
    async fn new(sidecars: usize, settings: &[&str]) -> Self {
        Self::with_sidecar_settings(sidecars, settings, &[]).await
    }

    async fn with_sidecar_settings(sidecars: usize, settings: &[&str], of_sidecars: &[&str]) -> Self {
        let control = ControlPlane::start_process_with(settings).await;
        let key = control.create_key(control.service(), "sync").await;
        let sidecars: Vec<_> = (0..sidecars).map(|_| Sidecar::start_with(&control, &[&key], of_sidecars)).collect();
        for sidecar in &sidecars {
            sidecar.wait_until_ready().await;
        }
        let (agent, role) = Agent::with_role(&control, "reader", &["read"]).await;
        let token = agent.token().await;
        Self { control, sidecars, agent, role, token }
    }

    /// Assigns or revokes the role. Returns the revision of this change.
    async fn change(&self, is_assigned: bool) -> i64 {
        let (control, agent, role) = (&self.control, &self.agent.id, &self.role);
        let changed = if is_assigned {
            let path = control.path(&format!("/agents/{agent}/roles"));
            control.api.send_as(control.key(), "POST", &path, json!({ "roleId": role })).await
        } else {
            let path = control.path(&format!("/agents/{agent}/roles/{role}"));
            control.api.send_as(control.key(), "DELETE", &path, json!({})).await
        };
        changed.expect(200)["revision"].as_i64().unwrap()
    }

    /// Asserts that the receipt counts one sidecar, at which the revision is not in force yet. Returns the receipt.
    async fn unconfirmed_receipt(&self, query: &str) -> Value {
        let receipt = self.receipt(query).await.expect(200);
        assert_eq!((&receipt["enforced"], &receipt["sidecars"]), (&json!(false), &json!(1)), "{receipt}");
        assert_eq!(receipt["enforcedSidecars"], 0, "{receipt}");
        receipt
    }

    async fn receipt(&self, query: &str) -> HttpResponse {
        self.control.api.get_as(self.control.key(), &self.control.path(&format!("/enforcement?{query}"))).await
    }

    /// Waits until a revision is in force everywhere. Returns its receipt.
    async fn complete_receipt(&self, revision: i64) -> Value {
        let complete = async || {
            let receipt = self.receipt(&format!("revision={revision}&wait=3")).await.expect(200);
            (receipt["enforced"] == true).then_some(receipt)
        };
        eventually("the revision is in force everywhere", complete, || self.control.log()).await
    }

    /// The number of silent sidecars, and the time of the oldest change that is not in force, in Unix seconds.
    async fn enforcement_metrics(&self) -> (f64, f64) {
        let oldest = self.control.metric("countersign_unconfirmed_change_oldest_timestamp_seconds").await;
        (self.control.metric("countersign_sidecars_silent").await.unwrap(), oldest.unwrap())
    }

    /// The audit entries of an action, newest first. `filter` ends with `&`, or is empty.
    async fn audit_entries(&self, filter: &str, action: &str) -> Vec<Value> {
        let path = format!("/audit?{filter}action={action}");
        let entries = self.control.api.get_as(self.control.human(), &path).await.expect(200);
        entries["data"].as_array().unwrap().clone()
    }

    async fn list(&self) -> Vec<Value> {
        let path = self.control.path("/sidecars");
        self.control.api.get_as(self.control.key(), &path).await.expect(200)["data"].as_array().unwrap().clone()
    }

    /// Waits until the list has this number of sidecars.
    async fn wait_for_list(&self, count: usize) -> Vec<Value> {
        let listed = async || Some(self.list().await).filter(|list| list.len() == count);
        eventually("the list has the number of sidecars", listed, || self.control.log()).await
    }

    /// A sidecar that has received a snapshot, reported it and got a confirmation. Also returns the revision of the snapshot.
    async fn confirmed_sidecar(&self, hello: Hello) -> (Follower, i64) {
        let mut sidecar = self.follow(hello).await;
        let revision = last_page(&mut sidecar).await;
        sidecar.report(revision).await;
        sidecar.ping(1).await.unwrap();
        (sidecar, revision)
    }

    /// Opens the stream of another sidecar.
    async fn follow(&self, hello: Hello) -> Follower {
        let channel = follower::channel(&self.control).await;
        Follower::open_with_hello(channel, self.control.key(), hello).await.unwrap()
    }
}

/// Receives a snapshot. Returns its revision.
async fn last_page(follower: &mut Follower) -> i64 {
    loop {
        let page = follower.snapshot().await;
        if page.last {
            return page.revision;
        }
    }
}

/// The first message of a sidecar process without data. `instance` identifies the process.
fn hello_of(instance: u8) -> Hello {
    Hello { instance: vec![instance; 16], release: "9.9.9".to_owned(), ..hello(0) }
}

/// The instance of [`hello_of`] in answers.
fn instance_text(instance: u8) -> String {
    format!("{instance:02x}").repeat(16)
}

/// Waits until a time in an answer is over.
async fn wait_until(time: &Value) {
    let time: jiff::Timestamp = time.as_str().unwrap().parse().unwrap();
    let wait = time.as_microsecond() - SystemClock.now().micros();
    tokio::time::sleep(Duration::from_micros(u64::try_from(wait).unwrap_or(0))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn complete_receipt_means_that_every_sidecar_refuses() {
    let fixture = Fixture::new(3, &[]).await;
    for round in 0..25 {
        let assigned = fixture.change(true).await;
        let receipt = fixture.complete_receipt(assigned).await;
        assert_eq!((&receipt["sidecars"], &receipt["enforcedSidecars"]), (&json!(3), &json!(3)), "{receipt}");
        for sidecar in &fixture.sidecars {
            assert_eq!(sidecar.check_token(&fixture.token).await.status, 200, "{round}");
        }
        let revoked = fixture.change(false).await;
        let receipt = fixture.complete_receipt(revoked).await;
        assert!(receipt["milliseconds"].is_u64() && receipt["unconfirmed"] == json!([]), "{receipt}");
        for sidecar in &fixture.sidecars {
            let result = sidecar.check_token(&fixture.token).await;
            assert_eq!((result.status, result.reason.as_str()), (403, "no_role"), "{round}: {receipt}");
        }
    }
    let list = fixture.list().await;
    assert_eq!(list.len(), 3);
    for sidecar in &list {
        assert_eq!(sidecar["status"], "connected", "{sidecar}");
        assert_eq!(sidecar["release"], env!("CARGO_PKG_VERSION"));
        assert!(sidecar["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{sidecar}");
        // A connected sidecar has no `refusesBy`: if another replica serves it, this one does not know the time of its last
        // confirmation.
        assert!(sidecar["connectedAt"].is_string() && sidecar["refusesBy"].is_null(), "{sidecar}");
    }
}

/// A receipt can be about a change that does not concern the service, so that its sidecars receive nothing.
#[tokio::test(flavor = "multi_thread")]
async fn revision_of_another_service_is_in_force_without_a_report() {
    let fixture = Fixture::new(1, &[]).await;
    let (other, key) = fixture.control.create_service(json!({ "name": "other" })).await;
    let path = format!("/services/{other}/roles");
    let role = json!({ "name": "writer", "permissions": ["write"] });
    let revision =
        fixture.control.api.send_as(&key, "POST", &path, role).await.expect(201)["revision"].as_i64().unwrap();
    let receipt = fixture.complete_receipt(revision).await;
    assert_eq!((&receipt["sidecars"], &receipt["enforcedSidecars"]), (&json!(1), &json!(1)), "{receipt}");
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_sidecar_is_named_and_refuses_by_the_stated_instant() {
    let fixture = Fixture::new(2, &["sync.max_staleness_seconds=8"]).await;
    fixture.sidecars[0].signal("STOP");
    let revoked = fixture.change(false).await;
    let receipt = fixture.receipt(&format!("revision={revoked}&wait=1")).await.expect(200);
    assert_eq!((&receipt["enforced"], &receipt["sidecars"]), (&json!(false), &json!(2)), "{receipt}");
    assert_eq!((&receipt["enforcedSidecars"], &receipt["milliseconds"]), (&json!(1), &Value::Null), "{receipt}");
    let silent = receipt["unconfirmed"].as_array().unwrap();
    assert_eq!(silent.len(), 1, "{receipt}");
    assert_eq!(silent[0]["refusesBy"], receipt["refusesBy"]);
    assert!(silent[0]["revision"].as_i64().unwrap() < revoked, "{receipt}");
    assert_eq!(fixture.sidecars[1].check_token(&fixture.token).await.status, 403);

    wait_until(&receipt["refusesBy"]).await;
    fixture.sidecars[0].signal("CONT");
    let result = fixture.sidecars[0].check_token(&fixture.token).await;
    assert!([403, 503].contains(&result.status), "{result:?}");
    let converged = async || {
        let result = fixture.sidecars[0].check_token(&fixture.token).await;
        assert_ne!(result.status, 200, "a thawed sidecar allows what was revoked");
        (result.reason == "no_role").then_some(())
    };
    eventually("the thawed sidecar converges", converged, || fixture.sidecars[0].log()).await;
    fixture.complete_receipt(revoked).await;
}

/// A control plane that did not serve the sidecar states a later instant, because the clocks of control planes may differ.
#[tokio::test(flavor = "multi_thread")]
async fn killed_sidecar_is_silent_until_its_view_would_be_too_old() {
    let mut fixture = Fixture::new(1, &["sync.max_staleness_seconds=8"]).await;
    fixture.sidecars[0].kill();
    let silent = async || fixture.list().await.pop().filter(|sidecar| sidecar["status"] == "silent");
    let silent = eventually("the sidecar is silent", silent, || fixture.control.log()).await;
    let revoked = fixture.change(false).await;
    let waiting =
        async || Some(fixture.enforcement_metrics().await).filter(|(silent, oldest)| silent.min(*oldest) > 0.0);
    let (_, oldest) = eventually("the metrics show the wait", waiting, || fixture.control.log()).await;
    let changed_at = Duration::from_micros(revoked.unsigned_abs()).as_secs_f64();
    assert!((oldest - changed_at).abs() < 1.0, "{oldest} is the time of the change {revoked}");
    let receipt = fixture.unconfirmed_receipt(&format!("revision={revoked}")).await;
    assert_eq!(receipt["unconfirmed"][0]["instance"], silent["instance"]);
    wait_until(&receipt["refusesBy"]).await;
    let receipt = fixture.complete_receipt(revoked).await;
    assert_eq!((&receipt["sidecars"], &receipt["expiredSidecars"]), (&json!(0), &json!(1)), "{receipt}");
    assert!(receipt["milliseconds"].as_u64() > Some(1000), "until then, the sidecar could decide: {receipt}");
    let in_force = async || (fixture.enforcement_metrics().await.1 == 0.0).then_some(());
    eventually("the metrics show no wait", in_force, || fixture.control.log()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_of_a_killed_control_plane_is_not_forgotten() {
    let mut fixture = Fixture::new(1, &["sync.max_staleness_seconds=600"]).await;
    fixture.sidecars[0].signal("STOP");
    fixture.control.kill();
    fixture.control.restart().await;
    let revoked = fixture.change(false).await;
    fixture.unconfirmed_receipt(&format!("revision={revoked}&wait=1")).await;
    fixture.sidecars[0].signal("CONT");
    let receipt = fixture.complete_receipt(revoked).await;
    assert_eq!((&receipt["sidecars"], &receipt["enforcedSidecars"]), (&json!(1), &json!(1)), "{receipt}");
    assert_eq!(fixture.sidecars[0].check_token(&fixture.token).await.reason, "no_role");
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_that_stops_is_forgotten() {
    let mut fixture = Fixture::new(2, &[]).await;
    fixture.wait_for_list(2).await;
    assert!(fixture.sidecars[0].terminate().await.success());
    fixture.wait_for_list(1).await;
    let receipt = fixture.complete_receipt(fixture.change(false).await).await;
    assert_eq!(receipt["sidecars"], 1, "{receipt}");
}

/// A sidecar that starts from its copy while the control plane is away does not undo what a receipt has confirmed.
#[tokio::test(flavor = "multi_thread")]
async fn receipt_holds_for_a_start_from_the_copy() {
    let copies = tempfile::tempdir().unwrap();
    // A sidecar writes a copy every ten seconds, and before it reports a revision. The writes before reports suffice for this test.
    let directory = format!("copy.directory={}", copies.path().join("copies").display());
    let mut fixture = Fixture::with_sidecar_settings(1, &[], &[&directory]).await;
    fixture.sidecars[0].wait_for_metric("countersign_authz_view_copy_writes_total{result=\"ok\"}").await;
    for is_assigned in [false, true, false] {
        let revision = fixture.change(is_assigned).await;
        fixture.complete_receipt(revision).await;
        fixture.control.signal("STOP");
        fixture.sidecars[0].restart();
        let expected = if is_assigned { "" } else { "no_role" };
        let decided = async || {
            let result = fixture.sidecars[0].check_token(&fixture.token).await;
            let is_decided = result.reason != "view_missing";
            assert!(!is_decided || result.reason == expected, "{result:?}");
            is_decided.then_some(())
        };
        eventually("the sidecar decides with its copy", decided, || fixture.sidecars[0].log()).await;
        fixture.control.signal("CONT");
        let connected =
            async || fixture.list().await.iter().any(|sidecar| sidecar["status"] == "connected").then_some(());
        eventually("the sidecar is connected", connected, || fixture.sidecars[0].log()).await;
    }
    // The receipt no longer counts the earlier processes: each has ended for certain, because the next has taken over its copy.
    let receipt = fixture.complete_receipt(fixture.change(true).await).await;
    assert_eq!(receipt["sidecars"], 1, "{receipt}");
}

#[tokio::test]
async fn sidecar_that_does_not_report_counts_as_silent() {
    let fixture = Fixture::new(0, &[]).await;
    let mut silent = fixture.follow(hello(0)).await;
    last_page(&mut silent).await;
    let (_, pong) = silent.ping(1).await.unwrap();
    let receipt = fixture.unconfirmed_receipt(&format!("revision={}", pong.revision)).await;
    assert_eq!(receipt["unconfirmed"][0]["revision"], Value::Null, "{receipt}");

    let mut current = fixture.follow(hello_of(7)).await;
    let revision = last_page(&mut current).await;
    current.ping(1).await.unwrap();
    let listed = fixture.wait_for_list(2).await;
    let of_current = listed.iter().find(|sidecar| sidecar["instance"] == instance_text(7)).unwrap();
    assert_eq!((&of_current["release"], &of_current["revision"]), (&json!("9.9.9"), &Value::Null), "{of_current}");
    current.report(revision).await;
    let in_force = async || {
        let mut list = fixture.list().await.into_iter();
        let of_current = list.find(|sidecar| sidecar["instance"] == instance_text(7));
        of_current.filter(|sidecar| sidecar["revision"].as_i64() >= Some(revision))
    };
    eventually("the report has arrived", in_force, || fixture.control.log()).await;
    current.leave().await;
    fixture.wait_for_list(1).await;
}

#[tokio::test]
async fn report_of_data_that_was_not_sent_ends_the_stream() {
    let fixture = Fixture::new(0, &[]).await;
    let mut follower = fixture.follow(hello_of(1)).await;
    let revision = last_page(&mut follower).await;
    follower.report(revision + 1).await;
    assert_eq!(follower.next().await.unwrap_err().code(), tonic::Code::InvalidArgument);
    let mut follower = fixture.follow(hello_of(1)).await;
    let revision = last_page(&mut follower).await;
    // A sidecar may report only once for each page that it has received.
    for _ in 0..100 {
        follower.report(revision).await;
    }
    assert_eq!(follower.next().await.unwrap_err().code(), tonic::Code::InvalidArgument, "one report for each message");
    let channel = follower::channel(&fixture.control).await;
    let invalid = Hello { instance: vec![1; 15], ..hello(0) };
    let mut follower = Follower::open_with_hello(channel, fixture.control.key(), invalid).await.unwrap();
    assert_eq!(follower.next().await.unwrap_err().code(), tonic::Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_log_states_when_changes_are_in_force() {
    let fixture = Fixture::new(1, &[]).await;
    fixture.change(false).await;
    let service = format!("serviceId={}&", fixture.control.service());
    let confirmed = async || {
        let newest = fixture.audit_entries(&service, "changes.enforced").await.into_iter().next()?;
        let revoked = fixture.audit_entries(&service, "role.revoked").await;
        (revoked.first()?["sequence"].as_i64()? <= newest["details"]["lastSequence"].as_i64()?).then_some(newest)
    };
    let entry = eventually("the revocation is confirmed", confirmed, || fixture.control.log()).await;
    assert_eq!((&entry["details"]["sidecars"], &entry["actor"]["kind"]), (&json!(1), &json!("system")), "{entry}");
    assert!(entry["details"]["milliseconds"].is_u64(), "{entry}");
    fixture.control.set_status(&fixture.agent.id, "suspended").await.expect(200);
    let confirmed = async || {
        fixture.audit_entries("", "changes.enforced").await.into_iter().find(|entry| entry["serviceId"].is_null())
    };
    eventually("the suspension is confirmed", confirmed, || fixture.control.log()).await;
}

#[tokio::test]
async fn receipts_belong_to_managers_of_the_service() {
    let fixture = Fixture::new(0, &[]).await;
    let control = &fixture.control;
    let (_, other_key) = control.create_service(json!({ "name": "other" })).await;
    let sync_key = control.create_key(control.service(), "sync").await;
    let stranger = control.mint_human("stranger");
    let revision = fixture.change(false).await;
    for path in [control.path("/sidecars"), control.path(&format!("/enforcement?revision={revision}"))] {
        for (credential, reason) in
            [(&other_key, "not_yours"), (&sync_key, "scope_insufficient"), (&stranger, "not_yours")]
        {
            let refused = control.api.get_as(credential, &path).await;
            assert_eq!((refused.error().0, refused.error().2), (403, reason), "{path}");
        }
        assert_eq!(control.api.get(&path).await.status, 401);
        control.api.get_as(control.human(), &path).await.expect(200);
    }
}

#[tokio::test]
async fn invalid_revisions_and_waits_are_refused() {
    let fixture = Fixture::new(0, &[]).await;
    let revision = fixture.change(false).await;
    for (query, field) in [
        ("revision=0".to_owned(), "revision"),
        ("revision=x".to_owned(), "revision"),
        (format!("revision={revision}&wait=-1"), "wait"),
        (format!("revision={revision}&revision={revision}"), "revision"),
    ] {
        let refused = fixture.receipt(&query).await;
        assert_eq!((refused.status, refused.error().1), (400, "VALIDATION_ERROR"), "{query}");
        assert!(refused.body["error"]["details"]["fields"][field].is_string(), "{query}: {}", refused.body);
    }
    let future = fixture.receipt(&format!("revision={}", revision + 1_000_000_000)).await;
    assert_eq!((future.status, future.error().1), (409, "CONFLICT"), "{}", future.body);
    for query in [format!("revision={revision}&wait=99"), String::new()] {
        let receipt = fixture.receipt(&query).await.expect(200);
        assert_eq!((&receipt["enforced"], &receipt["sidecars"]), (&json!(true), &json!(0)), "{receipt}");
        assert_eq!(receipt["revision"], revision, "no other change was made");
    }
}
