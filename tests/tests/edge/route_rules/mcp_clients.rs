//! Tests unchanged MCP client libraries from package registries, with a real MCP server behind Envoy. A client is given only the
//! URL of the server, and the id and the key of its agent.

use super::Fixture;
use countersign_tests::{
    Agent, Envoy,
    envoy::with_long_check_timeout,
    eventually,
    process::{Process, free_port},
    tools,
};
use serde_json::json;
use std::{os::unix::fs::symlink, path::PathBuf};
use tokio::process::Command;

/// A program that uses a client library.
struct Library {
    interpreter: PathBuf,
    /// The path of the script in the repository.
    script: &'static str,
    /// The package that the script uses, if it can use several.
    package: Option<&'static str>,
}

/// A control plane, Envoy with a sidecar, an MCP server, and an agent that may only call one of its tools.
struct McpFixture {
    fixture: Fixture,
    envoy: Envoy,
    agent: Agent,
    _server: Process,
}

impl McpFixture {
    async fn start() -> Self {
        let example = |name| std::fs::read_to_string(tools::root().join("examples/mcp").join(name)).unwrap();
        let fixture = Fixture::start(&example("rules.toml")).await;
        let port = free_port();
        let mut command = std::process::Command::new(tools::python());
        command.arg(tools::root().join("examples/mcp/server.py")).arg(port.to_string());
        let server = Process::start(command, &fixture.folder.path().join("server.log"));
        let envoy =
            Envoy::start(&with_long_check_timeout(&example("envoy.yaml")), &fixture.sidecar.socket(), port).await;
        let control = &fixture.control;
        let body = json!({ "resourceUris": [format!("{}/mcp", envoy.listener.url)] });
        control.api.send_as(control.human(), "PATCH", &control.path(""), body).await.expect(200);
        let (agent, _) = Agent::with_role(control, "forecaster", &["weather:read"]).await;
        agent.key.write(&fixture.folder.path().join("agent.key")).unwrap();
        let is_ready = async || {
            let refused = envoy.listener.get("/mcp").await;
            let server_answers = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok();
            (server_answers && refused.header("www-authenticate").contains("resource_metadata")).then_some(())
        };
        eventually("the server and the sidecar are ready", is_ready, || server.log()).await;
        Self { fixture, envoy, agent, _server: server }
    }

    /// Calls tools with a client that may be configured with a scope. Returns the lines that the client prints.
    async fn call(&self, library: &Library, scope: Option<&str>, called: &[&str]) -> Vec<String> {
        // Put the script and its packages into one folder: Node.js looks for packages in the folders above a script.
        let folder = tempfile::tempdir().unwrap();
        let original = tools::root().join(library.script);
        let script = folder.path().join(original.file_name().unwrap());
        std::fs::copy(original, &script).unwrap();
        symlink(tools::root().join(".tools/npm-oauth/node_modules"), folder.path().join("node_modules")).unwrap();
        let authority = &self.fixture.control.env["CA"];
        let mut command = Command::new(&library.interpreter);
        command.env("NODE_EXTRA_CA_CERTS", authority).env("SSL_CERT_FILE", authority);
        command.envs(scope.map(|scope| ("SCOPE", scope)));
        command.arg(script).args(library.package).arg(format!("{}/mcp", self.envoy.listener.url)).arg(&self.agent.id);
        let output = command.arg(self.fixture.folder.path().join("agent.key")).args(called).output().await.unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{}: {printed}{}", library.script, String::from_utf8_lossy(&output.stderr));
        printed.lines().map(str::to_owned).collect()
    }

    /// Assigns the role that `delete_city` needs, and waits until the sidecar has it.
    async fn permit_deletions(&self, library: &Library) {
        let control = &self.fixture.control;
        control.assign(&self.agent.id, &control.create_role("administrator", &["weather:admin"]).await).await;
        let is_permitted = async || {
            let printed = self.call(library, None, &["delete_city"]).await;
            (printed.last()? == "delete_city: Oslo is removed.").then_some(())
        };
        eventually("the granted role permits the tool", is_permitted, || self.fixture.sidecar.log()).await;
    }

    async fn logins(&self) -> Option<f64> {
        self.fixture.control.metric(r#"countersign_authentications_total{result="ok"}"#).await
    }
}

async fn agent_calls_the_tools_that_its_roles_permit(library: Library) {
    let environment = McpFixture::start().await;
    // A refused tool must not cause a login. Otherwise, a client that tries many tools would reach the rate limit of logins.
    let refused = ["delete_city"; 12];
    let printed = environment.call(&library, None, &[&refused[..], &["get_weather"]].concat()).await;
    assert_eq!(printed.first().unwrap(), "tools: get_weather, delete_city");
    assert_eq!(printed.last().unwrap(), "get_weather: It is sunny in Oslo.");
    assert_eq!(printed.len(), 2 + refused.len());
    for line in &printed[1..=refused.len()] {
        let shows_why =
            line.starts_with("delete_city: refused: ") && line.contains("The agent lacks a required permission");
        assert!(shows_why, "{line}");
    }
    assert_eq!(environment.logins().await, Some(1.0));

    environment.permit_deletions(&library).await;
}

fn typescript(package: &'static str) -> Library {
    let script = "tests/clients/oauth/mcp_client.mjs";
    Library { interpreter: tools::node(), script, package: Some(package) }
}

#[tokio::test]
async fn python_sdk() {
    let library = Library { interpreter: tools::python(), script: "examples/mcp/client.py", package: None };
    agent_calls_the_tools_that_its_roles_permit(library).await;
}

#[tokio::test]
async fn typescript_sdk() {
    agent_calls_the_tools_that_its_roles_permit(typescript("@modelcontextprotocol/client")).await;
}

#[tokio::test]
async fn first_typescript_sdk() {
    agent_calls_the_tools_that_its_roles_permit(typescript("@modelcontextprotocol/sdk")).await;
}

/// The agent has the role that the tool needs, but its token has a scope without it. The client requests a token with a wider
/// scope.
#[tokio::test]
async fn typescript_sdk_asks_for_a_wider_scope() {
    let environment = McpFixture::start().await;
    let library = typescript("@modelcontextprotocol/client");
    environment.permit_deletions(&library).await;
    let before = environment.logins().await.unwrap();
    let printed = environment.call(&library, Some("weather:read"), &["get_weather", "delete_city"]).await;
    assert_eq!(printed[1..], ["get_weather: It is sunny in Oslo.", "delete_city: Oslo is removed."]);
    assert!(environment.logins().await.unwrap() > before + 1.0, "a login for each scope");
}
