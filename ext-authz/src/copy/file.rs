//! Reads and writes the file of a copy: a header in plain text, and the encrypted view. A file is replaced atomically.

use super::{
    contact::{CONTACT_LEN, Contact},
    lock::{self, Lock, LockError},
    seal::{CopyKey, ID_LEN, SALT_LEN, TAG_LEN},
};
use crate::{
    metrics::CopyRejection,
    sync::{
        INSTANCE_LEN, Instance, MessageError,
        pages::{pages_of, view_of_pages},
    },
    view::View,
};
use countersign_process::{Clock, Rng, SystemRng};
use countersign_proto::v1;
use prost::Message;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// The first bytes of every file, with the version of the format at their end.
const MAGIC: &[u8; 12] = b"CSGNVIEW\0\0\0\x01";

/// How many bytes of [`MAGIC`] are the same in all versions.
const NAME_LEN: usize = 8;

const HEADER_LEN: usize = MAGIC.len() + ID_LEN + SALT_LEN;

/// The largest copy that is written or read, in bytes: enough for several million changed agents.
pub const MAX_COPY_BYTES: u64 = 512 << 20;

/// The directory with the copies of a sidecar, which no other process uses.
#[derive(Debug, Clone)]
pub struct CopyDirectory {
    path: Arc<Path>,
    /// The directory is locked until the last clone of this value is dropped.
    lock: Arc<Lock>,
}

/// A copy that was opened. It may be too old to be used.
#[derive(Debug, Clone)]
pub struct StoredView {
    /// The view, without its confirmation.
    pub view: Arc<View>,
    /// The last confirmation of the view.
    pub contact: Contact,
}

impl StoredView {
    /// The view with its confirmation. The error says why the copy cannot be used now.
    pub fn restore(&self, clock: &dyn Clock) -> Result<View, CopyRejection> {
        let contact = self.contact.restore(self.view.max_staleness(), clock)?;
        Ok(self.view.restored(contact))
    }
}

impl CopyDirectory {
    /// Locks the directory at a path. Creates it with mode 0700 if it does not exist.
    pub fn lock(path: &Path, clock: &dyn Clock) -> Result<Self, LockError> {
        let lock = Arc::new(lock::lock(path, clock)?);
        Ok(Self { path: path.into(), lock })
    }

    /// Removes the temporary files of an earlier process, and the copies of API keys that are not in `keys`.
    pub fn prepare(&self, keys: &[CopyKey]) -> io::Result<()> {
        let kept: Vec<_> = keys.iter().map(|key| self.path_of(key)).collect();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let is_ours = name.starts_with("view-") && (has_extension(name, "tmp") || has_extension(name, "copy"));
            if is_ours && !kept.contains(&path) {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    pub fn path_of(&self, key: &CopyKey) -> PathBuf {
        path_in(&self.path, key)
    }

    /// False if a directory certainly has no file of an API key. The directory need not be locked.
    pub fn may_have_file(directory: &Path, key: &CopyKey) -> bool {
        let is_missing =
            |error: io::Error| matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
        !fs::symlink_metadata(path_in(directory, key)).is_err_and(is_missing)
    }

    /// False if there is certainly no file of an API key.
    pub fn has_file(&self, key: &CopyKey) -> bool {
        Self::may_have_file(&self.path, key)
    }

    /// Replaces the copy of an API key. Returns the length of the copy in bytes.
    pub fn write(&self, key: &CopyKey, view: &View, origin: Origin) -> io::Result<u64> {
        let path = self.path_of(key);
        let temporary = path.with_extension(format!("{}.tmp", hex(&random::<8>())));
        let written = write_file(&temporary, key, view, origin).and_then(|len| {
            fs::rename(&temporary, &path)?;
            File::open(&self.path)?.sync_all()?;
            Ok(len)
        });
        if written.is_err() {
            // Removing the file may fail, too, if it was not created. We report the error of the write.
            let _ignored = fs::remove_file(&temporary);
        }
        written
    }

    /// Removes a copy. Succeeds if there is none.
    pub fn remove(&self, path: &Path) -> io::Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => File::open(&self.path)?.sync_all(),
        }
    }

    /// Opens the copy of an API key without changing it; `None` if there is none. `staleness_limit` is the maximum staleness in
    /// the sidecar's settings.
    pub fn open(&self, key: &CopyKey, staleness_limit: Option<Duration>) -> Result<Option<StoredView>, CopyRejection> {
        Self::open_in(&self.path, key, staleness_limit)
    }

    /// Like [`Self::open`], in a directory that another process may own, and write to meanwhile.
    pub fn open_in(
        directory: &Path,
        key: &CopyKey,
        staleness_limit: Option<Duration>,
    ) -> Result<Option<StoredView>, CopyRejection> {
        let content = read_content(&path_in(directory, key), key)?;
        content.map(|content| parse_content(&content, staleness_limit)).transpose()
    }

    /// The process that wrote the copy of an API key, even if the copy is too old. `None` if there is no authentic copy, or if that
    /// process may still run.
    pub fn ended_writer_of(&self, key: &CopyKey) -> Option<Instance> {
        let content = read_content(&self.path_of(key), key).ok()??;
        let Origin { contact, instance } = Origin::read(&mut &content[..])?;
        // The process that wrote the copy had already locked the directory when its view was confirmed.
        self.lock.has_ended(contact.boot, contact.since_boot).then_some(instance)
    }
}

/// When the view of a copy was confirmed, and who wrote the copy. It precedes the view in the encrypted part of the file.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    pub contact: Contact,
    pub instance: Instance,
}

impl Origin {
    fn read(content: &mut &[u8]) -> Option<Self> {
        let contact = Contact::from_bytes(content.split_off(..CONTACT_LEN)?.try_into().ok()?)?;
        let instance = Instance::from_bytes(content.split_off(..INSTANCE_LEN)?.try_into().ok()?);
        Some(Self { contact, instance })
    }
}

pub fn path_in(directory: &Path, key: &CopyKey) -> PathBuf {
    directory.join(format!("view-{}.copy", hex(&key.id())))
}

fn has_extension(name: &str, extension: &str) -> bool {
    Path::new(name).extension().is_some_and(|it| it == extension)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn random<const LEN: usize>() -> [u8; LEN] {
    let mut bytes = [0; LEN];
    SystemRng.fill(&mut bytes);
    bytes
}

fn write_file(path: &Path, key: &CopyKey, view: &View, origin: Origin) -> io::Result<u64> {
    let Origin { contact, instance } = origin;
    let mut content = [&contact.to_bytes()[..], &instance.to_bytes()].concat();
    for page in pages_of(view) {
        page.encode_length_delimited(&mut content)?;
        if content.len() as u64 > MAX_COPY_BYTES {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the copy of the view would be too large"));
        }
    }
    let salt = random::<SALT_LEN>();
    let header = [&MAGIC[..], &key.id(), &salt].concat();
    key.seal(&salt, &header, &mut content).map_err(io::Error::other)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(&header)?;
    file.write_all(&content)?;
    file.sync_all()?;
    Ok((header.len() + content.len()) as u64)
}

/// Reads and decrypts the content of a file; `None` if there is no file.
fn read_content(path: &Path, key: &CopyKey) -> Result<Option<Vec<u8>>, CopyRejection> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Ok(metadata) if metadata.is_file() => {}
        Err(_) | Ok(_) => return Err(CopyRejection::Unreadable),
    }
    let (mut bytes, limit) = (Vec::new(), MAX_COPY_BYTES + (HEADER_LEN + TAG_LEN) as u64);
    let file = File::open(path).map_err(|_| CopyRejection::Unreadable)?;
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|_| CopyRejection::Unreadable)?;
    if bytes.len() as u64 > limit {
        return Err(CopyRejection::TooLarge);
    }
    let mut sealed = bytes.split_off(HEADER_LEN.min(bytes.len()));
    let salt = parse_header(&bytes, key)?;
    let opened_len = key.open(&salt, &bytes, &mut sealed).map_err(|_| CopyRejection::Corrupt)?.len();
    sealed.truncate(opened_len);
    Ok(Some(sealed))
}

/// Checks the header. Returns the salt.
fn parse_header(header: &[u8], key: &CopyKey) -> Result<[u8; SALT_LEN], CopyRejection> {
    let (magic, rest) = header.split_at_checked(MAGIC.len()).ok_or(CopyRejection::Corrupt)?;
    if magic != MAGIC {
        let is_other_version = magic[..NAME_LEN] == MAGIC[..NAME_LEN];
        return Err(if is_other_version { CopyRejection::UnknownVersion } else { CopyRejection::Corrupt });
    }
    let (id, salt) = rest.split_at_checked(ID_LEN).ok_or(CopyRejection::Corrupt)?;
    if id != key.id() {
        return Err(CopyRejection::Foreign);
    }
    salt.try_into().map_err(|_| CopyRejection::Corrupt)
}

impl From<MessageError> for CopyRejection {
    fn from(error: MessageError) -> Self {
        if matches!(error, MessageError::OtherProtocolVersion(_)) { Self::UnknownVersion } else { Self::Corrupt }
    }
}

fn parse_content(mut content: &[u8], staleness_limit: Option<Duration>) -> Result<StoredView, CopyRejection> {
    let Origin { contact, instance: _ } = Origin::read(&mut content).ok_or(CopyRejection::Corrupt)?;
    let pages =
        std::iter::from_fn(|| (!content.is_empty()).then(|| v1::SnapshotPage::decode_length_delimited(&mut content)));
    let pages = pages.map(|page| page.map_err(|_| CopyRejection::Corrupt));
    Ok(StoredView { view: view_of_pages(pages, staleness_limit)?, contact })
}
