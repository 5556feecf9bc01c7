//! Messages on standard error: notes, instructions and warnings, as text or as one line of JSON per message.
//!
//! Invariant: a closed or full stream is never a reason to panic.

use super::{
    environment::variable,
    output::{OutputFormat, quoted},
    placeholders::{Placeholders, replace_if},
};
use countersign_client::api::{escape_unprintable, replace_unprintable};
use serde_json::{Value, json};
use std::io::{self, IsTerminal, Write};

const NEXT: &str = "Next: ";

/// The first word of each command in a hint.
const PROGRAM: &str = "countersign ";

/// A command in a hint after one of these texts is run by another person, who has other profiles: it gets no `--profile`.
const BEFORE_COMMAND_OF_OTHERS: [&str; 3] = ["as the new owner, ", "can run: ", "for a role: "];

#[derive(Debug, Clone)]
pub struct Messages {
    /// The format of messages and data.
    pub format: OutputFormat,
    /// Write only errors and instructions.
    pub quiet: bool,
    /// The profile that commands in hints have to name; `None` if they use this profile anyway, by default or by the environment.
    profile: Option<String>,
    /// The ids that replace placeholders in hints.
    pub placeholders: Placeholders,
}

impl Messages {
    /// Creates a writer. Commands in hints name `profile` unless it is the profile that the environment or the default selects.
    pub fn new(format: OutputFormat, quiet: bool, profile: Option<String>) -> Self {
        let default_profile = variable("COUNTERSIGN_PROFILE").unwrap_or_else(|| "default".to_owned());
        let profile = profile.filter(|profile| *profile != default_profile);
        Self { format, quiet, profile, placeholders: Placeholders::default() }
    }

    /// Whether the command can ask the user: the output is text, and standard input and standard error are terminals.
    pub fn can_prompt(&self) -> bool {
        self.format == OutputFormat::Text && io::stdin().is_terminal() && io::stderr().is_terminal()
    }

    /// Writes a note, which may end with lines that begin with `Next: `.
    pub fn note(&self, note: &str) {
        if self.quiet || note.is_empty() {
            return;
        }
        let note = self.hint(note);
        match self.format {
            OutputFormat::Text => write_line(&note),
            OutputFormat::Json => {
                let (next, message): (Vec<_>, Vec<_>) = note.lines().partition(|line| line.starts_with(NEXT));
                let next: Vec<_> = next.iter().filter_map(|line| line.strip_prefix(NEXT)).collect();
                let text = |lines: &[&str]| Some(lines.join("\n")).filter(|text| !text.is_empty());
                write_json(&json!({ "note": { "message": text(&message), "next": text(&next) } }));
            }
        }
    }

    /// Writes what the user must do before the command can continue, even with `--quiet`.
    pub fn instruction(&self, text: &str, json: &Value) {
        match self.format {
            OutputFormat::Text => write_line(text),
            OutputFormat::Json => write_json(json),
        }
    }

    pub fn warning(&self, text: &str) {
        match self.format {
            _ if self.quiet => {}
            OutputFormat::Text => write_line(&format!("warning: {text}")),
            OutputFormat::Json => write_json(&json!({ "warning": { "message": text } })),
        }
    }

    /// Makes the commands of a hint ready to copy: fills in the known ids, and adds `--profile`, because the user would otherwise
    /// run them with the default profile.
    pub fn hint(&self, text: &str) -> String {
        let text = self.placeholders.fill(text);
        let Some(profile) = &self.profile else { return text };
        let needs_profile = |before: &str, after: &str| {
            let is_command = before.is_empty() || before.ends_with([' ', '`', '(']);
            let is_own = !BEFORE_COMMAND_OF_OTHERS.iter().any(|words| before.ends_with(words));
            let arguments = after.split(['`', ',', ';', '\n']).next().unwrap_or_default();
            is_command && is_own && !arguments.contains("--profile ")
        };
        replace_if(&text, PROGRAM, &format!("{PROGRAM}--profile {} ", quoted(profile)), needs_profile)
    }
}

/// Writes lines to standard error, without control characters. A failure to write is ignored, because there is no other
/// place to report errors.
pub fn write_line(text: &str) {
    let lines: Vec<_> = text.split('\n').map(replace_unprintable).collect();
    let _ignored = writeln!(io::stderr(), "{}", lines.join("\n"));
}

/// Writes one line of JSON to standard error.
pub fn write_json(value: &Value) {
    write_line(&escape_unprintable(&value.to_string()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{error::CliError, hints::next_step};
    use countersign_identity::Reason;

    #[test]
    fn own_commands_in_hints_name_one_profile_and_those_of_other_people_none() {
        let messages = Messages::new(OutputFormat::Text, false, Some("x".to_owned()));
        let of_others = ["agent_suspended", "agent_left", "no_role", "role_missing", "permission_missing"];
        for reason in Reason::ALL.iter().map(|reason| reason.as_str()) {
            let hint = messages.hint(&next_step(&CliError::denied("", reason)).unwrap_or_default());
            let expected = usize::from(!of_others.contains(&reason));
            let mut commands = hint.split(PROGRAM).skip(1);
            assert!(commands.all(|command| command.matches("--profile ").count() == expected), "{hint}");
        }
        assert_eq!(messages.hint("countersign doctor"), "countersign --profile x doctor");
        assert_eq!(
            messages.hint("countersign role show 'countersign x'"),
            "countersign --profile x role show 'countersign x'"
        );
    }

    #[test]
    fn hints_name_a_profile_that_is_not_the_default() {
        let text = "Next: `countersign agent login`, then countersign role list";
        let messages = |profile: &str| Messages::new(OutputFormat::Text, false, Some(profile.to_owned()));
        assert_eq!(messages("default").hint(text), text);
        let expected = "Next: `countersign --profile x agent login`, then countersign --profile x role list";
        assert_eq!(messages("x").hint(text), expected);
        let other = "Next: as the new owner, countersign service transfer ID --accept";
        assert_eq!(messages("x").hint(other), other);
        assert_eq!(messages("x").hint("`countersign login`"), "`countersign --profile x login`");
    }
}
