//! Files that hold secrets: whole or not at all, and for their owner only.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

/// Makes a folder for its owner only, with those above it.
pub fn make_private_folder(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Writes a file with mode 0600.
pub fn write_secret(path: &Path, content: &[u8]) -> io::Result<()> {
    write(path, content, 0o600)
}

/// Writes a file beside its place, then moves it there: a reader sees the old content or the new.
pub fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let beside = path.with_extension("new");
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    // The folder too, or a power cut could take the file and leave what was encrypted with it.
    fs::File::open(path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")))?.sync_all()
}

/// Makes sure that a file exists and is for its owner only; its content stays.
pub fn make_private_file(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    file.set_permissions(fs::Permissions::from_mode(0o600))
}
