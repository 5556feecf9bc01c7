//! Runs the `openssl` command, and converts between PEM and DER.

use base64::{Engine, engine::general_purpose::STANDARD};
use std::{
    io::Write,
    process::{Command, Stdio},
};

/// Runs `openssl` with space-separated arguments and this input, and returns its output.
pub fn openssl(arguments: &str, input: &[u8]) -> Vec<u8> {
    let mut command = Command::new("openssl");
    command.args(arguments.split(' ')).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("openssl is installed");
    child.stdin.take().expect("stdin is piped").write_all(input).expect("openssl reads its input");
    let output = child.wait_with_output().expect("openssl ends");
    assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Like the function `openssl`, but returns the output of the command as text instead of bytes.
pub fn openssl_text(arguments: &str, input: &str) -> String {
    String::from_utf8(openssl(arguments, input.as_bytes())).expect("the text is UTF-8")
}

/// Decodes a PEM text that has one block.
pub fn der(pem: &str) -> Vec<u8> {
    let body: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    STANDARD.decode(body).expect("the text is base64")
}

/// Encodes one PEM block.
pub fn pem(label: &str, der: &[u8]) -> String {
    let body = STANDARD.encode(der);
    let lines: String = body.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line) + "\n").collect();
    format!("-----BEGIN {label}-----\n{lines}-----END {label}-----\n")
}
