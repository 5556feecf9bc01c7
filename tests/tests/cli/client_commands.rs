//! The commands of agents, services and human users with a profile, from the first key to a call through Envoy.

use crate::{control_and_shell, mode};
use countersign_tests::{
    ControlPlane, Environment, Shell,
    command_line::{ALL, REGISTER},
    eventually, openssl,
};
use serde_json::{Value, json};
use std::{fs, process::Stdio};

fn stored_tokens(shell: &Shell) -> Value {
    serde_json::from_slice(&fs::read(shell.profile_path("default.tokens.json")).unwrap()).unwrap()
}

/// A claim of a token, without verification.
fn claim(token: &str, name: &str) -> Value {
    countersign_tests::jwt::claims(token)[name].clone()
}

#[tokio::test]
async fn key_register_and_login_need_no_profile() {
    let (control, shell) = control_and_shell(&["URL", "CA"]).await;
    let key = shell.path("agent.key").display().to_string();
    shell.stdout(&["agent", "keygen", "--key", &key]);
    assert_eq!(mode(&key), 0o600);
    let agent = shell.stdout(&[&REGISTER[..], &["--key", &key]].concat());
    let token = shell.stdout(&["agent", "login", "--key", &key, &agent]);
    let verified = control.verify(&token).await.expect(200);
    assert_eq!((&verified["agent"]["id"], &verified["agent"]["name"]), (&agent.into(), &"Typed".into()));
    let before = fs::read(&key).unwrap();
    assert_eq!(shell.failure(&["agent", "keygen", "--key", &key]).0, 1);
    assert_eq!(fs::read(&key).unwrap(), before, "a key is never overwritten");

    for (format, arguments) in [
        ("SEC1", "ecparam -name prime256v1 -genkey -noout"),
        ("PKCS #8", "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256"),
    ] {
        let key = shell.path("openssl.key").display().to_string();
        fs::write(&key, openssl::openssl(arguments, b"")).unwrap();
        assert!(shell.stdout(&[&REGISTER[..], &["--key", &key]].concat()).starts_with("agent_"), "{format}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_calls_a_service_through_envoy_with_its_profile_only() {
    let environment = Environment::start().await;
    let mut shell = Shell::with_env(&environment.control, &ALL);
    let agent = shell.register_agent();
    shell.stdout(&["role", "create", "reader", "--permission", "read", "--permission", "list"]);
    shell.stdout(&["role", "assign", "reader", &agent]);

    // From here on, the commands have only the settings of the profile, and no environment variables.
    for name in ALL {
        shell.unset(&format!("COUNTERSIGN_{name}"));
    }
    let url = format!("{}/some/path", environment.envoy.listener.url);
    let call = async || Some(shell.run(&["agent", "call", &url])).filter(|output| output.status.success());
    let called = eventually("the role arrives at the proxy", call, || environment.sidecar.log()).await;
    let headers: Value = serde_json::from_slice(&called.stdout).unwrap();
    assert_eq!((&headers["x-agent-id"], &headers["x-agent-roles"]), (&json!([agent]), &json!(["reader"])));

    let put = shell.json(&["agent", "call", &url, "-H", "X-Mine: 1", "-d", "{}", "-X", "PUT"]);
    assert_eq!((&put["status"], &put["body"]["x-mine"]), (&json!(200), &json!(["1"])));
    let other = shell.json(&["agent", "call", &url, "-H", "Authorization: Basic dXNlcg=="]);
    assert_eq!(other["body"]["authorization"], json!(["Basic dXNlcg=="]), "the token is in a header of its own");

    let admin = format!("{}/admin", environment.envoy.listener.url);
    shell.assert_fails(3, &["agent", "call", &admin], &["403 permission_missing", "\nNext: "]);
    let both = shell.within("exec \"$@\" 2>&1", &["agent", "call", &admin]).output().unwrap();
    let shown = String::from_utf8(both.stdout).unwrap();
    assert!(shown.contains("\ncountersign: the service answered 403"), "the error begins a line: {shown}");
    assert_eq!(shell.failure(&["agent", "call", "http://127.0.0.1:1/"]).0, 4);
    assert_eq!(shell.failure(&["agent", "call", "http://192.0.2.1/"]).0, 2, "no token over plain HTTP");
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_call_logs_in_again_if_its_token_was_revoked() {
    let environment = Environment::start().await;
    let shell = Shell::with_env(&environment.control, &ALL);
    let agent = shell.register_agent();
    shell.stdout(&["role", "create", "reader"]);
    shell.stdout(&["role", "assign", "reader", &agent]);
    let before = shell.stdout(&["agent", "login"]);
    shell.stdout(&["agent", "suspend", &agent]);
    assert_eq!(shell.failure(&["agent", "login"]).0, 3);
    assert_eq!(shell.json(&["agent", "reactivate", &agent])["status"], "active");

    let refused =
        async || Some(environment.call("/", &before).await).filter(|answer| answer.error().2 == "token_revoked");
    eventually("the revocation arrives", refused, || environment.sidecar.log()).await;
    shell.stdout(&["agent", "call", &environment.envoy.listener.url]);
    assert_ne!(stored_tokens(&shell)["access_token"], json!(before));
    let mut command = shell.command(&["agent", "call", &environment.envoy.listener.url]);
    let status = command.env("HTTP_PROXY", "http://127.0.0.1:1").env("http_proxy", "http://127.0.0.1:1").status();
    assert!(status.unwrap().success(), "a request to this machine goes to no proxy");
}

#[tokio::test]
async fn external_signer_may_print_der_or_hex() {
    let (_control, shell) = control_and_shell(&["URL", "CA"]).await;
    let script = |name: &str, text: &str| {
        let path = shell.path(name);
        fs::write(&path, format!("#!/bin/sh\nset -e\ncd \"$(dirname \"$0\")\"\n{text}\n")).unwrap();
        format!("sh {} --pin 1234", path.display())
    };
    let key = openssl::openssl("ecparam -name prime256v1 -genkey -noout", b"");
    fs::write(shell.path("hsm.pub"), openssl::openssl("ec -pubout", &key)).unwrap();
    fs::write(shell.path("hsm.key"), key).unwrap();
    let der = script("der", "exec openssl dgst -sha256 -sign hsm.key");
    let hex = script("hex", "openssl dgst -sha256 -sign hsm.key | od -An -v -tx1 | tr -d ' \\n' | tr a-f A-F; echo");

    let public = shell.path("hsm.pub").display().to_string();
    let agent = shell.stdout(&[&REGISTER[..], &["--signer", &der, "--public-key", &public]].concat());
    assert_eq!(claim(&shell.stdout(&["agent", "login"]), "sub"), json!(agent), "the profile saves the command");
    assert_eq!(claim(&shell.stdout(&["agent", "login", "--signer", &hex]), "sub"), json!(agent));

    let failing = script("failing", "exit 7");
    let error = shell.assert_fails(1, &["agent", "login", "--signer", &failing], &["exit status: 7", "Next: "]);
    let silent = script("silent", "cat >/dev/null; echo hello");
    assert!(shell.failure(&["agent", "login", "--signer", &silent]).1.contains("no P-256 signature"));
    let shown = shell.stdout(&["agent", "show"]) + &error;
    assert!(!shown.contains("1234"), "the PIN of the command line is not shown: {shown}");
}

#[tokio::test]
async fn tokens_are_refreshed_shortly_before_they_expire() {
    let control = ControlPlane::start_with(&["tokens.access_seconds=8"]).await;
    let shell = Shell::with_env(&control, &["URL", "CA"]);
    shell.register_agent();
    let token = || shell.stdout(&["agent", "exec", "--", "sh", "-c", "echo $COUNTERSIGN_TOKEN"]);
    let first = token();
    assert_eq!(token(), first, "a valid token is used again");
    let next = eventually("a refresh is due", async || Some(token()).filter(|next| *next != first), String::new).await;
    assert_eq!(claim(&next, "sid"), claim(&first, "sid"), "the token was refreshed without a new login");
    assert!(claim(&next, "iat").as_i64() < claim(&first, "exp").as_i64(), "it came before the first token expired");
}

#[tokio::test]
async fn refresh_with_a_used_refresh_token_logs_in_again() {
    let (control, shell) = control_and_shell(&["URL", "CA"]).await;
    shell.register_agent();
    let first = shell.stdout(&["agent", "login"]);
    let stolen = stored_tokens(&shell)["refresh_token"].clone();
    control.api.post("/auth/refresh", json!({ "refreshToken": stolen })).await.expect(200);
    let second = shell.stdout(&["agent", "refresh"]);
    assert_ne!(claim(&second, "sid"), claim(&first, "sid"), "the login starts a new session");
    control.verify(&second).await.expect(200);
    let third = shell.stdout(&["agent", "refresh"]);
    assert_eq!(claim(&third, "sid"), claim(&second, "sid"), "the new session continues");
}

#[tokio::test]
async fn concurrent_refreshes_share_one_session() {
    let (_control, shell) = control_and_shell(&["URL", "CA"]).await;
    shell.register_agent();
    let first = shell.stdout(&["agent", "login"]);
    let start = || shell.command(&["agent", "refresh"]).stdout(Stdio::piped()).spawn().unwrap();
    let running: Vec<_> = (0..6).map(|_| start()).collect();
    for child in running {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let token = String::from_utf8(output.stdout).unwrap();
        assert_eq!(claim(token.trim(), "sid"), claim(&first, "sid"), "no refresh token was used twice");
    }
}

#[tokio::test]
async fn profile_files_are_private_and_output_contains_no_secret() {
    let (control, mut shell) = control_and_shell(&ALL).await;
    let agent = shell.register_agent();
    let token = shell.stdout(&["agent", "login"]);
    assert_eq!(mode(shell.profile_path("")), 0o700);
    for name in ["default.toml", "default.key", "default.tokens.json"] {
        assert_eq!(mode(shell.profile_path(name)), 0o600, "{name}");
    }
    let profile = fs::read_to_string(shell.profile_path("default.toml")).unwrap();
    let refresh = stored_tokens(&shell)["refresh_token"].as_str().unwrap().to_owned();
    let (text, value) = (shell.stdout(&["agent", "show"]), shell.json(&["agent", "show"]));
    assert_eq!((&value["agentId"], &value["token"]), (&json!(agent), &json!("unexpired")));
    assert_eq!(value["status"], "active");
    shell.export("COUNTERSIGN_SERVICE_KEY", "svc_sk_planted0sentinel");
    shell.export("COUNTERSIGN_HUMAN_TOKEN", "planted.human.token");
    let refused = [shell.failure(&["role", "list"]), shell.failure(&["agent", "revoke", &agent, "--yes"])];
    assert!(refused.iter().all(|(code, error)| *code == 3 && error.contains("Next: ")), "{refused:?}");
    let all = format!("{text}{value}{profile}{refused:?}{}", shell.stdout(&["role", "assign", "--help"]));
    for secret in [&token, &refresh, control.key(), control.human(), "planted", "PRIVATE KEY"] {
        assert!(!all.contains(secret), "{secret} is shown");
    }
    let tokens = fs::read_to_string(shell.profile_path("default.tokens.json")).unwrap();
    assert!(tokens.contains(&token), "the search works: the file with tokens contains the token");
}

#[tokio::test]
async fn profiles_are_separate_and_flags_override_them() {
    let (_control, mut shell) = control_and_shell(&["URL", "CA"]).await;
    let first = shell.register_agent();
    shell.stdout(&["agent", "keygen", "--profile", "second"]);
    let second = shell.stdout(&[&REGISTER[..], &["--profile", "second"]].concat());
    assert_ne!(first, second);
    assert_eq!(claim(&shell.stdout(&["agent", "login"]), "sub"), json!(first));
    shell.export("COUNTERSIGN_PROFILE", "second");
    assert_eq!(claim(&shell.stdout(&["agent", "login"]), "sub"), json!(second));
    let key = shell.profile_path("default.key").display().to_string();
    let flagged = shell.stdout(&["agent", "login", &first, "--key", &key]);
    assert_eq!(claim(&flagged, "sub"), json!(first));
    assert_eq!(shell.json(&["agent", "show"])["agentId"], json!(second), "flags are not saved");
    shell.export("COUNTERSIGN_URL", "https://localhost:1");
    assert_eq!(shell.failure(&["agent", "login"]).0, 4, "variables override the profile");
    assert_eq!(shell.failure(&["agent", "login", "--profile", "../x"]).0, 2);
}

#[tokio::test]
async fn assignment_that_makes_a_token_large_is_a_warning() {
    let (_control, shell) = control_and_shell(&["URL", "CA", "SERVICE_ID", "SERVICE_KEY"]).await;
    let agent = shell.register_agent();
    shell.stdout(&["role", "create", "small", "--permission", "read"]);
    let permissions: Vec<_> = (0..30).map(|number| format!("--permission={number:0128}")).collect();
    let permissions: Vec<_> = permissions.iter().map(String::as_str).collect();
    shell.stdout(&[&["role", "create", "large"], &permissions[..]].concat());
    let token_after = |role: &str| {
        let announced = shell.json(&["role", "assign", role, &agent])["tokenBytes"].as_u64().unwrap();
        let token = shell.stdout(&["agent", "login"]);
        (token.len(), usize::try_from(announced).unwrap())
    };

    let (small, announced) = token_after("small");
    assert!((small..small + 100).contains(&announced), "{small} {announced}");
    let warning = "warning: a token of the agent can have about ";
    assert!(!shell.notes(&["role", "assign", "small", &agent]).contains(warning));
    // The tokens of OAuth clients have the permissions twice, the second time without quotes.
    let (large, announced) = token_after("large");
    let with_scope = large + (large - small);
    assert!((with_scope - 200..with_scope + 200).contains(&announced), "{with_scope} {announced}");
    assert!(shell.notes(&["role", "assign", "large", &agent]).contains(&format!("{warning}{announced} bytes")));
}

#[tokio::test]
async fn human_user_manages_a_service_its_keys_and_roles() {
    let (control, mut shell) = control_and_shell(&["URL", "CA", "HUMAN_TOKEN"]).await;
    let agent = shell.register_agent();
    let service = shell.stdout(&["service", "create", "Shop"]);
    let key = shell.json(&["key", "create", "--scope", "full"]);
    assert!(key["apiKey"].as_str().unwrap().starts_with("svc_sk_"));
    shell.export("COUNTERSIGN_SERVICE_KEY", key["apiKey"].as_str().unwrap());
    shell.unset("COUNTERSIGN_HUMAN_TOKEN");

    let role = shell.json(&["role", "create", "clerk", "--permission", "sell", "--description", "Sells"]);
    let listed = shell.json(&["role", "list"]);
    assert_eq!((&listed[0]["roleId"], &listed[0]["description"]), (&role["roleId"], &json!("Sells")));
    assert!(shell.stdout(&["role", "list"]).contains("clerk"));
    let assigned = shell.json(&["role", "assign", "clerk", &agent, "--expires", "8h"]);
    assert_eq!((&assigned["assigned"], &assigned["roleId"]), (&json!(true), &role["roleId"]));
    let token = shell.stdout(&["agent", "login", "--service", &service]);
    assert_eq!(claim(&token, "roles"), json!(["clerk"]));
    let revoke = ["role", "revoke", role["roleId"].as_str().unwrap(), &agent];
    assert_eq!(shell.json(&revoke)["revoked"], true);
    assert_eq!(shell.json(&revoke)["revoked"], false);
    assert!(shell.stdout(&revoke).contains("did not hold it\nrevision "));
    assert_eq!(shell.failure(&["role", "assign", "unknown", &agent]).0, 3);
    assert_eq!(shell.failure(&["role", "assign", "clerk", &agent, "--expires", "soon"]).0, 2);
    assert_eq!(shell.failure(&["role", "create", "clerk"]).0, 1, "a role of that name exists");
    assert_eq!(shell.failure(&["role", "create", "a,b", "--permission", "a,b"]).0, 2, "the name is invalid");

    assert_eq!(shell.failure(&["role", "delete", "unknown", "--yes"]).0, 3);
    let deleted = shell.json(&["role", "delete", "clerk", "--yes"]);
    assert_eq!((&deleted["deleted"], &deleted["roleId"]), (&json!(true), &role["roleId"]));
    assert!(deleted["revision"].is_u64() && shell.json(&["role", "list"]) == json!([]), "{deleted}");
    let delete = ["role", "delete", role["roleId"].as_str().unwrap(), "--yes"];
    shell.assert_fails(3, &delete, &["Next: `countersign role list`"]);

    let revoke_key = ["key", "revoke", key["keyId"].as_str().unwrap(), "--yes"];
    for arguments in [&revoke_key[..], &["service", "list"], &["key", "list"]] {
        shell.assert_fails(2, arguments, &["COUNTERSIGN_HUMAN_TOKEN"]);
    }
    shell.export("COUNTERSIGN_HUMAN_TOKEN", control.human());
    assert_eq!(shell.json(&revoke_key)["revoked"], true);
    assert!(shell.stdout(&revoke_key).contains("it was already\nrevision "));
    assert_eq!(shell.failure(&["role", "list"]).0, 3);
    let second = shell.json(&["key", "create", "--scope", "sync", "--name", "sidecar"]);
    let (listed, table) = (shell.json(&["key", "list"]), shell.stdout(&["key", "list"]));
    assert_eq!((&listed[0]["keyId"], &listed[0]["revokedAt"]), (&second["keyId"], &Value::Null));
    assert_eq!((&listed[1]["keyId"], &listed[1]["scope"]), (&key["keyId"], &json!("full")));
    let lines: Vec<_> = table.lines().collect();
    assert!(lines[0].starts_with("ID ") && lines[0].ends_with("REVOKED"), "{table}");
    assert!(lines[1].contains("sidecar") && lines[1].ends_with('-') && lines[2].ends_with('Z'), "{table}");
    let (listed, table) = (shell.json(&["service", "list"]), shell.stdout(&["service", "list"]));
    assert_eq!((&listed[0]["serviceId"], &listed[0]["name"]), (&json!(service), &json!("Shop")));
    assert!(table.lines().nth(1).unwrap().contains("Shop") && table.contains("accepted"), "{table}");
    assert!(shell.stdout(&["service", "change", "--refuse-unbound"]).contains("refused"));
    shell.stdout(&["service", "change", "--name", "Store"]);
    let shown = shell.json(&["service", "show"]);
    assert_eq!((&shown["name"], &shown["acceptsUnboundTokens"]), (&json!("Store"), &json!(false)));
    assert!(shell.stdout(&["service", "change", "--accept-unbound"]).contains("accepted"));
    assert_eq!(shell.failure(&["service", "change"]).0, 2, "no change is set");
    shell.export("COUNTERSIGN_HUMAN_TOKEN", &control.mint_human("stranger"));
    assert_eq!(shell.json(&["service", "list"]), json!([]));
    assert_eq!(shell.failure(&["key", "list"]).0, 3);
}

#[tokio::test]
async fn token_inspect_and_verify_show_claims() {
    let (control, shell) = control_and_shell(&["URL", "CA"]).await;
    let agent = shell.register_agent();
    assert_eq!(shell.failure(&["token", "inspect"]).0, 2, "there is no token yet");
    let token = shell.stdout(&["agent", "login"]);
    let text = shell.stdout(&["token", "inspect"]);
    assert!(text.starts_with("Not verified") && text.contains(&agent) && text.contains("(in 59 min "), "{text}");
    assert_eq!(shell.json(&["token", "inspect", &token])["verified"], false);
    let verified = shell.json(&["token", "verify"]);
    assert_eq!((&verified["verified"], &verified["claims"]["sub"]), (&json!(true), &json!(agent)));
    assert_eq!(shell.failure(&["token", "verify", "--service", control.service()]).0, 3, "the token is unbound");

    let (body, signature) = token.rsplit_once('.').unwrap();
    let swapped = if signature.starts_with('A') { "B" } else { "A" };
    let forged = format!("{body}.{swapped}{}", &signature[1..]);
    assert_eq!(shell.run_with_input(&["token", "verify", "-"], &forged).status.code(), Some(3));
    assert_eq!(shell.failure(&["token", "inspect", "nonsense"]).0, 1);
}

#[tokio::test]
async fn token_revoke_revokes_a_token_or_the_session() {
    let (control, mut shell) = control_and_shell(&["URL", "CA"]).await;
    shell.register_agent();
    assert_eq!(shell.failure(&["token", "revoke"]).0, 2, "there is no token yet");
    let is_revoked = async |token: &str| control.verify(token).await.error().2 == "token_revoked";
    let (first, second) = (shell.stdout(&["agent", "login"]), shell.stdout(&["agent", "refresh"]));
    let revoked = shell.json(&["token", "revoke", &first]);
    assert_eq!(revoked, json!({ "revoked": true, "kind": "token", "revision": revoked["revision"] }));
    assert!(revoked["revision"].is_u64(), "{revoked}");
    assert!(is_revoked(&first).await && !is_revoked(&second).await, "another token of the session stays valid");

    shell.export("COUNTERSIGN_TOKEN", &second);
    assert!(shell.stdout(&["token", "revoke"]).starts_with("The access token is revoked.\nrevision "));
    shell.unset("COUNTERSIGN_TOKEN");
    assert!(is_revoked(&second).await, "the variable overrides the profile");
    let third = shell.stdout(&["agent", "exec", "--", "printenv", "COUNTERSIGN_TOKEN"]);
    assert!(!is_revoked(&third).await);
    assert_eq!(claim(&third, "sid"), claim(&second, "sid"), "the refresh stays in the session");

    let revoked = shell.json(&["token", "revoke"]);
    assert_eq!(revoked, json!({ "revoked": true, "kind": "session", "revision": revoked["revision"] }));
    assert!(is_revoked(&third).await);
    assert!(!shell.profile_path("default.tokens.json").exists(), "revoked tokens are deleted");
    assert_eq!(shell.failure(&["token", "revoke"]).0, 2);
    let fourth = shell.stdout(&["agent", "exec", "--", "printenv", "COUNTERSIGN_TOKEN"]);
    assert!(!is_revoked(&fourth).await);
    assert_ne!(claim(&fourth, "sid"), claim(&third, "sid"), "the login starts a new session");

    let refresh = stored_tokens(&shell)["refresh_token"].as_str().unwrap().to_owned();
    assert!(shell.run_with_input(&["token", "revoke", "-"], &refresh).status.success());
    assert!(is_revoked(&fourth).await);
    for wrong in ["", "nonsense", control.key(), "a.b", "a..c"] {
        assert_eq!(shell.failure(&["token", "revoke", wrong]).0, 2, "{wrong}");
    }
}

#[tokio::test]
async fn exec_passes_token_and_exit_code_and_call_uses_service_ca() {
    let (control, shell) = control_and_shell(&["URL", "CA"]).await;
    shell.register_agent();
    let token = shell.stdout(&["agent", "exec", "--", "printenv", "COUNTERSIGN_TOKEN"]);
    control.verify(&token).await.expect(200);
    assert_eq!(shell.failure(&["agent", "exec", "--", "sh", "-c", "exit 42"]).0, 42);
    assert_eq!(shell.failure(&["agent", "exec", "--", "/nowhere"]).0, 127);
    assert_eq!(shell.failure(&["agent", "exec", "--", "/"]).0, 126);
    assert_eq!(shell.failure(&["agent", "call", "ftp://127.0.0.1/"]).0, 2);
    shell.assert_fails(4, &["agent", "call", &format!("{}/health", control.env["URL"])], &["--service-ca"]);
    let called =
        shell.json(&["agent", "call", &format!("{}/health", control.env["URL"]), "--service-ca", &control.env["CA"]]);
    assert_eq!(called["status"], 200);
}

#[test]
fn completions_exist_for_every_shell() {
    let shell = Shell::new();
    for name in ["bash", "zsh", "fish"] {
        assert!(shell.stdout(&["completions", name]).contains("countersign"), "{name}");
    }
}
