//! `countersign agent exec`: the token endpoint for the program, and how the program runs.

use crate::agent_oauth::{self, RESOURCE, limits};
use countersign_tests::{
    ControlPlane, HttpClient, HttpResponse, Shell, command_line::parts, eventually, jwt, process::Process, tools,
};
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs, process::Stdio};

/// A program that writes its environment to the file `environment`, and runs until the file `stop` exists.
const WAITING: &str = "printenv >new && mv new environment; while [ ! -e stop ]; do sleep 0.1; done; exit 42";

const GRANT: (&str, &str) = ("grant_type", "client_credentials");

/// A control plane, a shell whose profile has an agent, and the id of the agent.
async fn start() -> (ControlPlane, Shell, String) {
    let control = ControlPlane::start_process().await;
    let shell = Shell::with_env(&control, &["URL", "CA"]);
    let agent = shell.register_agent();
    (control, shell, agent)
}

/// A request to a token endpoint, without a header for the client.
fn post(endpoint: &HttpClient, parameters: &[(&str, &str)]) -> RequestBuilder {
    let form = form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish();
    let request = endpoint.request("POST", "/oauth/token").body(form);
    request.header("content-type", "application/x-www-form-urlencoded")
}

/// A program that runs, and the requests that it can send.
struct Program {
    process: Process,
    environment: BTreeMap<String, String>,
    endpoint: HttpClient,
}

impl Program {
    async fn start(shell: &Shell, options: &[&str]) -> Self {
        let command = shell.command(&[&["agent", "exec"], options, &["--", "sh", "-c", WAITING]].concat());
        let process = Process::start(command, &shell.path("log"));
        let file = shell.path("environment");
        let text = async || fs::read_to_string(&file).ok();
        let text = eventually("the program runs", text, || process.log()).await;
        let variables = text.lines().filter_map(|line| line.split_once('='));
        let environment: BTreeMap<_, _> = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let endpoint = HttpClient::plain(environment["OAUTH_ISSUER"].clone());
        Self { process, environment, endpoint }
    }

    fn variable(&self, name: &str) -> &str {
        self.environment.get(name).map_or("", String::as_str)
    }

    /// A request for a token with these parameters.
    fn request(&self, parameters: &[(&str, &str)]) -> RequestBuilder {
        let request = post(&self.endpoint, parameters);
        request.basic_auth(self.variable("OAUTH_CLIENT_ID"), Some(self.variable("OAUTH_CLIENT_SECRET")))
    }

    async fn error(&self, parameters: &[(&str, &str)]) -> (u16, String) {
        let response = HttpResponse::send(self.request(&[&[GRANT], parameters].concat())).await;
        (response.status, response.text("/error").to_owned())
    }

    async fn token(&self, parameters: &[(&str, &str)]) -> Value {
        HttpResponse::send(self.request(&[&[GRANT], parameters].concat())).await.expect(200)
    }
}

#[tokio::test]
async fn a_program_gets_tokens_with_its_secret_and_its_exit_code_is_kept() {
    let (control, shell, agent) = start().await;
    let script = tools::root().join("tests/clients/oauth_program.py").display().to_string();
    let (code, lines, error) = parts(&shell.run(&["agent", "exec", "--", "python3", &script]));
    assert_eq!(code, 42, "{error}");
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let statuses: Vec<_> = lines.iter().map(|line| line["status"].clone()).collect();
    assert_eq!(statuses, [200, 200, 401]);
    let body = &lines[0]["body"];
    assert_eq!(body["access_token"], lines[1]["body"]["access_token"], "the token is used again");
    assert_eq!((&body["token_type"], &body["refresh_token"]), (&json!("Bearer"), &Value::Null));
    assert!(body["expires_in"].as_u64().is_some_and(|seconds| (3500..=3600).contains(&seconds)), "{body}");
    let token = body["access_token"].as_str().unwrap();
    assert_eq!(jwt::claims(token)["sub"], json!(agent));
    assert_eq!(control.verify(token).await.error().2, "token_revoked", "the session ends with the program");
    assert_eq!(lines[2]["body"]["error"], "invalid_client");
}

#[tokio::test]
async fn the_endpoint_answers_its_program_only() {
    let (_control, shell, agent) = start().await;
    let mut program = Program::start(&shell, &[]).await;
    assert_eq!(program.variable("OAUTH_CLIENT_ID"), agent);
    assert_eq!(program.variable("OAUTH_TOKEN_URL"), format!("{}/oauth/token", program.variable("OAUTH_ISSUER")));
    let metadata = HttpResponse::send(program.endpoint.request("GET", "/.well-known/oauth-authorization-server")).await;
    assert_eq!(metadata.expect(200)["token_endpoint"], json!(program.variable("OAUTH_TOKEN_URL")));

    let port = program.variable("OAUTH_ISSUER").rsplit_once(':').unwrap().1.to_owned();
    let other_secret = post(&program.endpoint, &[GRANT]).basic_auth(&agent, Some("other"));
    for (request, status) in [
        (other_secret, 401),
        (post(&program.endpoint, &[GRANT]), 401),
        (program.request(&[GRANT]).header("origin", "https://site.example"), 403),
        (program.request(&[GRANT]).header("origin", "null"), 403),
        (program.request(&[GRANT]).header("host", format!("site.example:{port}")), 421),
        (program.request(&[GRANT]).header("host", "127.0.0.1"), 421),
        (program.request(&[GRANT]).header("host", format!("localhost:{port}")), 200),
        (program.endpoint.request("GET", "/oauth/token"), 405),
        (program.endpoint.request("OPTIONS", "/oauth/token"), 405),
        (program.endpoint.request("POST", "/.well-known/oauth-authorization-server"), 405),
        (program.endpoint.request("GET", "/"), 404),
        (program.request(&[GRANT, ("padding", &"x".repeat(20_000))]), 413),
        (program.endpoint.request("POST", "/oauth/token").json(&json!({ "grant_type": "client_credentials" })), 400),
        (program.request(&[("grant_type", "refresh_token")]), 400),
    ] {
        let shown = format!("{request:?}");
        let response = HttpResponse::send(request).await;
        assert_eq!(response.status, status, "{shown}: {}", response.body);
        assert!(response.header("access-control-allow-origin").is_empty());
        assert_eq!(response.header("www-authenticate").starts_with("Basic "), status == 401, "{shown}");
        assert!(status == 200 || !response.body.to_string().contains("access_token"), "{}", response.body);
    }
    fs::write(shell.path("stop"), "").unwrap();
    assert_eq!(program.process.wait_for_exit().await.code(), Some(42));
    assert!(HttpResponse::try_send(program.request(&[GRANT])).await.is_none(), "the endpoint ends with the program");
}

#[tokio::test]
async fn the_secret_is_random_and_in_no_argument_list() {
    let (_control, mut shell, _) = start().await;
    shell.export("HTTP_PROXY", "http://127.0.0.1:1");
    shell.export("NO_PROXY", "host.example");
    shell.export("OAUTH_SCOPE", "of another program");
    let first = Program::start(&shell, &[]).await;
    assert_eq!([first.variable("NO_PROXY"), first.variable("no_proxy")], ["host.example,127.0.0.1"; 2]);
    assert!(!first.environment.contains_key("OAUTH_SCOPE") && !first.environment.contains_key("OAUTH_RESOURCE"));
    let secret = first.variable("OAUTH_CLIENT_SECRET");
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let arguments = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    let arguments: Vec<_> = arguments.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect();
    assert!(arguments.iter().any(|line| line.contains("mv new environment")), "the search works");
    assert!(!arguments.iter().any(|line| line.contains(secret)), "{arguments:?}");
    assert!(!first.process.log().contains(secret));
    fs::remove_file(shell.path("environment")).unwrap();
    let second = Program::start(&shell, &[]).await;
    assert_ne!(second.variable("OAUTH_CLIENT_SECRET"), secret);
}

#[tokio::test]
async fn without_limits_a_program_can_request_no_resource() {
    let (control, shell, _) = start().await;
    let program = Program::start(&shell, &["--service", control.service()]).await;
    assert_eq!(program.variable("OAUTH_RESOURCE"), control.service());
    assert_eq!(program.error(&[("resource", "https://mcp.example/")]).await, (400, "invalid_target".to_owned()));
    program.token(&[("resource", control.service())]).await;
}

#[tokio::test]
async fn errors_of_the_control_plane_are_those_of_oauth() {
    let (mut control, shell, agent) = start().await;
    let program = Program::start(&shell, &[]).await;
    control.set_status(&agent, "suspended").await.expect(200);
    assert_eq!(program.error(&[]).await, (400, "unauthorized_client".to_owned()));
    assert!(program.process.log().contains("warning: the program got no token: 403"), "{}", program.process.log());
    control.kill();
    assert_eq!(program.error(&[]).await, (503, "temporarily_unavailable".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_can_narrow_the_scope_of_the_command_and_not_widen_it() {
    let (server, shell) = agent_oauth::start().await;
    shell.stdout(&["agent", "login", "--oauth", "--scope", "read"]);
    let profile = fs::read(shell.profile_path("default.toml")).unwrap();
    let program = Program::start(&shell, &["--scope", "read write", "--resource", RESOURCE]).await;
    let variables = ["OAUTH_SCOPE", "OAUTH_RESOURCE"].map(|name| program.variable(name));
    assert_eq!(variables, ["read write", RESOURCE]);
    server.take_forms();

    assert_eq!(program.token(&[]).await["access_token"], program.variable("COUNTERSIGN_TOKEN"));
    assert_eq!(program.token(&[("scope", "write read"), ("resource", RESOURCE)]).await["scope"], "read write");
    assert_eq!(server.take_forms().len(), 0, "the token of the command is used again");
    for _ in 0..2 {
        assert_eq!(program.token(&[("scope", "read")]).await["scope"], "read");
    }
    assert_eq!(limits(&server.take_forms()), [format!("client_credentials | {RESOURCE} | read")]);
    for (parameters, code) in [
        (("scope", "read delete"), "invalid_scope"),
        (("scope", "delete"), "invalid_scope"),
        (("resource", "https://other.example/"), "invalid_target"),
        (("audience", "https://other.example/"), "invalid_target"),
    ] {
        assert_eq!(program.error(&[parameters]).await, (400, code.to_owned()), "{parameters:?}");
    }
    assert_eq!(server.take_forms().len(), 0, "the control plane gets no wider request");
    assert_eq!(fs::read(shell.profile_path("default.toml")).unwrap(), profile, "the profile is unchanged");
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_refreshed_before_they_expire_and_keep_their_limits() {
    let (server, shell) = agent_oauth::start().await;
    server.shared().expires_in = 0;
    let program = Program::start(&shell, &["--scope", "read"]).await;
    let first = program.token(&[]).await;
    assert_ne!(program.token(&[]).await["access_token"], first["access_token"]);
    server.end_session();
    program.token(&[]).await;
    let forms = limits(&server.take_forms());
    assert!(forms.iter().all(|line| line.ends_with(" | - | read")), "{forms:?}");
    assert_eq!(forms.iter().filter(|line| line.starts_with("client_credentials")).count(), 2, "{forms:?}");
}

#[tokio::test]
async fn signals_reach_the_program_and_decide_the_exit_code() {
    let (_control, shell, _) = start().await;
    let trap =
        "trap 'echo got TERM; exit 9' TERM; trap 'echo got INT; exit 8' INT; echo ready; while :; do sleep 0.1; done";
    for (script, signal, expected) in [
        (trap, "TERM", 9),
        (trap, "INT", 8),
        ("echo ready; exec sleep 60", "TERM", 128 + 15),
        ("echo ready; exec sleep 60", "HUP", 128 + 1),
    ] {
        // Reset the signals of the terminal: a shell lets background processes ignore them, and the program would inherit that.
        let exec = ["agent", "exec", "--", "sh", "-c", script];
        let command = shell.within("exec env --default-signal \"$@\"", &exec);
        let mut process = Process::start(command, &shell.new_path("log"));
        eventually("the program runs", async || process.log().contains("ready").then_some(()), || process.log()).await;
        process.signal(signal);
        assert_eq!(process.wait_for_exit().await.code(), Some(expected), "{script} {signal}");
    }
    assert_eq!(shell.failure(&["agent", "exec", "--", "sh", "-c", "kill -KILL $$"]).0, 128 + 9);
}

#[tokio::test]
async fn program_gets_no_credentials_of_people_and_services() {
    let (_control, mut shell, _) = start().await;
    for name in ["COUNTERSIGN_HUMAN_TOKEN", "COUNTERSIGN_SERVICE_KEY", "COUNTERSIGN_WEBHOOK_SECRET"] {
        shell.export(name, "a secret");
    }
    let environment = shell.stdout(&["agent", "exec", "--", "printenv"]);
    assert!(environment.contains("COUNTERSIGN_TOKEN=") && !environment.contains("a secret"), "{environment}");
}

#[tokio::test]
async fn signals_that_are_ignored_stay_ignored() {
    let (_control, shell, _) = start().await;
    let exec = ["agent", "exec", "--", "sh", "-c", "kill -HUP $$; echo alive"];
    let output = shell.within("trap '' HUP; exec \"$@\"", &exec).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "alive\n", "as with nohup");
}

/// After Ctrl-C, the terminal itself sends a signal to the program, so `agent exec` must not send it a second one.
#[tokio::test]
async fn interrupts_of_a_terminal_reach_the_program_once() {
    let (_control, shell, _) = start().await;
    let driver = r#"
import os, pty, signal, sys, time
program = """
import signal, sys, time
count = 0
def interrupted(*_):
    global count
    count += 1
signal.signal(signal.SIGINT, interrupted)
print("ready", flush=True)
end = time.monotonic() + 20
while not count and time.monotonic() < end: time.sleep(0.05)
time.sleep(0.5)
print("interrupts:", count, flush=True)
sys.exit(7)
"""
child, terminal = pty.fork()
if child == 0:
    os.execv(sys.argv[1], sys.argv[1:] + ["agent", "exec", "--", "python3", "-c", program])
shown = b""
sent = False
while True:
    try:
        part = os.read(terminal, 1024)
    except OSError:
        break
    if not part: break
    shown += part
    if b"ready" in shown and not sent:
        sent = True
        os.write(terminal, b"\x03")
print(shown.decode(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"#;
    fs::write(shell.path("driver"), driver).unwrap();
    let output = shell.within("exec python3 driver \"$@\"", &[]).stdin(Stdio::null()).output().unwrap();
    let (_, shown, error) = parts(&output);
    assert!(shown.contains("interrupts: 1") && shown.ends_with(" 7"), "{shown} {error}");
}
