//! `countersign apply` writes API keys into Secrets, through a server that answers as the Kubernetes API server does.

use crate::control_and_shell;
use axum::{
    Json, Router,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    routing::get,
};
use base64::{Engine, prelude::BASE64_STANDARD};
use countersign_tests::{ControlPlane, Shell, tls};
use serde_json::{Map, Value, json};
use std::{
    fs,
    sync::{Arc, Mutex},
};
use tokio::task::JoinSet;

const TOKEN: &str = "token-of-the-service-account";

const SHOP: &str = "
apiVersion: countersign/v1
managedBy: shop-team
services:
  - name: Shop
    keys:
      - { name: sidecar, scope: sync, kubernetesSecret: { name: guarded-services } }
  - name: Port
    keys:
      - { name: sidecar, scope: sync, kubernetesSecret: { name: guarded-services } }
";

/// The state of the server.
#[derive(Default)]
struct Cluster {
    /// The Secrets by name.
    secrets: Map<String, Value>,
    /// The number of the next patches that are refused with this status.
    refused: Vec<StatusCode>,
    version: u64,
}

type Shared = Arc<Mutex<Cluster>>;

struct Fixture {
    control: ControlPlane,
    shell: Shell,
    cluster: Shared,
    _server: JoinSet<()>,
}

impl Fixture {
    /// A cluster with an empty Secret.
    async fn start() -> Self {
        let (control, mut shell) = control_and_shell(&["URL", "CA", "HUMAN_TOKEN"]).await;
        let (listener, url, certificate) = tls::TlsListener::bind().await;
        let cluster = Shared::default();
        let secret = json!({ "metadata": { "name": "guarded-services", "resourceVersion": "0" } });
        cluster.lock().unwrap().secrets.insert("guarded-services".to_owned(), secret);
        let route = "/api/v1/namespaces/identity/secrets/{name}";
        let app = Router::new().route(route, get(read).patch(patch)).with_state(Arc::clone(&cluster));
        let server = tls::serve(listener, app);
        shell.export("KUBERNETES_SERVICE_HOST", "localhost");
        shell.export("KUBERNETES_SERVICE_PORT", url.rsplit(':').next().unwrap());
        fs::create_dir(shell.path("account")).unwrap();
        for (name, text) in [("token", TOKEN), ("ca.crt", &certificate), ("namespace", "identity\n")] {
            fs::write(shell.path("account").join(name), text).unwrap();
        }
        Self { control, shell, cluster, _server: server }
    }

    /// The arguments that apply a file with this text.
    fn arguments(&self, text: &str, options: &[&str]) -> Vec<String> {
        let path = self.shell.new_path("state.yaml");
        fs::write(&path, text).unwrap();
        let account = self.shell.path("account").display().to_string();
        let arguments = ["apply", "-f", &path.display().to_string(), "--service-account", &account].map(str::to_owned);
        arguments.into_iter().chain(options.iter().map(|option| (*option).to_owned())).collect()
    }

    /// Applies a text, and returns all output.
    #[track_caller]
    fn apply(&self, text: &str, options: &[&str]) -> String {
        let arguments = self.arguments(text, options);
        let output = self.shell.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    }

    #[track_caller]
    fn assert_fails(&self, text: &str, options: &[&str], errors: &[&str]) {
        let arguments = self.arguments(text, options);
        self.shell.assert_fails(1, &arguments.iter().map(String::as_str).collect::<Vec<_>>(), errors);
    }

    /// The lines of the entry `keys`.
    fn lines(&self) -> Vec<String> {
        let cluster = self.cluster.lock().unwrap();
        let Some(encoded) = cluster.secrets["guarded-services"].pointer("/data/keys") else { return Vec::new() };
        let text = String::from_utf8(BASE64_STANDARD.decode(encoded.as_str().unwrap()).unwrap()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    fn annotation(&self) -> Value {
        let cluster = self.cluster.lock().unwrap();
        cluster.secrets["guarded-services"]["metadata"]["annotations"]["countersign/pending"].clone()
    }

    fn refuse_patches(&self, statuses: &[StatusCode]) {
        // The last one is popped first.
        self.cluster.lock().unwrap().refused = statuses.iter().rev().copied().collect();
    }

    /// The ids of the API keys `sidecar` of all services, except revoked ones.
    fn live_keys(&self) -> Vec<String> {
        let services = self.shell.json(&["service", "list"]);
        let ids = services.as_array().unwrap().iter().map(|it| it["serviceId"].as_str().unwrap().to_owned());
        let is_live = |it: &Value| it["name"] == "sidecar" && it["revokedAt"].is_null();
        let keys = ids.flat_map(|id| {
            let keys = self.shell.json(&["key", "list", "--service", &id]);
            keys.as_array().unwrap().iter().filter(|it| is_live(it)).map(|it| it["keyId"].clone()).collect::<Vec<_>>()
        });
        keys.map(|id| id.as_str().unwrap().to_owned()).collect()
    }
}

fn authorize(headers: &HeaderMap) -> Result<(), StatusCode> {
    let is_known = headers.get("authorization").is_some_and(|value| value == &format!("Bearer {TOKEN}"));
    if is_known { Ok(()) } else { Err(StatusCode::UNAUTHORIZED) }
}

async fn read(
    State(cluster): State<Shared>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>, StatusCode> {
    authorize(&headers)?;
    cluster.lock().unwrap().secrets.get(&name).cloned().map(Json).ok_or(StatusCode::NOT_FOUND)
}

async fn patch(
    State(cluster): State<Shared>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: String,
) -> Result<Json<Value>, StatusCode> {
    authorize(&headers)?;
    assert_eq!(headers["content-type"], "application/merge-patch+json");
    let mut cluster = cluster.lock().unwrap();
    if let Some(status) = cluster.refused.pop().filter(|status| *status != StatusCode::OK) {
        return Err(status);
    }
    let patch: Value = serde_json::from_str(&body).unwrap();
    cluster.version += 1;
    let version = cluster.version.to_string();
    let secret = cluster.secrets.get_mut(&name).ok_or(StatusCode::NOT_FOUND)?;
    if patch["metadata"]["resourceVersion"] != secret["metadata"]["resourceVersion"] {
        return Err(StatusCode::CONFLICT);
    }
    merge(secret, &patch);
    secret["metadata"]["resourceVersion"] = json!(version);
    Ok(Json(secret.clone()))
}

/// A JSON merge patch (RFC 7396).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, change) in changes {
        if change.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key], change);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_several_services_are_lines_of_one_secret_and_are_never_printed() {
    let fixture = Fixture::start().await;
    let planned = fixture.apply(SHOP, &["--dry-run"]);
    assert!(planned.contains("+ key sidecar: scope sync") && fixture.lines().is_empty(), "{planned}");
    let output = fixture.apply(SHOP, &[]);
    let lines = fixture.lines();
    assert_eq!(lines.len(), 2, "{output}");
    for line in &lines {
        assert!(line.starts_with("svc_sk_") && !output.contains(line.as_str()), "{output}");
        assert!(!fixture.control.log().contains(line.as_str()));
    }
    assert_eq!(fixture.annotation(), Value::Null);
    let ids: Vec<_> = lines.iter().map(|line| format!("key_{}", &line["svc_sk_".len()..][..26])).collect();
    let mut live = fixture.live_keys();
    live.sort_by_key(|id| ids.iter().position(|it| it == id));
    assert_eq!(live, ids, "each line is the key of a service");
    assert!(fixture.apply(SHOP, &[]).contains("Plan: 0 to create"), "a second run changes nothing");
    assert_eq!(fixture.lines(), lines);

    let rotated = SHOP.replacen("name: sidecar,", "name: rotated,", 1);
    fixture.apply(&rotated, &["--prune"]);
    let after = fixture.lines();
    assert_eq!(after.len(), 2);
    assert!(
        after[0] != lines[0] && after[1] == lines[1],
        "the new key of the first service is in the place of the old one"
    );

    let without_port = rotated.replace("  - name: Port\n    keys:\n      - { name: sidecar, scope: sync, kubernetesSecret: { name: guarded-services } }\n", "  - name: Port\n");
    fixture.apply(&without_port, &["--prune"]);
    assert_eq!(fixture.lines(), after[..1], "the line of the revoked key is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_run_is_repeated_and_a_lost_key_is_replaced_only_if_asked() {
    let fixture = Fixture::start().await;
    let shop = SHOP.split("  - name: Port").next().unwrap();
    // The Secret cannot be changed, so no key is made.
    fixture.refuse_patches(&[StatusCode::FORBIDDEN]);
    fixture.assert_fails(
        shop,
        &[],
        &["cannot change the Secret guarded-services in the namespace identity", "403", "apply.secrets"],
    );
    assert!(fixture.live_keys().is_empty());
    // The key is made, but does not reach the Secret.
    fixture.refuse_patches(&[StatusCode::OK, StatusCode::INTERNAL_SERVER_ERROR]);
    fixture.assert_fails(shop, &[], &["500"]);
    assert_eq!(fixture.annotation(), "Shop/sidecar");
    let lost = fixture.live_keys();
    fixture.refuse_patches(&[StatusCode::CONFLICT]);
    fixture.apply(shop, &[]);
    let (live, lines) = (fixture.live_keys(), fixture.lines());
    assert_eq!((live.len(), lines.len()), (1, 1));
    assert_ne!(live, lost, "the lost key is revoked");
    assert!(lines[0].contains(live[0].trim_start_matches("key_")), "the line has the live key");

    fixture.cluster.lock().unwrap().secrets["guarded-services"]["data"] = json!({});
    fixture.assert_fails(shop, &[], &["the Secret guarded-services does not contain it", "--replace-missing-secrets"]);
    fixture.apply(shop, &["--replace-missing-secrets"]);
    assert_eq!(fixture.lines().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_name_what_is_missing() {
    let mut fixture = Fixture::start().await;
    let other = SHOP.replace("guarded-services", "others");
    fixture.assert_fails(&other, &[], &["the Secret others in the namespace identity", "404", "apply.secrets"]);
    fs::write(fixture.shell.path("account").join("token"), "expired").unwrap();
    fixture.assert_fails(SHOP, &[], &["401"]);
    let both = SHOP.replace("scope: sync, ", "scope: sync, secretFile: a, ");
    let arguments = fixture.arguments(&both, &[]);
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    fixture.shell.assert_fails(2, &arguments, &["keys[0].kubernetesSecret: is set besides `secretFile`"]);
    fixture.shell.unset("KUBERNETES_SERVICE_HOST");
    let arguments = fixture.arguments(SHOP, &[]);
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    fixture.shell.assert_fails(2, &arguments, &["kubernetesSecret needs a pod with a service account"]);
    assert!(fixture.live_keys().is_empty());
}
