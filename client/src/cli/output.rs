//! The result of a command: data as text and JSON for standard output, a note and an error for standard error.

use super::{
    error::{Cause, CliError},
    table::{Rows, Table},
};
use clap::ValueEnum;
use countersign_client::{ProfileError, api::escape_unprintable};
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{self, Write};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Tables and sentences
    Text,
    /// JSON with the field names of the API
    Json,
}

/// Data for standard output, and a note and an error for standard error.
#[derive(Debug, Default)]
pub struct CommandOutput {
    /// Data as text, which is printed unchanged.
    text: Vec<u8>,
    /// A table that is printed in place of the text, fitted to the width of the terminal.
    table: Option<Table>,
    json: Option<Value>,
    /// The note, which may end with lines that begin with `Next: `.
    pub note: String,
    /// The next step if a secret in the data cannot be printed; empty if the data contains no secret.
    hint_if_lost: String,
    /// The error of a command that also returns data.
    pub error: Option<CliError>,
    /// The exit code of a program that the command ran.
    pub program_exit_code: u8,
}

impl CommandOutput {
    /// A result, as text and as JSON. The text gets exactly one line end.
    pub fn new(text: impl Into<String>, json: Value) -> Self {
        let text = format!("{}\n", text.into().trim_end());
        Self { text: text.into(), json: Some(json), ..Self::default() }
    }

    pub fn table(table: Table, json: Value) -> Self {
        Self { table: Some(table), json: Some(json), ..Self::default() }
    }

    /// A list of the API: a table, and the items as JSON.
    pub fn list<T: Serialize>(rows: Rows<'_, T>) -> Self {
        Self::table(rows.table, json!(rows.items))
    }

    /// A result with bytes that are printed unchanged in both formats.
    pub fn raw(bytes: Vec<u8>) -> Self {
        Self { text: bytes, ..Self::default() }
    }

    /// Replaces the data that `-o json` prints.
    pub fn with_json(self, json: Value) -> Self {
        Self { json: Some(json), ..self }
    }

    pub fn with_note(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }

    /// Marks the data as a secret: if it cannot be printed, even because of a closed pipe, the command fails with this hint.
    pub fn with_hint_if_lost(self, hint: String) -> Self {
        Self { hint_if_lost: hint, ..self }
    }

    pub fn with_error(self, error: Option<CliError>) -> Self {
        Self { error, ..self }
    }

    /// The result of a command that ran a program, whose exit code it returns.
    pub fn of_program(exit_code: u8) -> Self {
        Self { program_exit_code: exit_code, ..Self::default() }
    }

    /// Sets the error if the profile could not be saved.
    pub fn with_profile_result(self, saved: Result<(), ProfileError>) -> Self {
        self.with_error(saved.err().map(|error| Cause::NotSaved(error).into()))
    }

    #[cfg(test)]
    pub const fn json(&self) -> Option<&Value> {
        self.json.as_ref()
    }

    /// Prints the data. A closed pipe is an error only if the data contains a secret, because the secret would be lost.
    pub fn print(&self, format: OutputFormat) -> Result<(), CliError> {
        let printed = print(&self.bytes(format));
        let printed = if self.hint_if_lost.is_empty() { ignore_closed_pipe(printed) } else { printed };
        printed.map_err(|error| self.not_printed(&error))
    }

    pub fn not_printed(&self, error: &io::Error) -> CliError {
        let error = CliError::failed(format!("standard output: {error}"));
        if self.hint_if_lost.is_empty() { error } else { error.with_next(self.hint_if_lost.as_str()) }
    }

    fn bytes(&self, format: OutputFormat) -> Vec<u8> {
        match (format, &self.json, &self.table) {
            (OutputFormat::Json, Some(json), _) => escape_unprintable(&format!("{json:#}\n")).into(),
            (_, _, Some(table)) => format!("{}\n", table.for_terminal()).into(),
            (_, _, None) => self.text.clone(),
        }
    }
}

pub fn print(data: &[u8]) -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(data).and_then(|()| out.flush())
}

/// Treats a closed pipe as success: a reader such as `head` may stop before the end.
pub fn ignore_closed_pipe(printed: io::Result<()>) -> io::Result<()> {
    match printed {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// The name of a value on the command line, which is also the name in the API.
pub fn value_name(value: impl ValueEnum + Copy) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Quotes a word for a shell if necessary.
pub fn quoted(word: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_./:@%+=,".contains(character);
    if !word.is_empty() && !word.starts_with('-') && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A JSON value as text.
pub fn value_text(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::Array(items) if items.is_empty() => "-".into(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(value_text).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_quotes_what_a_shell_would_split_or_interpret() {
        for (word, expected) in
            [("reader", "reader"), ("two words", "'two words'"), ("it's", r"'it'\''s'"), ("", "''"), ("-x", "'-x'")]
        {
            assert_eq!(quoted(word), expected);
        }
    }
}
