//! Services are added to a running sidecar and removed from it by its file of API keys, while the first service has requests.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_tests::{
    Agent, ControlPlane, Envoy, HttpResponse, Sidecar, Upstream, eventually, sidecar::run_command, tools,
};
use serde_json::{Value, json};
use std::{fs, process::Command, sync::Arc};
use tokio::{sync::watch, task::JoinHandle};

const RELOADS: &str = "countersign_authz_file_reloads_total";

/// A route of the second service, as `docs/run/second-service.md` describes it.
const ROUTE: &str = r#"                        - match: { path_separated_prefix: /second }
                          route: { cluster: service }
                          typed_per_filter_config:
                            envoy.filters.http.ext_authz:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute
                              check_settings:
                                context_extensions: { service_id: SERVICE }

"#;

struct Fixture {
    control: ControlPlane,
    sidecar: Sidecar,
    envoy: Arc<Envoy>,
    _upstream: Upstream,
    /// The API key with which the sidecar starts.
    first: String,
    /// Another service, and an API key of it.
    other: String,
    other_key: String,
    /// Tokens of an agent with a role at both services.
    token: String,
    other_token: String,
}

impl Fixture {
    async fn start() -> Self {
        let control = ControlPlane::start_process().await;
        let (other, owner_key) = control.create_service(json!({ "name": "second" })).await;
        let first = control.create_key(control.service(), "sync").await;
        let other_key = control.create_key(&other, "sync").await;
        let sidecar = Sidecar::start_with(&control, &[&first], &[]);
        let (agent, _) = Agent::with_role(&control, "reader", &["read"]).await;
        let body = json!({ "name": "reader", "permissions": ["read"] });
        let role = control.api.send_as(&owner_key, "POST", &format!("/services/{other}/roles"), body).await.expect(201);
        let path = format!("/services/{other}/agents/{}/roles", agent.id);
        control.api.send_as(&owner_key, "POST", &path, json!({ "roleId": role["roleId"] })).await.expect(200);
        let (token, other_token) = (agent.token_for(control.service()).await, agent.token_for(&other).await);
        sidecar.wait_until_accepted(&token).await;
        let upstream = Upstream::start().await;
        let last_route = "                        # All other paths: the agent must hold any role";
        let with_route = |text: String| {
            let text = text.replace("timeout: 0.25s\n", "timeout: 5s\n");
            text.replace(last_route, &format!("{}{last_route}", ROUTE.replace("SERVICE", &other)))
        };
        let envoy = Envoy::start_edited_example(&sidecar.socket(), upstream.port, with_route).await;
        Self {
            control,
            sidecar,
            envoy: Arc::new(envoy),
            _upstream: upstream,
            first,
            other,
            other_key,
            token,
            other_token,
        }
    }

    /// Writes these lines to the file of the API keys.
    fn write_keys(&self, lines: &[&str]) {
        fs::write(self.sidecar.keys_file(), lines.join("\n") + "\n").unwrap();
    }

    async fn second(&self) -> HttpResponse {
        self.envoy.listener.get_as(&self.other_token, "/second").await
    }

    async fn wait_for_second(&self, status: u16) -> HttpResponse {
        let answer = async || Some(self.second().await).filter(|response| response.status == status);
        eventually("the second service answers as expected", answer, || self.sidecar.log()).await
    }

    /// Sends requests to the first service until the returned sender is dropped. The task returns the number of requests, and fails at
    /// the first one that is refused.
    fn call_first_service(&self) -> (watch::Sender<()>, JoinHandle<usize>) {
        let (sender, stopped) = watch::channel(());
        let (envoy, token) = (Arc::clone(&self.envoy), self.token.clone());
        let calls = tokio::spawn(async move {
            let mut count = 0;
            while stopped.has_changed().is_ok() {
                envoy.listener.get_as(&token, "/").await.expect(200);
                count += 1;
                tokio::task::yield_now().await;
            }
            count
        });
        (sender, calls)
    }

    /// Writes these lines, and waits until the reload is refused with this error.
    async fn assert_refused(&self, lines: &[&str], error: &str) {
        self.write_keys(lines);
        self.sidecar.wait_for_log(error).await;
        self.sidecar.wait_for_metric(&count("failed")).await;
        self.envoy.listener.get_as(&self.token, "/").await.expect(200);
        let log = self.sidecar.log();
        assert!(
            lines.iter().all(|line| line.is_empty() || !log.contains(line)),
            "no line of the file is logged: {log}"
        );
    }

    /// What the command `explain` says about a request to the second service.
    fn explain(&self) -> Value {
        let mut command = Command::new(tools::binary("countersign-ext-authz"));
        let admin = self.sidecar.admin.url.strip_prefix("http://").unwrap();
        command.args(["explain", "--json", "--admin", admin, "--method", "GET", "--host", "x", "--path", "/second"]);
        command.args(["--context-extension", &format!("service_id={}", self.other)]);
        let (_, output, errors) = run_command(command, &self.other_token);
        serde_json::from_str(&output).unwrap_or_else(|_| panic!("{output}{errors}"))
    }

    /// Asserts that the answer, the metric and `explain` have the same reason.
    async fn assert_reason(&self, reason: &str) {
        let refused = self.wait_for_second(503).await;
        assert_eq!(refused.error(), (503, "SERVICE_UNAVAILABLE", reason));
        let series = format!("countersign_authz_checks_total{{decision=\"deny\",reason=\"{reason}\"");
        self.sidecar.wait_for_metric(&series).await;
        let explanation = self.explain();
        assert_eq!(explanation["reason"], reason, "{explanation}");
        let view = explanation["questions"].as_array().unwrap().iter().find(|it| it["question"] == "view").unwrap();
        assert_eq!(view["answer"], "refused");
        assert!(view["detail"].as_str().unwrap().contains(&self.other), "{view}");
    }
}

fn count(result: &str) -> String {
    format!("{RELOADS}{{result=\"{result}\",setting=\"sync.keys\"}}")
}

#[tokio::test(flavor = "multi_thread")]
async fn services_come_and_go_while_the_first_one_has_no_refused_request() {
    let fixture = Fixture::start().await;
    let (sidecar, first, other_key) = (&fixture.sidecar, fixture.first.as_str(), fixture.other_key.as_str());
    let (stop, calls) = fixture.call_first_service();
    fixture.assert_reason("service_unknown").await;

    fixture.write_keys(&[first, other_key]);
    let headers = fixture.wait_for_second(200).await.expect(200);
    assert_eq!(headers["x-agent-service"], json!([fixture.other]));
    sidecar.wait_for_log("2 API keys: 1 added, 0 replaced, 0 removed").await;
    let confirmed = format!("countersign_authz_view_confirmed_timestamp_seconds{{service=\"{}\"}}", fixture.other);
    sidecar.wait_for_metric(&confirmed).await;

    fixture.write_keys(&[first]);
    fixture.assert_reason("sync_key_removed").await;
    sidecar
        .wait_for_log("the API key of this service was removed: its requests are refused with sync_key_removed")
        .await;
    let is_gone = async || sidecar.metric(&confirmed).await.is_none().then_some(());
    eventually("the gauges of the removed service are gone", is_gone, || sidecar.log()).await;
    assert_eq!(sidecar.admin.get("/readyz").await.status, 200);

    fixture.write_keys(&[first, other_key]);
    fixture.wait_for_second(200).await;
    drop(stop);
    assert!(calls.await.unwrap() > 0);
    let reconnects = format!("countersign_authz_stream_reconnects_total{{service=\"{}\"}}", fixture.control.service());
    assert_eq!(sidecar.metric(&reconnects).await, Some(0.0), "the stream of the first service continues");
    assert_eq!(sidecar.metric(&count("failed")).await, Some(0.0), "{}", sidecar.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_files_and_the_removal_of_the_default_service_change_nothing() {
    let fixture = Fixture::start().await;
    let (first, other_key) = (fixture.first.as_str(), fixture.other_key.as_str());
    fixture.write_keys(&[first, other_key]);
    fixture.wait_for_second(200).await;
    let (stop, calls) = fixture.call_first_service();
    let default = fixture.control.service();

    fixture.assert_refused(&[other_key], &format!("put a key of {default} first")).await;
    fixture.assert_refused(&[other_key, first], &format!("the first API key belongs to {}", fixture.other)).await;
    fixture.assert_refused(&[""], "the file contains no API key").await;
    fixture.assert_refused(&[first, "<html>"], "line 2: must be service API keys").await;
    fixture.assert_refused(&[first, other_key, first], "line 3: repeats the API key of line 1").await;
    let revoked = fixture.control.create_key(&fixture.other, "sync").await;
    let path = format!("/services/{}/keys/key_{}", fixture.other, &revoked["svc_sk_".len()..][..26]);
    fixture.control.api.send_as(fixture.control.human(), "DELETE", &path, json!({})).await.expect(200);
    fixture.assert_refused(&[first, &revoked], "line 2: the control plane refuses this API key").await;
    fs::remove_file(fixture.sidecar.keys_file()).unwrap();
    fixture.sidecar.wait_for_log("No such file or directory").await;

    fixture.wait_for_second(200).await;
    fixture.write_keys(&[first, other_key]);
    fixture.sidecar.wait_for_log("the files have the content in use again").await;
    drop(stop);
    assert!(calls.await.unwrap() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn key_of_the_default_service_is_replaced_without_a_refused_request() {
    let fixture = Fixture::start().await;
    let (stop, calls) = fixture.call_first_service();
    let new = fixture.control.create_key(fixture.control.service(), "sync").await;
    fixture.write_keys(&[&new, &fixture.other_key]);
    fixture.sidecar.wait_for_log("2 API keys: 1 added, 1 replaced, 0 removed").await;
    let path = fixture.control.path(&format!("/keys/key_{}", &fixture.first["svc_sk_".len()..][..26]));
    fixture.control.api.send_as(fixture.control.human(), "DELETE", &path, json!({})).await.expect(200);
    fixture.sidecar.wait_for_log("the stream of the replaced API key has ended").await;
    fixture.wait_for_second(200).await;
    drop(stop);
    assert!(calls.await.unwrap() > 0);
    assert!(!fixture.sidecar.log().contains("refuses the API key"), "{}", fixture.sidecar.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_key_of_a_stale_view_is_the_reason_of_the_refusal() {
    let control = ControlPlane::start_with(&["sync.max_staleness_seconds=3"]).await;
    let key = control.create_key(control.service(), "sync").await;
    let sidecar = Sidecar::start_with(&control, &[&key], &[]);
    sidecar.wait_until_ready().await;
    let path = control.path(&format!("/keys/key_{}", &key["svc_sk_".len()..][..26]));
    control.api.send_as(control.human(), "DELETE", &path, json!({})).await.expect(200);
    let refused = async || Some(sidecar.check(&[]).await).filter(|result| result.reason == "sync_key_refused");
    eventually("the refusal names its cause", refused, || sidecar.log()).await;
    assert!(sidecar.log().contains("the control plane refuses the API key"), "{}", sidecar.log());
    let restarted = Sidecar::start_with(&control, &[&key], &[]);
    let refused = async || Some(restarted.check(&[]).await).filter(|result| result.reason == "sync_key_refused");
    eventually("a sidecar that never had a view says so, too", refused, || restarted.log()).await;
}
