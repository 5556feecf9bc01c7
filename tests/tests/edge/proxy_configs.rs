//! Tests the configurations that `countersign envoy config` prints, with the real Envoy and the real nginx.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

mod nginx;

use countersign_tests::{
    Agent, ControlPlane, Envoy, HttpResponse, RawRequest, Shell, Sidecar, Upstream,
    envoy::{config_folder, replaced},
    eventually, tools,
};
use serde_json::{Value, json};
use std::process::{Command, Stdio};

const SERVICE: &str = "svc_01m7xt1btvex9v14wnb3rx44nb";

fn config(target: &str, options: &[&str]) -> String {
    Shell::new().stdout(&[["envoy", "config", "--target", target].as_slice(), options].concat()) + "\n"
}

/// The documents of a YAML text.
fn documents(yaml: &str) -> Vec<Value> {
    let script = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(sys.stdin))))";
    let mut command = Command::new(tools::python());
    let child = command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), yaml.as_bytes()).unwrap();
    serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap()
}

fn find<'a>(documents: &'a [Value], kind: &str) -> &'a Value {
    documents.iter().find(|document| document["kind"] == kind).unwrap()
}

/// The connection manager of a configuration of Envoy.
fn connection_manager(config: &mut Value) -> &mut Value {
    &mut config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
}

#[track_caller]
fn assert_envoy_accepts(config: &str) {
    let folder = config_folder();
    let file = folder.path().join("envoy.yaml");
    std::fs::write(&file, config).unwrap();
    let output = Command::new(tools::envoy()).args(["--mode", "validate", "-c"]).arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn examples_are_the_output_of_the_command() {
    for (target, file) in [("envoy", "envoy/envoy.yaml"), ("envoy-mcp", "mcp/envoy.yaml")] {
        let example = std::fs::read_to_string(tools::root().join("examples").join(file)).unwrap();
        assert_eq!(config(target, &[]), example);
    }
}

#[test]
fn envoy_accepts_every_option() {
    for options in [
        ["--sidecar", "127.0.0.1:9191", "--upstream", "[::1]:8080"].as_slice(),
        &["--sidecar", "sidecar.example:9191", "--upstream", "shop.example:80", "--host", "*.example"],
        &["--service", SERVICE, "--listen", "[::1]:10000", "--admin-port", "9902", "--host", "shop.example"],
        &["--check-timeout", "1050ms", "--max-stream", "90s"],
    ] {
        for target in ["envoy", "envoy-mcp"] {
            assert_envoy_accepts(&config(target, options));
        }
    }
}

#[tokio::test]
async fn envoy_sends_the_service_on_every_route() {
    let control = ControlPlane::start().await;
    let (other, other_key) = control.create_service(json!({ "name": "other" })).await;
    let sidecar = Sidecar::start_with(&control, &[control.key(), &other_key], &[]);
    let upstream = Upstream::start().await;
    sidecar.wait_until_ready().await;
    let token = Agent::with_role(&control, "reader", &["read"]).await.0.token().await;
    for (service, path, status, reason) in [
        (control.service(), "/", 200, ""),
        (control.service(), "/admin", 403, "permission_missing"),
        (&other, "/", 401, "token_audience_mismatch"),
        (&other, "/admin", 401, "token_audience_mismatch"),
    ] {
        let envoy = Envoy::start(&config("envoy", &["--service", service]), &sidecar.socket(), upstream.port).await;
        let response = RawRequest::get(path).bearer(&token).send_until_checked(&envoy.listener).await;
        assert_eq!((response.status, response.header("x-agent-reason")), (status, reason), "{service} {path}");
    }
}

#[tokio::test]
async fn envoy_filter_of_istio_removes_forged_headers_and_passes_the_end_of_the_decision() {
    let documents_of_istio = documents(&config("istio", &["--upstream", "shop:8080"]));
    let patches = &find(&documents_of_istio, "EnvoyFilter")["spec"]["configPatches"];
    let mut envoy_config = documents(&config("envoy", &[])).remove(0);
    let manager = connection_manager(&mut envoy_config).as_object_mut().unwrap();
    // Remove what Istio does not configure by itself, because the EnvoyFilter must add it.
    manager.remove("early_header_mutation_extensions").unwrap();
    manager.remove("common_http_protocol_options").unwrap();
    let removed = manager["http_filters"].as_array_mut().unwrap().remove(1);
    assert_eq!(removed["name"], "envoy.filters.http.header_mutation");
    let added = &patches[1]["patch"]["value"]["typed_config"];
    assert_eq!(added["mutations"], removed["typed_config"]["mutations"]);
    for (name, value) in patches[0]["patch"]["value"]["typed_config"].as_object().unwrap() {
        manager.insert(name.clone(), value.clone());
    }
    assert_eq!(patches[1]["patch"]["operation"], "INSERT_BEFORE");
    manager["http_filters"].as_array_mut().unwrap().insert(1, patches[1]["patch"]["value"].clone());
    let text = envoy_config.to_string();
    assert_envoy_accepts(&text);

    let control = ControlPlane::start().await;
    let (sidecar, upstream) = tokio::join!(Sidecar::start(&control), Upstream::start());
    // `Envoy::start` replaces only ports in the spelling of the YAML example, so respell the ports of this JSON text.
    let yaml = ["9901", "10000", "8080"]
        .iter()
        .fold(text, |text, port| replaced(&text, &format!("\"port_value\":{port}"), &format!("port_value: {port}")));
    let yaml = replaced(&yaml, "\"path\":\"/run/countersign/authz.sock\"", "path: /run/countersign/authz.sock");
    let envoy = Envoy::start(&yaml, &sidecar.socket(), upstream.port).await;
    for name in ["x-agent-roles", "x_agent_roles", "X-Agent.Roles"] {
        let received = RawRequest::get("/health").with(name, "forged").send(&envoy.listener).await.expect(200);
        assert!(received.as_object().unwrap().keys().all(|name| !name.contains("agent")), "{name}: {received}");
    }
    let denied = RawRequest::get("/").send_until_checked(&envoy.listener).await;
    assert_eq!((denied.status, denied.header("x-agent-reason")), (401, "token_missing"));
    let _response: HttpResponse = RawRequest::get("/open").send_until_checked(&envoy.listener).await;
    let logged = async || envoy.log().contains("\"anonymous\"").then_some(());
    eventually("the request is logged", logged, || envoy.log()).await;
}

#[test]
fn kubernetes_resources_fail_closed_and_limit_what_they_can() {
    let options = ["--service", SERVICE, "--upstream", "shop:8080", "--namespace", "shop"];
    let istio = documents(&config("istio", &options));
    let mesh = &istio[0]["meshConfig"];
    let provider = &mesh["extensionProviders"][0];
    let expected = json!({
        "service": "countersign-ext-authz.identity.svc.cluster.local", "port": 9191, "timeout": "0.25s",
        "failOpen": false, "statusOnError": "503",
    });
    assert_eq!(provider["envoyExtAuthzGrpc"], expected);
    assert_eq!(mesh["pathNormalization"]["normalization"], "DECODE_AND_MERGE_SLASHES");
    let policy = &find(&istio, "AuthorizationPolicy")["spec"];
    assert_eq!((&policy["action"], &policy["provider"]["name"]), (&json!("CUSTOM"), &provider["name"]));

    let ambient = documents(&config("istio-ambient", &options[2..]));
    assert_eq!(ambient[0], istio[0], "the mesh configuration is the same");
    let waypoint_policy = &find(&ambient, "AuthorizationPolicy")["spec"];
    assert_eq!(waypoint_policy["targetRefs"][0], json!({ "group": "", "kind": "Service", "name": "shop" }));
    assert_eq!((&waypoint_policy["action"], &waypoint_policy["rules"]), (&json!("CUSTOM"), &json!([{}])));
    let selector = json!({ "app.kubernetes.io/name": "shop" });
    assert_eq!(policy["selector"]["matchLabels"], selector);
    assert_eq!(find(&istio, "EnvoyFilter")["spec"]["workloadSelector"]["labels"], selector);

    let gateway =
        documents(&config("envoy-gateway", &[&options[..], &["--gateway", "edge", "--host", "a.example"]].concat()));
    let ext_auth = &find(&gateway, "SecurityPolicy")["spec"]["extAuth"];
    assert_eq!((&ext_auth["failOpen"], &ext_auth["statusOnError"]), (&json!(false), &json!(503)));
    assert_eq!((&ext_auth["timeout"], &ext_auth["headersToExtAuth"]), (&json!("250ms"), &Value::Null));
    assert_eq!(ext_auth["contextExtensions"][0]["value"], SERVICE);
    assert_eq!(find(&gateway, "HTTPRoute")["spec"]["hostnames"], json!(["a.example"]));
    let client = &find(&gateway, "ClientTrafficPolicy")["spec"];
    let pattern = &client["headers"]["earlyRequestHeaders"]["removeOnMatch"][0];
    let mut envoy = documents(&config("envoy", &[])).remove(0);
    let mutation =
        &connection_manager(&mut envoy)["early_header_mutation_extensions"][0]["typed_config"]["mutations"][0];
    assert_eq!(pattern["value"], mutation["remove_on_match"]["key_matcher"]["safe_regex"]["regex"]);
    assert_eq!(find(&gateway, "BackendTrafficPolicy")["spec"]["timeout"]["http"]["maxStreamDuration"], "3600s");

    let standard = documents(&config("gateway-api", &options));
    let rules = &find(&standard, "HTTPRoute")["spec"]["rules"];
    let filter = &rules[1]["filters"][0];
    assert_eq!((&filter["type"], &filter["externalAuth"]["protocol"]), (&json!("ExternalAuth"), &json!("GRPC")));
    assert_eq!(filter["externalAuth"]["grpc"], json!({}));
    assert_eq!(rules[0]["filters"][0]["requestHeaderModifier"]["remove"].as_array().unwrap().len(), 8);
}

#[test]
fn values_that_do_not_fit_are_refused_with_the_name_of_the_option() {
    for (target, options, named) in [
        ("envoy", ["--upstream", "127.0.0.1"].as_slice(), "--upstream"),
        ("envoy", &["--sidecar", "unix:relative.sock"], "--sidecar"),
        ("envoy", &["--sidecar", "a:1 }\nadmin: {"], "--sidecar"),
        ("envoy", &["--host", "a\"b"], "--host"),
        ("envoy", &["--service", "svc_}"], "a service"),
        ("envoy", &["--check-timeout", "2m"], "--check-timeout"),
        ("envoy", &["--max-stream", "1500ms"], "--max-stream"),
        ("envoy", &["--namespace", "shop"], "--namespace has no effect on the target envoy"),
        ("envoy-mcp", &["--gateway", "edge"], "--gateway has no effect on the target envoy-mcp"),
        ("istio", &["--listen", "127.0.0.1:1"], "--listen has no effect on the target istio"),
        ("istio", &["--sidecar", "unix:/run/a.sock"], "--sidecar"),
        ("istio", &["--namespace", "a_b"], "--namespace"),
        ("gateway-api", &["--upstream", "127.0.0.1:8080"], "--upstream"),
        ("nginx", &["--server", "http://id.example", "--service", SERVICE], "--server"),
        ("nginx", &["--server", "https://id.example"], "--service"),
        ("nginx", &["--key-file", "/etc/$host;"], "--key-file"),
    ] {
        let (code, error) =
            Shell::new().failure(&[["envoy", "config", "--target", target].as_slice(), options].concat());
        assert!(code == 2 && error.contains(named), "{target} {options:?}: {code} {error}");
    }
}
