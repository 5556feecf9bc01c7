//! Writes to standard output and standard error without panicking, and joins the texts of errors.
//!
//! The macros `println!` and `eprintln!` panic if the stream is a closed pipe or a file on a full disk.

use crate::log_lines;
use std::{
    error::Error,
    fmt::Display,
    io::{self, Write},
};

/// Writes the text to standard output and flushes it.
pub fn write_stdout(text: impl Display) -> io::Result<()> {
    write_to(io::stdout().lock(), text)
}

/// Writes a line to standard error, after the lines of the log. Ignores a failure, because it could be reported nowhere else.
pub fn write_stderr_line(line: impl Display) {
    let line = format!("{line}\n");
    if !log_lines::push_last_line(&line) {
        let _unreportable = write_to(io::stderr().lock(), line);
    }
}

/// Joins the messages of an error and its sources. In tonic's transport errors, only the sources contain the cause.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

fn write_to(mut stream: impl Write, text: impl Display) -> io::Result<()> {
    // The line is written with a single write call, so that lines of several threads or processes do not mix.
    stream.write_all(text.to_string().as_bytes())?;
    stream.flush()
}
