//! The conventions of the command line: confirmation, output formats, verbosity, timeouts, tables and completion.

use crate::control_and_shell;
use countersign_tests::{
    Agent, ControlPlane, Shell,
    command_line::{ALL, parts},
};
use serde_json::{Value, json};
use std::{io::Write, net::TcpListener, process::Stdio};

/// Runs a command on a terminal of this width, types `input`, and returns the exit code and what the terminal shows.
fn on_terminal(shell: &Shell, columns: u16, arguments: &[&str], input: &str) -> (Option<i32>, String) {
    let quoted = "for word in \"$@\"; do printf \"'%s' \" \"$word\"; done";
    let script = format!("script -qec \"stty cols {columns} -echo; $({quoted})\" /dev/null");
    let mut command = shell.within(&script, arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The standard input stays open until the command ends, because the end of the input would reach the terminal
    // before the question.
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap().replace('\r', ""))
}

#[tokio::test]
async fn irreversible_commands_without_a_terminal_require_yes() {
    let (control, shell) = control_and_shell(&ALL).await;
    let agent = shell.register_agent();
    shell.stdout(&["role", "create", "reader"]);
    let webhook = shell.stdout(&["webhook", "create", "http://127.0.0.1:9999/", "--out", "secret"]);
    let key = shell.json(&["key", "list"])[0]["keyId"].as_str().unwrap().to_owned();
    let kid = shell.json(&["signing-key", "list"])[0]["kid"].as_str().unwrap().to_owned();
    let before = shell.json(&["audit", "list", "--all-services", "--all"]);
    for arguments in [
        ["agent", "revoke", &agent],
        ["agent", "delete", &agent],
        ["service", "delete", control.service()],
        ["role", "delete", "reader"],
        ["webhook", "delete", &webhook],
        ["webhook", "rotate-secret", &webhook],
        ["key", "revoke", &key],
        ["signing-key", "revoke", &kid],
    ] {
        shell.assert_fails(2, &arguments, &["confirmation required: ", "\nNext: add --yes"]);
        assert_eq!(shell.json_error(&arguments)["code"], "USAGE", "{arguments:?}");
    }
    assert_eq!(shell.json(&["audit", "list", "--all-services", "--all"]), before, "nothing was changed");
    assert_eq!(shell.json(&["role", "delete", "reader", "-y"])["deleted"], true);
}

#[tokio::test]
async fn irreversible_commands_on_a_terminal_ask() {
    let (_control, shell) = control_and_shell(&ALL).await;
    let role = shell.stdout(&["role", "create", "reader"]);
    for answer in ["n\n", "\n", "reader\n"] {
        let (code, shown) = on_terminal(&shell, 200, &["role", "delete", "reader"], answer);
        assert_eq!(code, Some(1), "{shown}");
        assert!(shown.contains(&format!("Delete the role {role} (reader)")) && shown.contains("[y/N]"), "{shown}");
        assert!(shown.contains("nothing was changed"), "{shown}");
    }
    assert!(shell.stdout(&["role", "list"]).contains("reader"));
    let (code, shown) = on_terminal(&shell, 200, &["role", "delete", "reader"], "y\n");
    assert_eq!(code, Some(0), "{shown}");
    assert!(!shell.stdout(&["role", "list"]).contains("reader"));
    let agent = shell.register_agent();
    let (_, shown) = on_terminal(&shell, 200, &["agent", "delete", &agent], "n\n");
    assert!(shown.contains(&format!("Delete the agent {agent}?")), "{shown}");
}

#[tokio::test]
async fn quiet_prints_data_and_errors_only() {
    let (_control, shell) = control_and_shell(&ALL).await;
    let (code, printed, notes) = parts(&shell.run(&["-q", "role", "create", "reader"]));
    assert!(code == 0 && notes.is_empty() && printed.starts_with("role_"), "{printed} {notes}");
    let error = shell.assert_fails(2, &["role", "assign", "reader", "nope", "--quiet"], &["`nope` is not the id"]);
    assert!(!error.contains("Next"), "{error}");
}

#[tokio::test]
async fn timeout_limits_each_request() {
    let shell = Shell::new();
    // The TCP listener accepts connections and never sends a response.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/", silent.local_addr().unwrap());
    // Without the option `--timeout`, the request would take 30 s, and `timeout` would end it with exit code 124.
    let arguments = ["doctor", "--server", &url, "--timeout", "300ms"];
    let (code, _, error) = parts(&shell.within("exec timeout 20 \"$@\"", &arguments).output().unwrap());
    assert!(code == 4 && error.contains("timed out") && error.contains("--timeout"), "{code} {error}");
    for wrong in ["5", "0s", "soon"] {
        shell.assert_fails(2, &["doctor", "--server", &url, "--timeout", wrong], &["write a duration with a unit"]);
    }
}

#[tokio::test]
async fn verbose_prints_each_request_without_secrets() {
    let (control, shell) = control_and_shell(&ALL).await;
    shell.register_agent();
    let trace = shell.notes(&["-v", "role", "list"]);
    let expected = format!("GET {}/services/{}/roles: 200 in ", control.env["URL"], control.service());
    assert!(trace.starts_with(&expected) && trace.contains("request id "), "{trace}");
    let (_, token, trace) = parts(&shell.run(&["agent", "login", "--verbose"]));
    assert_eq!(trace.matches("POST ").count(), 2, "{trace}");
    for secret in [token.as_str(), control.key(), control.human()] {
        assert!(!trace.contains(secret), "{trace}");
    }
    let trace = shell.notes(&["-v", "-o", "json", "role", "list"]);
    let request: Value = serde_json::from_str(&trace).unwrap();
    assert_eq!((&request["request"]["method"], &request["request"]["status"]), (&json!("GET"), &json!(200)));
    assert!(request["request"]["requestId"].is_string(), "{trace}");
    let url = format!("{}/health?token=s3cr3t", control.env["URL"]);
    let trace = shell.notes(&["-v", "agent", "call", &url, "--service-ca", &control.env["CA"]]);
    assert!(trace.contains("/health: 200") && !trace.contains("s3cr3t"), "{trace}");
}

#[tokio::test]
async fn json_is_the_format_of_notes_and_usage_errors_too() {
    let (_control, shell) = control_and_shell(&ALL).await;
    let note: Value = serde_json::from_str(&shell.notes(&["-o", "json", "role", "create", "reader"])).unwrap();
    assert_eq!(note["note"]["next"], "countersign role assign reader AGENT");
    let (_, _, lines) = parts(&shell.run(&["-v", "-o", "json", "role", "create", "reader"]));
    let are_json = lines.lines().all(|line| serde_json::from_str::<Value>(line).is_ok());
    assert!(lines.lines().count() == 2 && are_json, "{lines}");
    for arguments in [
        &["-o", "json", "role", "lst"][..],
        &["key", "create", "-ojson"],
        &["role", "list", "--bogus", "--output=json"],
        &["--output", "json"],
        &["-o", "json", "audit", "list", "--since", "soon"],
    ] {
        let (code, printed, error) = parts(&shell.run(arguments));
        assert_eq!((code, printed.as_str()), (2, ""), "{arguments:?}");
        let error: Value = serde_json::from_str(&error).unwrap_or_else(|_| panic!("{arguments:?}: {error}"));
        assert_eq!(error["error"]["code"], "USAGE");
        assert!(!error["error"]["message"].as_str().unwrap().is_empty(), "{error}");
    }
    let error = shell.json_error(&["role", "create", "reader"]);
    assert!(error["code"] == "CONFLICT" && error["requestId"].is_string(), "{error}");
}

#[tokio::test]
async fn agent_is_a_positional_argument() {
    let (_control, shell) = control_and_shell(&ALL).await;
    let agent = shell.register_agent();
    shell.stdout(&["role", "create", "reader"]);
    let text = shell.stdout(&["role", "assign", "reader", &agent]);
    let has_names = text.contains(&format!("{agent} (Typed)")) && text.contains(" (reader)");
    assert!(has_names, "the output has names beside ids: {text}");
    assert_eq!(shell.json(&["role", "revoke", "reader", &agent])["revoked"], true);
    assert!(shell.stdout(&["agent", "login", &agent]).contains('.'));
    assert!(shell.stdout(&["agent", "exec", &agent, "--", "printenv", "COUNTERSIGN_TOKEN"]).contains('.'));
    for (command, argument) in [
        (&["role", "assign"][..], "<AGENT>"),
        (&["role", "revoke"], "<AGENT>"),
        (&["agent", "login"], "[AGENT]"),
        (&["agent", "call"], "[AGENT]"),
    ] {
        let help = shell.stdout(&[command, &["--help"]].concat());
        assert!(help.contains(argument) && !help.contains("--agent"), "{help}");
    }
    for verb in ["assign", "revoke"] {
        shell.assert_fails(2, &["role", verb, "reader"], &["<AGENT>", &agent]);
        let error = shell.assert_fails(2, &["--profile", "other", "role", verb, "reader"], &["\nNext: pass the id"]);
        assert!(!error.contains(&agent), "{error}");
    }
}

#[tokio::test]
async fn role_holders_shows_the_agents_with_a_role_and_filters() {
    let (_control, mut shell) = control_and_shell(&ALL).await;
    let agent = shell.register_agent();
    assert_eq!(shell.json(&["role", "holders"]), json!([]), "an agent without a role is not listed");
    let role = shell.json(&["role", "create", "reader"]);
    shell.stdout(&["role", "create", "writer"]);
    shell.stdout(&["role", "assign", "reader", &agent]);
    let listed = shell.json(&["role", "holders"]);
    assert_eq!((&listed[0]["agentId"], &listed[0]["status"]), (&json!(agent), &json!("active")));
    assert_eq!(listed[0]["roles"], json!([{ "roleId": role["roleId"], "name": "reader", "expiresAt": null }]));
    let table = shell.stdout(&["role", "holders"]);
    assert!(table.starts_with("ID ") && table.contains(&agent) && table.contains("Typed"), "{table}");
    shell.unset("COUNTERSIGN_SERVICE_KEY");
    for (filter, count) in [
        (&["reader"][..], 1),
        (&[role["roleId"].as_str().unwrap()], 1),
        (&["writer"], 0),
        (&["--status", "active"], 1),
        (&["reader", "--status", "suspended"], 0),
    ] {
        let listed = shell.json(&[&["role", "holders"][..], filter].concat());
        assert_eq!(listed.as_array().unwrap().len(), count, "{filter:?}");
    }
    assert_eq!(shell.failure(&["role", "holders", "unknown"]).0, 3);
}

#[tokio::test]
async fn owner_lists_agents_and_their_services_and_leaves_one() {
    let (control, shell) = control_and_shell(&ALL).await;
    let (agent, service) = (shell.register_agent(), control.service());
    let listed = shell.json(&["agent", "list"]);
    assert_eq!((&listed[0]["agentId"], &listed[0]["status"]), (&json!(agent), &json!("active")));
    assert!(shell.stdout(&["agent", "list"]).contains("Typed"));
    assert_eq!(shell.json(&["agent", "services", &agent]), json!([]));
    shell.stdout(&["role", "create", "reader"]);
    shell.stdout(&["role", "assign", "reader", &agent]);
    let services = shell.json(&["agent", "services", &agent]);
    assert_eq!((&services[0]["serviceId"], &services[0]["mayAssignRoles"]), (&json!(service), &json!(true)));
    assert!(shell.stdout(&["agent", "services", &agent]).contains("reader"));
    let left = shell.json(&["agent", "leave", &agent, service]);
    assert_eq!((&left["mayAssignRoles"], &left["revokedRoles"]), (&json!(false), &json!(1)));
    shell.assert_fails(1, &["role", "assign", "reader", &agent], &["has left this service"]);
    assert!(shell.stdout(&["agent", "readmit", &agent, service]).contains("may assign roles"));
    shell.stdout(&["role", "assign", "reader", &agent]);
    assert_eq!(shell.failure(&["agent", "leave", "nonsense", service]).0, 2);
    assert_eq!(shell.failure(&["agent", "services", "agent_00000000000000000000000000"]).0, 3);
}

#[tokio::test]
async fn times_are_durations_or_rfc_3339() {
    let (_control, shell) = control_and_shell(&ALL).await;
    let agent = shell.register_agent();
    shell.stdout(&["role", "create", "reader"]);
    let assigned = shell.json(&["role", "assign", "reader", &agent, "--expires", "5m"]);
    let stored = shell.json(&["role", "holders"])[0]["roles"][0]["expiresAt"].clone();
    assert_eq!(assigned["expiresAt"], stored, "the printed expiry is the stored one");
    for value in ["8h", "2w", "2100-01-31T12:00:00Z"] {
        let assigned = shell.json(&["role", "assign", "reader", &agent, "--expires", value]);
        assert!(assigned["expiresAt"].as_str().unwrap().ends_with('Z'), "{assigned}");
    }
    let count = |arguments: &[&str]| {
        shell.json(&[&["audit", "list", "--all-services"], arguments].concat()).as_array().unwrap().len()
    };
    assert!(count(&["--since", "2000-01-01"]) > 0 && count(&["--since", "2100-01-01"]) == 0);
    assert!(count(&["--since", "5m"]) > 0 && count(&["--since", "2000-01-01T00:00:00Z"]) > 0);
    assert_eq!((count(&["--until", "1h"]), count(&["--since", "2100-01-01T00:00:00Z"])), (0, 0));
}

#[tokio::test]
async fn audit_list_states_its_filter_and_all_reads_every_page() {
    const ROLES: usize = 205;
    let control = ControlPlane::start().await;
    for number in 0..ROLES {
        control.create_role(&format!("role {number}"), &[]).await;
    }
    let agent = Agent::register(&control, "Listed").await;
    control.assign(&agent.id, &control.create_role("reader", &[]).await).await;
    let shell = Shell::with_env(&control, &ALL);
    let (_, table, note) = parts(&shell.run(&["audit", "list", "--limit", "3"]));
    assert_eq!(table.lines().count(), 1 + 3);
    assert!(table.contains("(reader)") && table.contains(&format!("{} (Listed)", agent.id)), "{table}");
    let filter = format!("Filter: service {}. Showing the newest 3 entries.", control.service());
    assert!(note.starts_with(&filter) && note.contains("\nNext: --all"), "{note}");
    let arguments = ["audit", "list", "--action", "role.created", "--all", "-o", "json"];
    let (code, entries, note) = parts(&shell.run(&arguments));
    let entries: Vec<Value> = serde_json::from_str(&entries).unwrap();
    assert_eq!((code, entries.len()), (0, ROLES + 1));
    assert_eq!(entries[0]["action"], "role.created");
    assert!(note.contains("action role.created. Showing 206 entries."), "{note}");
    assert_eq!(shell.failure(&["audit", "list", "--all", "--limit", "3"]).0, 2);
}

#[test]
fn unreachable_url_is_shown_with_its_port() {
    let shell = Shell::new();
    let error =
        shell.assert_fails(4, &["doctor", "--server", "https://localhost"], &["cannot reach https://localhost:443/: "]);
    assert!(error.contains("8443 by default"), "{error}");
    let (_, error) = shell.failure(&["doctor", "--server", "https://localhost:1"]);
    assert!(error.contains("cannot reach https://localhost:1/: ") && !error.contains("8443"), "{error}");
}

#[tokio::test]
async fn closed_or_full_standard_output_causes_no_panic() {
    let (_control, shell) = control_and_shell(&ALL).await;
    for arguments in
        [&["--help"][..], &["--version"], &["role", "assign", "--help"], &["completions", "bash"], &["role", "list"]]
    {
        for arguments in [arguments.to_vec(), [&["-o", "json"], arguments].concat()] {
            for (script, expected, text) in [
                ("exec \"$@\" >/dev/full", 1, "standard output: "),
                ("exec \"$@\" >&-", 0, ""),
                ("exec \"$@\" >&- 2>&-", 0, ""),
                ("\"$@\" | true", 0, ""),
            ] {
                let (code, _, error) = parts(&shell.within(script, &arguments).output().unwrap());
                let is_expected = code == expected && error.contains(text) && !error.contains("panicked");
                assert!(is_expected, "{script} {arguments:?}: {code} {error}");
            }
        }
    }
    let refused = shell.within("exec \"$@\" 2>/dev/full", &["role", "lst"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
}

#[tokio::test]
async fn tables_fit_the_terminal_and_keep_ids() {
    let (_control, shell) = control_and_shell(&ALL).await;
    let description = "a long description that does not fit into a line of this terminal ".repeat(3);
    let role = shell.stdout(&["role", "create", "reader", "--permission", "read", "--description", &description]);
    let (_, shown) = on_terminal(&shell, 100, &["-q", "role", "list"], "");
    let table: Vec<_> = shown.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(table.len(), 2, "{shown}");
    assert!(table.iter().all(|line| line.chars().count() <= 100), "{shown}");
    assert!(table[1].starts_with(&role) && table[1].contains('…'), "{shown}");
    let (_, shown) = on_terminal(&shell, 40, &["-q", "role", "list"], "");
    assert!(shown.contains(&format!("id           {role}\n")) && shown.contains("name         reader\n"), "{shown}");
    assert!(shell.stdout(&["role", "list"]).contains(description.trim()), "cells are complete in a pipe");
}

#[tokio::test]
async fn call_ends_the_body_with_a_newline_on_a_terminal_only() {
    let (control, shell) = control_and_shell(&ALL).await;
    shell.register_agent();
    let url = format!("{}/health", control.env["URL"]);
    let call = ["agent", "call", &url, "--service-ca", &control.env["CA"]];
    let (_, shown) = on_terminal(&shell, 200, &call, "");
    assert!(shown.contains("\"healthy\"") && shown.ends_with("}\n"), "{shown:?}");
    assert!(shell.run(&call).stdout.ends_with(b"}"), "in a pipe the body is unchanged");
}

#[tokio::test]
async fn values_are_completed() {
    let (_control, mut shell) = control_and_shell(&["URL", "CA"]).await;
    let agent = shell.register_agent();
    shell.export("_COUNTERSIGN_COMPLETE", "bash");
    shell.export("_CLAP_IFS", "\n");
    let mut candidates = |line: &[&str]| {
        shell.export("_CLAP_COMPLETE_INDEX", &(line.len()).to_string());
        shell.stdout(&[&["--", "countersign"], line].concat())
    };
    assert!(candidates(&["role", ""]).contains("assign"));
    assert_eq!(candidates(&["key", "create", "--scope", ""]).lines().collect::<Vec<_>>(), ["full", "sync"]);
    assert_eq!(candidates(&["--profile", ""]), "default");
    assert!(candidates(&["role", "assign", "reader", "agent_"]).contains(&agent));
    assert_eq!(candidates(&["webhook", "create", "--events", "agent.role_a"]), "agent.role_assigned");
    let list = candidates(&["webhook", "create", "--events", "trust.feedback_received,agent.role_a"]);
    assert!(list.contains("agent.role_assigned"), "{list}");
    assert!(candidates(&["audit", "list", "--action", "role.as"]).contains("role.assigned"));
}

#[tokio::test]
async fn signing_key_rotate_states_when_and_why_the_switch_comes() {
    let (_control, shell) = control_and_shell(&["URL", "CA", "HUMAN_TOKEN"]).await;
    let note = shell.notes(&["signing-key", "rotate"]);
    let rotation = shell.json(&["signing-key", "rotate"]);
    let time = rotation["signsFrom"].as_str().unwrap();
    assert!(note.contains(&format!("The switch comes at {time} (in ")) && note.contains("every sidecar"), "{note}");
}

#[tokio::test]
async fn owner_transfers_and_deletes_services_and_deletes_agents() {
    let (control, mut shell) = control_and_shell(&["URL", "CA"]).await;
    let become_user =
        |shell: &mut Shell, subject: &str| shell.export("COUNTERSIGN_HUMAN_TOKEN", &control.mint_human(subject));
    become_user(&mut shell, "alice");
    let agent = shell.register_agent();
    let service = shell.stdout(&["service", "create", "Shop"]);
    assert_eq!(shell.json(&["service", "describe", "--service", &service])["name"], "Shop");
    let offer = shell.json(&["service", "transfer", &service, "--to", "bob"]);
    assert_eq!((&offer["newOwner"]["subject"], &offer["serviceId"]), (&json!("bob"), &json!(service)));
    assert_eq!(shell.json(&["service", "transfer", &service]), offer);
    assert_eq!(shell.failure(&["service", "transfer", &service, "--accept"]).0, 3);

    become_user(&mut shell, "bob");
    assert_eq!(shell.json(&["service", "transfer"]), json!([offer]));
    assert!(shell.stdout(&["service", "transfer"]).contains("Shop"));
    assert_eq!(shell.failure(&["service", "delete", &service, "--yes"]).0, 3);
    assert_eq!(shell.json(&["service", "transfer", &service, "--accept"])["serviceId"], json!(service));
    assert_eq!(shell.json(&["service", "transfer"]), json!([]));
    assert_eq!(shell.json(&["service", "list"])[0]["serviceId"], json!(service));
    assert_eq!(shell.failure(&["agent", "delete", &agent, "--yes"]).0, 3);
    let deleted = shell.json(&["service", "delete", &service, "--yes"]);
    assert_eq!(deleted, json!({ "deleted": true, "serviceId": service, "revision": deleted["revision"] }));
    assert!(deleted["revision"].is_u64(), "{deleted}");
    assert_eq!(shell.json(&["service", "list"]), json!([]));
    become_user(&mut shell, "alice");
    let deleted = shell.json(&["agent", "delete", &agent, "--yes"]);
    assert_eq!(deleted, json!({ "deleted": true, "agentId": agent, "revision": deleted["revision"] }));
    assert_eq!(shell.json(&["agent", "list"]), json!([]));
    assert_eq!(shell.failure(&["agent", "delete", &agent, "--yes"]).0, 3);
}
