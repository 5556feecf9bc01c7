//! Tests of `rules check`, of `rules explain`, and of a start with a bad rules file.

use super::RULES;
use countersign_tests::{sidecar::run_command, tools};
use std::{fs, process::Command};

/// The exit code, standard output and standard error of a command.
fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(tools::binary("countersign-ext-authz"));
    command.env("COUNTERSIGN_SYNC__KEYS", "svc_sk_x").args(arguments);
    run_command(command, "")
}

#[test]
fn check_reports_all_errors_with_their_lines() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.toml");
    let path = file.display().to_string();
    fs::write(&file, RULES).unwrap();
    assert_eq!(run(&["rules", "check", &path]), (Some(0), format!("{path}: 6 rules, no errors\n"), String::new()));

    let tried = RULES.replace("path_prefix = \"/open\"\nallow_anonymous = true", "path = \"/admin/x\"\ndry_run = true");
    fs::write(&file, tried).unwrap();
    let warning = "warning: line 2: the dry run `open` takes requests from the enforced rule `admin` at line 7";
    let (code, output, _) = run(&["rules", "check", &path]);
    assert!(code == Some(0) && output.starts_with(&format!("{path}: {warning}")), "{output}");

    fs::write(&file, "[[rules]]\nname = 'a'\npath = '/a'\n\n[[rules]]\nname = 'b'\npath = '/%61'\n\n[[rules]]\nname = 'c'\nhosts = 'x'\n")
        .unwrap();
    let (code, output, errors) = run(&["rules", "check", &path]);
    let errors: Vec<_> = errors.lines().collect();
    assert_eq!((code, output.as_str(), errors.len()), (Some(1), "", 2), "{errors:?}");
    assert!(errors[0].starts_with(&format!("{path}: line 5: rule `b` and rule `a` at line 1 can both match")));
    assert!(errors[1].starts_with(&format!("{path}: line 11: rule `c`: unknown key `hosts`")), "{errors:?}");

    let (code, _, errors) = run(&["--set", &format!("rules.file={path}")]);
    assert_eq!(code, Some(2), "{errors}");
    assert!(errors.contains(&format!("rules.file: {path}: line 5: ")), "{errors}");
    assert!(errors.contains(&format!("{path}: line 11: ")), "{errors}");

    let (code, _, errors) = run(&["rules", "check", "/missing/rules.toml"]);
    assert!(code == Some(1) && errors.starts_with("/missing/rules.toml: "), "{errors}");
    assert_eq!(run(&["--set", "rules.file=/missing/rules.toml"]).0, Some(1));
}

#[test]
fn explain_names_the_rule() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.toml");
    fs::write(&file, RULES).unwrap();
    let explain = |host: &str, path: &str| {
        run(&["rules", "explain", &file.display().to_string(), "--method", "GET", "--host", host, "--path", path])
    };
    let (code, output, errors) = explain("a.example.com", "/admin/x?y");
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(output.contains("rule     read-admin (line 12): any host, path_prefix /admin, GET\n"), "{output}");
    assert!(output.contains("requires any_permission = admin, read\n"), "{output}");
    assert!(output.contains("admin (line 7) also matches, but it names no method"), "{output}");
    let (code, output, _) = explain("a.example.com", "/open/..%2fadmin");
    assert!(code == Some(3) && output.contains("encoded slash"), "{output}");
    assert_eq!(run(&["rules", "explain", "--path", "/"]).0, Some(2));
}
