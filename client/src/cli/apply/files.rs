//! Reads the files of `apply`.

use crate::cli::CliError;
use countersign_client::declared::{DeclaredService, file};
use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

/// Reads all services of the files, in their order.
pub fn read(paths: &[PathBuf]) -> Result<Vec<DeclaredService>, CliError> {
    let mut services = Vec::new();
    for path in paths {
        for path in expand(path)? {
            let name = if path.as_os_str() == "-" { "standard input".to_owned() } else { path.display().to_string() };
            let text = read_text(&path)?;
            let documents = file::parse(&name, &text).map_err(|error| CliError::Usage(error.to_string()))?;
            services.extend(documents.into_iter().flat_map(|document| document.services));
        }
    }
    file::check_services(&services).map_err(CliError::Usage)?;
    Ok(services)
}

/// The files of a directory, in the order of their names; any other path itself.
fn expand(path: &Path) -> Result<Vec<PathBuf>, CliError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let problem = |error: io::Error| CliError::file("--file", path, error.to_string());
    let entries = path.read_dir().map_err(problem)?.collect::<io::Result<Vec<_>>>().map_err(problem)?;
    let is_yaml = |path: &PathBuf| path.extension().is_some_and(|it| it == "yaml" || it == "yml") && path.is_file();
    let mut files: Vec<_> = entries.into_iter().map(|entry| entry.path()).filter(is_yaml).collect();
    files.sort();
    if files.is_empty() {
        return Err(CliError::file("--file", path, "the directory contains no .yaml or .yml file".to_owned()));
    }
    Ok(files)
}

fn read_text(path: &Path) -> Result<String, CliError> {
    let problem = |error: io::Error| CliError::file("--file", path, error.to_string());
    let mut text = String::new();
    let read = |source: &mut dyn Read, text: &mut String| source.take(file::MAX_FILE_BYTES + 1).read_to_string(text);
    if path.as_os_str() == "-" {
        read(&mut io::stdin(), &mut text).map_err(problem)?;
    } else {
        read(&mut File::open(path).map_err(problem)?, &mut text).map_err(problem)?;
    }
    if text.len() as u64 > file::MAX_FILE_BYTES {
        return Err(CliError::file("--file", path, "is larger than 16 MiB".to_owned()));
    }
    Ok(text)
}
