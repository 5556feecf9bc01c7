//! The whole way with `countersign` alone: what a new user types, what is remembered, what is refused.

#![expect(clippy::unwrap_used, reason = "a test says what it expects")]

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use countersign_tests::{ControlPlane, Environment, Shell, eventually};
use serde_json::{Value, json};
use std::{fs, io::Write, os::unix::fs::PermissionsExt, path::Path, process::Stdio};

const EVERYTHING: [&str; 5] = ["URL", "CA", "SERVICE_ID", "SERVICE_KEY", "HUMAN_TOKEN"];
const REGISTER: [&str; 6] = ["agent", "register", "--email", "a@example.org", "--name", "Typed"];

/// Makes a key and registers it, by what the profile remembers.
fn registered(shell: &Shell) -> String {
    shell.said(&["agent", "keygen"]);
    shell.said(&REGISTER)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn kept_tokens(shell: &Shell) -> Value {
    serde_json::from_slice(&fs::read(shell.kept("default.tokens.json")).unwrap()).unwrap()
}

/// A claim of a token, unverified.
fn claim(token: &str, name: &str) -> Value {
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    serde_json::from_slice::<Value>(&claims).unwrap()[name].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn from_keygen_to_a_call_through_envoy_with_nothing_else() {
    let environment = Environment::start().await;
    let mut shell = Shell::knowing(&environment.control, &EVERYTHING);
    let agent = registered(&shell);
    shell.said(&["role", "create", "reader", "--permission", "read", "--permission", "list"]);
    shell.said(&["role", "assign", "reader"]);

    // From here on the profile is all there is.
    for name in EVERYTHING {
        shell.unset(&format!("COUNTERSIGN_{name}"));
    }
    let url = format!("{}/some/path", environment.envoy.site.url);
    let call = async || Some(shell.run(&["agent", "call", &url])).filter(|output| output.status.success());
    let called = eventually("the role is known at the proxy", call, || environment.sidecar.log()).await;
    let seen: Value = serde_json::from_slice(&called.stdout).unwrap();
    assert_eq!((&seen["x-agent-id"], &seen["x-agent-roles"]), (&json!([agent]), &json!(["reader"])));

    let sent = shell.json(&["agent", "call", &url, "-H", "X-Mine: 1", "-d", "{}", "-X", "PUT"]);
    assert_eq!((&sent["status"], &sent["body"]["x-mine"]), (&json!(200), &json!(["1"])));
    let other = shell.json(&["agent", "call", &url, "-H", "Authorization: Basic dXNlcg=="]);
    assert_eq!(other["body"]["authorization"], json!(["Basic dXNlcg=="]), "the token goes into its own header");

    let (code, error) = shell.failed(&["agent", "call", &format!("{}/admin", environment.envoy.site.url)]);
    assert_eq!(code, 3, "{error}");
    assert!(error.contains("403 permission_missing") && error.contains("\nNext: "), "{error}");
    assert_eq!(shell.failed(&["agent", "call", "http://127.0.0.1:1/"]).0, 4);
    assert_eq!(shell.failed(&["agent", "call", "http://192.0.2.1/"]).0, 2, "no token over plain HTTP");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_died_early_is_replaced_by_a_new_login_within_the_call() {
    let environment = Environment::start().await;
    let shell = Shell::knowing(&environment.control, &EVERYTHING);
    let agent = registered(&shell);
    shell.said(&["role", "create", "reader"]);
    shell.said(&["role", "assign", "reader"]);
    let before = shell.said(&["agent", "login"]);
    shell.said(&["agent", "suspend", &agent]);
    assert_eq!(shell.failed(&["agent", "login"]).0, 3);
    assert_eq!(shell.json(&["agent", "reactivate", &agent])["status"], "active");

    let refused =
        async || Some(environment.call("/", &before).await).filter(|answer| answer.error().2 == "token_revoked");
    eventually("the cut-off arrives", refused, || environment.sidecar.log()).await;
    shell.said(&["agent", "call", &environment.envoy.site.url]);
    assert_ne!(kept_tokens(&shell)["access_token"], json!(before));
}

#[tokio::test]
async fn an_external_signer_answers_the_challenge_in_every_form() {
    let control = ControlPlane::start().await;
    let shell = Shell::knowing(&control, &["URL", "CA"]);
    let script = |name: &str, text: &str| {
        let path = shell.path(name);
        fs::write(&path, format!("#!/bin/sh\nset -e\ncd \"$(dirname \"$0\")\"\n{text}\n")).unwrap();
        format!("sh {} --pin 1234", path.display())
    };
    let setup = script(
        "setup",
        "openssl ecparam -name prime256v1 -genkey -noout -out hsm.key; openssl ec -in hsm.key -pubout -out hsm.pub",
    );
    assert!(std::process::Command::new("sh").args(["-c", &setup]).output().unwrap().status.success());
    let der = script("der", "exec openssl dgst -sha256 -sign hsm.key");
    let hex = script("hex", "openssl dgst -sha256 -sign hsm.key | od -An -v -tx1 | tr -d ' \\n' | tr a-f A-F; echo");

    let public = shell.path("hsm.pub").display().to_string();
    let agent = shell.said(&[&REGISTER[..], &["--signer", &der, "--public-key", &public]].concat());
    assert_eq!(claim(&shell.said(&["agent", "login"]), "sub"), json!(agent), "the profile remembers the command");
    assert_eq!(claim(&shell.said(&["agent", "login", "--signer", &hex]), "sub"), json!(agent));

    let failing = script("failing", "exit 7");
    let (code, error) = shell.failed(&["agent", "login", "--signer", &failing]);
    assert_eq!(code, 1);
    assert!(error.contains("exit status: 7") && error.contains("Next: "), "{error}");
    let silent = script("silent", "cat >/dev/null; echo hello");
    assert!(shell.failed(&["agent", "login", "--signer", &silent]).1.contains("no P-256 signature"));
    let shown = shell.said(&["agent", "show"]) + &error;
    assert!(!shown.contains("1234"), "a PIN on the command line stays there: {shown}");
}

#[tokio::test]
async fn tokens_are_refreshed_before_they_expire_and_not_sooner() {
    let control = ControlPlane::start_with(&["tokens.access_seconds=8"]).await;
    let shell = Shell::knowing(&control, &["URL", "CA"]);
    registered(&shell);
    let token = || shell.said(&["agent", "exec", "--", "sh", "-c", "echo $COUNTERSIGN_TOKEN"]);
    let first = token();
    assert_eq!(token(), first, "a good token is used again");
    let next = eventually("a refresh is due", async || Some(token()).filter(|next| *next != first), String::new).await;
    assert_eq!(claim(&next, "sid"), claim(&first, "sid"), "refreshed, not logged in anew");
    assert!(claim(&next, "iat").as_i64() < claim(&first, "exp").as_i64(), "before the first one died");
}

#[tokio::test]
async fn a_reused_refresh_token_is_answered_by_a_new_login() {
    let control = ControlPlane::start().await;
    let shell = Shell::knowing(&control, &["URL", "CA"]);
    registered(&shell);
    let first = shell.said(&["agent", "login"]);
    let stolen = kept_tokens(&shell)["refresh_token"].clone();
    control.api.post("/auth/refresh", json!({ "refreshToken": stolen })).await.expect(200);
    let second = shell.said(&["agent", "refresh"]);
    assert_ne!(claim(&second, "sid"), claim(&first, "sid"), "another login");
    control.verify(&second).await.expect(200);
    let third = shell.said(&["agent", "refresh"]);
    assert_eq!(claim(&third, "sid"), claim(&second, "sid"), "and that one goes on");
}

#[tokio::test]
async fn many_at_once_share_one_login() {
    let control = ControlPlane::start().await;
    let shell = Shell::knowing(&control, &["URL", "CA"]);
    registered(&shell);
    let first = shell.said(&["agent", "login"]);
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
async fn what_is_kept_is_for_its_owner_only_and_show_tells_no_secret() {
    let control = ControlPlane::start().await;
    let mut shell = Shell::knowing(&control, &EVERYTHING);
    let agent = registered(&shell);
    let token = shell.said(&["agent", "login"]);
    assert_eq!(mode(&shell.kept("")), 0o700);
    for name in ["default.toml", "default.key", "default.tokens.json"] {
        assert_eq!(mode(&shell.kept(name)), 0o600, "{name}");
    }
    let profile = fs::read_to_string(shell.kept("default.toml")).unwrap();
    let refresh = kept_tokens(&shell)["refresh_token"].as_str().unwrap().to_owned();
    let (text, value) = (shell.said(&["agent", "show"]), shell.json(&["agent", "show"]));
    assert_eq!(
        (&value["agentId"], &value["token"], &value["status"]),
        (&json!(agent), &json!("unexpired"), &json!("active"))
    );
    shell.export("COUNTERSIGN_SERVICE_KEY", "svc_sk_planted0sentinel");
    shell.export("COUNTERSIGN_HUMAN_TOKEN", "planted.human.token");
    let refused = [shell.failed(&["role", "list"]), shell.failed(&["agent", "revoke", &agent, "--yes"])];
    assert!(refused.iter().all(|(code, error)| *code == 3 && error.contains("Next: ")), "{refused:?}");
    let all = format!("{text}{value}{profile}{refused:?}{}", shell.said(&["role", "assign", "--help"]));
    let secrets = [&token, &refresh, control.key(), control.human(), "planted", "PRIVATE KEY"];
    for secret in secrets {
        assert!(!all.contains(secret), "{secret} is told");
    }
    assert!(fs::read_to_string(shell.kept("default.tokens.json")).unwrap().contains(&token), "the search finds");
}

#[tokio::test]
async fn profiles_keep_agents_apart_and_flags_win() {
    let control = ControlPlane::start().await;
    let mut shell = Shell::knowing(&control, &["URL", "CA"]);
    let first = registered(&shell);
    shell.said(&["agent", "keygen", "--profile", "second"]);
    let second = shell.said(&[&REGISTER[..], &["--profile", "second"]].concat());
    assert_ne!(first, second);
    assert_eq!(claim(&shell.said(&["agent", "login"]), "sub"), json!(first));
    shell.export("COUNTERSIGN_PROFILE", "second");
    assert_eq!(claim(&shell.said(&["agent", "login"]), "sub"), json!(second));
    let key = shell.kept("default.key").display().to_string();
    let flagged = shell.said(&["agent", "login", "--agent", &first, "--key", &key]);
    assert_eq!(claim(&flagged, "sub"), json!(first));
    assert_eq!(shell.json(&["agent", "show"])["agentId"], json!(second), "flags are not remembered");
    shell.export("COUNTERSIGN_URL", "https://localhost:1");
    assert_eq!(shell.failed(&["agent", "login"]).0, 4, "the environment wins over the profile");
    assert_eq!(shell.failed(&["agent", "login", "--profile", "../x"]).0, 2);
}

#[tokio::test]
async fn a_person_makes_a_service_its_keys_and_roles() {
    let control = ControlPlane::start().await;
    let mut shell = Shell::knowing(&control, &["URL", "CA", "HUMAN_TOKEN"]);
    let agent = registered(&shell);
    let service = shell.said(&["service", "create", "Shop"]);
    let key = shell.json(&["key", "create", "--scope", "full"]);
    assert!(key["apiKey"].as_str().unwrap().starts_with("svc_sk_"));
    shell.export("COUNTERSIGN_SERVICE_KEY", key["apiKey"].as_str().unwrap());
    shell.unset("COUNTERSIGN_HUMAN_TOKEN");

    let role = shell.json(&["role", "create", "clerk", "--permission", "sell", "--description", "Sells"]);
    let listed = shell.json(&["role", "list"]);
    assert_eq!((&listed[0]["roleId"], &listed[0]["description"]), (&role["roleId"], &json!("Sells")));
    assert!(shell.said(&["role", "list"]).contains("clerk"));
    let assigned = shell.json(&["role", "assign", "clerk", "--agent", &agent, "--expires", "8h"]);
    assert_eq!((&assigned["assigned"], &assigned["roleId"]), (&json!(true), &role["roleId"]));
    let token = shell.said(&["agent", "login", "--service", &service]);
    assert_eq!(claim(&token, "roles"), json!(["clerk"]));
    let revoke = ["role", "revoke", role["roleId"].as_str().unwrap()];
    assert_eq!(shell.json(&revoke)["revoked"], true);
    assert_eq!(shell.json(&revoke)["revoked"], false);
    assert!(shell.said(&revoke).ends_with("did not hold it"));
    assert_eq!(shell.failed(&["role", "assign", "unheard of"]).0, 3);
    assert_eq!(shell.failed(&["role", "assign", "clerk", "--expires", "soon"]).0, 2);
    assert_eq!(shell.failed(&["role", "create", "clerk"]).0, 1, "there is one of that name");
    assert_eq!(shell.failed(&["role", "create", "a,b", "--permission", "a,b"]).0, 2, "no such name can be");

    assert_eq!(shell.failed(&["role", "delete", "unheard of", "--yes"]).0, 3);
    assert_eq!(
        shell.json(&["role", "delete", "clerk", "--yes"]),
        json!({ "deleted": true, "roleId": role["roleId"], "serviceId": service })
    );
    assert_eq!(shell.json(&["role", "list"]), json!([]));
    let (code, error) = shell.failed(&["role", "delete", role["roleId"].as_str().unwrap(), "--yes"]);
    assert!(code == 3 && error.contains("Next: `countersign role list`"), "{error}");

    let end = ["key", "revoke", key["keyId"].as_str().unwrap(), "--yes"];
    for asked in [&end[..], &["service", "list"], &["key", "list"]] {
        let (code, error) = shell.failed(asked);
        assert!(code == 2 && error.contains("COUNTERSIGN_HUMAN_TOKEN"), "{error}");
    }
    shell.export("COUNTERSIGN_HUMAN_TOKEN", control.human());
    assert_eq!(shell.json(&end)["revoked"], true);
    assert!(shell.said(&end).ends_with("it was already"));
    assert_eq!(shell.failed(&["role", "list"]).0, 3);
    let second = shell.json(&["key", "create", "--scope", "sync", "--name", "sidecar"]);
    let (listed, table) = (shell.json(&["key", "list"]), shell.said(&["key", "list"]));
    assert_eq!((&listed[0]["keyId"], &listed[0]["revokedAt"]), (&second["keyId"], &Value::Null));
    assert_eq!((&listed[1]["keyId"], &listed[1]["scope"]), (&key["keyId"], &json!("full")));
    let lines: Vec<_> = table.lines().collect();
    assert!(lines[0].starts_with("ID ") && lines[0].ends_with("REVOKED"), "{table}");
    assert!(lines[1].contains("sidecar") && lines[1].ends_with('-') && lines[2].ends_with('Z'), "{table}");
    let (listed, table) = (shell.json(&["service", "list"]), shell.said(&["service", "list"]));
    assert_eq!((&listed[0]["serviceId"], &listed[0]["name"]), (&json!(service), &json!("Shop")));
    assert!(table.lines().nth(1).unwrap().contains("Shop") && table.contains("accepted"), "{table}");
    assert!(shell.said(&["service", "change", "--refuse-unbound"]).contains("refused"));
    shell.said(&["service", "change", "--name", "Store"]);
    let shown = shell.json(&["service", "show"]);
    assert_eq!((&shown["name"], &shown["acceptsUnboundTokens"]), (&json!("Store"), &json!(false)));
    assert!(shell.said(&["service", "change", "--accept-unbound"]).contains("accepted"));
    assert_eq!(shell.failed(&["service", "change"]).0, 2, "nothing is to be changed");
    shell.export("COUNTERSIGN_HUMAN_TOKEN", &control.mint_human("stranger"));
    assert_eq!(shell.json(&["service", "list"]), json!([]));
    assert_eq!(shell.failed(&["key", "list"]).0, 3);
}

#[tokio::test]
async fn a_token_is_shown_unverified_and_verified() {
    let control = ControlPlane::start().await;
    let shell = Shell::knowing(&control, &["URL", "CA"]);
    let agent = registered(&shell);
    assert_eq!(shell.failed(&["token", "inspect"]).0, 2, "there is none yet");
    let token = shell.said(&["agent", "login"]);
    let text = shell.said(&["token", "inspect"]);
    assert!(text.starts_with("Not verified") && text.contains(&agent) && text.contains("(in 59 min "), "{text}");
    assert_eq!(shell.json(&["token", "inspect", &token])["verified"], false);
    let verified = shell.json(&["token", "verify"]);
    assert_eq!((&verified["verified"], &verified["claims"]["sub"]), (&json!(true), &json!(agent)));
    assert_eq!(shell.failed(&["token", "verify", "--service", control.service()]).0, 3, "it is bound to none");

    let (body, signature) = token.rsplit_once('.').unwrap();
    let swapped = if signature.starts_with('A') { "B" } else { "A" };
    let forged = format!("{body}.{swapped}{}", &signature[1..]);
    let mut child = shell.command(&["token", "verify", "-"]);
    let mut child = child.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(forged.as_bytes()).unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(3));
    assert_eq!(shell.failed(&["token", "inspect", "nonsense"]).0, 1);
}

#[tokio::test]
async fn a_token_or_the_profiles_whole_login_is_revoked() {
    let control = ControlPlane::start().await;
    let mut shell = Shell::knowing(&control, &["URL", "CA"]);
    registered(&shell);
    assert_eq!(shell.failed(&["token", "revoke"]).0, 2, "there is none yet");
    let dead = async |token: &str| control.verify(token).await.error().2 == "token_revoked";
    let (first, second) = (shell.said(&["agent", "login"]), shell.said(&["agent", "refresh"]));
    assert_eq!(shell.json(&["token", "revoke", &first]), json!({ "revoked": true, "kind": "token" }));
    assert!(dead(&first).await && !dead(&second).await, "a sibling lives on");

    shell.export("COUNTERSIGN_TOKEN", &second);
    shell.said(&["token", "revoke"]);
    shell.unset("COUNTERSIGN_TOKEN");
    assert!(dead(&second).await, "what the environment names comes before what is kept");
    let third = shell.said(&["agent", "exec", "--", "printenv", "COUNTERSIGN_TOKEN"]);
    assert!(!dead(&third).await && claim(&third, "sid") == claim(&second, "sid"), "replaced within the login");

    assert_eq!(shell.json(&["token", "revoke"]), json!({ "revoked": true, "kind": "login" }));
    assert!(dead(&third).await);
    assert!(!shell.kept("default.tokens.json").exists(), "dead tokens are not kept");
    assert_eq!(shell.failed(&["token", "revoke"]).0, 2);
    let fourth = shell.said(&["agent", "exec", "--", "printenv", "COUNTERSIGN_TOKEN"]);
    assert!(!dead(&fourth).await && claim(&fourth, "sid") != claim(&third, "sid"), "another login");

    let mut child = shell.command(&["token", "revoke", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    let refresh = kept_tokens(&shell)["refresh_token"].clone();
    child.stdin.take().unwrap().write_all(refresh.as_str().unwrap().as_bytes()).unwrap();
    assert!(child.wait_with_output().unwrap().status.success());
    assert!(dead(&fourth).await);
    for wrong in ["", "nonsense", control.key(), "a.b", "a..c"] {
        assert_eq!(shell.failed(&["token", "revoke", wrong]).0, 2, "{wrong}");
    }
}

#[tokio::test]
async fn exec_gives_the_token_and_the_exit_code_and_call_trusts_whom_it_is_told() {
    let control = ControlPlane::start().await;
    let shell = Shell::knowing(&control, &["URL", "CA"]);
    registered(&shell);
    let token = shell.said(&["agent", "exec", "--", "printenv", "COUNTERSIGN_TOKEN"]);
    control.verify(&token).await.expect(200);
    assert_eq!(shell.failed(&["agent", "exec", "--", "sh", "-c", "exit 42"]).0, 42);
    assert_eq!(shell.failed(&["agent", "exec", "--", "/nowhere"]).0, 127);
    assert_eq!(shell.failed(&["agent", "exec", "--", "/"]).0, 126);
    assert_eq!(shell.failed(&["agent", "call", "ftp://127.0.0.1/"]).0, 2);
    let (code, error) = shell.failed(&["agent", "call", &format!("{}/health", control.env["URL"])]);
    assert!(code == 4 && error.contains("--service-ca"), "{error}");
    let called =
        shell.json(&["agent", "call", &format!("{}/health", control.env["URL"]), "--service-ca", &control.env["CA"]]);
    assert_eq!(called["status"], 200);
}

#[test]
fn completions_are_printed_for_every_shell() {
    let shell = Shell::new();
    for name in ["bash", "zsh", "fish"] {
        assert!(shell.said(&["completions", name]).contains("countersign"), "{name}");
    }
}
