//! The report of a command.

use super::DatabaseCommandError;
use std::{fmt, io::Write};

/// The lines that a command prints when it has succeeded.
#[derive(Debug, Default)]
#[must_use]
pub struct CommandReport {
    lines: Vec<String>,
}

impl CommandReport {
    /// Appends a line.
    pub(in crate::app) fn line(&mut self, line: impl Into<String>) {
        self.lines.push(line.into());
    }

    /// Writes the report. If writing fails, the error contains the report, because the operator must not conclude that nothing
    /// was done.
    pub fn write_to(self, mut out: impl Write) -> Result<(), DatabaseCommandError> {
        let result = writeln!(out, "{self}").and_then(|()| out.flush());
        result.map_err(|error| DatabaseCommandError::ReportNotWritten { report: self, error })
    }
}

impl fmt::Display for CommandReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}
