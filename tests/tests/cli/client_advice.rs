//! Errors and hints: an error names its cause, and the next step is a command that works.

use countersign_tests::{ControlPlane, Shell};
use serde_json::{Value, json};
use std::fs;

const REGISTER: [&str; 6] = ["agent", "register", "--email", "a@example.org", "--name", "Typed"];

fn register(shell: &Shell) -> String {
    shell.stdout(&["agent", "keygen"]);
    shell.stdout(&REGISTER)
}

#[tokio::test]
async fn missing_files_are_named_with_their_option() {
    let control = ControlPlane::start().await;
    let mut shell = Shell::with_env(&control, &["URL", "CA"]);
    register(&shell);
    let call = ["agent", "call", "http://127.0.0.1:1/"];
    for (more, expected) in [
        (&["--service-ca", "/nowhere"][..], "--service-ca /nowhere: "),
        (&["-d", "@/nowhere"], "--data /nowhere: "),
        (&["--ca", "/nowhere"], "--ca (COUNTERSIGN_CA) /nowhere: "),
    ] {
        let (code, error) = shell.failure(&[&call[..], more].concat());
        assert!(code == 1 && error.contains(expected) && !error.contains("keygen"), "{error}");
    }
    let (code, error) = shell.failure(&["agent", "keygen", "--key", "/nowhere/key"]);
    assert!(code == 1 && error.contains("--key /nowhere/key: the folder does not exist"), "{error}");
    let (code, error) = shell.failure(&["agent", "login", "--key", "/nowhere"]);
    assert!(code == 1 && error.contains("`countersign agent keygen` creates a key"), "{error}");

    shell.unset("COUNTERSIGN_CA");
    let profile = fs::read_to_string(shell.profile_path("default.toml")).unwrap();
    fs::write(shell.profile_path("default.toml"), profile.replace(&control.env["CA"], "/nowhere")).unwrap();
    let (code, error) = shell.failure(&["agent", "login"]);
    assert!(code == 1 && error.contains("profile default: ca /nowhere: "), "{error}");
}

#[tokio::test]
async fn files_without_certificates_are_refused() {
    let control = ControlPlane::start().await;
    let shell = Shell::with_env(&control, &["URL", "CA"]);
    register(&shell);
    let key = fs::read_to_string(shell.profile_path("default.key")).unwrap();
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for text in ["", "nonsense", &key, "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n", broken] {
        let file = shell.path("authorities.pem").display().to_string();
        fs::write(&file, text).unwrap();
        for (option, arguments) in [
            ("--ca (COUNTERSIGN_CA)", ["agent", "login", "--ca", &file].to_vec()),
            ("--service-ca", ["agent", "call", "https://127.0.0.1:1/", "--service-ca", &file].to_vec()),
        ] {
            let (code, error) = shell.failure(&arguments);
            assert!(code == 1 && error.contains(&format!("{option} {file}: ")), "{text:?}: {error}");
            assert!(error.contains("certificate") && !error.contains("builder"), "{text:?}: {error}");
        }
    }
}

#[tokio::test]
async fn errors_name_the_wrong_argument() {
    let control = ControlPlane::start().await;
    let mut shell = Shell::with_env(&control, &["URL", "CA", "SERVICE_ID", "SERVICE_KEY", "HUMAN_TOKEN"]);
    let agent = register(&shell);
    let assert_error = |shell: &Shell, code: i32, arguments: &[&str], text: &str| {
        let (actual, error) = shell.failure(arguments);
        assert!(
            actual == code && error.contains(text) && error.contains("\nNext: "),
            "{arguments:?}: {actual} {error}"
        );
        error
    };
    shell.export("COUNTERSIGN_SERVICE_KEY", "wrong");
    assert_error(&shell, 2, &["role", "list"], "COUNTERSIGN_SERVICE_KEY (--service-key) contains no API key");
    assert_error(&shell, 2, &["agent", "show"], "COUNTERSIGN_SERVICE_KEY (--service-key) contains no API key");
    shell.unset("COUNTERSIGN_SERVICE_KEY");
    shell.export("COUNTERSIGN_HUMAN_TOKEN", control.key());
    for arguments in [&REGISTER[..], &["role", "list"], &["service", "list"], &["agent", "suspend", &agent]] {
        let error = assert_error(
            &shell,
            2,
            arguments,
            "COUNTERSIGN_HUMAN_TOKEN (--human-token) contains the API key of a service",
        );
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
    assert_error(
        &shell,
        2,
        &moved,
        "`--target` is the URL of the receiver, `--server` is the URL of the control plane",
    );
    assert_error(
        &shell,
        2,
        &["role", "list", "--url", "https://localhost"],
        "`--server` is the URL of the control plane",
    );
}

#[tokio::test]
async fn empty_variables_count_as_not_set() {
    let control = ControlPlane::start().await;
    let mut shell = Shell::with_env(&control, &["URL", "CA"]);
    let agent = register(&shell);
    for name in ["URL", "CA", "PROFILE", "SERVICE_ID", "SERVICE_KEY", "HUMAN_TOKEN", "TOKEN"] {
        shell.export(&format!("COUNTERSIGN_{name}"), "");
    }
    assert_eq!(shell.stdout(&REGISTER), agent, "the profile contains the URL, and no human user is required");
    let token = shell.stdout(&["agent", "login"]);
    assert_eq!(shell.json(&["token", "verify"])["claims"]["sub"], agent);
    control.verify(&token).await.expect(200);
    for (arguments, missing) in [
        (["role", "list"], "the service"),
        (["service", "list"], "the token of a human user"),
        (["key", "list"], "the service"),
    ] {
        let (code, error) = shell.failure(&arguments);
        assert!(code == 2 && error.contains(&format!("{missing} is not set")), "{error}");
    }
    let (code, error) = shell.failure(&["role", "list", "--service", control.service()]);
    assert!(code == 2 && error.contains("an API key or the token of a human user is not set"), "{error}");
}

#[tokio::test]
async fn agent_show_works_without_service_key_and_control_plane() {
    let mut control = ControlPlane::start_process().await;
    let mut shell = Shell::with_env(&control, &["URL", "CA", "HUMAN_TOKEN"]);
    let (code, error) = shell.failure(&["agent", "show"]);
    assert!(code == 2 && error.contains("Next: pass its id") && !error.contains("--agent"), "{error}");
    let agent = register(&shell);
    shell.stdout(&["agent", "login"]);
    let service = shell.stdout(&["service", "create", "Shop"]);
    let shown = shell.json(&["agent", "show"]);
    assert_eq!((&shown["serviceId"], &shown["token"]), (&service.into(), &"unexpired".into()));
    assert!(shell.failure(&["agent", "show", "--human-token", "x"]).0 == 2, "the command has no such option");
    let other = shell.run(&["agent", "show", "agent_00000000000000000000000000"]);
    assert!(String::from_utf8(other.stderr).unwrap().contains("COUNTERSIGN_SERVICE_KEY"));
    assert!(!String::from_utf8(other.stdout).unwrap().contains("profile"), "the profile has another agent");

    shell.export("COUNTERSIGN_SERVICE_ID", control.service());
    shell.export("COUNTERSIGN_SERVICE_KEY", control.key());
    assert_eq!(shell.json(&["agent", "show"])["status"], "active");
    let unknown = shell.run(&["agent", "show", "agent_00000000000000000000000000"]);
    assert_eq!((unknown.status.code(), unknown.stdout), (Some(3), Vec::new()));
    control.kill();
    let output = shell.run(&["agent", "show"]);
    assert_eq!(output.status.code(), Some(4));
    assert!(String::from_utf8(output.stdout).unwrap().contains(&agent), "the profile is shown");
    assert!(String::from_utf8(output.stderr).unwrap().contains("cannot reach"));
}

#[tokio::test]
async fn hints_are_commands_that_work_as_they_are() {
    let control = ControlPlane::start().await;
    let mut shell = Shell::with_env(&control, &["URL", "CA", "SERVICE_ID", "SERVICE_KEY"]);
    let notes = |shell: &Shell, arguments: &[&str]| String::from_utf8(shell.run(arguments).stderr).unwrap();
    let second = &["--profile", "second"];
    let note = notes(&shell, &[&["agent", "keygen"][..], second].concat());
    let next = "\nNext: countersign --profile second agent register --email YOU@EXAMPLE.ORG --name NAME\n";
    assert!(note.ends_with(next), "{note}");
    let note = notes(&shell, &[&REGISTER[..], second].concat());
    assert!(note.contains("countersign --profile second agent call URL"), "{note}");
    let spaced = shell.path("my key").display().to_string();
    let note = notes(&shell, &[&["agent", "keygen", "--key", &spaced][..], second].concat());
    assert!(note.contains("--email ") && note.trim_end().ends_with(&format!(" --key '{spaced}'")), "{note}");
    let note = notes(&shell, &["role", "create", "shop-keeper"]);
    assert!(note.ends_with("Next: countersign role assign shop-keeper AGENT\n"), "{note}");
    shell.export("COUNTERSIGN_PROFILE", "third");
    let (_, error) = shell.failure(&["agent", "login"]);
    assert!(error.contains("`countersign agent register`"), "the variable names the profile already: {error}");

    shell.export("COUNTERSIGN_HUMAN_TOKEN", control.human());
    let (code, error) = shell.failure(&["agent", "register"]);
    assert!(code == 2 && error.contains("--email") && !error.contains("--human-token"), "{error}");
}

#[tokio::test]
async fn every_error_has_a_next_step() {
    let mut control = ControlPlane::start_process().await;
    let shell = Shell::with_env(&control, &["URL", "CA", "SERVICE_ID", "SERVICE_KEY", "HUMAN_TOKEN"]);
    let agent = register(&shell);
    let path = format!("{}/far", control.env["URL"]);
    for (code, arguments, text) in [
        (2, &["agent", "call", "127.0.0.1:20000/x"][..], "begin it with https://"),
        (2, &["agent", "call", "http://127.0.0.1:1/", "-X", "G T"], "-X PUT"),
        (3, &["agent", "login", "--server", &path], "path in --server"),
        (3, &["token", "verify", "a.b.c"], "token_malformed: "),
        (2, &["role", "create", ""], "\nNext: correct NAME"),
    ] {
        let (actual, error) = shell.failure(arguments);
        assert!(
            actual == code && error.contains(text) && error.contains("\nNext: "),
            "{arguments:?}: {actual} {error}"
        );
    }
    shell.stdout(&["role", "create", "reader"]);
    for (arguments, next) in [
        (&["role", "assign", "reader", &agent][..], "call"),
        (&["role", "revoke", "reader", &agent], "role list"),
        (&["agent", "suspend", &agent], &format!("reactivate {agent}")),
        (&["agent", "reactivate", &agent], "login"),
        (&["agent", "revoke", &agent, "--yes"], "keygen"),
    ] {
        let note = String::from_utf8(shell.run(arguments).stderr).unwrap();
        assert!(note.starts_with("Next") && note.contains(next), "{arguments:?}: {note}");
    }
    control.kill();
    assert!(shell.failure(&["role", "list"]).1.contains("\nNext: is it running"));
}

#[tokio::test]
async fn json_output_has_the_field_names_and_errors_of_the_api() {
    let control = ControlPlane::start().await;
    let shell = Shell::with_env(&control, &["URL", "CA", "SERVICE_ID", "SERVICE_KEY", "HUMAN_TOKEN"]);
    let agent = register(&shell);
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

    let error = |arguments: &[&str]| {
        let (_, text) = shell.failure(&[&["-o", "json"], arguments].concat());
        serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{error}: {text}"))["error"].clone()
    };
    let denied = error(&["agent", "login"]);
    assert_eq!(denied["code"], "INSUFFICIENT_PERMISSIONS");
    assert_eq!(denied["reason"], "agent_suspended");
    assert!(denied["message"].as_str().unwrap().contains("suspended"), "{denied}");
    assert!(denied["next"].as_str().unwrap().contains("reactivate"), "{denied}");
    let usage = error(&["role", "list", "--service", "x"]);
    assert_eq!((&usage["code"], &usage["reason"]), (&json!("USAGE"), &Value::Null));
    assert!(usage["next"].as_str().unwrap().contains("service list"), "{usage}");
    assert!(!usage["message"].as_str().unwrap().contains("Next"), "{usage}");
    let unknown_role = error(&["role", "delete", "nosuch", "--yes"]);
    assert_eq!((&unknown_role["code"], &unknown_role["reason"]), (&json!("ROLE_NOT_FOUND"), &Value::Null));
}

#[tokio::test]
async fn stored_tokens_are_used_for_other_spellings_of_the_url() {
    let control = ControlPlane::start().await;
    let shell = Shell::with_env(&control, &["CA"]);
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
