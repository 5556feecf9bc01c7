//! `countersign apply` and `countersign export`.

use crate::control_and_shell;
use countersign_tests::{Agent, ControlPlane, Shell, control_plane::text};
use serde_json::{Value, json};
use std::{
    fs,
    process::{Child, Stdio},
    time::Duration,
};

/// A file with a role, an assignment by name, a webhook and a key.
const SHOP: &str = "
apiVersion: countersign/v1
services:
  - name: Shop
    acceptsUnboundTokens: false
    resourceUris: [https://Shop.example/, https://shop.example/mcp]
    roles:
      - { name: reader, description: Reads, permissions: [read, list] }
    assignments:
      - { role: reader, match: { name: 'build-*' } }
    webhooks:
      - { url: 'http://127.0.0.1:20000/hook', events: [agent.role_assigned], secretFile: hook.secret }
    keys:
      - { name: sidecar, scope: sync, secretFile: sync.keys }
";

/// Writes a file of declared state, with absolute paths of its secret files, and returns the path.
fn write(shell: &Shell, name: &str, text: &str) -> String {
    let path = shell.new_path(name);
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

fn kinds(plan: &Value) -> Vec<String> {
    let changes = plan["changes"].as_array().unwrap().iter();
    changes.map(|change| format!("{} {}", text(&change["action"]), text(&change["kind"]))).collect()
}

/// Asserts that the control plane has the state of the file already.
#[track_caller]
fn assert_applied(shell: &Shell, file: &str) {
    assert_eq!(shell.json(&["apply", "-f", file])["changes"], json!([]), "{file}");
}

/// Asserts that a file with this text is refused with this error.
#[track_caller]
fn assert_refused(shell: &Shell, code: i32, text: &str, options: &[&str], error: &str) {
    let file = write(shell, "refused.yaml", text);
    shell.assert_fails(code, &[&["apply", "-f", &file], options].concat(), &[error]);
}

/// Starts to apply a file.
fn start_to_apply(shell: &Shell, file: &str) -> Child {
    let mut command = shell.command(&["--quiet", "apply", "-f", file]);
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Applies a file, and kills the command after this time.
async fn interrupt(shell: &Shell, file: &str, milliseconds: u64) {
    let mut run = start_to_apply(shell, file);
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
    run.kill().unwrap();
    run.wait().unwrap();
}

/// The API keys of a service that are not revoked.
fn live_keys(shell: &Shell, service: &str) -> Vec<Value> {
    let mut keys = shell.json(&["key", "list", "--service", service]);
    let keys = std::mem::take(keys.as_array_mut().unwrap());
    keys.into_iter().filter(|key| key["revokedAt"].is_null()).collect()
}

/// The number of elements of a list that a command prints.
fn count(shell: &Shell, arguments: &[&str]) -> usize {
    shell.json(arguments).as_array().unwrap().len()
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
    let (control, shell) = control_and_shell(&["URL", "CA", "HUMAN_TOKEN"]).await;
    let register = |name: &&str| {
        let key = format!("{name}.key");
        shell.stdout(&["agent", "keygen", "--key", &key]);
        shell.stdout(&["agent", "register", "--key", &key, "--email", "a@example.org", "--name", name])
    };
    let agents = names.iter().map(register).collect();
    (control, shell, agents)
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_applied_once_and_a_second_run_changes_nothing() {
    let (control, shell, _agents) = start(&["build-1", "build-2", "other"]).await;
    let file = write(&shell, "shop.yaml", SHOP);
    let assignments = ["create assignment"; 2];
    let service = ["create service", "change service", "create role"];
    let everything = [&service[..], &assignments, &["create webhook", "create key"]].concat();
    let planned = shell.json(&["apply", "-f", &file, "--dry-run"]);
    assert_eq!(kinds(&planned), everything);
    assert_eq!(shell.failure(&["apply", "-f", &file, "--dry-run", "--exit-code"]).0, 10);
    assert!(!shell.path("sync.keys").exists(), "a dry run changes nothing");

    let applied = shell.json(&["apply", "-f", &file]);
    assert_eq!(kinds(&applied), everything);
    assert!(applied["changes"].as_array().unwrap().iter().all(|change| change["result"] == "done"), "{applied}");
    assert!(fs::read_to_string(shell.path("sync.keys")).unwrap().starts_with("svc_sk_"));
    assert!(fs::read_to_string(shell.path("hook.secret")).unwrap().starts_with("whsec_"));
    assert_applied(&shell, &file);
    shell.stdout(&["apply", "-f", &file, "--dry-run", "--exit-code"]);

    let service = service_id(&shell);
    let uris = shell.json(&["service", "show", "--service", &service])["resourceUris"].clone();
    assert_eq!(uris, json!(["https://shop.example", "https://shop.example/mcp"]));
    assert_eq!(count(&shell, &["role", "holders", "reader", "--service", &service]), 2);
    // The owner of an agent chooses its name. So an agent of a stranger must not get a role by its name, even if it has another
    // role.
    let stranger = Agent::register(&control, "build-3").await;
    shell.stdout(&["role", "create", "guest", "--service", &service]);
    shell.stdout(&["role", "assign", "guest", &stranger.id, "--service", &service]);
    assert_applied(&shell, &file);
    let exported = write(&shell, "exported.yaml", &shell.stdout(&["export", "--service", &service]));
    // Applying an export changes nothing.
    assert_applied(&shell, &exported);

    let changed =
        SHOP.replace("[read, list]", "[list, write]").replace("Reads", "Writes").replace("agent.role_assigned", "'*'");
    let changed = changed.replace("https://shop.example/mcp", "https://shop.example/other");
    let changed = write(&shell, "changed.yaml", &changed.replace("build-*", "other"));
    let plan = shell.json(&["apply", "-f", &changed]);
    assert_eq!(kinds(&plan), ["change service", "change role", "create assignment", "change webhook"]);
    let fields = &plan["changes"][1]["fields"];
    assert_eq!(fields["permissions"], json!({ "from": "list, read", "to": "list, write" }));
    assert_applied(&shell, &changed);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_change_stops_only_what_depends_on_it() {
    let (_control, shell, _agents) = start(&["build-1"]).await;
    let file = write(&shell, "wrong.yaml", &SHOP.replace("http://127.0.0.1:20000", "http://10.0.0.1:20000"));
    let webhook = "service Shop, webhook http://10.0.0.1:20000/hook: 400";
    shell.assert_fails(1, &["apply", "-f", &file], &["5 of 6 changes were made.", webhook]);
    let corrected = write(&shell, "shop.yaml", SHOP);
    assert_eq!(kinds(&shell.json(&["apply", "-f", &corrected])), ["create webhook"]);

    let unknown = SHOP.replace("role: reader, match: { name: 'build-*' }", "role: writer, match: { name: '*' }");
    assert_refused(&shell, 1, &unknown, &[], "assignments name the role writer, which does not exist");
    let typo = write(&shell, "typo.yaml", &SHOP.replace("roles:", "rolez:"));
    shell.assert_fails(2, &["apply", "-f", &typo], &["/typo.yaml", "unknown field `rolez`"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_secret_is_made_again_only_if_it_is_allowed_or_a_run_was_interrupted() {
    let (_control, shell, _agents) = start(&["build-1"]).await;
    let file = write(&shell, "shop.yaml", SHOP);
    shell.stdout(&["apply", "-f", &file]);
    let (keys, pending) = (shell.path("sync.keys"), shell.path("sync.keys.pending"));
    let first = fs::read_to_string(&keys).unwrap();

    fs::remove_file(&keys).unwrap();
    shell.assert_fails(1, &["apply", "-f", &file], &["the key sidecar exists, but not the file of its secret"]);
    assert_eq!(kinds(&shell.json(&["apply", "-f", &file, "--replace-missing-secrets"])), ["change key"]);
    let second = fs::read_to_string(&keys).unwrap();
    assert_ne!(first, second);

    fs::rename(&keys, &pending).unwrap();
    assert_eq!(kinds(&shell.json(&["apply", "-f", &file])), ["change key"], "as after a kill");
    assert!(keys.exists() && !pending.exists());
    assert_eq!(live_keys(&shell, &service_id(&shell)).len(), 1, "lost keys are revoked");
}

#[tokio::test(flavor = "multi_thread")]
async fn api_key_applies_the_roles_of_its_service_only() {
    let control = ControlPlane::start().await;
    let agent = Agent::register(&control, "build-1").await;
    let shell = Shell::with_env(&control, &["URL", "CA", "SERVICE_ID", "SERVICE_KEY"]);
    let text = format!(
        "apiVersion: countersign/v1\nservices:\n  - name: Mine\n    id: {}\n    roles: [{{ name: reader, permissions: [read] }}]\n    \
         assignments: [{{ role: reader, agent: {} }}]\n",
        control.service(),
        agent.id
    );
    let file = write(&shell, "mine.yaml", &text);
    assert_eq!(kinds(&shell.json(&["apply", "-f", &file])), ["create role", "create assignment"]);
    assert_applied(&shell, &file);
    assert_refused(&shell, 2, SHOP, &[], "an API key can change the roles, assignments of agents by id");
    shell.assert_fails(2, &["export"], &["an API key cannot read its service"]);
}

/// This text and the next one are files of a team, each with one service. Both name the team with `managedBy`.
const SHOP_OF_TEAM: &str = "
apiVersion: countersign/v1
managedBy: team
services:
  - name: Shop
    roles:
      - { name: reader, permissions: [read] }
      - { name: writer, permissions: [write] }
    assignments:
      - { role: reader, match: { email: '*@example.org' } }
      - { role: writer, match: { name: 'build-1' } }
    webhooks:
      - { url: 'http://127.0.0.1:20000/hook' }
    keys:
      - { name: sidecar, scope: sync, secretFile: sync.keys }
";

const STORE_OF_TEAM: &str = "
apiVersion: countersign/v1
managedBy: team
services:
  - name: Store
---
apiVersion: countersign/v1
managedBy: team
services: []
";

#[tokio::test(flavor = "multi_thread")]
async fn prune_deletes_only_what_has_the_name_of_the_files() {
    let (control, shell, agents) = start(&["build-1", "build-2"]).await;
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    place("store.yml", STORE_OF_TEAM);
    place("notes.txt", "not a file of declared state");
    place("shop.yaml", SHOP_OF_TEAM);
    let state = folder.path().display().to_string();
    let apply = |arguments: &[&str]| shell.json(&[&["apply", "-f", &state], arguments].concat());
    assert_eq!(apply(&[])["changes"].as_array().unwrap().len(), 9, "two services, and everything in one of them");
    assert_eq!(apply(&["--prune"])["changes"], json!([]), "the files state all that has their name");

    let service = service_id(&shell);
    make_what_no_file_states(&control, &shell, &service, &agents[1]).await;
    assert_eq!(apply(&["--prune"])["changes"], json!([]));

    let without = SHOP_OF_TEAM
        .replace("      - { name: writer, permissions: [write] }\n", "")
        .replace("      - { role: writer, match: { name: 'build-1' } }\n", "")
        .replace("match: { email: '*@example.org' }", &format!("agent: {}", agents[0]))
        .replace("    webhooks:\n      - { url: 'http://127.0.0.1:20000/hook' }\n", "")
        .replace("    keys:\n      - { name: sidecar, scope: sync, secretFile: sync.keys }\n", "");
    place("shop.yaml", &without);
    place("store.yml", "apiVersion: countersign/v1\nmanagedBy: team\nservices: []\n");
    assert_eq!(apply(&[])["changes"], json!([]), "without --prune nothing is deleted");
    let kept = shell.json(&["apply", "-f", &state, "--prune", "--dry-run"]);
    assert!(!kinds(&kept).contains(&"delete service".to_owned()), "{kept}");
    let warning = kept["warnings"][0].as_str().unwrap();
    assert!(warning.contains("the service Store has managedBy team, but is in no file"), "{kept}");
    let plan = shell.stdout(&["apply", "-f", &state, "--prune-services", "--dry-run"]);
    for line in [
        format!("  - assignment reader of {} (build-2)\n", agents[1]),
        "  - role writer: agents that lose it 1\n".to_owned(),
        "  - webhook http://127.0.0.1:20000/hook\n".to_owned(),
        "  - key sidecar\n".to_owned(),
        "  - service\n".to_owned(),
        "Plan: 0 to create, 0 to change, 5 to delete.".to_owned(),
    ] {
        assert!(plan.contains(&line), "{line}: {plan}");
    }
    // If a change fails, nothing is deleted.
    let failing = "apiVersion: countersign/v1\nmanagedBy: team\nservices:\n  - name: Broken\n    \
                   webhooks: [{ url: 'http://10.0.0.1:20000/hook' }]\n";
    place("broken.yaml", failing);
    let kept = "service Shop, role writer: not tried, because other changes failed";
    shell.assert_fails(1, &["apply", "-f", &state, "--prune-services"], &[kept]);
    fs::remove_file(folder.path().join("broken.yaml")).unwrap();
    let deleted = ["assignment", "role", "webhook", "key", "service", "service"].map(|kind| format!("delete {kind}"));
    assert_eq!(kinds(&apply(&["--prune-services"])), deleted);
    assert_eq!(apply(&["--prune-services"])["changes"], json!([]));
    check_what_is_left(&shell, &service);
}

/// Creates roles, assignments, a key and services by hand or with other files, so that the files of the team do not state them.
async fn make_what_no_file_states(control: &ControlPlane, shell: &Shell, service: &str, agent: &str) {
    let stranger = Agent::register(control, "stranger").await;
    shell.stdout(&["role", "create", "guest", "--service", service]);
    shell.stdout(&["role", "assign", "guest", agent, "--service", service]);
    shell.stdout(&["role", "assign", "reader", &stranger.id, "--service", service]);
    shell.stdout(&["key", "create", "--name", "by hand", "--scope", "sync", "--service", service]);
    shell.stdout(&["service", "create", "By hand"]);
    let others = SHOP_OF_TEAM.replace("managedBy: team", "managedBy: others").replace("name: Shop", "name: Others");
    let others = write(shell, "others.yaml", &others.replace("sync.keys", "other.keys"));
    shell.stdout(&["apply", "-f", &others]);
}

/// Asserts that two kinds of things are left: those that the files of the team state, and those that they never stated.
fn check_what_is_left(shell: &Shell, service: &str) {
    let names = |arguments: &[&str]| {
        let list = shell.json(arguments);
        let mut names: Vec<_> = list.as_array().unwrap().iter().map(|it| text(&it["name"])).collect();
        names.sort();
        names
    };
    assert_eq!(names(&["service", "list"])[..3], ["By hand", "Others", "Shop"]);
    assert_eq!(names(&["role", "list", "--service", service]), ["guest", "reader"]);
    assert_eq!(names(&["role", "holders", "reader", "--service", service]), ["build-1", "stranger"]);
    let live = live_keys(shell, service);
    assert_eq!((live.len(), live[0]["name"].as_str()), (1, Some("by hand")));
}

#[tokio::test(flavor = "multi_thread")]
async fn prune_refuses_files_that_would_delete_too_much() {
    let (_control, shell, _agents) = start(&["build-1", "build-2"]).await;
    shell.stdout(&["apply", "-f", &write(&shell, "shop.yaml", SHOP_OF_TEAM)]);
    let service = service_id(&shell);
    let unnamed = SHOP_OF_TEAM.replace("managedBy: team\n", "");
    assert_refused(&shell, 2, &unnamed, &["--prune"], "--prune needs `managedBy`");
    assert_refused(&shell, 2, "# nothing\n", &["--prune"], "--prune needs a document");
    let nobody = SHOP_OF_TEAM.replace("'build-1'", "'typo-*'");
    assert_refused(&shell, 1, &nobody, &["--prune"], "none of your agents matches the name typo-*");
    let twice = format!("{SHOP_OF_TEAM}  - {{ name: Shop, id: {service} }}\n");
    assert_refused(&shell, 1, &twice, &[], "is described by its name and by its id");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_replaces_no_file_and_is_not_lost() {
    let (_control, shell, _agents) = start(&["build-1"]).await;
    let refused = |keys: &str, expected: &str| {
        let text = format!("apiVersion: countersign/v1\nservices:\n  - name: Vault\n    keys: [{keys}]\n");
        let (code, error) = shell.failure(&["apply", "-f", &write(&shell, "vault.yaml", &text)]);
        assert!((code == 1 || code == 2) && error.contains(expected), "{expected}: {code} {error}");
    };
    let own = shell.path("precious").display().to_string();
    fs::write(&own, "mine").unwrap();
    refused("{ name: a, scope: sync }", "the key a does not exist yet, and no secretFile is set");
    refused("{ name: a, scope: sync, secretFile: precious }", "its secret would replace the file");
    refused("{ name: a, scope: sync, secretFile: none/a }", "cannot be a file");
    refused("{ name: a, scope: sync, secretFile: x }, { name: b, scope: full, secretFile: x }", "is named twice");
    assert_eq!(fs::read_to_string(&own).unwrap(), "mine");
    let services = shell.json(&["service", "list"]);
    assert!(services.as_array().unwrap().iter().all(|service| service["name"] != "Vault"), "{services}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_is_found_again_by_another_form_of_its_url() {
    let (_control, shell, _agents) = start(&["build-1", "build-2"]).await;
    // The control plane stores the URL of a webhook in its normal form.
    let port = SHOP_OF_TEAM.replace("http://127.0.0.1:20000/hook", "HTTP://127.0.0.1:80");
    let port = write(&shell, "port.yaml", &port.replace("name: Shop", "name: Port").replace("sync.keys", "port.keys"));
    shell.stdout(&["apply", "-f", &port]);
    assert_eq!(shell.json(&["apply", "-f", &port, "--prune"])["changes"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_other_files_state_changes_owner_only_if_it_is_allowed() {
    let (_control, shell, _agents) = start(&["build-1"]).await;
    let unnamed = write(&shell, "unnamed.yaml", &SHOP_OF_TEAM.replace("managedBy: team\n", ""));
    shell.stdout(&["apply", "-f", &unnamed]);
    let team = write(&shell, "team.yaml", SHOP_OF_TEAM);
    let taken = shell.json(&["apply", "-f", &team]);
    let changed =
        ["change service", "change role", "change role", "change assignment", "change assignment", "change webhook"];
    assert_eq!(kinds(&taken), changed, "what no file had stated gets the name: {taken}");
    assert_eq!(taken["changes"][0]["fields"]["managedBy"], json!({ "from": "none", "to": "team" }));
    assert_applied(&shell, &team);
    assert_applied(&shell, &unnamed);
    let changing = SHOP_OF_TEAM.replace("managedBy: team\n", "").replace("[write]", "[write, list]");
    assert_refused(&shell, 1, &changing, &[], "the role writer has managedBy team, and the file has none");

    let others = write(&shell, "others.yaml", &SHOP_OF_TEAM.replace("managedBy: team", "managedBy: others"));
    shell.assert_fails(1, &["apply", "-f", &others], &["the service Shop has managedBy team"]);
    assert_eq!(kinds(&shell.json(&["apply", "-f", &others, "--take-ownership"])), changed);
    assert_applied(&shell, &others);
}

/// If several first runs of the same files overlap, they create one service together, with one webhook and one key.
#[tokio::test(flavor = "multi_thread")]
async fn first_runs_at_the_same_time_create_nothing_twice() {
    let (_control, shell, _agents) = start(&["build-1"]).await;
    let file = write(&shell, "shop.yaml", SHOP_OF_TEAM);
    for mut run in [(); 4].map(|()| start_to_apply(&shell, &file)) {
        // A later run may fail: another run has created the webhook or the key, and only that run has its secret.
        run.wait().unwrap();
    }
    assert_applied(&shell, &file);
    let service = service_id(&shell);
    let webhooks = count(&shell, &["webhook", "list", "--service", &service]);
    assert_eq!((webhooks, live_keys(&shell, &service).len()), (1, 1));
}

/// Services with the maximum number of roles, and 10,000 assignments.
fn large_state(agents: &[String]) -> String {
    let mut lines = vec!["apiVersion: countersign/v1\nmanagedBy: team\nservices:".to_owned()];
    for service in 0..4 {
        lines.push(format!("  - name: Service {service}\n    roles:"));
        lines.extend((0..250).map(|role| format!("      - {{ name: r{role}, permissions: [p{role}] }}")));
        lines.push("    assignments:".to_owned());
        for agent in agents {
            lines.extend((0..250).map(|role| format!("      - {{ role: r{role}, agent: {agent} }}")));
        }
    }
    lines.join("\n")
}

/// A run with 1,000 roles and 10,000 assignments is killed and run again.
#[tokio::test(flavor = "multi_thread")]
async fn large_state_is_applied_after_interruptions() {
    let names: Vec<_> = (0..10).map(|number| format!("agent-{number}")).collect();
    let (_control, shell, agents) = start(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let file = write(&shell, "large.yaml", &large_state(&agents));
    for milliseconds in [1_000, 4_000] {
        interrupt(&shell, &file, milliseconds).await;
    }
    shell.stdout(&["apply", "-f", &file]);
    assert_eq!(shell.json(&["apply", "-f", &file, "--prune"])["changes"], json!([]));
    let services = shell.json(&["service", "list"]);
    let ids: Vec<_> = services.as_array().unwrap().iter().filter(|it| it["managedBy"] == "team").collect();
    assert_eq!(ids.len(), 4, "{services}");
    let service = ids[0]["serviceId"].as_str().unwrap();
    assert_eq!(count(&shell, &["role", "list", "--service", service]), 250);
    assert_eq!(count(&shell, &["role", "holders", "r249", "--service", service]), 10);
}

/// Kills a run at many moments and runs it again: the result is the same, and nothing exists twice. Then starts several runs at
/// once.
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
        interrupt(&shell, &file, milliseconds).await;
    }
    shell.stdout(&["apply", "-f", &file]);
    let service = service_id(&shell);
    assert_eq!(count(&shell, &["role", "list", "--service", &service]), 60);
    for role in ["role-0", "role-19"] {
        assert_eq!(count(&shell, &["role", "holders", role, "--service", &service]), 3);
    }
    assert_eq!(live_keys(&shell, &service).len(), 1);
    assert_applied(&shell, &file);

    let more = text.replace("roles:\n", "roles:\n      - { name: new, permissions: [] }\n");
    let more = write(&shell, "more.yaml", &more);
    for run in [(); 4].map(|()| start_to_apply(&shell, &more)) {
        let output = run.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(count(&shell, &["role", "list", "--service", &service]), 61);
    assert_applied(&shell, &more);
}
