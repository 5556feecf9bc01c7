//! Reads the YAML files that the user passes to `countersign apply`.

use super::format::{self, DeclaredService};
use crate::cli::error::CliError;
use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

pub struct Files {
    /// All services, in the order of the files.
    pub services: Vec<DeclaredService>,
    /// The `managedBy` of the documents, without repetition.
    pub managed_by: Vec<String>,
}

/// Reads the files. With `prunes`, each document must have `managedBy`: the command deletes only objects with this value.
pub fn read(paths: &[PathBuf], prunes: bool) -> Result<Files, CliError> {
    let mut services = Vec::new();
    let mut managed_by = BTreeSet::new();
    let mut has_documents = false;
    for argument in paths {
        for path in expand(argument)? {
            let name = if path.as_os_str() == "-" { "standard input".to_owned() } else { path.display().to_string() };
            let text = read_text(&path)?;
            let documents = format::parse(&name, &text)?;
            if prunes && documents.is_empty() {
                let next = "declare `services: []` with `managedBy` if nothing shall remain, or delete the file";
                let text = format!("{name}: --prune needs a document, and the file has none");
                return Err(CliError::usage(text).with_next(next));
            }
            if prunes && documents.iter().any(|document| document.managed_by.is_none()) {
                let next = "set `managedBy` in each document: --prune deletes only objects that have it";
                return Err(CliError::usage(format!("{name}: --prune needs `managedBy`")).with_next(next));
            }
            has_documents |= !documents.is_empty();
            for mut document in documents {
                // Paths of secret files are relative to the YAML file; in YAML from standard input, to the current directory.
                let directory = path.parent().unwrap_or_else(|| Path::new(""));
                document.secret_files().for_each(|file| *file = directory.join(&file));
                managed_by.extend(document.managed_by);
                services.extend(document.services);
            }
        }
    }
    if !has_documents {
        return Err(CliError::usage("the files have no document: each begins with `apiVersion`".to_owned()));
    }
    format::check_services(&services).map_err(CliError::usage)?;
    Ok(Files { services, managed_by: managed_by.into_iter().collect() })
}

/// The YAML files of a directory, in the order of their names. A path that is no directory stands for itself.
fn expand(path: &Path) -> Result<Vec<PathBuf>, CliError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let problem = |error: io::Error| CliError::file("--file", path, error.to_string());
    let entries = path.read_dir().map_err(problem)?.collect::<io::Result<Vec<_>>>().map_err(problem)?;
    let is_yaml = |path: &PathBuf| path.extension().is_some_and(|it| it == "yaml" || it == "yml") && !path.is_dir();
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
    let read = |source: &mut dyn Read, text: &mut String| source.take(format::MAX_FILE_BYTES + 1).read_to_string(text);
    if path.as_os_str() == "-" {
        read(&mut io::stdin(), &mut text).map_err(problem)?;
    } else {
        read(&mut File::open(path).map_err(problem)?, &mut text).map_err(problem)?;
    }
    if text.len() as u64 > format::MAX_FILE_BYTES {
        return Err(CliError::file("--file", path, "is larger than 16 MiB".to_owned()));
    }
    Ok(text)
}
