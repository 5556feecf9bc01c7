//! File operations for secrets and databases: private modes, atomic replacement, locks.
//!
//! This module depends on no other module. Invariant: a file that this module creates with a secret can be read only by its owner.

use std::{
    fs::{self, OpenOptions, TryLockError},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown},
    path::{Path, PathBuf},
};

/// Creates a directory with mode 0700, and its missing parents.
pub fn create_private_directory(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Writes a file with mode 0600, atomically.
pub fn write_secret(path: &Path, content: &[u8]) -> io::Result<()> {
    write_atomically(path, content, 0o600)
}

/// Writes a temporary file and renames it, so that a reader sees either the old or the new content. Files whose paths differ only
/// in the extension share the temporary file, so do not write them at the same time.
pub fn write_atomically(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let temporary = path.with_extension("new");
    write_temporary(&temporary, content, mode)?;
    fs::rename(&temporary, path)?;
    // Without a sync of the directory, a power failure could remove a key and preserve the data encrypted with it.
    fs::File::open(parent_directory(path))?.sync_all()
}

/// Creates a file with mode 0600 and its whole content; fails if the file exists. No other process may use the path `temporary`.
pub fn create_secret(path: &Path, temporary: &Path, content: &[u8]) -> io::Result<()> {
    write_temporary(temporary, content, 0o600)?;
    let renamed = rename_without_replacing(temporary, path);
    if renamed.is_err() {
        remove_if_exists(temporary)?;
    }
    renamed
}

fn write_temporary(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    remove_if_exists(path)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Creates a file with mode 0600. If the file exists, sets the mode and keeps the content.
pub fn create_private_file(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    file.set_permissions(fs::Permissions::from_mode(0o600))
}

/// Creates an empty file with mode 0600, or truncates an existing file.
pub fn truncate_private_file(path: &Path) -> io::Result<()> {
    create_private_file(path)?;
    OpenOptions::new().write(true).open(path)?.set_len(0)
}

/// Renames a file; fails if the new name exists.
pub fn rename_without_replacing(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Ok(()) => fs::remove_file(from)?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(error),
        // The file system has no hard links. Another process could still create the new name between our check and the rename.
        Err(_) if fs::symlink_metadata(to).is_ok() => return Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => fs::rename(from, to)?,
    }
    fs::File::open(parent_directory(to))?.sync_all()
}

/// Reads the file named by a setting; `None` if the setting is empty.
pub fn read_if_set(path: &Path) -> io::Result<Option<Vec<u8>>> {
    (!path.as_os_str().is_empty()).then(|| fs::read(path)).transpose()
}

/// Copies a file to a new file with mode 0600.
pub fn copy_to_private_file(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = fs::File::open(from)?;
    let mut target = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    io::copy(&mut source, &mut target)?;
    Ok(())
}

/// Creates a hard link to a file, or a copy on file systems without hard links.
pub fn link_or_copy(path: &Path, link: &Path) -> io::Result<()> {
    fs::hard_link(path, link).or_else(|_| copy_to_private_file(path, link))?;
    sync(link)
}

/// Cleans up after a `restore` that was killed. Before `restore` replaces a file, it gives the file a second name: the file's name,
/// `infix` and a time. It also copies the companion files, whose names end with one of `suffixes`, to the second name. If both
/// names still lead to the same file, we remove the second name, and move companion files back that are missing beside the first.
pub fn remove_second_names(path: &Path, infix: &str, suffixes: &[&str]) -> io::Result<()> {
    let metadata = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        metadata => metadata?,
    };
    if metadata.nlink() == 1 {
        return Ok(());
    }
    let prefix = with_suffix(path, infix);
    let prefix = prefix.file_name().unwrap_or_default().as_encoded_bytes();
    for entry in fs::read_dir(parent_directory(path))? {
        let entry = entry?;
        let has_prefix = entry.file_name().as_encoded_bytes().starts_with(prefix);
        let Ok(other) = fs::symlink_metadata(entry.path()) else { continue };
        if has_prefix && (other.dev(), other.ino()) == (metadata.dev(), metadata.ino()) {
            for suffix in suffixes {
                move_or_remove(&with_suffix(&entry.path(), suffix), &with_suffix(path, suffix))?;
            }
            remove_if_exists(&entry.path())?;
        }
    }
    fs::File::open(parent_directory(path))?.sync_all()
}

/// Renames a file, or removes it if the new name exists.
fn move_or_remove(from: &Path, to: &Path) -> io::Result<()> {
    if to.exists() { remove_if_exists(from) } else { fs::rename(from, to).or_else(ignore_not_found) }
}

/// Removes a file if it exists.
pub fn remove_if_exists(path: &Path) -> io::Result<()> {
    fs::remove_file(path).or_else(ignore_not_found)
}

fn ignore_not_found(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// Gives a file to the owner of its directory, if permitted. Without this, a command that root runs would leave files in the data
/// directory that the server's user cannot open.
pub fn chown_to_directory_owner(path: &Path) -> io::Result<()> {
    let (directory, file) = (fs::metadata(parent_directory(path))?, fs::metadata(path)?);
    if (directory.uid(), directory.gid()) == (file.uid(), file.gid()) {
        return Ok(());
    }
    match chown(path, Some(directory.uid()), Some(directory.gid())) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        result => result,
    }
}

/// The permissions of a file; `None` if it does not exist.
pub fn mode(path: &Path) -> Option<u32> {
    Some(fs::metadata(path).ok()?.permissions().mode() & 0o7777)
}

/// Syncs a file and its directory entry to disk.
pub fn sync(path: &Path) -> io::Result<()> {
    fs::File::open(path)?.sync_all()?;
    fs::File::open(parent_directory(path))?.sync_all()
}

/// The directory of a file.
pub fn parent_directory(path: &Path) -> &Path {
    path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The path with a suffix appended to the file name.
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// An advisory lock on a file, released when the lock is dropped or the process ends.
#[derive(Debug)]
pub struct FileLock {
    _file: fs::File,
}

impl FileLock {
    /// Acquires a shared lock; `None` if another process holds an exclusive lock. Creates the file if it is missing.
    pub fn shared(path: &Path) -> io::Result<Option<Self>> {
        let file = open_lock_file(path)?;
        lock_result(file.try_lock_shared(), file)
    }

    /// Acquires an exclusive lock; `None` if another process holds any lock. Creates the file if it is missing.
    pub fn exclusive(path: &Path) -> io::Result<Option<Self>> {
        let file = open_lock_file(path)?;
        lock_result(file.try_lock(), file)
    }
}

fn open_lock_file(path: &Path) -> io::Result<fs::File> {
    // An exclusive lock on NFS needs write access. Elsewhere, read access suffices, so we fall back to it.
    match OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => {
            fs::File::open(path)
        }
        opened => opened,
    }
}

fn lock_result(result: Result<(), TryLockError>, file: fs::File) -> io::Result<Option<FileLock>> {
    match result {
        Ok(()) => Ok(Some(FileLock { _file: file })),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remove_second_names_removes_only_links_to_the_same_file() {
        let directory = std::env::temp_dir().join(format!("countersign-names-{}", std::process::id()));
        create_private_directory(&directory).unwrap();
        fs::write(directory.join("a"), "a").unwrap();
        fs::write(directory.join("a.copy-other"), "b").unwrap();
        for linked in ["a.copy-1", "a.copy-2", "ab.copy-3"] {
            fs::hard_link(directory.join("a"), directory.join(linked)).unwrap();
        }
        fs::write(directory.join("a.copy-1-log"), "log").unwrap();
        remove_second_names(&directory.join(".").join("a"), ".copy-", &["-log"]).unwrap();
        let mut remaining: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        remaining.sort();
        assert_eq!(remaining, ["a", "a-log", "a.copy-other", "ab.copy-3"]);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn exclusive_lock_excludes_all_other_locks() {
        let directory = std::env::temp_dir().join(format!("countersign-lock-{}", std::process::id()));
        create_private_directory(&directory).unwrap();
        let path = directory.join("lock");
        let (first, second) = (FileLock::shared(&path).unwrap(), FileLock::shared(&path).unwrap());
        assert!(first.is_some() && second.is_some() && FileLock::exclusive(&path).unwrap().is_none());
        drop(first);
        assert!(FileLock::exclusive(&path).unwrap().is_none());
        drop(second);
        let exclusive = FileLock::exclusive(&path).unwrap();
        assert!(
            exclusive.is_some()
                && FileLock::shared(&path).unwrap().is_none()
                && FileLock::exclusive(&path).unwrap().is_none()
        );
        drop(exclusive);
        assert!(FileLock::shared(&path).unwrap().is_some());
        fs::remove_dir_all(directory).unwrap();
    }
}
