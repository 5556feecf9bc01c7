//! Signing keys on the command line.

use countersign_tests::{Agent, ControlPlane, Shell};

#[tokio::test(flavor = "multi_thread")]
async fn administrator_lists_rotates_and_revokes_signing_keys() {
    let control = ControlPlane::start().await;
    let mut shell = Shell::with_env(&control, &["URL", "CA", "HUMAN_TOKEN"]);
    let token = Agent::register(&control, "agent").await.token().await;
    let keys = shell.json(&["signing-key", "list"]);
    let status = |number: usize| keys[number]["status"].as_str().unwrap_or_default();
    assert_eq!((keys.as_array().map(Vec::len), status(0), status(1)), (Some(2), "next", "signing"));
    let table = shell.stdout(&["signing-key", "list"]);
    assert!(table.lines().count() == 3 && table.contains("SIGNS FROM") && table.contains("signing"), "{table}");

    let rotation = shell.json(&["signing-key", "rotate"]);
    assert_eq!((&rotation["kid"], rotation["status"].as_str()), (&keys[0]["kid"], Some("next")));
    let output = shell.run(&["signing-key", "rotate"]);
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(stdout.contains(rotation["signsFrom"].as_str().unwrap()), "{stdout}");
    assert!(stderr.contains("without further action") && stderr.contains("\nNext: "), "{stderr}");

    let signing = keys[1]["kid"].as_str().unwrap();
    assert_eq!(shell.json(&["signing-key", "revoke", signing, "--yes"])["revoked"], true);
    assert_eq!(control.verify(&token).await.error().2, "token_key_unknown");
    assert!(shell.stdout(&["signing-key", "revoke", signing, "--yes"]).contains("it was already"));

    let (code, error) = shell.failure(&["signing-key", "revoke", "-nonsense"]);
    assert!(code == 2 && error.contains("not the id of a signing key") && error.contains("\nNext: "), "{error}");
    let unknown_kid = format!("-{}A", "a".repeat(41));
    let (code, error) = shell.failure(&["signing-key", "revoke", &unknown_kid, "--yes"]);
    assert!(code == 3 && error.contains("signing-key list"), "{error}");
    shell.export("COUNTERSIGN_HUMAN_TOKEN", &control.mint_human("bob"));
    let (code, error) = shell.failure(&["signing-key", "rotate"]);
    assert!(code == 3 && error.contains("ask an administrator"), "{error}");
}
