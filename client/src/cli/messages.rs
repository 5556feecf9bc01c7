//! Messages on standard error: notes, warnings and errors, as text or as one JSON object per message.
//!
//! Invariant: a closed or full stream is never a reason to panic.

use super::{CliError, OutputFormat, output::quoted, parse::variable};
use serde_json::{Value, json};
use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

/// The commands that hints mention.
const NOUNS: [&str; 8] = ["agent", "service", "key", "role", "webhook", "token", "audit", "signing-key"];

/// Writes messages to standard error.
#[derive(Debug, Clone)]
pub struct Messages {
    format: OutputFormat,
    quiet: bool,
    /// The profile, if hints have to name it: it is neither the default nor set by the environment.
    profile: Option<String>,
}

impl Messages {
    /// Messages in this format. Hints name the `profile` where a command without it would use another.
    pub fn new(format: OutputFormat, quiet: bool, profile: Option<String>) -> Self {
        let implied = variable("COUNTERSIGN_PROFILE").unwrap_or_else(|| "default".to_owned());
        Self { format, quiet, profile: profile.filter(|profile| *profile != implied) }
    }

    /// The format of messages and data.
    pub const fn format(&self) -> OutputFormat {
        self.format
    }

    /// Whether the command can ask the user: it has a terminal and no program reads its output.
    pub fn can_ask(&self) -> bool {
        self.format == OutputFormat::Text && io::stdin().is_terminal() && io::stderr().is_terminal()
    }

    /// Writes a note, which may end with lines that begin with `Next`.
    pub fn note(&self, note: &str) {
        if self.quiet || note.is_empty() {
            return;
        }
        match self.format {
            OutputFormat::Text => self.write(note),
            OutputFormat::Json => {
                let (next, message): (Vec<_>, Vec<_>) = note.lines().partition(|line| line.starts_with("Next"));
                let next: Vec<_> = next.iter().map(|line| line.strip_prefix("Next: ").unwrap_or(line)).collect();
                let text = |lines: &[&str]| Some(lines.join("\n")).filter(|text| !text.is_empty());
                self.write_json(&json!({ "note": { "message": text(&message), "next": text(&next) } }));
            }
        }
    }

    /// Writes a warning.
    pub fn warning(&self, text: &str) {
        match self.format {
            _ if self.quiet => {}
            OutputFormat::Text => self.write(&format!("warning: {text}")),
            OutputFormat::Json => self.write_json(&json!({ "warning": { "message": text } })),
        }
    }

    /// Writes an error, and returns the exit code.
    pub fn error(&self, error: &CliError) -> ExitCode {
        match self.format {
            OutputFormat::Text => {
                let text = error.to_string();
                let message = if self.quiet { text.split("\nNext: ").next().unwrap_or_default() } else { &text };
                let hint = error.hint().filter(|_| !self.quiet);
                let next = hint.map(|next| format!("\nNext: {next}")).unwrap_or_default();
                self.write(&format!("countersign: {message}{next}"));
            }
            OutputFormat::Json => self.write(&format!("{:#}", error.json())),
        }
        error.exit_code().into()
    }

    /// Writes an error of the parser as JSON: its message, and its tips as the next step.
    pub fn usage_error(&self, rendered: &str) {
        let paragraphs: Vec<_> = rendered.split("\n\n").map(str::trim).filter(|text| !text.is_empty()).collect();
        let is_tip = |text: &&&str| text.starts_with("tip:") || text.starts_with("For more information");
        let message: Vec<_> = paragraphs.iter().filter(|text| !is_tip(text)).copied().collect();
        let tips: Vec<_> = paragraphs.iter().filter(is_tip).copied().collect();
        let message = message.join("\n").trim_start_matches("error: ").to_owned();
        let error = json!({ "code": "USAGE", "message": message, "next": tips.join("\n"), "reason": Value::Null });
        self.write(&format!("{:#}", json!({ "error": error })));
    }

    /// Writes a line to standard error. If that is not possible there is nothing left to do.
    pub fn write(&self, text: &str) {
        let _ignored = writeln!(io::stderr(), "{}", self.with_profile(text));
    }

    fn write_json(&self, value: &Value) {
        self.write(&value.to_string());
    }

    /// Adds `--profile` to the commands in a hint.
    fn with_profile(&self, text: &str) -> String {
        let Some(profile) = &self.profile else { return text.to_owned() };
        NOUNS.into_iter().fold(text.to_owned(), |text, noun| {
            let with_profile = format!("countersign --profile {} {noun} ", quoted(profile));
            text.replace(&format!("countersign {noun} "), &with_profile)
        })
    }
}

/// Writes data to standard output. A reader that closed the pipe is not an error.
pub fn print(data: &[u8]) -> io::Result<()> {
    let mut out = io::stdout();
    match out.write_all(data).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_name_a_profile_that_is_not_the_default() {
        let text = "Next: `countersign agent login`, then countersign role list";
        let messages = |profile: &str| Messages::new(OutputFormat::Text, false, Some(profile.to_owned()));
        assert_eq!(messages("default").with_profile(text), text);
        let expected = "Next: `countersign --profile x agent login`, then countersign --profile x role list";
        assert_eq!(messages("x").with_profile(text), expected);
    }
}
