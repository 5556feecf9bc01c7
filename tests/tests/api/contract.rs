//! Tests that the API conforms to its OpenAPI document. Schemathesis generates valid and invalid requests and checks the responses.
//!
//! The configuration and hooks of Schemathesis are in `tests/contract`.

use countersign_tests::{Agent, ControlPlane, description, tools};
use secrecy::ExposeSecret;
use std::{
    fs,
    process::{Command, Output},
};

/// Maximum number of generated requests for an operation in each phase.
const EXAMPLES: &str = "10";

#[test]
fn openapi_document_is_valid() {
    let output = Command::new(tools::python_program("openapi-spec-validator"))
        .arg(tools::root().join("docs/openapi.json"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", output_text(&output));
}

#[tokio::test]
async fn api_conforms_to_its_openapi_document() {
    let control = ControlPlane::start_with(&["quotas.keys_per_service=1000000"]).await;
    let agent = Agent::register(&control, "Agent").await;
    let role = control.assign_new_role(&agent.id, "reader", &["read"]).await;
    let token = agent.login().await.access_token.expose_secret().to_owned();
    let spare = Agent::register(&control, "Spare").await;
    let folder = tempfile::tempdir().unwrap();
    for name in ["schemathesis.toml", "hooks.py"] {
        fs::copy(tools::root().join("tests/contract").join(name), folder.path().join(name)).unwrap();
    }
    let mut schemathesis = Command::new(tools::python_program("st"));
    schemathesis.current_dir(folder.path()).args(["run", "--max-examples", EXAMPLES, "--phases"]);
    schemathesis.arg("examples,coverage,fuzzing,stateful").arg(format!("{}/openapi.json", control.api.url));
    schemathesis.envs(control.env.iter().map(|(name, value)| (format!("COUNTERSIGN_{name}"), value)));
    // Replaces the certificate authorities of the machine with the development CA.
    schemathesis.env("REQUESTS_CA_BUNDLE", &control.env["CA"]).env("PYTHONDONTWRITEBYTECODE", "1");
    schemathesis.env("AGENT_ID", &agent.id).env("AGENT_TOKEN", token).env("ROLE_ID", role);
    schemathesis.env("SPARE_AGENT_ID", &spare.id);
    let output = tokio::task::spawn_blocking(move || schemathesis.output().unwrap()).await.unwrap();
    assert!(output.status.success(), "{}", output_text(&output));
    let printed = output_text(&output);
    let openapi = description::openapi();
    // Schemathesis tests all operations except the operation that returns the OpenAPI document.
    let count = description::operations(&openapi).count() - 1;
    assert!(printed.contains(&format!("Tested: {count}\n")), "not all {count} operations were tested: {printed}");
}

fn output_text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
