//! Failures: no result is lost, and no error contains a secret.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_tests::{ControlPlane, Shell};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    process::{Output, Stdio},
};

const REGISTER: [&str; 6] = ["agent", "register", "--email", "a@example.org", "--name", "Typed"];

/// An unreachable URL: commands that use it exit with code 4.
const UNREACHABLE: &str = "https://localhost:1";

fn register(shell: &Shell) -> String {
    shell.stdout(&["agent", "keygen"]);
    shell.stdout(&REGISTER)
}

/// Runs the command where no file can be written, as on a full disk.
pub fn on_full_disk(shell: &Shell, arguments: &[&str]) -> (i32, String, String) {
    let typed = shell.command(arguments);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\""]).arg(typed.get_program());
    command.args(typed.get_args()).current_dir(typed.get_current_dir().unwrap()).env_clear();
    command.envs(typed.get_envs().filter_map(|(name, value)| Some((name, value?))));
    parts(&command.output().unwrap())
}

/// The exit code, standard output and standard error.
fn parts(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap().trim().to_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// A command for `--signer`.
fn script(shell: &Shell, name: &str, text: &str) -> String {
    let path = shell.path(name).display().to_string();
    fs::write(&path, format!("set -e\n{text}\n")).unwrap();
    format!("sh {path}")
}

#[test]
fn private_key_in_place_of_the_public_key_is_not_sent() {
    let mut shell = Shell::new();
    shell.export("COUNTERSIGN_URL", UNREACHABLE);
    let key = shell.path("agent.key").display().to_string();
    let public = shell.stdout(&["agent", "keygen", "--key", &key]);
    let register = |file: &str| shell.failure(&[&REGISTER[..], &["--signer", "true", "--public-key", file]].concat());
    let (code, error) = register(&key);
    assert!(code == 2 && error.contains("was not sent") && error.contains("\nNext: `openssl pkey -in"), "{error}");
    let half = shell.path("agent.pub").display().to_string();
    fs::write(&half, public.repeat(2)).unwrap();
    assert_eq!(register(&half).0, 2, "one key is required");
}

#[tokio::test]
async fn commands_change_nothing_if_the_profile_cannot_be_saved() {
    let control = ControlPlane::start().await;
    let shell = Shell::with_env(&control, &["URL", "CA", "HUMAN_TOKEN"]);
    let run_on_full_disk = |arguments: &[&str]| on_full_disk(&shell, arguments);
    register(&shell);
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
        assert!(
            code == 1 && printed.is_empty() && error.contains("\nNext: set XDG_CONFIG_HOME"),
            "{arguments:?}: {error}"
        );
    }
    assert!(!fs::exists(&key).unwrap() && !shell.stdout(&["service", "list"]).contains("Shop"));
    assert_eq!(fs::read(shell.profile_path("default.tokens.json")).unwrap(), before);
    let files = fs::read_dir(shell.profile_path("")).unwrap().count();

    let exec = ["agent", "exec", "--", "printenv", "COUNTERSIGN_TOKEN"];
    assert_eq!(
        run_on_full_disk(&exec),
        (0, first.clone(), String::new()),
        "the stored token is valid, and there is nothing to store"
    );
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
    let control = ControlPlane::start().await;
    let shell = Shell::with_env(&control, &["URL", "CA"]);
    register(&shell);
    let folder = shell.profile_path("").display().to_string();
    let folder = folder.trim_end_matches('/');
    fs::copy(shell.profile_path("default.key"), shell.path("copy.key")).unwrap();
    let signs = "openssl dgst -sha256 -sign copy.key";
    let breaks_profile = script(&shell, "breaks-profile", &format!("{signs}; rm -r {folder}; touch {folder}"));
    let (code, token, error) = parts(&shell.run(&["agent", "login", "--signer", &breaks_profile]));
    assert!(code == 1 && error.contains("done, but not saved in the profile: "), "{error}");
    control.verify(&token).await.expect(200);
    let (code, error) = shell.failure(&["agent", "login"]);
    assert!(code == 1 && error.contains("\nNext: set XDG_CONFIG_HOME"), "{error}");
}

#[tokio::test]
async fn full_standard_output_is_an_error_and_a_closed_pipe_is_not() {
    let control = ControlPlane::start().await;
    let shell = Shell::with_env(&control, &["URL", "CA", "SERVICE_ID", "HUMAN_TOKEN"]);
    let into = |arguments: &[&str], out: Stdio| parts(&shell.command(arguments).stdout(out).output().unwrap());
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into();
    let (code, _, error) = into(&["key", "create", "--scope", "full"], full());
    let key = shell.json(&["key", "list"])[0]["keyId"].as_str().unwrap().to_owned();
    assert!(code == 1 && error.contains("standard output: "), "{error}");
    assert!(error.contains(&format!("\nNext: the key was not printed, so revoke it: countersign key revoke {key}")));
    assert_eq!(into(&["key", "list"], full()).0, 1);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(into(&["key", "list"], writer.into()).0, 0, "a closed pipe is not an error");
}

#[tokio::test]
async fn secret_that_meets_a_closed_pipe_is_an_error() {
    let control = ControlPlane::start().await;
    let shell = Shell::with_env(&control, &["URL", "CA", "SERVICE_ID", "HUMAN_TOKEN"]);
    register(&shell);
    for (arguments, next) in [
        (&["key", "create", "--scope", "full"][..], "countersign key revoke key_"),
        (&["-o", "json", "key", "create", "--scope", "full"], "countersign key revoke key_"),
        (&["webhook", "create", "http://127.0.0.1:9999/"], "countersign webhook rotate-secret wh_"),
        (&["agent", "login"], "`countersign agent login` prints a new one"),
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let (code, _, error) = parts(&shell.command(arguments).stdout(writer).output().unwrap());
        assert!(code == 1 && error.contains("standard output: ") && error.contains(next), "{arguments:?}: {error}");
    }
}

#[tokio::test]
async fn errors_contain_no_secret() {
    let control = ControlPlane::start().await;
    let shell = Shell::with_env(&control, &["URL", "CA"]);
    register(&shell);
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
    let control = ControlPlane::start().await;
    let shell = Shell::with_env(&control, &["URL", "CA"]);
    let agent = register(&shell);
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
    let control = ControlPlane::start().await;
    let shell = Shell::with_env(&control, &["URL", "CA", "HUMAN_TOKEN"]);
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
        ("openssl dgst -sha256 -sign other.key", 1, "signs with another key"),
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

    let folder = shell.profile_path("").display().to_string();
    let folder = folder.trim_end_matches('/');
    let breaks_profile = format!("openssl dgst -sha256 -sign one.key; rm -r {folder}; touch {folder}");
    let (code, printed, error) = register(&breaks_profile);
    assert!(code == 1 && printed.starts_with("agent_"), "the id is printed without the profile: {error}");
}

#[tokio::test]
async fn files_with_secrets_are_private() {
    let control = ControlPlane::start().await;
    let shell = Shell::with_env(&control, &["URL", "CA", "SERVICE_ID", "HUMAN_TOKEN"]);
    let mode = |path: &str| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let out = shell.path("sidecar.key").display().to_string();
    let create = ["key", "create", "--scope", "full", "--out", &out];
    let (code, printed, error) = parts(&shell.run(&create));
    assert!(code == 0 && printed == shell.json(&["key", "list"])[0]["keyId"] && error.contains(&out), "{error}");
    let key = fs::read_to_string(&out).unwrap();
    assert!(mode(&out) == 0o600 && key.starts_with("svc_sk_") && key.ends_with('\n'));
    let (code, error) = shell.failure(&create);
    assert!(code == 1 && error.contains("the file exists\nNext: no file is overwritten"), "{error}");
    let (code, error) = shell.failure(&["key", "create", "--scope", "full", "--out", "/nowhere/key"]);
    assert!(code == 1 && error.contains("--out /nowhere/key: its folder does not exist"), "{error}");
    assert_eq!(fs::read_to_string(&out).unwrap(), key);
    let (code, printed, error) = on_full_disk(&shell, &[&create[..5], &["another.key"]].concat());
    assert!(code == 1 && printed.starts_with("svc_sk_") && error.contains("--out another.key: "), "{error}");
    assert_eq!(shell.failure(&["key", "create", "--scope", "full", "--out", "x", "--server", UNREACHABLE]).0, 4);
    assert!(!shell.path("another.key").exists() && !shell.path("x").exists());

    register(&shell);
    let agent = shell.profile_path("default.key").display().to_string();
    assert_eq!(parts(&shell.run(&["agent", "login"])).2, "");
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o644)).unwrap();
    let (code, _, warning) = parts(&shell.run(&["agent", "login"]));
    assert!(code == 0 && warning.contains("(mode 0644); chmod 600 "), "{warning}");
}
