//! Reads the token of a command from standard input or a file, never from an argument: process lists and shell histories show
//! arguments.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// The most bytes that are read: more than the longest token, with white space around it.
const MAX_BYTES: u64 = 48 * 1024;

/// Reads the token from the file, or from standard input without a file; `None` if there is no text. The error names the source.
pub fn read(file: Option<&Path>) -> Result<Option<String>, String> {
    let (text, source) = match file {
        Some(path) => (File::open(path).and_then(read_all), path.display().to_string()),
        None => (read_all(io::stdin()), "standard input".to_owned()),
    };
    let text = text.map_err(|error| format!("cannot read the token from {source}: {error}"))?;
    Ok(Some(text.trim().to_owned()).filter(|token| !token.is_empty()))
}

fn read_all(source: impl Read) -> io::Result<String> {
    let mut text = String::new();
    source.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the input is too long for a token"));
    }
    Ok(text)
}
