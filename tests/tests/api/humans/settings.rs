//! Invalid issuer settings, the operator key, and the output of `config`.

use countersign_tests::{Issuer, SigningKey, tools};
use std::{path::Path, process::Command};

/// Runs the control plane. Returns exit code, standard output and standard error.
pub fn run_control_plane(
    arguments: &[&str],
    settings: &[&str],
    environment: &[(&str, &str)],
) -> (Option<i32>, String, String) {
    let mut command = Command::new(tools::binary("countersign-control-plane"));
    command.args(arguments).envs(environment.iter().copied()).current_dir(std::env::temp_dir());
    for setting in settings {
        command.args(["--set", setting]);
    }
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

const PRODUCTION: [&str; 3] = ["public_url=https://id.example", "tls.certificate=c.pem", "tls.private_key=k.pem"];

/// Settings like [`PRODUCTION`], with the files of a certificate, which `config check` reads.
fn production_with_files(folder: &Path) -> Vec<String> {
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.join("c.pem"), folder.join("k.pem"));
    std::fs::write(&certificate, pair.cert.pem()).unwrap();
    std::fs::write(&key, pair.signing_key.serialize_pem()).unwrap();
    let files = [("tls.certificate", certificate), ("tls.private_key", key), ("data_dir", folder.join("data"))];
    let files = files.map(|(key, path)| format!("{key}={}", path.display()));
    files.into_iter().chain(["public_url=https://id.example".to_owned()]).collect()
}

const ISSUER: &str = "humans.issuers.corp.issuer=https://login.example";
const AUDIENCE: &str = "humans.issuers.corp.audience=countersign";

#[test]
fn config_check_prints_ok_or_every_error() {
    let folder = tempfile::tempdir().unwrap();
    let production = production_with_files(folder.path());
    let valid: Vec<_> = production.iter().map(String::as_str).chain([ISSUER, AUDIENCE]).collect();
    assert_eq!(run_control_plane(&["config", "check"], &valid, &[]), (Some(0), "ok\n".into(), String::new()));
    let invalid = ["humans.issuers.corp.admin_claim==boss", "humans.issuers.corp.jwks=ftp://x", "connections.max=0"];
    let (code, printed, error) = run_control_plane(&["config", "check"], &invalid, &[]);
    assert_eq!((code, printed.as_str()), (Some(2), ""), "{error}");
    for key in ["tls.certificate", "public_url", "corp.issuer:", "corp.audience:", "corp.jwks:", "corp.admin_claim:"] {
        assert!(error.contains(key), "{key}: {error}");
    }
    assert!(error.contains("connections.max"), "{error}");
    let environment = [("COUNTERSIGN_TOKENS__ACCESS_SECONDS", "soon"), ("COUNTERSIGN_NONSENSE", "1")];
    let (code, _, error) = run_control_plane(&["config", "check"], &["listen.api=nowhere", "lst=1"], &environment);
    assert_eq!(code, Some(2), "{error}");
    for expected in [
        "`tokens.access_seconds` in the environment",
        "`nonsense` in the environment",
        "`listen.api` in a flag",
        "`lst` in a flag",
    ] {
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn contradictory_issuer_settings_are_refused_with_their_name() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let ca = format!("humans.issuers.corp.ca_file={}", file.path().display());
    let jwks = format!("humans.issuers.corp.jwks={}", file.path().display());
    let cases: [(&[&str], &str); 10] = [
        (&[AUDIENCE], "humans.issuers.corp.issuer:"),
        (&[ISSUER], "humans.issuers.corp.audience:"),
        (
            &[AUDIENCE, "humans.issuers.corp.issuer=http://login.example"],
            "humans.issuers.corp.issuer: must be an https",
        ),
        (&[AUDIENCE, "humans.issuers.corp.issuer=http://127.0.0.1:1"], "humans.issuers.corp.issuer: must be an https"),
        (&[AUDIENCE, "humans.issuers.corp.issuer=https://a:b@login.example"], "humans.issuers.corp.issuer:"),
        (
            &[AUDIENCE, "humans.issuers.corp.issuer=https://id.example"],
            "humans.issuers.corp.issuer: is the issuer of this",
        ),
        (&[ISSUER, AUDIENCE, &jwks, &ca], "humans.issuers.corp.ca_file: contradicts"),
        (&[ISSUER, AUDIENCE, "humans.issuers.corp.jwks_url=x"], "did you mean `humans.issuers.corp.jwks`?"),
        (
            &[ISSUER, AUDIENCE, "humans.issuers.again.issuer=https://login.example", "humans.issuers.again.audience=x"],
            "humans.issuers.corp.issuer: humans.issuers.again has the same issuer",
        ),
        (&[ISSUER, AUDIENCE, "humans.issuers.corp.adience=x"], "did you mean `humans.issuers.corp.audience`?"),
    ];
    for (settings, expected) in cases {
        for command in [&["serve"][..], &["config", "check"]] {
            let (code, _, error) = run_control_plane(command, &[&PRODUCTION[..], settings].concat(), &[]);
            assert!(code == Some(2) && error.contains(expected), "{settings:?}: {error}");
        }
    }
}

#[test]
fn invalid_issuer_files_stop_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let data = format!("data_dir={}", folder.path().display());
    let file = folder.path().join("file");
    std::fs::write(&file, "{}").unwrap();
    for key in ["jwks", "ca_file"] {
        for path in [file.display().to_string(), "/nowhere".to_owned()] {
            let setting = format!("humans.issuers.corp.{key}={path}");
            let ports = ["listen.api=127.0.0.1:0", "listen.sync=127.0.0.1:0", "listen.admin=127.0.0.1:0"];
            let settings = [&[data.as_str(), ISSUER, AUDIENCE, &setting], &ports[..]].concat();
            let (code, _, error) = run_control_plane(&["--dev"], &settings, &[]);
            assert!(code == Some(1) && error.contains(&format!("humans.issuers.corp.{key}: ")), "{setting}: {error}");
        }
    }
}

#[test]
fn config_print_shows_values_and_sources_without_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("settings.toml");
    std::fs::write(&file, "[humans.issuers.corp]\nissuer = \"https://login.example\"\nadmin_claim = \"https://x/y\"\n")
        .unwrap();
    let environment = [
        ("COUNTERSIGN_HUMANS__ISSUERS__CORP__AUDIENCE", "countersign"),
        ("COUNTERSIGN_SECRETS__MASTER_KEY", "hunter2"),
        ("COUNTERSIGN_PROXIES__TRUSTED", "10.0.0.0/8,192.0.2.1"),
        ("COUNTERSIGN_TOKENS__ACCESS_SECONDS", "600"),
    ];
    let arguments = ["config", "print", "--config", file.to_str().unwrap()];
    let production = production_with_files(folder.path());
    let settings: Vec<_> =
        production.iter().map(String::as_str).chain(["database.url=postgres://me:hunter2@db/x"]).collect();
    let (_, printed, error) = run_control_plane(&arguments, &settings, &environment);
    assert!(!printed.contains("hunter2") && !error.contains("hunter2"), "{printed}{error}");
    let lines = [
        "access_seconds = 600 # the environment (COUNTERSIGN_TOKENS__ACCESS_SECONDS)",
        "master_key = \"(hidden)\" # the environment (COUNTERSIGN_SECRETS__MASTER_KEY)",
        "url = \"(hidden)\" # a flag",
        "[humans.issuers.corp]",
        "trusted = [\"10.0.0.0/8\", \"192.0.2.1\"] # the environment (COUNTERSIGN_PROXIES__TRUSTED)",
        &format!("admin_claim = \"https://x/y\" # {}", file.display()),
        "refresh_seconds = 2592000 # default",
    ];
    for line in lines {
        assert!(printed.lines().any(|printed_line| printed_line == line), "{line}:\n{printed}");
    }
    let printed_file = folder.path().join("printed.toml");
    std::fs::write(&printed_file, printed.replace("\"(hidden)\"", "\"\"")).unwrap();
    let check = run_control_plane(&["config", "check", "--config", printed_file.to_str().unwrap()], &[], &[]);
    assert_eq!(check, (Some(0), "ok\n".into(), String::new()), "the printed settings are valid input");
}

#[test]
fn invalid_toml_is_reported_with_its_line_but_not_quoted() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    for line in ["master_key = \"hunter2", "master_key = hunter2", "master_key = \"hunter2\" x"] {
        std::fs::write(file.path(), format!("# ü\n[secrets]\n{line}\n")).unwrap();
        for command in [&["config", "print"][..], &["config", "check"], &["serve"]] {
            let (code, printed, error) = run_control_plane(&[command, &["--config", path]].concat(), &[], &[]);
            assert!(code == Some(2) && error.contains(&format!("{path}: invalid TOML at line 3: ")), "{line}: {error}");
            assert!(!printed.contains("hunter2") && !error.contains("hunter2"), "{printed}{error}");
        }
    }
}

#[test]
fn mint_refuses_invalid_subjects() {
    let folder = tempfile::tempdir().unwrap();
    let data = format!("data_dir={}", folder.path().display());
    let long_subject = "x".repeat(256);
    for subject in ["", "a\nb", &long_subject] {
        let (code, minted, error) = run_control_plane(&["human-token", "mint", "--subject", subject], &[&data], &[]);
        assert!(code == Some(2) && minted.is_empty() && error.contains("--subject"), "{subject:?}: {error}");
    }
}

#[tokio::test]
async fn dev_mode_accepts_operator_tokens_although_an_issuer_is_configured() {
    let key = SigningKey::p256("p");
    let issuer = Issuer::start(&[&key]).await;
    let control = super::start_with_issuer(&issuer, &[]).await;
    super::list_services(&control, control.human()).await.expect(200);
    super::list_services(&control, &control.mint_human("ann")).await.expect(200);
}
