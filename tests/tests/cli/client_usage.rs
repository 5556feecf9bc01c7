//! Errors of usage, hints and help texts.

use crate::control_and_shell;
use countersign_tests::{
    Shell,
    command_line::{ALL, parts},
};

#[test]
fn usage_errors_suggest_no_irreversible_command() {
    let shell = Shell::new();
    for (arguments, suggestion) in [
        (&["role", "delet", "reader"][..], "delete"),
        (&["key", "revok", "x"], "revoke"),
        (&["agent", "revok", "x"], "revoke"),
        (&["webhook", "rotate-secre", "x"], "rotate-secret"),
        (&["role", "delete", "reader", "--ye"], "--yes"),
    ] {
        let (code, error) = shell.failure(arguments);
        let suggested = [format!("'{suggestion}'"), format!("`{suggestion}`")].iter().any(|text| error.contains(text));
        assert!(code == 2 && !suggested, "{arguments:?}: {error}");
    }
    assert!(shell.failure(&["role", "lst"]).1.contains("did you mean `list`?"), "reversible commands are suggested");
    assert!(shell.failure(&["role", "list", "--quie"]).1.contains("did you mean `--quiet`?"));
}

#[test]
fn usage_errors_suggest_similar_names_only() {
    let shell = Shell::new();
    for arguments in [&["completions", "tcsh"][..], &["nope"], &["role", "frobnicate"], &["role", "list", "--nope"]] {
        let error = shell.assert_fails(2, arguments, &["\nNext: "]);
        assert!(!error.contains("did you mean"), "{error}");
    }
    assert!(shell.failure(&["completions", "bsh"]).1.contains("did you mean `bash`?"));
}

#[test]
fn usage_errors_have_the_form_of_other_errors_and_a_usage_line() {
    let shell = Shell::new();
    let assign = ["--profile", "agent", "role", "assign", "reader", "--bogus"];
    for (arguments, usage) in [
        (&["role", "delete"][..], "countersign role delete [OPTIONS] <ROLE>"),
        (&["role", "lst"], "countersign role [OPTIONS] <COMMAND>"),
        (&assign, "countersign role assign [OPTIONS] <ROLE> <AGENT>"),
        (&["audit", "list", "--since", "soon"], "countersign audit list [OPTIONS]"),
        (&["role", "list", "--service", "x"], "countersign role list [OPTIONS]"),
        (&["bogus"], "countersign <COMMAND> <SUBCOMMAND> [OPTIONS]"),
    ] {
        let error = shell.assert_fails(2, arguments, &[&format!("\nUsage: {usage}\nNext: ")]);
        assert!(error.starts_with("countersign: "), "{arguments:?}: {error}");
        assert!(!error.contains("error:") && !error.contains("tip:"), "{arguments:?}: {error}");
        let json = shell.json_error(arguments);
        assert!(json["usage"] == usage && json["next"].is_string(), "{json}");
        let (_, quiet) = shell.failure(&[arguments, &["--quiet"]].concat());
        assert!(!quiet.contains("Usage") && !quiet.contains("Next"), "{quiet}");
    }
}

#[test]
fn words_at_the_wrong_place_have_a_hint() {
    let agent = "agent_01m86cc6jtfttacz06nf9nwqk6";
    for (arguments, hint) in [
        (&["role", "revoke", "reader", agent, "--wait", "5m"][..], "\nNext: write --wait=5m"),
        (&["--server", "https://localhost:8443", "role", "list"], "put `--server` after the verb"),
        (&["--server=https://localhost:8443", "role", "list"], "put `--server` after the verb"),
        (&["role", "--server", "https://localhost:8443", "list"], "put `--server` after the verb"),
        (&["agent", "exec", "echo", "hi"], "put `--` before the command"),
        (&["agent", "exec", "./job.sh"], "put `--` before the command"),
    ] {
        Shell::new().assert_fails(2, arguments, &[hint]);
    }
}

#[tokio::test]
async fn hints_contain_the_ids_of_the_command() {
    let (control, shell) = control_and_shell(&ALL).await;
    let agent = shell.register_agent();
    let note = shell.notes(&["role", "create", "reader"]);
    assert!(note.contains(&format!("countersign role assign reader {agent}")), "{note}");
    control.set_status(&agent, "suspended").await.expect(200);
    let expected = format!("countersign agent reactivate {agent}");
    shell.assert_fails(3, &["agent", "login"], &[&expected]);
    let error = shell.json_error(&["agent", "login"]);
    assert!(error["next"].as_str().unwrap().contains(&expected), "{error}");
    let checks = shell.run(&["-o", "json", "doctor"]);
    assert!(String::from_utf8(checks.stdout).unwrap().contains(&expected));
    let webhook = "wh_00000000000000000000000000";
    let (_, error) = shell.failure(&["webhook", "replay", webhook, "--event", "x", "--deployment"]);
    assert!(error.contains(&format!("countersign webhook deliveries --deployment {webhook}")), "{error}");
    let (_, error) = shell.failure(&["webhook", "replay", webhook, "--event", "nope"]);
    assert!(error.contains(&format!("countersign webhook deliveries {webhook}")), "{error}");
}

#[tokio::test]
async fn validation_errors_name_the_arguments() {
    let (_control, shell) = control_and_shell(&ALL).await;
    let agent = shell.register_agent();
    shell.stdout(&["role", "create", "reader"]);
    let webhook = shell.stdout(&["webhook", "create", "http://127.0.0.1:9999/", "--out", "secret"]);
    for (arguments, named) in [
        (&["role", "assign", "reader", &agent, "--expires", "2000-01-01T00:00:00Z"][..], "correct --expires"),
        (&["role", "create", "", "--permission", ""], "correct NAME and --permission"),
        (&["webhook", "create", "http://receiver.example/"], "correct URL"),
        (&["webhook", "change", &webhook, "--target", "nonsense"], "correct --target"),
    ] {
        let error = shell.assert_fails(2, arguments, &[]);
        assert!(error.trim_end().ends_with(&format!("\nNext: {named}")), "{error}");
    }
}

#[test]
fn help_texts_are_wrapped_once() {
    let shell = Shell::new();
    let register = ["agent", "register", "--help"];
    for (arguments, sentence) in [
        (&register[..], "Registering them again returns the same agent."),
        (
            &["doctor", "--help"],
            "The exit code is 0 if no check failed, otherwise the exit code of the first failed check.",
        ),
        (&["key", "create", "--help"], "with the key; also set COUNTERSIGN_SYNC__URLS (the sync port"),
        (&["--help"], "which override the profile (~/.config/countersign/NAME.toml)."),
    ] {
        let (_, wide, _) = parts(&shell.command(arguments).env("COLUMNS", "1000").output().unwrap());
        assert!(wide.contains(sentence), "{arguments:?}: {wide}");
    }
}

#[test]
fn help_groups_the_commands_and_has_examples() {
    let help = Shell::new().stdout(&["--help"]);
    for text in
        ["Agent commands:\n  agent ", "Service commands:\n  service ", "Examples:", "Exit codes:", "Global options:"]
    {
        assert!(help.contains(text), "{text}: {help}");
    }
}

#[tokio::test]
async fn api_keys_of_another_service_have_a_hint() {
    let (control, mut shell) = control_and_shell(&["URL", "CA", "SERVICE_KEY", "HUMAN_TOKEN"]).await;
    let (_, service, warning) = parts(&shell.run(&["service", "create", "Shop"]));
    assert!(warning.contains("warning: COUNTERSIGN_SERVICE_KEY is set"), "{warning}");
    let owner = format!("\nNext: the API key belongs to {}: ", control.service());
    let advice = format!("unset COUNTERSIGN_SERVICE_KEY, or set it to an API key of {service}");
    shell.assert_fails(3, &["role", "list"], &[&(owner + &advice)]);
    shell.unset("COUNTERSIGN_SERVICE_KEY");
    assert_eq!(shell.stdout(&["role", "list"]).lines().count(), 1);
}
