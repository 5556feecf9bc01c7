//! `countersign apply` and `countersign export`.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_tests::{Agent, ControlPlane, Shell};
use serde_json::{Value, json};
use std::{fs, process::Stdio};

const HUMAN: [&str; 3] = ["URL", "CA", "HUMAN_TOKEN"];

/// A file with a role, an assignment by name, a webhook and a key.
const SHOP: &str = "
apiVersion: countersign/v1
services:
  - name: Shop
    acceptsUnboundTokens: false
    roles:
      - { name: reader, description: Reads, permissions: [read, list] }
    assignments:
      - { role: reader, match: { name: 'build-*' } }
    webhooks:
      - { url: 'http://127.0.0.1:20000/hook', events: [agent.role_assigned], secretFile: hook.secret }
    keys:
      - { name: sidecar, scope: sync, secretFile: sync.keys }
";

/// Writes the file with absolute paths of secrets, and returns its path.
fn write(shell: &Shell, name: &str, text: &str) -> String {
    let path = shell.new_path(name);
    let secret = |name: &str| shell.path(name).display().to_string();
    let text = text.replace("hook.secret", &secret("hook.secret")).replace("sync.keys", &secret("sync.keys"));
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

fn kinds(plan: &Value) -> Vec<String> {
    let changes = plan["changes"].as_array().unwrap().iter();
    changes
        .map(|change| format!("{} {}", change["action"].as_str().unwrap(), change["kind"].as_str().unwrap()))
        .collect()
}

fn service_id(shell: &Shell) -> String {
    let services = shell.json(&["service", "list"]);
    let mut shops = services.as_array().unwrap().iter().filter(|service| service["name"] == "Shop");
    let id = shops.next().unwrap()["serviceId"].as_str().unwrap().to_owned();
    assert!(shops.next().is_none(), "there is one service with this name: {services}");
    id
}

/// A control plane, and the ids of agents that the human user has registered.
async fn start(names: &[&str]) -> (ControlPlane, Shell, Vec<String>) {
    let control = ControlPlane::start().await;
    let shell = Shell::with_env(&control, &HUMAN);
    let register = |name: &&str| {
        shell.stdout(&["agent", "keygen", "--key", &format!("{name}.key")]);
        let key = format!("{name}.key");
        shell.stdout(&["agent", "register", "--key", &key, "--email", "a@example.org", "--name", name])
    };
    let agents = names.iter().map(register).collect();
    (control, shell, agents)
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_applied_once_and_a_second_run_changes_nothing() {
    let (control, shell, _agents) = start(&["build-1", "build-2", "other"]).await;
    let file = write(&shell, "shop.yaml", SHOP);
    let everything =
        ["create service", "create role", "create assignment", "create assignment", "create webhook", "create key"];
    let planned = shell.json(&["apply", "-f", &file, "--dry-run"]);
    assert_eq!(kinds(&planned), everything);
    assert_eq!(shell.failure(&["apply", "-f", &file, "--dry-run", "--exit-code"]).0, 1);
    assert!(!shell.path("sync.keys").exists(), "a dry run changes nothing");

    let applied = shell.json(&["apply", "-f", &file]);
    assert_eq!(kinds(&applied), everything);
    assert!(applied["changes"].as_array().unwrap().iter().all(|change| change["result"] == "done"), "{applied}");
    assert!(fs::read_to_string(shell.path("sync.keys")).unwrap().starts_with("svc_sk_"));
    assert!(fs::read_to_string(shell.path("hook.secret")).unwrap().starts_with("whsec_"));
    assert_eq!(shell.json(&["apply", "-f", &file])["changes"], json!([]));
    shell.stdout(&["apply", "-f", &file, "--dry-run", "--exit-code"]);

    let service = service_id(&shell);
    let holders = shell.json(&["role", "holders", "reader", "--service", &service]);
    assert_eq!(holders.as_array().unwrap().len(), 2, "{holders}");
    // The owner of an agent chooses its name, so a stranger's agent must not get a role by its name, whether it holds another role or not.
    let stranger = Agent::register(&control, "build-3").await;
    shell.stdout(&["role", "create", "guest", "--service", &service]);
    shell.stdout(&["role", "assign", "guest", &stranger.id, "--service", &service]);
    assert_eq!(shell.json(&["apply", "-f", &file])["changes"], json!([]));
    let exported = write(&shell, "exported.yaml", &shell.stdout(&["export", "--service", &service]));
    assert_eq!(shell.json(&["apply", "-f", &exported])["changes"], json!([]), "an export describes what exists");

    let changed =
        SHOP.replace("[read, list]", "[list, write]").replace("Reads", "Writes").replace("agent.role_assigned", "'*'");
    let changed = write(&shell, "changed.yaml", &changed.replace("build-*", "other"));
    let plan = shell.json(&["apply", "-f", &changed]);
    assert_eq!(kinds(&plan), ["change role", "create assignment", "change webhook"]);
    let fields = &plan["changes"][0]["fields"];
    assert_eq!(fields["permissions"], json!({ "from": "list, read", "to": "list, write" }));
    assert_eq!(shell.json(&["apply", "-f", &changed])["changes"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_change_stops_only_what_depends_on_it() {
    let (_control, shell, _agents) = start(&["build-1"]).await;
    let file = write(&shell, "wrong.yaml", &SHOP.replace("http://127.0.0.1:20000", "http://10.0.0.1:20000"));
    let (code, error) = shell.failure(&["apply", "-f", &file]);
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("4 of 5 changes were made."), "{error}");
    assert!(error.contains("service Shop, webhook http://10.0.0.1:20000/hook: 400"), "{error}");
    let corrected = write(&shell, "shop.yaml", SHOP);
    assert_eq!(kinds(&shell.json(&["apply", "-f", &corrected])), ["create webhook"]);

    let unknown = SHOP.replace("role: reader, match: { name: 'build-*' }", "role: writer, match: { name: '*' }");
    let unknown = write(&shell, "unknown.yaml", &unknown);
    let (code, error) = shell.failure(&["apply", "-f", &unknown]);
    assert!(code == 1 && error.contains("assignments name the role writer, which does not exist"), "{error}");
    let (code, error) = shell.failure(&["apply", "-f", &write(&shell, "typo.yaml", &SHOP.replace("roles:", "rolez:"))]);
    assert!(code == 2 && error.contains("/typo.yaml") && error.contains("unknown field `rolez`"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_secret_is_made_again_only_if_it_is_allowed_or_a_run_was_interrupted() {
    let (_control, shell, _agents) = start(&["build-1"]).await;
    let file = write(&shell, "shop.yaml", SHOP);
    shell.stdout(&["apply", "-f", &file]);
    let (keys, pending) = (shell.path("sync.keys"), shell.path("sync.keys.pending"));
    let first = fs::read_to_string(&keys).unwrap();

    fs::remove_file(&keys).unwrap();
    let (code, error) = shell.failure(&["apply", "-f", &file]);
    assert!(code == 1 && error.contains("the key sidecar exists, but not the file of its secret"), "{error}");
    assert_eq!(kinds(&shell.json(&["apply", "-f", &file, "--replace-missing-secrets"])), ["change key"]);
    let second = fs::read_to_string(&keys).unwrap();
    assert_ne!(first, second);

    fs::rename(&keys, &pending).unwrap();
    assert_eq!(kinds(&shell.json(&["apply", "-f", &file])), ["change key"], "as after a kill");
    assert!(keys.exists() && !pending.exists());
    let listed = shell.json(&["key", "list", "--service", &service_id(&shell)]);
    let live = listed.as_array().unwrap().iter().filter(|key| key["revokedAt"].is_null()).count();
    assert_eq!(live, 1, "lost keys are revoked: {listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn api_key_applies_the_roles_of_its_service_only() {
    let control = ControlPlane::start().await;
    let agent = Agent::register(&control, "build-1").await;
    let shell = Shell::with_env(&control, &["URL", "CA", "SERVICE_ID", "SERVICE_KEY"]);
    let text = format!(
        "apiVersion: countersign/v1\nservices:\n  - name: Mine\n    roles: [{{ name: reader, permissions: [read] }}]\n    \
         assignments: [{{ role: reader, agent: {} }}]\n",
        agent.id
    );
    let file = write(&shell, "mine.yaml", &text);
    assert_eq!(kinds(&shell.json(&["apply", "-f", &file])), ["create role", "create assignment"]);
    assert_eq!(shell.json(&["apply", "-f", &file])["changes"], json!([]));
    let (code, error) = shell.failure(&["apply", "-f", &write(&shell, "shop.yaml", SHOP)]);
    assert!(code == 2 && error.contains("an API key can change the roles, assignments of agents by id"), "{error}");
}

/// Kills a run at many moments and runs again: the end is the same, and nothing exists twice. Then several runs at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn interrupted_and_concurrent_runs_end_in_the_same_state() {
    let (_control, shell, agents) = start(&["build-1", "build-2", "build-3"]).await;
    let mut lines = vec!["apiVersion: countersign/v1\nservices:\n  - name: Shop\n    roles:".to_owned()];
    for number in 0..60 {
        lines.push(format!("      - {{ name: role-{number}, permissions: [p{number}] }}"));
    }
    lines.push("    keys: [{ name: sidecar, scope: sync, secretFile: sync.keys }]\n    assignments:".to_owned());
    for agent in &agents {
        for number in 0..20 {
            lines.push(format!("      - {{ role: role-{number}, agent: {agent} }}"));
        }
    }
    let text = lines.join("\n");
    let file = write(&shell, "shop.yaml", &text);
    for milliseconds in [40, 80, 120, 160, 240, 320, 480] {
        let mut command = shell.command(&["--quiet", "apply", "-f", &file]);
        let mut run = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(milliseconds)).await;
        run.kill().unwrap();
        run.wait().unwrap();
    }
    shell.stdout(&["apply", "-f", &file]);
    let service = service_id(&shell);
    let count = |arguments: &[&str]| shell.json(arguments).as_array().unwrap().len();
    assert_eq!(count(&["role", "list", "--service", &service]), 60);
    for role in ["role-0", "role-19"] {
        assert_eq!(count(&["role", "holders", role, "--service", &service]), 3);
    }
    let keys = shell.json(&["key", "list", "--service", &service]);
    assert_eq!(keys.as_array().unwrap().iter().filter(|key| key["revokedAt"].is_null()).count(), 1, "{keys}");
    assert_eq!(shell.json(&["apply", "-f", &file])["changes"], json!([]));

    let more =
        write(&shell, "more.yaml", &text.replace("roles:\n", "roles:\n      - { name: new, permissions: [] }\n"));
    let runs: Vec<_> = (0..4)
        .map(|_| {
            let mut command = shell.command(&["--quiet", "apply", "-f", &more]);
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for run in runs {
        let output = run.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(count(&["role", "list", "--service", &service]), 61);
    assert_eq!(shell.json(&["apply", "-f", &more])["changes"], json!([]));
}
