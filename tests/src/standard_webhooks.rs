//! Verifies webhook signatures with the Standard Webhooks reference library in Python, and bodies with jsonschema and
//! the OpenAPI document (`tests/clients/webhooks.py`).

use crate::{Received, tools};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

/// We write this many lines to the Python process before we read their results. The results of this number of lines fit into the
/// buffer of the pipe, so the process never waits for us to read.
const BATCH_SIZE: usize = 200;

/// The Python process.
pub struct StandardWebhooks {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl StandardWebhooks {
    /// Starts the process to verify signatures.
    pub fn start() -> Self {
        Self::with_arguments(&[])
    }

    /// Starts the process to verify signatures, and bodies against an OpenAPI document.
    pub fn with_openapi(description: &Path) -> Self {
        Self::with_arguments(&[description])
    }

    fn with_arguments(arguments: &[&Path]) -> Self {
        let mut command = Command::new(tools::python());
        command.arg(tools::root().join("tests/clients/webhooks.py")).args(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("Python starts");
        let input = child.stdin.take().expect("stdin is piped");
        let output = BufReader::new(child.stdout.take().expect("stdout is piped"));
        Self { child, input, output }
    }

    /// Verifies a signature with a secret: `ok`, or the error of the library.
    pub fn verify(&mut self, secret: &str, received: &Received) -> String {
        self.run(&[signature_request(secret, received)]).remove(0)
    }

    /// Asserts that every request is signed with this secret.
    #[track_caller]
    pub fn assert_signatures(&mut self, secret: &str, received_requests: &[Received]) {
        self.assert_ok(received_requests, |received| signature_request(secret, received));
    }

    /// Asserts that every body matches the OpenAPI document.
    #[track_caller]
    pub fn assert_bodies_match_openapi(&mut self, received_requests: &[Received]) {
        self.assert_ok(received_requests, |received| json!({ "body": STANDARD.encode(&received.body) }));
    }

    #[track_caller]
    fn assert_ok(&mut self, received_requests: &[Received], request: impl Fn(&Received) -> Value) {
        let requests: Vec<_> = received_requests.iter().map(request).collect();
        for (received, result) in received_requests.iter().zip(self.run(&requests)) {
            assert_eq!(result, "ok", "{received:?}: {}", String::from_utf8_lossy(&received.body));
        }
    }

    fn run(&mut self, requests: &[Value]) -> Vec<String> {
        let mut results = Vec::new();
        for chunk in requests.chunks(BATCH_SIZE) {
            for request in chunk {
                writeln!(self.input, "{request}").expect("the Python process reads its input");
            }
            self.input.flush().expect("the Python process reads its input");
            for _ in chunk {
                let mut line = String::new();
                self.output.read_line(&mut line).expect("the Python process writes a result");
                assert!(!line.is_empty(), "the Python process ended; stderr has the reason");
                results.push(line.trim().to_owned());
            }
        }
        results
    }
}

impl Drop for StandardWebhooks {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _status = self.child.wait();
    }
}

fn signature_request(secret: &str, received: &Received) -> Value {
    json!({
        "id": received.header("webhook-id"),
        "timestamp": received.header("webhook-timestamp"),
        "signature": received.header("webhook-signature"),
        "body": STANDARD.encode(&received.body),
        "secret": secret,
    })
}
