//! What a command has done, and how it says so.

use super::MovingError;
use std::{fmt, io::Write};

/// What was done, line by line. Who has one is done with everything but saying it.
#[derive(Debug, Default)]
#[must_use]
pub struct Report {
    lines: Vec<String>,
}

impl Report {
    /// One line more.
    pub(super) fn line(&mut self, line: impl Into<String>) {
        self.lines.push(line.into());
    }

    /// Writes it. Whoever does not get it must not believe that nothing was done: so the error says it all instead.
    pub fn say(self, mut out: impl Write) -> Result<(), MovingError> {
        let said = writeln!(out, "{self}").and_then(|()| out.flush());
        said.map_err(|error| MovingError::Unsaid { report: self, error })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}
