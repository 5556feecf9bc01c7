//! Logins of agents over the OAuth token endpoint: what the command requests, stores and shows.

use crate::control_and_shell;
use countersign_client::PrivateKey;
use countersign_identity::P256PublicKey;
use countersign_tests::{Agent, Shell, TokenServer, command_line::parts, jwt, token_server::Form};
use serde_json::{Value, json};
use std::fs;

pub const AGENT: &str = "agent_01jyd3rqawfd15ypgw5mz4yjkb";
pub const RESOURCE: &str = "https://mcp.example/";
const SERVICE: &str = "svc_00000000000000000000000001";

/// A server that knows the agent of the profile.
pub async fn start() -> (TokenServer, Shell) {
    let (key, shell) = (PrivateKey::generate(), Shell::new());
    let server = TokenServer::start(P256PublicKey::from_pem(&key.public_pem().unwrap()).unwrap()).await;
    let [key_path, ca] = ["agent.key", "ca.pem"].map(|name| shell.path(name));
    key.write(&key_path).unwrap();
    fs::write(&ca, &server.certificate).unwrap();
    let (key_path, ca) = (key_path.display(), ca.display());
    let profile = format!("url = \"{}\"\nca = \"{ca}\"\nagent = \"{AGENT}\"\nkey = \"{key_path}\"\n", server.url);
    fs::create_dir(shell.profile_path("")).unwrap();
    fs::write(shell.profile_path("default.toml"), profile).unwrap();
    (server, shell)
}

/// For each request, its grant type and the parameters that limit its tokens.
pub fn limits(forms: &[Form]) -> Vec<String> {
    let text = |form: &Form, name: &str| form.get(name).cloned().unwrap_or_else(|| "-".to_owned());
    let line = |form| ["grant_type", "resource", "scope"].map(|name| text(form, name)).join(" | ");
    forms.iter().map(line).collect()
}

fn token_scope(token: &str) -> Value {
    jwt::claims(token)["scope"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_request_of_a_session_keeps_its_scope_and_resource() {
    let (server, shell) = start().await;
    let login = ["agent", "login", "--oauth", "--scope", "write read", "--resource", RESOURCE];
    let printed = shell.json(&login);
    assert_eq!((&printed["scope"], &printed["agentId"]), (&json!("read write"), &json!(AGENT)));
    assert_eq!(token_scope(&shell.stdout(&["agent", "refresh"])), "read write");
    assert_eq!(token_scope(&shell.stdout(&["agent", "login"])), "read write", "the profile saves the options");
    server.end_session();
    assert_eq!(token_scope(&shell.stdout(&["agent", "refresh"])), "read write", "a new login replaces the session");
    let by_exec = shell.stdout(&["agent", "exec", "--", "printenv", "COUNTERSIGN_TOKEN"]);
    assert_eq!(token_scope(&by_exec), "read write", "exec uses the stored session");

    let limited = |grant: &str| format!("{grant} | {RESOURCE} | read write");
    let [login, refresh] = ["client_credentials", "refresh_token"].map(limited);
    assert_eq!(limits(&server.take_forms()), [&login, &refresh, &login, &refresh, &login].map(String::clone));

    let shown = shell.json(&["agent", "show"]);
    assert_eq!((&shown["resource"], &shown["scope"]), (&json!(RESOURCE), &json!("read write")));
    assert_eq!((&shown["login"], &shown["tokenScope"]), (&json!("oauth"), &json!("read write")));
}

#[tokio::test(flavor = "multi_thread")]
async fn options_replace_the_saved_limits_and_wider_ones_are_announced() {
    let (server, shell) = start().await;
    let announcement = "no longer limited to the scope `read`";
    let run = |arguments: &[&str]| shell.notes(&[&["agent", "login"], arguments].concat());
    assert_eq!(run(&["--oauth", "--scope", "read"]), "Granted scope: read\n");
    assert!(!run(&["--service", SERVICE]).contains(announcement));
    assert!(!run(&["--resource", RESOURCE, "--oauth", "--scope", "read"]).contains(announcement));
    let wider = run(&["--oauth", "--no-service"]);
    assert!(wider.contains(announcement) && wider.contains("Granted scope: delete read write"), "{wider}");
    let expected = ["- | read", &format!("{SERVICE} | read"), &format!("{RESOURCE} | read"), "- | -"];
    assert_eq!(limits(&server.take_forms()), expected.map(|line| format!("client_credentials | {line}")));
}

#[tokio::test(flavor = "multi_thread")]
async fn less_than_requested_is_a_warning_and_more_is_an_error() {
    let (server, shell) = start().await;
    server.shared().held = "read".parse().unwrap();
    let arguments = ["agent", "login", "--oauth", "--scope", "read write"];
    let warning = shell.notes(&arguments);
    assert!(warning.contains("warning: ") && warning.contains("`write`"), "{warning}");
    assert!(warning.ends_with("Granted scope: read\n"), "{warning}");
    assert_eq!(token_scope(&shell.stdout(&["agent", "refresh"])), "read");
    let requests: Vec<_> = server.take_forms().into_iter().map(|form| form["grant_type"].clone()).collect();
    let expected = ["client_credentials", "refresh_token", "client_credentials"];
    assert_eq!(requests, expected, "a strict server refuses the refresh");

    server.shared().held = "".parse().unwrap();
    assert!(shell.notes(&["agent", "login"]).contains("Granted scope: none"));

    (server.shared().held, server.shared().ignores_scope) = ("read write delete".parse().unwrap(), true);
    let before = fs::read(shell.profile_path("default.tokens.json")).unwrap();
    shell.assert_fails(1, &arguments, &["not requested: `delete`", "\nNext: "]);
    assert_eq!(fs::read(shell.profile_path("default.tokens.json")).unwrap(), before, "the tokens are discarded");
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_without_token_endpoint_and_refusals_have_clear_errors() {
    let (server, shell) = start().await;
    server.shared().metadata.as_object_mut().unwrap().remove("token_endpoint");
    let error = shell.assert_fails(1, &["agent", "login", "--oauth"], &["that Countersign does not send"]);
    assert!(error.contains("\nNext: is --server (COUNTERSIGN_URL) the URL of a control plane?"), "{error}");
    assert_eq!(server.take_forms().len(), 0, "no assertion is sent");
    assert!(!fs::read_to_string(shell.profile_path("default.toml")).unwrap().contains("oauth"), "nothing is saved");

    server.shared().metadata["token_endpoint"] = json!("https://other.example/oauth/token");
    let other = PrivateKey::generate();
    let path = shell.path("other.key");
    other.write(&path).unwrap();
    let login = ["agent", "login", "--oauth", "--key", path.to_str().unwrap()];
    shell.assert_fails(1, &login, &["invalid_client: refused by the test", "\nNext: does this key belong"]);
    assert_eq!(server.take_forms().len(), 1, "an assertion is sent to the server of the profile only");
}

#[test]
fn scope_and_resource_need_oauth() {
    let shell = Shell::new();
    for (arguments, problem) in [
        (&["--scope", "read"][..], "--scope needs --oauth"),
        (&["--resource", RESOURCE], "--resource needs --oauth"),
        (&["--no-oauth", "--scope", "read"], "--scope needs --oauth"),
        (&["--oauth", "--no-oauth"], "cannot be used with"),
        (&["--oauth", "--resource", RESOURCE, "--service", SERVICE], "cannot be used with"),
        (&["--oauth", "--resource", SERVICE], "pass the id of a service with --service"),
        (&["--oauth", "--scope", ""], "at least one permission"),
        (&["--oauth", "--scope", "a,b"], "without a comma"),
    ] {
        shell.assert_fails(2, &[&["agent", "login"], arguments].concat(), &[problem, "\nNext: "]);
    }
}

#[tokio::test]
async fn no_oauth_returns_to_the_login_with_a_challenge() {
    let (_control, shell) = control_and_shell(&["URL", "CA"]).await;
    let agent = shell.register_agent();
    let path = shell.profile_path("default.toml");
    let profile = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{profile}\n[oauth]\nscope = \"read\"\n")).unwrap();
    let (code, token, note) = parts(&shell.run(&["agent", "login", "--no-oauth"]));
    assert!(code == 0 && note.contains("no longer limited to the scope `read`"), "{note}");
    assert_eq!(jwt::claims(&token)["sub"], json!(agent));
    assert_eq!(fs::read_to_string(&path).unwrap(), profile);
}

#[tokio::test]
async fn control_plane_narrows_sessions_and_keeps_them_narrow() {
    let (control, shell) = control_and_shell(&["URL", "CA"]).await;
    let agent = shell.register_agent();
    control.assign(&agent, &control.create_role("editor", &["read", "write"]).await).await;
    let service = control.service();
    let permissions = async |token: &str| control.verify(token).await.expect(200)["agent"]["permissions"].clone();

    let wide = shell.json(&["agent", "login", "--oauth", "--service", service]);
    assert_eq!(wide["scope"], "read write");
    assert_eq!(permissions(wide["accessToken"].as_str().unwrap()).await, json!(["read", "write"]));
    let narrow = shell.json(&["agent", "login", "--oauth", "--scope", "read"]);
    assert_eq!(narrow["scope"], "read");
    for token in [
        narrow["accessToken"].as_str().unwrap().to_owned(),
        shell.stdout(&["agent", "refresh"]),
        shell.stdout(&["agent", "login"]),
        shell.stdout(&["agent", "exec", "--", "printenv", "COUNTERSIGN_TOKEN"]),
    ] {
        assert_eq!(permissions(&token).await, json!(["read"]));
    }
    let login = ["agent", "login", "--oauth", "--resource", "https://unknown.example/"];
    shell.assert_fails(3, &login, &["invalid_target"]);
}

#[tokio::test]
async fn control_plane_accepts_assertions_of_the_library_and_of_external_signers() {
    let (control, shell) = control_and_shell(&["URL", "CA"]).await;
    let agent = Agent::register(&control, "agent").await;
    let request = countersign_client::TokenRequest::default();
    let first = agent.api().login_over_oauth(&agent.key, &agent.id, &request).await.unwrap();
    let second = agent.api().refresh_over_oauth(&first.refresh_token, &request).await.unwrap();
    control.verify(secrecy::ExposeSecret::expose_secret(&second.access_token)).await.expect(200);
    let used_again = agent.api().refresh_over_oauth(&first.refresh_token, &request).await.unwrap_err();
    assert!(used_again.ends_session(), "{used_again}");

    shell.register_agent();
    let signer = format!("openssl dgst -sha256 -sign {}", shell.profile_path("default.key").display());
    let token = shell.stdout(&["agent", "login", "--oauth", "--signer", &signer]);
    control.verify(&token).await.expect(200);
    control.set_status(&agent.id, "suspended").await.expect(200);
    let refused = agent.api().login_over_oauth(&agent.key, &agent.id, &request).await.unwrap_err().to_string();
    assert!(refused.contains("unauthorized_client"), "{refused}");
}
