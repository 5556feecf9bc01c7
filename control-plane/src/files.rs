//! Files that hold secrets: whole or not at all, and for their owner only.

use std::{
    fs::{self, OpenOptions, TryLockError},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown},
    path::{Path, PathBuf},
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
    remove(&beside)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    // The folder too, or a power cut could take the file and leave what was encrypted with it.
    fs::File::open(folder_of(path))?.sync_all()
}

/// Makes sure that a file exists and is for its owner only; its content stays.
pub fn make_private_file(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    file.set_permissions(fs::Permissions::from_mode(0o600))
}

/// Makes sure that a file exists, is empty, and is for its owner only.
pub fn empty_private_file(path: &Path) -> io::Result<()> {
    make_private_file(path)?;
    OpenOptions::new().write(true).open(path)?.set_len(0)
}

/// Gives a file another name, unless there is a file of that name.
pub fn name_without_replacing(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Ok(()) => fs::remove_file(from)?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(error),
        // A file system without a second name for a file.
        Err(_) if fs::symlink_metadata(to).is_ok() => return Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => fs::rename(from, to)?,
    }
    fs::File::open(folder_of(to))?.sync_all()
}

/// Reads the file that a setting names, if it names one.
pub fn read_named(path: &Path) -> io::Result<Option<Vec<u8>>> {
    (!path.as_os_str().is_empty()).then(|| fs::read(path)).transpose()
}

/// Copies a file, for its owner only.
pub fn copy_private(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = fs::File::open(from)?;
    let mut target = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    io::copy(&mut source, &mut target)?;
    Ok(())
}

/// Gives a file another name beside its own, or where the file system has no second names, a copy of that name.
pub fn name_also(path: &Path, name: &Path) -> io::Result<()> {
    fs::hard_link(path, name).or_else(|_| copy_private(path, name))?;
    make_lasting(name)
}

/// Takes away the names of a file beside its own that begin with it and go on like this. What lies beside such a name, with
/// one of these endings, was put there for the file: it goes back, unless the file has its own.
pub fn drop_other_names(path: &Path, more: &str, endings: &[&str]) -> io::Result<()> {
    let found = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if found.nlink() == 1 {
        return Ok(());
    }
    let begins = beside(path, more);
    let begins = begins.file_name().unwrap_or_default().as_encoded_bytes();
    for entry in fs::read_dir(folder_of(path))? {
        let entry = entry?;
        let is_other = entry.file_name().as_encoded_bytes().starts_with(begins);
        let Ok(other) = fs::symlink_metadata(entry.path()) else { continue };
        if is_other && (other.dev(), other.ino()) == (found.dev(), found.ino()) {
            for ending in endings {
                give_back(&beside(&entry.path(), ending), &beside(path, ending))?;
            }
            remove(&entry.path())?;
        }
    }
    fs::File::open(folder_of(path))?.sync_all()
}

fn give_back(from: &Path, to: &Path) -> io::Result<()> {
    if to.exists() { remove(from) } else { fs::rename(from, to).or_else(not_there) }
}

/// Removes a file, if it is there.
pub fn remove(path: &Path) -> io::Result<()> {
    fs::remove_file(path).or_else(not_there)
}

fn not_there(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// Gives a file to whoever owns its folder, if we may: what root makes there is for the user who serves.
pub fn give_to_owner_of_folder(path: &Path) -> io::Result<()> {
    let (folder, file) = (fs::metadata(folder_of(path))?, fs::metadata(path)?);
    if (folder.uid(), folder.gid()) == (file.uid(), file.gid()) {
        return Ok(());
    }
    match chown(path, Some(folder.uid()), Some(folder.gid())) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        done => done,
    }
}

/// Makes what was written to a file and its name last.
pub fn make_lasting(path: &Path) -> io::Result<()> {
    fs::File::open(path)?.sync_all()?;
    fs::File::open(folder_of(path))?.sync_all()
}

/// The folder that a file is in.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The path of a file beside another one, whose name goes on.
pub fn beside(path: &Path, more: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(more);
    name.into()
}

/// A lock that stands in a file, until it is dropped or the process ends, in whatever way.
#[derive(Debug)]
pub struct Lock {
    _file: fs::File,
}

impl Lock {
    /// Takes it together with others; `None` if somebody has it alone. The file is made if there is none.
    pub fn shared(path: &Path) -> io::Result<Option<Self>> {
        let file = lock_file(path)?;
        taken(file.try_lock_shared(), file)
    }

    /// Takes it alone; `None` if anybody has it. The file is made if there is none.
    pub fn alone(path: &Path) -> io::Result<Option<Self>> {
        let file = lock_file(path)?;
        taken(file.try_lock(), file)
    }
}

fn lock_file(path: &Path) -> io::Result<fs::File> {
    // To read is enough for a lock; whoever may not write the file finds it there.
    match fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)
        }
        opened => opened,
    }
}

fn taken(done: Result<(), TryLockError>, file: fs::File) -> io::Result<Option<Lock>> {
    match done {
        Ok(()) => Ok(Some(Lock { _file: file })),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_second_names_of_the_same_file_go_whatever_its_path_looks_like() {
        let folder = std::env::temp_dir().join(format!("countersign-names-{}", std::process::id()));
        make_private_folder(&folder).unwrap();
        fs::write(folder.join("a"), "a").unwrap();
        fs::write(folder.join("a.kept-other"), "b").unwrap();
        for linked in ["a.kept-1", "a.kept-2", "ab.kept-3"] {
            fs::hard_link(folder.join("a"), folder.join(linked)).unwrap();
        }
        fs::write(folder.join("a.kept-1-log"), "log").unwrap();
        drop_other_names(&folder.join(".").join("a"), ".kept-", &["-log"]).unwrap();
        let mut left: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["a", "a-log", "a.kept-other", "ab.kept-3"]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_lock_is_shared_or_had_alone() {
        let folder = std::env::temp_dir().join(format!("countersign-lock-{}", std::process::id()));
        make_private_folder(&folder).unwrap();
        let path = folder.join("lock");
        let (one, two) = (Lock::shared(&path).unwrap(), Lock::shared(&path).unwrap());
        assert!(one.is_some() && two.is_some() && Lock::alone(&path).unwrap().is_none());
        drop(one);
        assert!(Lock::alone(&path).unwrap().is_none());
        drop(two);
        let alone = Lock::alone(&path).unwrap();
        assert!(alone.is_some() && Lock::shared(&path).unwrap().is_none() && Lock::alone(&path).unwrap().is_none());
        drop(alone);
        assert!(Lock::shared(&path).unwrap().is_some());
        fs::remove_dir_all(folder).unwrap();
    }
}
