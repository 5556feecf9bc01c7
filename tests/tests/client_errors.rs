//! What `countersign` says when something is wrong: nothing is lost, no secret is told, and a next step is.

use countersign_tests::Shell;
use std::fs;

const REGISTER: [&str; 6] = ["agent", "register", "--email", "a@example.org", "--name", "Typed"];

/// Nobody listens there: who tries to reach it ends with exit code 4.
const NOWHERE: &str = "https://localhost:1";

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
