//! The reference library of Standard Webhooks, in Python: its word on every signature; and jsonschema's on every
//! body, by the description of the API (`tests/clients/webhooks.py`).

use crate::{Received, tools};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

/// So many lines are asked before answers are read, which fit into a pipe.
const AT_ONCE: usize = 200;

/// The running library.
pub struct StandardWebhooks {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl StandardWebhooks {
    /// Starts it; it can judge signatures.
    pub fn start() -> Self {
        Self::with_arguments(&[])
    }

    /// Starts it with a description of the API in a file; it can judge bodies too.
    pub fn knowing(description: &Path) -> Self {
        Self::with_arguments(&[description])
    }

    fn with_arguments(arguments: &[&Path]) -> Self {
        let mut command = Command::new(tools::python());
        command.arg(tools::root().join("tests/clients/webhooks.py")).args(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("Python starts");
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, input, output }
    }

    /// What the library says of a request, to somebody who knows this secret: `ok`, or what is wrong.
    pub fn says(&mut self, secret: &str, received: &Received) -> String {
        self.ask(&[question(secret, received)]).remove(0)
    }

    /// Fails unless every request is signed with this secret.
    #[track_caller]
    pub fn assert_signed(&mut self, secret: &str, all: &[Received]) {
        let questions: Vec<_> = all.iter().map(|received| question(secret, received)).collect();
        for (received, said) in all.iter().zip(self.ask(&questions)) {
            assert_eq!(said, "ok", "{received:?}");
        }
    }

    /// Fails unless every body is as the description has it.
    #[track_caller]
    pub fn assert_described(&mut self, all: &[Received]) {
        let questions: Vec<_> = all.iter().map(|received| json!({ "body": STANDARD.encode(&received.body) })).collect();
        for (received, said) in all.iter().zip(self.ask(&questions)) {
            assert_eq!(said, "ok", "{}", received.json());
        }
    }

    fn ask(&mut self, questions: &[Value]) -> Vec<String> {
        let mut answers = Vec::new();
        for some in questions.chunks(AT_ONCE) {
            for question in some {
                writeln!(self.input, "{question}").expect("the library reads");
            }
            self.input.flush().expect("the library reads");
            for _ in some {
                let mut line = String::new();
                self.output.read_line(&mut line).expect("the library answers");
                assert!(!line.is_empty(), "the library ended, see above");
                answers.push(line.trim().to_owned());
            }
        }
        answers
    }
}

impl Drop for StandardWebhooks {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _status = self.child.wait();
    }
}

fn question(secret: &str, received: &Received) -> Value {
    json!({
        "id": received.header("webhook-id"),
        "timestamp": received.header("webhook-timestamp"),
        "signature": received.header("webhook-signature"),
        "body": STANDARD.encode(&received.body),
        "secret": secret,
    })
}
