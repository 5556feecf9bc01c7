//! What `countersign` says when something is wrong: nothing is lost, no secret is told, and a next step is.

#![expect(clippy::unwrap_used, reason = "a test says what it expects")]

use countersign_tests::{ControlPlane, Shell};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    process::{Output, Stdio},
};

const REGISTER: [&str; 6] = ["agent", "register", "--email", "a@example.org", "--name", "Typed"];

/// Nobody listens there: who tries to reach it ends with exit code 4.
const NOWHERE: &str = "https://localhost:1";

fn registered(shell: &Shell) -> String {
    shell.said(&["agent", "keygen"]);
    shell.said(&REGISTER)
}

/// Runs it where no file can be written any more, as on a disk that is full.
fn without_room(shell: &Shell, arguments: &[&str]) -> (i32, String, String) {
    let typed = shell.command(arguments);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\""]).arg(typed.get_program());
    command.args(typed.get_args()).current_dir(typed.get_current_dir().unwrap()).env_clear();
    command.envs(typed.get_envs().filter_map(|(name, value)| Some((name, value?))));
    told(&command.output().unwrap())
}

/// The exit code, and what went to standard output and to standard error.
fn told(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap().trim().to_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// A program for `--signer`.
fn script(shell: &Shell, name: &str, text: &str) -> String {
    let path = shell.path(name).display().to_string();
    fs::write(&path, format!("set -e\n{text}\n")).unwrap();
    format!("sh {path}")
}

#[test]
fn a_private_key_that_is_given_for_the_public_half_is_not_sent() {
    let mut shell = Shell::new();
    shell.export("COUNTERSIGN_URL", NOWHERE);
    let key = shell.path("agent.key").display().to_string();
    let public = shell.said(&["agent", "keygen", "--key", &key]);
    let register = |file: &str| shell.failed(&[&REGISTER[..], &["--signer", "true", "--public-key", file]].concat());
    let (code, error) = register(&key);
    assert!(code == 2 && error.contains("was not sent") && error.contains("\nNext: `openssl pkey -in"), "{error}");
    let half = shell.path("agent.pub").display().to_string();
    fs::write(&half, public.repeat(2)).unwrap();
    assert_eq!(register(&half).0, 2, "two keys are none");
}

#[tokio::test]
async fn nothing_is_begun_that_could_not_be_remembered() {
    let control = ControlPlane::start().await;
    let shell = Shell::knowing(&control, &["URL", "CA", "HUMAN_TOKEN"]);
    let full = |arguments: &[&str]| without_room(&shell, arguments);
    registered(&shell);
    let first = shell.said(&["agent", "login"]);
    let kept = fs::read(shell.kept("default.tokens.json")).unwrap();
    let key = shell.path("other.key").display().to_string();
    let register = ["agent", "register", "--email", "b@example.org", "--name", "Other"];
    for asked in [
        &["agent", "refresh"][..],
        &["service", "create", "Shop"],
        &["agent", "keygen", "--profile", "other", "--key", &key],
        &register,
    ] {
        let (code, printed, error) = full(asked);
        assert!(code == 1 && printed.is_empty() && error.contains("\nNext: set XDG_CONFIG_HOME"), "{asked:?}: {error}");
    }
    assert!(!fs::exists(&key).unwrap() && !shell.said(&["service", "list"]).contains("Shop"));
    assert_eq!(fs::read(shell.kept("default.tokens.json")).unwrap(), kept);
    let files = fs::read_dir(shell.kept("")).unwrap().count();

    let exec = ["agent", "exec", "--", "printenv", "COUNTERSIGN_TOKEN"];
    assert_eq!(full(&exec), (0, first.clone(), String::new()), "what is kept is good, and nothing new is to be kept");
    let (code, token, error) = full(&["agent", "login"]);
    assert!(code == 1 && error.contains("done, but not saved in the profile: "), "{error}");
    control.verify(&token).await.expect(200);
    let (code, printed, error) = full(&["token", "revoke", &first]);
    assert!(code == 1 && printed.contains("revoked") && error.contains("not saved"), "{printed} {error}");
    assert_eq!(control.verify(&first).await.error().2, "token_revoked");
    let (code, token, error) = full(&["agent", "exec", "--service", control.service(), "--", "sh", "-c", "exit 7"]);
    assert!(code == 7 && token.is_empty() && error.contains("are not saved"), "{error}");
    assert_eq!(fs::read_dir(shell.kept("")).unwrap().count(), files, "no halves of files are left");
}

#[tokio::test]
async fn what_is_done_is_printed_though_the_profile_is_lost_meanwhile() {
    let control = ControlPlane::start().await;
    let shell = Shell::knowing(&control, &["URL", "CA"]);
    registered(&shell);
    let folder = shell.kept("").display().to_string();
    let folder = folder.trim_end_matches('/');
    fs::copy(shell.kept("default.key"), shell.path("copy.key")).unwrap();
    let signs = "openssl dgst -sha256 -sign copy.key";
    let spoils = script(&shell, "spoils", &format!("{signs}; rm -r {folder}; touch {folder}"));
    let (code, token, error) = told(&shell.run(&["agent", "login", "--signer", &spoils]));
    assert!(code == 1 && error.contains("done, but not saved in the profile: "), "{error}");
    control.verify(&token).await.expect(200);
    let (code, error) = shell.failed(&["agent", "login"]);
    assert!(code == 1 && error.contains("\nNext: set XDG_CONFIG_HOME"), "{error}");
}

#[tokio::test]
async fn what_cannot_be_printed_is_no_success() {
    let control = ControlPlane::start().await;
    let shell = Shell::knowing(&control, &["URL", "CA", "SERVICE_ID", "HUMAN_TOKEN"]);
    let into = |arguments: &[&str], out: Stdio| told(&shell.command(arguments).stdout(out).output().unwrap());
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into();
    let (code, _, error) = into(&["key", "create", "--scope", "full"], full());
    let key = shell.json(&["key", "list"])[0]["keyId"].as_str().unwrap().to_owned();
    assert!(code == 1 && error.contains("standard output: "), "{error}");
    assert!(
        error
            .contains(&format!("\nNext: the key was not shown to anybody, so revoke it: countersign key revoke {key}"))
    );
    assert_eq!(into(&["key", "list"], full()).0, 1);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(into(&["key", "list"], writer.into()).0, 0, "nobody reads on, which is no fault");
}

#[tokio::test]
async fn no_error_repeats_what_may_be_a_secret() {
    let control = ControlPlane::start().await;
    let shell = Shell::knowing(&control, &["URL", "CA"]);
    registered(&shell);
    let call = |more: &[&'static str]| [&["agent", "call"][..], more].concat();
    for (code, asked) in [
        (2, call(&["http://127.0.0.1:1/", "-H", "Authorization Bearer s3cr3t"])),
        (2, call(&["http://127.0.0.1:1/", "-H", "s3cr3t"])),
        (2, call(&["http://127.0.0.1:1/", "-H", "a s3cr3t: x"])),
        (4, call(&["http://user:s3cr3t@127.0.0.1:1/x?token=s3cr3t"])),
        (2, call(&["user:s3cr3t@127.0.0.1:1/x?token=s3cr3t"])),
        (4, vec!["agent", "login", "--url", "https://user:s3cr3t@127.0.0.1:1/?s3cr3t"]),
        (2, vec!["agent", "login", "--url", "http://user:s3cr3t@127.0.0.1:1/?s3cr3t"]),
        (2, vec!["token", "verify", "a.b.c", "s3cr3t"]),
        (2, vec!["key", "revoke", "key_1", "s3cr3t"]),
        (2, vec!["token", "rf_0000000000000000000000000s3cr3t"]),
    ] {
        let (ended, printed, error) = told(&shell.run(&asked));
        assert!(ended == code && printed.is_empty() && !error.contains("s3cr3t"), "{asked:?}: {ended} {error}");
    }
    let (_, error) = shell.failed(&["agent", "call", "http://user:pw@127.0.0.1:1/x?token=s"]);
    assert!(error.contains("cannot reach http://127.0.0.1:1/x: "), "what is no secret is told: {error}");
    assert!(shell.failed(&["token", "verfy"]).1.contains("'verify'"), "a slip of the fingers is helped");
}

#[tokio::test]
async fn an_agent_that_was_ended_does_not_look_freshly_registered() {
    let control = ControlPlane::start().await;
    let shell = Shell::knowing(&control, &["URL", "CA"]);
    let agent = registered(&shell);
    assert_eq!(shell.said(&REGISTER), agent, "the same again is the same agent");
    let profile = fs::read(shell.kept("default.toml")).unwrap();
    for (status, next) in [("suspended", "reactivate"), ("revoked", "keygen")] {
        control.set_status(&agent, status).await.expect(200);
        let (code, printed, error) = told(&shell.run(&REGISTER));
        assert!(code == 3 && printed.is_empty() && error.contains(&agent) && error.contains(status), "{error}");
        assert!(error.lines().last().unwrap().contains(next), "{error}");
    }
    assert_eq!(fs::read(shell.kept("default.toml")).unwrap(), profile);
}

#[tokio::test]
async fn a_signer_shows_that_it_holds_the_key_before_it_is_registered() {
    let control = ControlPlane::start().await;
    let shell = Shell::knowing(&control, &["URL", "CA", "HUMAN_TOKEN"]);
    for name in ["one", "other"] {
        let key = shell.path(&format!("{name}.key")).display().to_string();
        let public = shell.said(&["agent", "keygen", "--key", &key, "--profile", name]);
        fs::write(shell.path(&format!("{name}.pub")), public).unwrap();
    }
    let half = shell.path("one.pub").display().to_string();
    let register =
        |signer: &str| told(&shell.run(&[&REGISTER[..], &["--signer", signer, "--public-key", &half]].concat()));
    for (signer, code, text) in [
        ("", 2, "a command is required"),
        (" ", 2, "a command is required"),
        ("nosuch", 1, "exit status: 127"),
        ("true", 1, "no P-256 signature"),
        ("openssl dgst -sha256 -sign other.key", 1, "signs with another key"),
    ] {
        let (ended, printed, error) = register(signer);
        assert!(ended == code && printed.is_empty() && error.contains(text), "{signer}: {ended} {error}");
    }
    assert!(!shell.kept("default.toml").exists(), "nothing was registered");

    let (code, agent, error) = register("openssl dgst -sha256 -sign one.key");
    assert_eq!(code, 0, "{error}");
    let shown = shell.json(&["agent", "show"]);
    assert_eq!(shown["agentId"], agent);
    assert!(shown["publicKeyHash"].as_str().unwrap().starts_with("sha256:"), "{shown}");

    let folder = shell.kept("").display().to_string();
    let folder = folder.trim_end_matches('/');
    let spoils = format!("openssl dgst -sha256 -sign one.key; rm -r {folder}; touch {folder}");
    let (code, printed, error) = register(&spoils);
    assert!(code == 1 && printed.starts_with("agent_"), "the id is told though the profile is gone: {error}");
}

#[tokio::test]
async fn secrets_in_files_are_for_their_owner_only() {
    let control = ControlPlane::start().await;
    let shell = Shell::knowing(&control, &["URL", "CA", "SERVICE_ID", "HUMAN_TOKEN"]);
    let mode = |path: &str| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let out = shell.path("sidecar.key").display().to_string();
    let create = ["key", "create", "--scope", "full", "--out", &out];
    let (code, printed, error) = told(&shell.run(&create));
    assert!(code == 0 && printed == shell.json(&["key", "list"])[0]["keyId"] && error.contains(&out), "{error}");
    let key = fs::read_to_string(&out).unwrap();
    assert!(mode(&out) == 0o600 && key.starts_with("svc_sk_") && key.ends_with('\n'));
    assert_eq!(shell.failed(&create).0, 1, "what is there is not overwritten");
    assert_eq!(fs::read_to_string(&out).unwrap(), key);
    let (code, printed, error) = without_room(&shell, &[&create[..5], &["another.key"]].concat());
    assert!(code == 1 && printed.starts_with("svc_sk_") && error.contains("--out another.key: "), "{error}");
    assert_eq!(shell.failed(&["key", "create", "--scope", "full", "--out", "x", "--url", NOWHERE]).0, 4);
    assert!(!shell.path("another.key").exists() && !shell.path("x").exists());

    registered(&shell);
    let agent = shell.kept("default.key").display().to_string();
    assert_eq!(told(&shell.run(&["agent", "login"])).2, "");
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o644)).unwrap();
    let (code, _, warning) = told(&shell.run(&["agent", "login"]));
    assert!(code == 0 && warning.contains("(mode 0644); chmod 600 "), "{warning}");
}
