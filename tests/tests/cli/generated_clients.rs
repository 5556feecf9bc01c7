//! Clients generated from the OpenAPI document verify a token: openapi-python-client, and openapi-typescript with openapi-fetch.

use countersign_tests::{Agent, ControlPlane, tools};
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

/// A control plane, an agent with a role, and a folder for a generated client.
struct Fixture {
    control: ControlPlane,
    agent: Agent,
    folder: TempDir,
}

impl Fixture {
    async fn new() -> Self {
        let control = ControlPlane::start().await;
        let (agent, _role) = Agent::with_role(&control, "reader", &["read"]).await;
        let folder = tempfile::tempdir().expect("a folder");
        let description = control.api.get("/openapi.json").await.expect(200);
        std::fs::write(folder.path().join("openapi.json"), description.to_string()).expect("the document is written");
        Self { control, agent, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Calls the generated client with the agent's token and with a malformed one, and compares what it prints.
    async fn assert_verifies(&self, program: &Path, arguments: &[PathBuf]) {
        let verified = json!({ "id": self.agent.id, "roles": ["reader"] });
        let refused = json!({ "code": "AUTHENTICATION_FAILED" });
        for (token, expected) in [(self.agent.token().await, verified), ("malformed".to_owned(), refused)] {
            let mut command = Command::new(program);
            command.args(arguments).env("AGENT_TOKEN", token).env("COUNTERSIGN_URL", &self.control.env["URL"]);
            command.env("SERVICE_ID", self.control.service()).env("SERVICE_KEY", self.control.key());
            command.env("COUNTERSIGN_CA", &self.control.env["CA"]).env("NODE_EXTRA_CA_CERTS", &self.control.env["CA"]);
            let printed: Value = serde_json::from_str(&run(&mut command)).expect("JSON");
            assert_eq!(printed, expected);
        }
    }
}

/// Runs a command, which must succeed, and returns its standard output.
fn run(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{out}\n{errors}");
    out.into_owned()
}

fn npm_script(path: &str) -> PathBuf {
    tools::root().join(".tools/npm/node_modules").join(path)
}

#[tokio::test]
async fn generated_python_client_verifies_a_token() {
    let fixture = Fixture::new().await;
    let mut generate = Command::new(tools::python_program("openapi-python-client"));
    generate.args(["generate", "--fail-on-warning", "--meta", "none", "--path"]).arg(fixture.path("openapi.json"));
    generate.arg("--output-path").arg(fixture.path("countersign_api"));
    // The generator formats its output with ruff, which it looks up on the PATH.
    run(generate.env("PATH", tools::root().join(".tools/venv/bin")));
    let script = tools::root().join("tests/clients/generated.py");
    fixture.assert_verifies(&tools::python(), &[script, fixture.folder.path().to_owned()]).await;
}

#[tokio::test]
async fn generated_typescript_client_verifies_a_token() {
    let fixture = Fixture::new().await;
    let (node, sources) = (tools::node(), tools::root().join("tests/clients/typescript"));
    for name in ["verify.ts", "package.json"] {
        std::fs::copy(sources.join(name), fixture.path(name)).expect("the file is copied");
    }
    std::os::unix::fs::symlink(npm_script(""), fixture.path("node_modules")).expect("a link");
    let in_folder = |script: &str, arguments: &[&str]| {
        run(Command::new(&node).arg(npm_script(script)).args(arguments).current_dir(fixture.folder.path()));
    };
    in_folder("openapi-typescript/bin/cli.js", &["openapi.json", "--output", "api.d.ts"]);
    in_folder(
        "typescript/bin/tsc",
        &["--strict", "--target", "es2022", "--module", "nodenext", "--skipLibCheck", "verify.ts"],
    );
    fixture.assert_verifies(&node, &[fixture.path("verify.js")]).await;
}
