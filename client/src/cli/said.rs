//! What a command has to say: for people, for programs, and beside it.

use super::{Failure, Output};
use countersign_client::ProfileError;
use serde_json::Value;
use std::io;

/// Data for standard output, and for standard error a note and what went wrong nevertheless.
#[derive(Debug, Default)]
pub struct Said {
    text: Vec<u8>,
    value: Option<Value>,
    /// For standard error.
    pub note: String,
    if_lost: String,
    /// What went wrong though there is data.
    pub failure: Option<Failure>,
}

impl Said {
    /// Data in both forms.
    pub fn new(text: impl Into<String>, value: Value) -> Self {
        let text: String = text.into();
        Self { text: format!("{}\n", text.trim_end()).into(), value: Some(value), ..Self::default() }
    }

    /// Bytes that are printed as they are.
    pub fn raw(text: Vec<u8>) -> Self {
        Self { text, ..Self::default() }
    }

    /// Another form for programs.
    pub fn with_value(self, value: Value) -> Self {
        Self { value: Some(value), ..self }
    }

    /// Advice for standard error.
    pub fn noting(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }

    /// Advice for who could not be told the data, which is not to be had again.
    pub fn if_lost(self, if_lost: String) -> Self {
        Self { if_lost, ..self }
    }

    /// Something that went wrong nevertheless.
    pub fn failing(self, failure: Option<Failure>) -> Self {
        Self { failure, ..self }
    }

    /// Tells what could not be remembered of what was done.
    pub fn remembered(self, saved: Result<(), ProfileError>) -> Self {
        self.failing(saved.err().map(Failure::Unremembered))
    }

    /// What it means that standard output took nothing.
    pub fn unprinted(&self, error: &io::Error) -> Failure {
        let next = if self.if_lost.is_empty() { String::new() } else { format!("\nNext: {}", self.if_lost) };
        Failure::Failed(format!("standard output: {error}{next}"))
    }

    /// What goes to standard output.
    pub fn printed(&self, output: Output) -> Vec<u8> {
        match (output, &self.value) {
            (Output::Json, Some(value)) => format!("{value:#}\n").into(),
            _ => self.text.clone(),
        }
    }
}

/// A word as a shell takes it.
pub fn typed(word: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_./:@%+=,".contains(character);
    if !word.is_empty() && !word.starts_with('-') && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Advice that can be typed as it stands also where the profile was named on the command line.
pub fn with_profile(text: &str, profile: Option<&str>) -> String {
    let Some(profile) = profile else { return text.to_owned() };
    ["agent", "service", "key", "role", "webhook", "token"].into_iter().fold(text.to_owned(), |text, noun| {
        let named = format!("countersign --profile {} {noun} ", typed(profile));
        text.replace(&format!("countersign {noun} "), &named)
    })
}

/// Rows with their columns under each other.
pub fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let rows: Vec<[String; N]> = rows.iter().map(|row| row.each_ref().map(|cell| plain(cell))).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Names and claims are other people's: they must not steer a terminal.
pub fn plain(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { '?' } else { character }).collect()
}

/// A JSON value as people read it.
pub fn shown(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::Array(items) if items.is_empty() => "-".into(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_quoted_where_a_shell_would_take_it_apart() {
        for (word, shown) in
            [("reader", "reader"), ("two words", "'two words'"), ("it's", r"'it'\''s'"), ("", "''"), ("-x", "'-x'")]
        {
            assert_eq!(typed(word), shown);
        }
    }

    #[test]
    fn advice_names_the_profile_that_was_named() {
        let text = "Next: `countersign agent login`, then countersign role list";
        assert_eq!(with_profile(text, None), text);
        let named = "Next: `countersign --profile x agent login`, then countersign --profile x role list";
        assert_eq!(with_profile(text, Some("x")), named);
    }
}
