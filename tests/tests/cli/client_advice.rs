//! Errors and hints: an error names its cause, and the next step is a command that works.

use crate::control_and_shell;
use countersign_tests::{
    ControlPlane, Shell,
    command_line::{ALL, REGISTER, parts},
};
use serde_json::{Value, json};
use std::fs;

/// A valid id of an agent that does not exist.
const UNKNOWN: &str = "agent_00000000000000000000000000";

#[tokio::test]
async fn missing_files_are_named_with_their_option() {
    let (control, mut shell) = control_and_shell(&["URL", "CA"]).await;
    shell.register_agent();
    let call = ["agent", "call", "http://127.0.0.1:1/"];
    for (more, expected) in [
        (&["--service-ca", "/nowhere"][..], "--service-ca /nowhere: "),
        (&["-d", "@/nowhere"], "--data /nowhere: "),
        (&["--ca", "/nowhere"], "--ca (COUNTERSIGN_CA) /nowhere: "),
    ] {
        let error = shell.assert_fails(1, &[&call[..], more].concat(), &[expected]);
        assert!(!error.contains("keygen"), "{error}");
    }
    let no_folder = "--key /nowhere/key: the folder does not exist";
    shell.assert_fails(1, &["agent", "keygen", "--key", "/nowhere/key"], &[no_folder]);
    shell.assert_fails(1, &["agent", "login", "--key", "/nowhere"], &["`countersign agent keygen` creates a key"]);

    shell.unset("COUNTERSIGN_CA");
    let profile = fs::read_to_string(shell.profile_path("default.toml")).unwrap();
    fs::write(shell.profile_path("default.toml"), profile.replace(&control.env["CA"], "/nowhere")).unwrap();
    shell.assert_fails(1, &["agent", "login"], &["profile default: ca /nowhere: "]);
}

#[tokio::test]
async fn files_without_certificates_are_refused() {
    let (_control, shell) = control_and_shell(&["URL", "CA"]).await;
    shell.register_agent();
    let key = fs::read_to_string(shell.profile_path("default.key")).unwrap();
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for text in ["", "nonsense", &key, "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n", broken] {
        let file = shell.path("authorities.pem").display().to_string();
        fs::write(&file, text).unwrap();
        for (option, arguments) in [
            ("--ca (COUNTERSIGN_CA)", ["agent", "login", "--ca", &file].to_vec()),
            ("--service-ca", ["agent", "call", "https://127.0.0.1:1/", "--service-ca", &file].to_vec()),
        ] {
            let error = shell.assert_fails(1, &arguments, &[&format!("{option} {file}: ")]);
            assert!(error.contains("certificate") && !error.contains("builder"), "{text:?}: {error}");
        }
    }
}

#[tokio::test]
async fn errors_name_the_wrong_argument() {
    let (control, mut shell) = control_and_shell(&ALL).await;
    let agent = shell.register_agent();
    let assert_error = |shell: &Shell, code: i32, arguments: &[&str], text: &str| {
        shell.assert_fails(code, arguments, &[text, "\nNext: "])
    };
    shell.export("COUNTERSIGN_SERVICE_KEY", "wrong");
    for arguments in [["role", "list"], ["agent", "show"]] {
        assert_error(&shell, 2, &arguments, "COUNTERSIGN_SERVICE_KEY (--service-key) contains no API key");
    }
    shell.unset("COUNTERSIGN_SERVICE_KEY");
    shell.export("COUNTERSIGN_HUMAN_TOKEN", control.key());
    for arguments in [&REGISTER[..], &["role", "list"], &["service", "list"], &["agent", "suspend", &agent]] {
        let problem = "COUNTERSIGN_HUMAN_TOKEN (--human-token) contains the API key of a service";
        let error = assert_error(&shell, 2, arguments, problem);
        assert!(!error.contains(control.key()), "{error}");
    }
    shell.export("COUNTERSIGN_HUMAN_TOKEN", &control.mint_human("stranger"));
    let error = assert_error(&shell, 3, &["agent", "suspend", &agent], "human user's token");
    assert!(!error.contains("COUNTERSIGN_SERVICE_KEY"), "{error}");
    shell.export("COUNTERSIGN_HUMAN_TOKEN", control.human());
    control.set_status(&agent, "revoked").await.expect(200);
    let error =
        assert_error(&shell, 1, &["agent", "reactivate", &agent], "create a new agent: countersign agent keygen");
    assert!(!error.contains("role list"), "{error}");
    for arguments in [
        &["agent", "call", "http://127.0.0.1:1/", "--service", "development"][..],
        &["role", "list", "--service", "development"],
        &["token", "verify", "a.b.c", "--service", "development"],
    ] {
        assert_error(&shell, 2, arguments, "`development` is not the id of a service: svc_");
    }
    for verb in ["show", "suspend", "revoke"] {
        assert_error(&shell, 2, &["agent", verb, "nope"], "`nope` is not the id of an agent: agent_");
    }
    let error =
        assert_error(&shell, 2, &["key", "revoke", control.key(), "--yes"], "is not the id of an API key: key_");
    assert!(!error.contains(control.key()), "{error}");
    let moved = ["webhook", "change", "wh_0", "--url", "https://receiver.example/hook", "--events", "*"];
    let server = "`--server` is the URL of the control plane";
    assert_error(&shell, 2, &moved, &format!("`--target` is the URL of the receiver, {server}"));
    assert_error(&shell, 2, &["role", "list", "--url", "https://localhost"], server);
}

#[tokio::test]
async fn empty_variables_count_as_not_set() {
    let (control, mut shell) = control_and_shell(&["URL", "CA"]).await;
    let agent = shell.register_agent();
    for name in ["URL", "CA", "PROFILE", "SERVICE_ID", "SERVICE_KEY", "HUMAN_TOKEN", "TOKEN"] {
        shell.export(&format!("COUNTERSIGN_{name}"), "");
    }
    assert_eq!(shell.stdout(&REGISTER), agent, "the profile contains the URL, and no human user is required");
    let token = shell.stdout(&["agent", "login"]);
    assert_eq!(shell.json(&["token", "verify"])["claims"]["sub"], agent);
    control.verify(&token).await.expect(200);
    for (arguments, missing) in [
        (&["role", "list"][..], "the service"),
        (&["service", "list"], "the token of a human user"),
        (&["key", "list"], "the service"),
        (&["role", "list", "--service", control.service()], "an API key or the token of a human user"),
    ] {
        shell.assert_fails(2, arguments, &[&format!("{missing} is not set")]);
    }
}

#[tokio::test]
async fn agent_show_works_without_service_key_and_control_plane() {
    let mut control = ControlPlane::start_process().await;
    let mut shell = Shell::with_env(&control, &["URL", "CA", "HUMAN_TOKEN"]);
    let error = shell.assert_fails(2, &["agent", "show"], &["Next: pass its id"]);
    assert!(!error.contains("--agent"), "{error}");
    let agent = shell.register_agent();
    shell.stdout(&["agent", "login"]);
    let service = shell.stdout(&["service", "create", "Shop"]);
    let shown = shell.json(&["agent", "show"]);
    assert_eq!((&shown["serviceId"], &shown["token"]), (&service.into(), &"unexpired".into()));
    assert!(shell.failure(&["agent", "show", "--human-token", "x"]).0 == 2, "the command has no such option");
    let (_, shown, error) = parts(&shell.run(&["agent", "show", UNKNOWN]));
    assert!(error.contains("COUNTERSIGN_SERVICE_KEY"), "{error}");
    assert!(!shown.contains("profile"), "the profile has another agent");

    shell.export("COUNTERSIGN_SERVICE_ID", control.service());
    shell.export("COUNTERSIGN_SERVICE_KEY", control.key());
    assert_eq!(shell.json(&["agent", "show"])["status"], "active");
    let (code, shown, _) = parts(&shell.run(&["agent", "show", UNKNOWN]));
    assert_eq!((code, shown.as_str()), (3, ""));
    control.kill();
    let (code, shown, error) = parts(&shell.run(&["agent", "show"]));
    assert!(code == 4 && error.contains("cannot reach"), "{error}");
    assert!(shown.contains(&agent), "the profile is shown");
}

#[tokio::test]
async fn hints_are_commands_that_work_as_they_are() {
    let (control, mut shell) = control_and_shell(&["URL", "CA", "SERVICE_ID", "SERVICE_KEY"]).await;
    let second = &["--profile", "second"];
    let note = shell.notes(&[&["agent", "keygen"][..], second].concat());
    let next = "\nNext: countersign --profile second agent register --email YOU@EXAMPLE.ORG --name NAME\n";
    assert!(note.ends_with(next), "{note}");
    let note = shell.notes(&[&REGISTER[..], second].concat());
    assert!(note.contains("countersign --profile second agent call URL"), "{note}");
    let spaced = shell.path("my key").display().to_string();
    let note = shell.notes(&[&["agent", "keygen", "--key", &spaced][..], second].concat());
    assert!(note.contains("--email ") && note.trim_end().ends_with(&format!(" --key '{spaced}'")), "{note}");
    let note = shell.notes(&["role", "create", "shop-keeper"]);
    assert!(note.ends_with("Next: countersign role assign shop-keeper AGENT\n"), "{note}");
    shell.export("COUNTERSIGN_PROFILE", "third");
    let (_, error) = shell.failure(&["agent", "login"]);
    assert!(error.contains("`countersign agent register`"), "the variable names the profile already: {error}");

    shell.export("COUNTERSIGN_HUMAN_TOKEN", control.human());
    let error = shell.assert_fails(2, &["agent", "register"], &["--email"]);
    assert!(!error.contains("--human-token"), "{error}");
}

#[tokio::test]
async fn every_error_has_a_next_step() {
    let mut control = ControlPlane::start_process().await;
    let shell = Shell::with_env(&control, &ALL);
    let agent = shell.register_agent();
    let path = format!("{}/far", control.env["URL"]);
    for (code, arguments, text) in [
        (2, &["agent", "call", "127.0.0.1:20000/x"][..], "begin it with https://"),
        (2, &["agent", "call", "http://127.0.0.1:1/", "-X", "G T"], "-X PUT"),
        (3, &["agent", "login", "--server", &path], "path in --server"),
        (3, &["token", "verify", "a.b.c"], "token_malformed: "),
        (2, &["role", "create", ""], "\nNext: correct NAME"),
        (2, &["agent", "login", "--profile", "empty"], ""),
        (3, &["agent", "login", UNKNOWN], "countersign: 404 AGENT_NOT_FOUND: The agent does not exist\nNext: "),
    ] {
        shell.assert_fails(code, arguments, &[text, "\nNext: "]);
    }
    shell.stdout(&["role", "create", "reader"]);
    for (arguments, next) in [
        (&["role", "assign", "reader", &agent][..], "call"),
        (&["role", "revoke", "reader", &agent], "role list"),
        (&["agent", "suspend", &agent], &format!("reactivate {agent}")),
        (&["agent", "reactivate", &agent], "login"),
        (&["agent", "revoke", &agent, "--yes"], "keygen"),
    ] {
        let note = shell.notes(arguments);
        assert!(note.starts_with("Next") && note.contains(next), "{arguments:?}: {note}");
    }
    control.kill();
    shell.assert_fails(4, &["role", "list"], &["\nNext: is it running"]);
}

#[tokio::test]
async fn json_output_has_the_field_names_and_errors_of_the_api() {
    let (control, shell) = control_and_shell(&ALL).await;
    let agent = shell.register_agent();
    let role = shell.json(&["role", "create", "reader"]);
    assert_eq!(shell.json(&["role", "list"])[0]["roleId"], role["roleId"]);
    let assigned = shell.json(&["role", "assign", "reader", &agent]);
    assert_eq!((&assigned["agentId"], &assigned["roleId"]), (&json!(agent), &role["roleId"]));
    assert_eq!(assigned["serviceId"], control.service());
    let key = shell.json(&["key", "create", "--scope", "sync"]);
    let revoked = shell.json(&["key", "revoke", key["keyId"].as_str().unwrap(), "--yes"]);
    let expected = json!({
        "revoked": true, "keyId": key["keyId"], "serviceId": control.service(), "revision": revoked["revision"],
    });
    assert_eq!(revoked, expected);
    assert!(revoked["revision"].is_u64(), "{revoked}");
    assert_eq!(shell.json(&["agent", "suspend", &agent])["agentId"], agent);

    let denied = shell.json_error(&["agent", "login"]);
    assert_eq!((&denied["code"], &denied["reason"]), (&json!("INSUFFICIENT_PERMISSIONS"), &json!("agent_suspended")));
    assert!(denied["message"].as_str().unwrap().contains("suspended"), "{denied}");
    assert!(denied["next"].as_str().unwrap().contains("reactivate"), "{denied}");
    let usage = shell.json_error(&["role", "list", "--service", "x"]);
    assert_eq!((&usage["code"], &usage["reason"]), (&json!("USAGE"), &Value::Null));
    assert!(usage["next"].as_str().unwrap().contains("service list"), "{usage}");
    assert!(!usage["message"].as_str().unwrap().contains("Next"), "{usage}");
    let unknown_role = shell.json_error(&["role", "delete", "nosuch", "--yes"]);
    assert_eq!((&unknown_role["code"], &unknown_role["reason"]), (&json!("ROLE_NOT_FOUND"), &Value::Null));
}

#[tokio::test]
async fn stored_tokens_are_used_for_other_spellings_of_the_url() {
    let (control, shell) = control_and_shell(&["CA"]).await;
    let url = control.env["URL"].trim_end_matches('/').to_owned();
    shell.stdout(&["agent", "keygen"]);
    shell.stdout(&[&REGISTER[..], &["--server", &url]].concat());
    let token = shell.stdout(&["agent", "login"]);
    for spelling in [format!("{url}/"), url.replace("https://", "HTTPS://")] {
        let exec = ["agent", "exec", "--server", &spelling, "--", "printenv", "COUNTERSIGN_TOKEN"];
        assert_eq!(shell.stdout(&exec), token, "{spelling}");
    }
    shell.stdout(&["token", "revoke", "--server", &format!("{url}/")]);
    assert!(!shell.profile_path("default.tokens.json").exists());
}
