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

/// Writes the file with absolute paths of secrets, and returns its path.
fn write(shell: &Shell, name: &str, text: &str) -> String {
    let path = shell.new_path(name);
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
    let everything = [
        "create service",
        "change service",
        "create role",
        "create assignment",
        "create assignment",
        "create webhook",
        "create key",
    ];
    let planned = shell.json(&["apply", "-f", &file, "--dry-run"]);
    assert_eq!(kinds(&planned), everything);
    assert_eq!(shell.failure(&["apply", "-f", &file, "--dry-run", "--exit-code"]).0, 10);
    assert!(!shell.path("sync.keys").exists(), "a dry run changes nothing");

    let applied = shell.json(&["apply", "-f", &file]);
    assert_eq!(kinds(&applied), everything);
    assert!(applied["changes"].as_array().unwrap().iter().all(|change| change["result"] == "done"), "{applied}");
    assert!(fs::read_to_string(shell.path("sync.keys")).unwrap().starts_with("svc_sk_"));
    assert!(fs::read_to_string(shell.path("hook.secret")).unwrap().starts_with("whsec_"));
    assert_eq!(shell.json(&["apply", "-f", &file])["changes"], json!([]));
    shell.stdout(&["apply", "-f", &file, "--dry-run", "--exit-code"]);

    let service = service_id(&shell);
    let uris = shell.json(&["service", "show", "--service", &service])["resourceUris"].clone();
    assert_eq!(uris, json!(["https://shop.example", "https://shop.example/mcp"]));
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
    let changed = changed.replace("https://shop.example/mcp", "https://shop.example/other");
    let changed = write(&shell, "changed.yaml", &changed.replace("build-*", "other"));
    let plan = shell.json(&["apply", "-f", &changed]);
    assert_eq!(kinds(&plan), ["change service", "change role", "create assignment", "change webhook"]);
    let fields = &plan["changes"][1]["fields"];
    assert_eq!(fields["permissions"], json!({ "from": "list, read", "to": "list, write" }));
    assert_eq!(shell.json(&["apply", "-f", &changed])["changes"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_change_stops_only_what_depends_on_it() {
    let (_control, shell, _agents) = start(&["build-1"]).await;
    let file = write(&shell, "wrong.yaml", &SHOP.replace("http://127.0.0.1:20000", "http://10.0.0.1:20000"));
    let (code, error) = shell.failure(&["apply", "-f", &file]);
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("5 of 6 changes were made."), "{error}");
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
        "apiVersion: countersign/v1\nservices:\n  - name: Mine\n    id: {}\n    roles: [{{ name: reader, permissions: [read] }}]\n    \
         assignments: [{{ role: reader, agent: {} }}]\n",
        control.service(),
        agent.id
    );
    let file = write(&shell, "mine.yaml", &text);
    assert_eq!(kinds(&shell.json(&["apply", "-f", &file])), ["create role", "create assignment"]);
    assert_eq!(shell.json(&["apply", "-f", &file])["changes"], json!([]));
    let (code, error) = shell.failure(&["apply", "-f", &write(&shell, "shop.yaml", SHOP)]);
    assert!(code == 2 && error.contains("an API key can change the roles, assignments of agents by id"), "{error}");
}

/// Files with a name, in a directory: two services of the team.
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
    assert!(
        kept["warnings"][0].as_str().unwrap().contains("the service Store has managedBy team, but is in no file"),
        "{kept}"
    );
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
    let deleted =
        ["delete assignment", "delete role", "delete webhook", "delete key", "delete service"].map(str::to_owned);
    // A change that fails keeps everything that was to be deleted.
    let failing = "apiVersion: countersign/v1\nmanagedBy: team\nservices:\n  - name: Broken\n    \
                   webhooks: [{ url: 'http://10.0.0.1:20000/hook' }]\n";
    place("broken.yaml", failing);
    let (code, error) = shell.failure(&["apply", "-f", &state, "--prune-services"]);
    assert!(
        code == 1 && error.contains("service Shop, role writer: not tried, because other changes failed"),
        "{error}"
    );
    fs::remove_file(folder.path().join("broken.yaml")).unwrap();
    let with_broken: Vec<_> = deleted.iter().cloned().chain(["delete service".to_owned()]).collect();
    assert_eq!(kinds(&apply(&["--prune-services"])), with_broken);
    assert_eq!(apply(&["--prune-services"])["changes"], json!([]));
    check_what_is_left(&shell, &service);
}

/// Makes roles, assignments, a key and services that none of the files states.
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

/// Checks that only what the files state, and what no file states, is left.
fn check_what_is_left(shell: &Shell, service: &str) {
    let names = |list: &Value| {
        let mut names: Vec<_> =
            list.as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&shell.json(&["service", "list"]))[..3], ["By hand", "Others", "Shop"]);
    assert_eq!(names(&shell.json(&["role", "list", "--service", service])), ["guest", "reader"]);
    let readers = shell.json(&["role", "holders", "reader", "--service", service]);
    assert_eq!(names(&readers), ["build-1", "stranger"]);
    let keys = shell.json(&["key", "list", "--service", service]);
    let live: Vec<_> = keys.as_array().unwrap().iter().filter(|key| key["revokedAt"].is_null()).collect();
    assert_eq!((live.len(), live[0]["name"].as_str()), (1, Some("by hand")));
}

#[tokio::test(flavor = "multi_thread")]
async fn prune_refuses_files_that_would_delete_too_much() {
    let (_control, shell, _agents) = start(&["build-1", "build-2"]).await;
    shell.stdout(&["apply", "-f", &write(&shell, "shop.yaml", SHOP_OF_TEAM)]);
    let service = service_id(&shell);
    let unnamed = write(&shell, "unnamed.yaml", &SHOP_OF_TEAM.replace("managedBy: team\n", ""));
    let (code, error) = shell.failure(&["apply", "-f", &unnamed, "--prune"]);
    assert!(code == 2 && error.contains("--prune needs `managedBy`"), "{error}");
    let (code, error) = shell.failure(&["apply", "-f", &write(&shell, "empty.yaml", "# nothing\n"), "--prune"]);
    assert!(code == 2 && error.contains("--prune needs a document"), "{error}");
    let nobody = write(&shell, "nobody.yaml", &SHOP_OF_TEAM.replace("'build-1'", "'typo-*'"));
    let (code, error) = shell.failure(&["apply", "-f", &nobody, "--prune"]);
    assert!(code == 1 && error.contains("none of your agents matches the name typo-*"), "{error}");
    let twice = format!("{SHOP_OF_TEAM}  - {{ name: Shop, id: {service} }}\n");
    let (code, error) = shell.failure(&["apply", "-f", &write(&shell, "twice.yaml", &twice)]);
    assert!(code == 1 && error.contains("is described by its name and by its id"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_replaces_no_file_and_is_not_lost() {
    let (_control, shell, _agents) = start(&["build-1"]).await;
    let refused = |keys: &str, expected: &str| {
        let text = format!("apiVersion: countersign/v1\nservices:\n  - name: Vault\n    keys: [{keys}]\n");
        let (code, error) = shell.failure(&["apply", "-f", &write(&shell, "vault.yaml", &text)]);
        assert!(code == 1 || code == 2, "{error}");
        assert!(error.contains(expected), "{expected}: {error}");
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
    assert_eq!(shell.json(&["apply", "-f", &team])["changes"], json!([]));
    assert_eq!(shell.json(&["apply", "-f", &unnamed])["changes"], json!([]), "files without a name take none away");
    let changing = SHOP_OF_TEAM.replace("managedBy: team\n", "").replace("[write]", "[write, list]");
    let (code, error) = shell.failure(&["apply", "-f", &write(&shell, "changing.yaml", &changing)]);
    assert!(code == 1 && error.contains("the role writer has managedBy team, and the file has none"), "{error}");

    let others = write(&shell, "others.yaml", &SHOP_OF_TEAM.replace("managedBy: team", "managedBy: others"));
    let (code, error) = shell.failure(&["apply", "-f", &others]);
    assert!(code == 1 && error.contains("the service Shop has managedBy team"), "{error}");
    assert_eq!(kinds(&shell.json(&["apply", "-f", &others, "--take-ownership"])), changed);
    assert_eq!(shell.json(&["apply", "-f", &others])["changes"], json!([]));
}

/// The first runs of the same files at the same time create one service, with one webhook and one key.
#[tokio::test(flavor = "multi_thread")]
async fn first_runs_at_the_same_time_create_nothing_twice() {
    let (_control, shell, _agents) = start(&["build-1"]).await;
    let file = write(&shell, "shop.yaml", SHOP_OF_TEAM);
    let run = |_| {
        let mut command = shell.command(&["--quiet", "apply", "-f", &file]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    for mut run in (0..4).map(run).collect::<Vec<_>>() {
        // A run that comes second fails if a webhook or a key exists meanwhile, because the other run has its secret.
        run.wait().unwrap();
    }
    assert_eq!(shell.json(&["apply", "-f", &file])["changes"], json!([]));
    let service = service_id(&shell);
    let webhooks = shell.json(&["webhook", "list", "--service", &service]);
    let keys = shell.json(&["key", "list", "--service", &service]);
    let live = keys.as_array().unwrap().iter().filter(|key| key["revokedAt"].is_null()).count();
    assert_eq!((webhooks.as_array().unwrap().len(), live), (1, 1), "{webhooks} {keys}");
}

/// Services with as many roles as one can have, and 10,000 assignments.
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
    for seconds in [1, 4] {
        let mut command = shell.command(&["--quiet", "apply", "-f", &file]);
        let mut run = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        tokio::time::sleep(std::time::Duration::from_secs(seconds)).await;
        run.kill().unwrap();
        run.wait().unwrap();
    }
    shell.stdout(&["apply", "-f", &file]);
    assert_eq!(shell.json(&["apply", "-f", &file, "--prune"])["changes"], json!([]));
    let services = shell.json(&["service", "list"]);
    let ids: Vec<_> = services.as_array().unwrap().iter().filter(|it| it["managedBy"] == "team").collect();
    assert_eq!(ids.len(), 4, "{services}");
    let service = ids[0]["serviceId"].as_str().unwrap();
    assert_eq!(shell.json(&["role", "list", "--service", service]).as_array().unwrap().len(), 250);
    assert_eq!(shell.json(&["role", "holders", "r249", "--service", service]).as_array().unwrap().len(), 10);
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
