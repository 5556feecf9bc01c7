//! Failures: no result is lost, and no error contains a secret.

use crate::{control_and_shell, mode};
use countersign_tests::{
    Shell,
    command_line::{REGISTER, parts},
};
use std::{fs, io::PipeWriter, os::unix::fs::PermissionsExt, process::Stdio};

/// An unreachable URL: commands that use it exit with code 4.
const UNREACHABLE: &str = "https://localhost:1";

/// Runs the command where no file can be written, as on a full disk.
pub fn on_full_disk(shell: &Shell, arguments: &[&str]) -> (i32, String, String) {
    parts(&shell.within("trap '' XFSZ; ulimit -f 0; exec \"$@\"", arguments).output().unwrap())
}

/// A command for `--signer` that signs with a key, and then makes it impossible to save the profile.
fn breaking_signer(shell: &Shell, key: &str) -> String {
    let folder = shell.profile_path("").display().to_string();
    let folder = folder.trim_end_matches('/');
    format!("openssl dgst -sha256 -sign {key}; rm -r {folder}; touch {folder}")
}

/// A pipe that nobody reads.
fn closed_pipe() -> PipeWriter {
    std::io::pipe().unwrap().1
}

#[test]
fn private_key_in_place_of_the_public_key_is_not_sent() {
    let mut shell = Shell::new();
    shell.export("COUNTERSIGN_URL", UNREACHABLE);
    let key = shell.path("agent.key").display().to_string();
    let public = shell.stdout(&["agent", "keygen", "--key", &key]);
    let register = |file: &str, texts: &[&str]| {
        shell.assert_fails(2, &[&REGISTER[..], &["--signer", "true", "--public-key", file]].concat(), texts)
    };
    register(&key, &["was not sent", "\nNext: `openssl pkey -in"]);
    // The command refuses a file that contains a key twice: it must contain exactly one.
    fs::write(shell.path("agent.pub"), public.repeat(2)).unwrap();
    register("agent.pub", &[]);
}

#[tokio::test]
async fn commands_change_nothing_if_the_profile_cannot_be_saved() {
    let (control, shell) = control_and_shell(&["URL", "CA", "HUMAN_TOKEN"]).await;
    let run_on_full_disk = |arguments: &[&str]| on_full_disk(&shell, arguments);
    shell.register_agent();
    let first = shell.stdout(&["agent", "login"]);
    let before = fs::read(shell.profile_path("default.tokens.json")).unwrap();
    let key = shell.path("other.key").display().to_string();
    let register = ["agent", "register", "--email", "b@example.org", "--name", "Other"];
    for arguments in [
        &["agent", "refresh"][..],
        &["service", "create", "Shop"],
        &["agent", "keygen", "--profile", "other", "--key", &key],
        &register,
    ] {
        let (code, printed, error) = run_on_full_disk(arguments);
        assert!(code == 1 && printed.is_empty(), "{arguments:?}: {error}");
        assert!(error.contains("\nNext: set XDG_CONFIG_HOME"), "{arguments:?}: {error}");
    }
    assert!(!fs::exists(&key).unwrap() && !shell.stdout(&["service", "list"]).contains("Shop"));
    assert_eq!(fs::read(shell.profile_path("default.tokens.json")).unwrap(), before);
    let files = fs::read_dir(shell.profile_path("")).unwrap().count();

    let exec = ["agent", "exec", "--", "printenv", "COUNTERSIGN_TOKEN"];
    assert_eq!(run_on_full_disk(&exec), (0, first.clone(), String::new()), "the valid token is not stored again");
    let (code, token, error) = run_on_full_disk(&["agent", "login"]);
    assert!(code == 1 && error.contains("done, but not saved in the profile: "), "{error}");
    control.verify(&token).await.expect(200);
    let (code, printed, error) = run_on_full_disk(&["token", "revoke", &first]);
    assert!(code == 1 && printed.contains("revoked") && error.contains("not saved"), "{printed} {error}");
    assert_eq!(control.verify(&first).await.error().2, "token_revoked");
    let (code, token, error) =
        run_on_full_disk(&["agent", "exec", "--service", control.service(), "--", "sh", "-c", "exit 7"]);
    assert!(code == 7 && token.is_empty() && error.contains("are not saved"), "{error}");
    assert_eq!(fs::read_dir(shell.profile_path("")).unwrap().count(), files, "no partial files remain");
}

#[tokio::test]
async fn results_are_printed_if_the_profile_cannot_be_saved_afterwards() {
    let (control, shell) = control_and_shell(&["URL", "CA"]).await;
    shell.register_agent();
    fs::copy(shell.profile_path("default.key"), shell.path("copy.key")).unwrap();
    let login = ["agent", "login", "--signer", &breaking_signer(&shell, "copy.key")];
    let (code, token, error) = parts(&shell.run(&login));
    assert!(code == 1 && error.contains("done, but not saved in the profile: "), "{error}");
    control.verify(&token).await.expect(200);
    shell.assert_fails(1, &["agent", "login"], &["\nNext: set XDG_CONFIG_HOME"]);
}

#[tokio::test]
async fn secret_that_cannot_be_printed_is_an_error() {
    let (_control, shell) = control_and_shell(&["URL", "CA", "SERVICE_ID", "HUMAN_TOKEN"]).await;
    shell.register_agent();
    let into = |arguments: &[&str], out: Stdio| parts(&shell.command(arguments).stdout(out).output().unwrap());
    let full = || Stdio::from(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let (_, _, error) = into(&["key", "create", "--scope", "full"], full());
    let key = shell.json(&["key", "list"])[0]["keyId"].as_str().unwrap().to_owned();
    assert!(error.contains(&format!("\nNext: the key was not printed, so revoke it: countersign key revoke {key}")));
    assert_eq!(into(&["key", "list"], closed_pipe().into()).0, 0, "a list is no secret");

    let webhook = shell.stdout(&["webhook", "create", "http://127.0.0.1:9999/", "--out", "secret"]);
    let rotation = format!("not printed; create another: countersign webhook rotate-secret {webhook}");
    for (arguments, next) in [
        (&["key", "create", "--scope", "full"][..], "countersign key revoke key_"),
        (&["-o", "json", "key", "create", "--scope", "full"], "countersign key revoke key_"),
        (&["webhook", "create", "http://127.0.0.1:9999/"], "countersign webhook rotate-secret wh_"),
        (&["webhook", "rotate-secret", &webhook, "--yes"], &rotation),
        (&["agent", "login"], "`countersign agent login` prints a new one"),
    ] {
        for out in [closed_pipe().into(), full()] {
            let (code, _, error) = into(arguments, out);
            assert!(code == 1 && error.contains("standard output: ") && error.contains(next), "{arguments:?}: {error}");
        }
    }
}

#[tokio::test]
async fn errors_contain_no_secret() {
    let (_control, shell) = control_and_shell(&["URL", "CA"]).await;
    shell.register_agent();
    let call = |more: &[&'static str]| [&["agent", "call"][..], more].concat();
    for (code, arguments) in [
        (2, call(&["http://127.0.0.1:1/", "-H", "Authorization Bearer s3cr3t"])),
        (2, call(&["http://127.0.0.1:1/", "-H", "s3cr3t"])),
        (2, call(&["http://127.0.0.1:1/", "-H", "a s3cr3t: x"])),
        (4, call(&["http://user:s3cr3t@127.0.0.1:1/x?token=s3cr3t"])),
        (2, call(&["user:s3cr3t@127.0.0.1:1/x?token=s3cr3t"])),
        (4, vec!["agent", "login", "--server", "https://user:s3cr3t@127.0.0.1:1/?s3cr3t"]),
        (2, vec!["agent", "login", "--server", "http://user:s3cr3t@127.0.0.1:1/?s3cr3t"]),
        (2, vec!["token", "verify", "a.b.c", "s3cr3t"]),
        (2, vec!["key", "revoke", "key_1", "s3cr3t"]),
        (2, vec!["token", "rf_0000000000000000000000000s3cr3t"]),
        (2, vec!["role", "list", "--timeout", "svc_sk_s3cr3t"]),
        (2, vec!["webhook", "show", "whsec_s3cr3t"]),
        (2, vec!["agent", "show", "svc_sk_s3cr3t"]),
    ] {
        let (actual, printed, error) = parts(&shell.run(&arguments));
        assert!(actual == code && printed.is_empty() && !error.contains("s3cr3t"), "{arguments:?}: {actual} {error}");
    }
    let (_, error) = shell.failure(&["agent", "call", "http://user:pw@127.0.0.1:1/x?token=s"]);
    assert!(error.contains("cannot reach http://127.0.0.1:1/x: "), "the rest of the URL is shown: {error}");
    assert!(shell.failure(&["token", "verfy"]).1.contains("`verify`"), "similar names are suggested");
}

#[tokio::test]
async fn register_fails_for_suspended_and_revoked_agents() {
    let (control, shell) = control_and_shell(&["URL", "CA"]).await;
    let agent = shell.register_agent();
    assert_eq!(shell.stdout(&REGISTER), agent, "registering again returns the same agent");
    let profile = fs::read(shell.profile_path("default.toml")).unwrap();
    for (status, next) in [("suspended", "reactivate"), ("revoked", "keygen")] {
        control.set_status(&agent, status).await.expect(200);
        let (code, printed, error) = parts(&shell.run(&REGISTER));
        assert!(code == 3 && printed.is_empty() && error.contains(&agent) && error.contains(status), "{error}");
        assert!(error.lines().last().unwrap().contains(next), "{error}");
    }
    assert_eq!(fs::read(shell.profile_path("default.toml")).unwrap(), profile);
}

#[tokio::test]
async fn register_requires_a_signature_of_the_signer() {
    let (_control, shell) = control_and_shell(&["URL", "CA", "HUMAN_TOKEN"]).await;
    for name in ["one", "other"] {
        let key = shell.path(&format!("{name}.key")).display().to_string();
        let public = shell.stdout(&["agent", "keygen", "--key", &key, "--profile", name]);
        fs::write(shell.path(&format!("{name}.pub")), public).unwrap();
    }
    let half = shell.path("one.pub").display().to_string();
    let register =
        |signer: &str| parts(&shell.run(&[&REGISTER[..], &["--signer", signer, "--public-key", &half]].concat()));
    for (signer, code, text) in [
        ("", 2, "a command is required"),
        (" ", 2, "a command is required"),
        ("nosuch", 1, "exit status: 127"),
        ("true", 1, "no P-256 signature"),
        ("openssl dgst -sha256 -sign other.key", 1, "does not sign with the key"),
    ] {
        let (actual, printed, error) = register(signer);
        assert!(actual == code && printed.is_empty() && error.contains(text), "{signer}: {actual} {error}");
    }
    assert!(!shell.profile_path("default.toml").exists(), "nothing was registered");

    let (code, agent, error) = register("openssl dgst -sha256 -sign one.key");
    assert_eq!(code, 0, "{error}");
    let shown = shell.json(&["agent", "show"]);
    assert_eq!(shown["agentId"], agent);
    assert!(shown["publicKeyHash"].as_str().unwrap().starts_with("sha256:"), "{shown}");

    let (code, printed, error) = register(&breaking_signer(&shell, "one.key"));
    assert!(code == 1 && printed.starts_with("agent_"), "the id is printed without the profile: {error}");
}

#[tokio::test]
async fn files_with_secrets_are_private() {
    let (_control, shell) = control_and_shell(&["URL", "CA", "SERVICE_ID", "HUMAN_TOKEN"]).await;
    let out = shell.path("sidecar.key").display().to_string();
    let create = ["key", "create", "--scope", "full", "--out", &out];
    let (code, printed, error) = parts(&shell.run(&create));
    assert!(code == 0 && printed == shell.json(&["key", "list"])[0]["keyId"] && error.contains(&out), "{error}");
    let key = fs::read_to_string(&out).unwrap();
    assert!(mode(&out) == 0o600 && key.starts_with("svc_sk_") && key.ends_with('\n'));
    shell.assert_fails(1, &create, &["the file exists\nNext: no file is overwritten"]);
    let nowhere = [&create[..5], &["/nowhere/key"]].concat();
    shell.assert_fails(1, &nowhere, &["--out /nowhere/key: its folder does not exist"]);
    assert_eq!(fs::read_to_string(&out).unwrap(), key);
    let (code, printed, error) = on_full_disk(&shell, &[&create[..5], &["another.key"]].concat());
    assert!(code == 1 && printed.starts_with("svc_sk_") && error.contains("--out another.key: "), "{error}");
    assert_eq!(shell.failure(&["key", "create", "--scope", "full", "--out", "x", "--server", UNREACHABLE]).0, 4);
    assert!(!shell.path("another.key").exists() && !shell.path("x").exists());

    shell.register_agent();
    let agent = shell.profile_path("default.key").display().to_string();
    assert_eq!(parts(&shell.run(&["agent", "login"])).2, "");
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o644)).unwrap();
    let (code, _, warning) = parts(&shell.run(&["agent", "login"]));
    assert!(code == 0 && warning.contains("(mode 0644); chmod 600 "), "{warning}");
}
