//! People who share a control plane: quotas, offers of services, and things that somebody deleted or left.

use countersign_tests::{ControlPlane, Shell};
use serde_json::json;

/// A control plane, and the command line of a person.
fn shell_of(control: &ControlPlane, person: &str) -> Shell {
    let mut shell = Shell::with_env(control, &["URL", "CA"]);
    shell.export("COUNTERSIGN_HUMAN_TOKEN", &control.mint_human(person));
    shell
}

fn register(shell: &Shell, name: &str) -> String {
    shell.stdout(&["agent", "register", "--email", "a@example.org", "--name", name])
}

/// Asserts that a command fails, and that the next step contains these texts. Runs the command that the next step names in
/// backticks.
#[track_caller]
fn assert_next(shell: &Shell, code: i32, arguments: &[&str], expected: &[&str]) {
    let error = shell.assert_fails(code, arguments, &["\nNext: "]);
    let next = error.split_once("\nNext: ").map(|(_, next)| next.trim_end()).unwrap_or_default();
    assert!(expected.iter().all(|text| next.contains(text)), "{arguments:?}, expected {expected:?}: {error}");
    let command = next.split('`').nth(1);
    if let Some(command) = command.filter(|command| !command.contains(|it: char| it.is_ascii_uppercase())) {
        shell.stdout(&command.split(' ').collect::<Vec<_>>()[1..]);
    }
}

/// The quota of webhooks, which no setting changes.
const WEBHOOKS_PER_SERVICE: usize = 10;

#[tokio::test]
async fn refusals_of_quotas_name_the_next_step_and_the_setting() {
    let settings = [
        "quotas.services_per_person=1",
        "quotas.agents_per_person=1",
        "quotas.keys_per_service=1",
        "registration.public_agents=1",
    ];
    let control = ControlPlane::start_with(&settings).await;
    let mut shell = shell_of(&control, "alice");
    let service = shell.stdout(&["service", "create", "Shop"]);
    let services = ["`countersign service list`", "quotas.services_per_person"];
    assert_next(&shell, 1, &["service", "create", "Other"], &services);
    shell.stdout(&["agent", "keygen"]);
    register(&shell, "First");
    let second = ["agent", "register", "--email", "a@example.org", "--name", "Second"];
    assert_next(&shell, 1, &second, &["`countersign agent list`", "quotas.agents_per_person"]);
    let key = ["key", "create", "--scope", "sync", "--service", &service];
    shell.stdout(&key);
    let list = format!("`countersign key list --service {service}`");
    assert_next(&shell, 1, &key, &[&list, "quotas.keys_per_service"]);
    let webhook = ["webhook", "create", "http://127.0.0.1:9999/", "--out"];
    for number in 1..=WEBHOOKS_PER_SERVICE {
        shell.stdout(&[&webhook[..], &[&*format!("secret-{number}")]].concat());
    }
    let list = format!("`countersign webhook list --service {service}` shows the webhooks");
    assert_next(&shell, 1, &[&webhook[..], &["refused"]].concat(), &[&list, "change or delete one"]);
    assert_next(&shell, 1, &["webhook", "listen"], &[&list]);
    assert!(!shell.path("refused").exists());
    shell.unset("COUNTERSIGN_HUMAN_TOKEN");
    register(&shell, "Public");
    assert_next(&shell, 1, &second, &["countersign login", "registration.public_agents"]);
}

#[tokio::test]
async fn refusal_to_create_a_service_names_the_setting_and_the_required_access() {
    let control = ControlPlane::start_with(&["services.created_by=admin"]).await;
    let shell = shell_of(&control, "alice");
    let error =
        shell.assert_fails(3, &["service", "create", "Shop"], &["the setting `services.created_by` is `admin`"]);
    assert!(error.contains("\nNext: ask an administrator to create the service and to transfer it to you"), "{error}");
}

#[tokio::test]
async fn service_that_an_agent_left_learns_who_can_readmit_it() {
    let control = ControlPlane::start().await;
    let (owner, manager) =
        (shell_of(&control, "alice"), Shell::with_env(&control, &["URL", "CA", "SERVICE_ID", "SERVICE_KEY"]));
    owner.stdout(&["agent", "keygen"]);
    let (agent, service) = (register(&owner, "Leaving"), control.service());
    manager.stdout(&["role", "create", "reader"]);
    manager.stdout(&["role", "assign", "reader", &agent]);
    let left = owner.stdout(&["agent", "leave", &agent, service]);
    assert!(left.contains("Roles ended: 1.\nrevision "), "{left}");
    let assign = ["--profile", "other", "role", "assign", "reader", &agent];
    let readmit = format!("the owner of the agent can run: countersign agent readmit {agent} {service}");
    assert_next(&manager, 1, &assign, &[&readmit]);
    assert_eq!(manager.json_error(&assign)["reason"], "agent_left");
    owner.stdout(&["agent", "readmit", &agent, service]);
    manager.stdout(&assign);
    let services = format!("`countersign agent services {agent}`");
    assert_next(&owner, 3, &["agent", "leave", &agent, "svc_00000000000000000000000000"], &[&services]);
    let all = Shell::with_env(&control, &["URL", "CA", "HUMAN_TOKEN"]).stdout(&["audit", "list", "--all-services"]);
    let (header, entries) = all.split_once('\n').unwrap_or_default();
    assert!(header.split_whitespace().nth(2) == Some("SERVICE"), "{all}");
    let entry = |action: &str| entries.lines().find(|line| line.contains(action)).unwrap_or_default();
    assert!(entry("role.assigned").split_whitespace().nth(2) == Some(service), "{all}");
    assert!(entry("agent.left").ends_with(service), "the service is the object: {all}");
}

#[tokio::test]
async fn unknown_and_deleted_agents_have_a_next_step() {
    let control = ControlPlane::start().await;
    let shell = shell_of(&control, "alice");
    let unknown = "agent_00000000000000000000000000";
    for arguments in [
        &["agent", "services", unknown][..],
        &["agent", "leave", unknown, control.service()],
        &["agent", "readmit", unknown, control.service()],
        &["agent", "suspend", unknown],
        &["agent", "delete", unknown, "--yes"],
    ] {
        assert_next(&shell, 3, arguments, &["`countersign agent list`"]);
    }
    shell.assert_fails(2, &["agent", "show", unknown], &["the API key of a service is not set"]);
    shell.stdout(&["agent", "keygen"]);
    let agent = register(&shell, "Old");
    shell.stdout(&["agent", "delete", &agent, "--yes"]);
    assert_next(&shell, 3, &["agent", "login"], &["`countersign agent register --email YOU@EXAMPLE.ORG --name NAME`"]);
    assert_ne!(register(&shell, "Old"), agent);
    shell.stdout(&["agent", "login"]);
}

#[tokio::test]
async fn offers_state_both_persons_and_what_they_replace() {
    let control = ControlPlane::start().await;
    let [alice, bob, carol] = ["alice", "bob", "carol"].map(|person| shell_of(&control, person));
    let service = alice.stdout(&["service", "create", "Shop"]);
    let transfer = |more: &[&'static str]| [&["service", "transfer", service.as_str()][..], more].concat();
    let note = alice.notes(&[&["--profile", "work"][..], &transfer(&["--to", "bob"])].concat());
    assert_eq!(note, format!("Next: as the new owner, countersign service transfer {service} --accept\n"));
    let listed = bob.stdout(&["service", "transfer"]);
    let lines: Vec<Vec<_>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((lines[0][2], lines[1][2]), ("FROM", "alice"), "{listed}");
    let alice_identity = json!({ "issuer": "urn:countersign:operator", "subject": "alice" });
    assert_eq!(bob.json(&["service", "transfer"])[0]["offeredBy"], alice_identity);

    let shown = alice.json(&["service", "describe", &service]);
    assert_eq!((&shown["owner"], &shown["offeredTo"]["subject"]), (&alice_identity, &json!("bob")));
    let shown = alice.stdout(&["service", "show", &service]);
    assert!(shown.contains("\nowner           alice\n") && shown.contains("\noffered to      bob\n"), "{shown}");
    assert!(!alice.stdout(&transfer(&["--to", "bob"])).contains("replaces"), "the same offer");
    let replacing = alice.stdout(&transfer(&["--to", "carol"]));
    assert!(replacing.contains("replaces the offer to  bob"), "{replacing}");

    bob.assert_fails(3, &transfer(&["--accept"]), &["The service is not offered to you (required: access receiver;"]);
    assert_next(&bob, 3, &transfer(&["--accept"]), &["`countersign service transfer`"]);
    assert_next(&bob, 3, &transfer(&["--withdraw"]), &["`countersign service transfer`"]);
    let (_, error) = bob.failure(&transfer(&[]));
    assert!(error.contains("access owner or administrator or receiver"), "{error}");
    let lists = ["`countersign service list`", "`countersign service transfer`"];
    assert_next(&bob, 2, &["service", "transfer", "--accept"], &lists);
    let declined = carol.json(&transfer(&["--decline"]));
    assert_eq!(declined, json!({ "withdrawn": true, "declined": true, "serviceId": service }));
    let offer = format!("{service} --to SUBJECT");
    assert_next(&alice, 3, &transfer(&["--withdraw"]), &["`countersign service transfer`", &offer]);
    alice.stdout(&transfer(&["--to", "bob"]));
    let withdrawn = alice.stdout(&transfer(&["--withdraw"]));
    assert!(withdrawn.contains("withdrawn  true"), "{withdrawn}");
    assert_eq!(alice.json(&["service", "show"])["offeredTo"], json!(null));

    alice.stdout(&transfer(&["--to", "bob"]));
    bob.stdout(&["service", "create", "Another service, which is that of the profile"]);
    let note = bob.notes(&transfer(&["--accept"]));
    for next in ["key list", "webhook list"] {
        assert!(note.contains(&format!("\nNext: countersign {next} --service {service}\n")), "{note}");
        let words: Vec<_> = next.split(' ').chain(["--service", &service]).collect();
        bob.stdout(&words);
    }
}

#[tokio::test]
async fn offer_to_a_person_of_an_unknown_issuer_is_refused() {
    let control = ControlPlane::start().await;
    let shell = shell_of(&control, "alice");
    let service = shell.stdout(&["service", "create", "Shop"]);
    let offer = ["service", "transfer", &service, "--to", "bob", "--to-issuer", "https://login.example.com"];
    let error = shell.assert_fails(2, &offer, &["this control plane accepts: urn:countersign:operator"]);
    assert!(error.contains("\nNext: correct --to-issuer"), "{error}");
    let known = [&offer[..6], &["urn:countersign:operator"]].concat();
    shell.stdout(&known);
}

#[tokio::test]
async fn profiles_with_a_deleted_service_have_a_next_step() {
    let control = ControlPlane::start().await;
    let [shell, other] = [shell_of(&control, "alice"), shell_of(&control, "alice")];
    shell.stdout(&["agent", "keygen"]);
    let agent = register(&shell, "Agent");
    let service = shell.stdout(&["service", "create", "Shop"]);
    shell.stdout(&["agent", "login", "--service", &service]);
    // Another machine deletes the service, so the profile of this machine still names it.
    other.stdout(&["service", "delete", &service, "--yes"]);
    let stale = format!("the profile default uses the service {service}");
    assert_next(&shell, 3, &["key", "list"], &[&stale, "pass --service", "`countersign service list`"]);
    let stale = format!("the profile default logs in for the service {service}");
    assert_next(&shell, 3, &["agent", "login"], &[&stale, "`countersign agent login --no-service`"]);
    assert_eq!(shell.json(&["agent", "show"])["audience"], json!(null), "the command of the next step was run");
    shell.stdout(&["agent", "login"]);

    let service = shell.stdout(&["service", "create", "Shop"]);
    shell.stdout(&["agent", "login", "--service", &service]);
    shell.assert_fails(2, &["agent", "login", "--service", &service, "--no-service"], &["--no-service"]);
    shell.stdout(&["service", "delete", &service, "--yes"]);
    let shown = shell.json(&["agent", "show"]);
    assert_eq!((&shown["audience"], &shown["serviceId"]), (&json!(null), &json!(null)), "{agent}");
}
