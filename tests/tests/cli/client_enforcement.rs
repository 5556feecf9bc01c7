//! `countersign sidecar list`, and commands that wait until a change is in force.

use crate::control_and_shell;
use countersign_tests::{
    Agent, ControlPlane, Shell, Sidecar,
    command_line::{ALL, parts},
    eventually,
};
use serde_json::{Value, json};

/// A control plane with a sidecar, and the command line of the owner of the service and the agent.
struct Fixture {
    control: ControlPlane,
    sidecar: Sidecar,
    shell: Shell,
    agent: Agent,
    token: String,
}

impl Fixture {
    async fn new(settings: &[&str]) -> Self {
        let control = ControlPlane::start_with(settings).await;
        let sidecar = Sidecar::start(&control).await;
        let shell = Shell::with_env(&control, &ALL);
        shell.stdout(&["role", "create", "reader", "--permission", "read"]);
        let agent = Agent::register(&control, "agent").await;
        shell.stdout(&["role", "assign", "reader", &agent.id, "--wait"]);
        let token = agent.token().await;
        Self { control, sidecar, shell, agent, token }
    }

    async fn check(&self) -> (u16, String) {
        let result = self.sidecar.check_token(&self.token).await;
        (result.status, result.reason)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_return_when_the_change_is_in_force() {
    let fixture = Fixture::new(&[]).await;
    let (shell, agent) = (&fixture.shell, fixture.agent.id.as_str());
    assert_eq!(fixture.check().await.0, 200);
    let listed = shell.json(&["sidecar", "list"]);
    assert_eq!((&listed[0]["status"], listed.as_array().unwrap().len()), (&json!("connected"), 1), "{listed}");
    let table = shell.stdout(&["sidecar", "list"]);
    assert!(table.starts_with("INSTANCE") && table.contains(listed[0]["instance"].as_str().unwrap()), "{table}");

    for (arguments, reason) in [
        (["role", "revoke", "reader", agent], "no_role"),
        (["role", "assign", "reader", agent], ""),
        (["agent", "suspend", agent, "--wait=20s"], "agent_suspended"),
        (["agent", "reactivate", agent, "--wait=20s"], "token_revoked"),
    ] {
        let output = shell.stdout(&[&arguments[..], &["--wait"][..usize::from(arguments[0] == "role")]].concat());
        assert!(output.contains("enforced") && output.contains("at 1 of 1 sidecar within "), "{output}");
        assert_eq!(fixture.check().await.1, reason, "{arguments:?}");
    }

    let token = fixture.agent.token().await;
    assert_eq!(fixture.sidecar.check_token(&token).await.status, 200);
    let revoked = shell.json(&["token", "revoke", &token, "--wait"]);
    assert_eq!((&revoked["enforcement"]["enforced"], &revoked["enforcement"]["sidecars"]), (&json!(true), &json!(1)));
    assert_eq!(fixture.sidecar.check_token(&token).await.reason, "token_revoked", "{revoked}");
}

#[tokio::test(flavor = "multi_thread")]
async fn command_names_the_silent_sidecar_and_repeats_nothing() {
    let fixture = Fixture::new(&["sync.max_staleness_seconds=600"]).await;
    fixture.sidecar.signal("STOP");
    let revoke = ["role", "revoke", "reader", &fixture.agent.id, "--wait=1s"];
    let unconfirmed = "in force at 0 of 1 sidecar; not confirmed by ";
    let texts = ["the change is done and committed", unconfirmed, "refuses all requests"];
    let error = fixture.shell.assert_fails(1, &revoke, &texts);
    let (_, next) = error.split_once("Next: countersign sidecar wait ").unwrap_or_else(|| panic!("{error}"));
    let revision = next.split(' ').next().unwrap().to_owned();
    let next = format!("Next: countersign sidecar wait {revision} --timeout 1s");
    fixture.shell.assert_fails(1, &["sidecar", "wait", &revision, "--timeout", "1s"], &[&next]);
    let (_, error) = fixture.shell.failure(&["sidecar", "wait", "9007199254740991"]);
    assert!(error.contains("above the newest change") && !error.contains("done and committed"), "{error}");
    assert!(error.contains("has its `revision`") && !error.contains("role list"), "{error}");
    let unreachable = ["sidecar", "wait", &revision, "--server", "https://localhost:1"];
    fixture.shell.assert_fails(4, &unreachable, &["cannot reach"]);
    let (code, printed, _) = parts(&fixture.shell.run(&[&["-o", "json"], &revoke[..]].concat()));
    let printed: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((code, &printed["enforcement"]["enforced"]), (1, &json!(false)), "{printed}");
    assert_eq!(printed["revoked"], false, "the first command has revoked the role");
    fixture.sidecar.signal("CONT");
    fixture.sidecar.wait_for_check(&fixture.token, |result| result.reason == "no_role").await;
    let waited = async || {
        fixture.shell.run(&["role", "revoke", "reader", &fixture.agent.id, "--wait"]).status.success().then_some(())
    };
    eventually("the change is in force", waited, || fixture.control.log()).await;
}

#[tokio::test]
async fn waiting_for_a_change_of_an_agent_needs_a_service_and_a_credential_that_may_read_the_receipt() {
    let (control, mut shell) = control_and_shell(&["URL", "CA", "HUMAN_TOKEN"]).await;
    let agent = Agent::register(&control, "agent").await;
    shell.assert_fails(2, &["agent", "suspend", &agent.id, "--wait"], &["COUNTERSIGN_SERVICE_ID"]);
    shell.export("COUNTERSIGN_SERVICE_ID", control.service());
    shell.export("COUNTERSIGN_SERVICE_KEY", &control.create_key(control.service(), "sync").await);
    let error = shell.assert_fails(3, &["agent", "suspend", &agent.id, "--wait"], &[]);
    assert!(!error.contains("done and committed"), "{error}");
    shell.assert_fails(2, &["role", "revoke", "reader", &agent.id, "--wait=0s"], &["--wait"]);
    agent.login().await;
}

#[tokio::test]
async fn change_of_a_service_without_sidecars_is_in_force_at_once() {
    let (_control, shell) = control_and_shell(&["URL", "CA", "SERVICE_ID", "SERVICE_KEY"]).await;
    assert_eq!(shell.stdout(&["sidecar", "list"]).lines().count(), 1, "only the header");
    shell.stdout(&["role", "create", "reader", "--permission", "read"]);
    let output = shell.stdout(&["role", "delete", "reader", "--yes", "--wait"]);
    assert!(output.contains("no sidecar is connected"), "{output}");
}
