//! The file of a copy: a header that anyone can read, and the sealed view.
//!
//! A file is replaced atomically. The header has a checksum, so that a damaged header is not taken for that of another key or
//! of another version. The first 12 bytes and the checksum at the end of the header are the same in all versions.

use super::{
    contact::{CONTACT_LEN, Contact},
    lock::{self, Lock, LockError},
    seal::{CopyKey, ID_LEN, OpeningReader, SALT_LEN, SealingWriter},
};
use crate::{
    metrics::CopyRejection,
    sync::{
        INSTANCE_LEN, Instance, MessageError,
        pages::{ViewOfPages, pages_of},
    },
    view::View,
};
use countersign_process::{Clock, Rng};
use countersign_proto::v1;
use prost::Message;
use sha2::{Digest, Sha256};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

const MAGIC: &[u8; 8] = b"CSGNVIEW";

/// The version of the format.
const VERSION: u32 = 1;

const CHECKSUM_LEN: usize = 32;

/// The part of the header that is additional data of the sealed chunks: all except the length and the checksum.
const SEALED_HEADER_LEN: usize = 8 + 4 + ID_LEN + SALT_LEN;

const HEADER_LEN: usize = SEALED_HEADER_LEN + 8 + CHECKSUM_LEN;

/// The largest copy that is written or read, in bytes: several million changed agents.
pub const MAX_COPY_BYTES: u64 = 512 << 20;

/// The largest page of a copy. The pages of agents are much smaller; the first one contains all roles.
const MAX_PAGE_BYTES: u32 = 64 << 20;

/// The directory with the copies of a sidecar, which no other process uses.
#[derive(Debug, Clone)]
pub struct CopyDirectory {
    path: Arc<Path>,
    /// The directory is locked until the last clone of this value is dropped.
    lock: Arc<Lock>,
}

/// A copy that was opened. Whether it can be used depends on the time.
#[derive(Debug, Clone)]
pub struct StoredView {
    /// The data, without a confirmation.
    pub view: Arc<View>,
    /// The last confirmation of the data.
    pub contact: Contact,
}

impl StoredView {
    /// The view with the confirmation of the copy, if it can be used now.
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

    /// Removes the temporary files of an earlier process, and the copies of other API keys than `keys`.
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

    /// The file of an API key.
    pub fn path_of(&self, key: &CopyKey) -> PathBuf {
        path_in(&self.path, key)
    }

    /// Whether a directory, which need not be locked, has a file of an API key, or may have one.
    pub fn may_have_file(directory: &Path, key: &CopyKey) -> bool {
        let is_missing = |kind| matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
        fs::symlink_metadata(path_in(directory, key)).err().is_none_or(|error| !is_missing(error.kind()))
    }

    /// Whether there is a file of an API key, or may be one.
    pub fn has_file(&self, key: &CopyKey) -> bool {
        Self::may_have_file(&self.path, key)
    }

    /// Replaces the copy of an API key. `origin` is the last confirmation of the view, and this process. Returns the length of the
    /// copy in bytes.
    pub fn write(&self, key: &CopyKey, view: &View, origin: (Contact, Instance), rng: &dyn Rng) -> io::Result<u64> {
        let (mut suffix, path) = ([0; 8], self.path_of(key));
        rng.fill(&mut suffix);
        let temporary = path.with_extension(format!("{}.tmp", hex(&suffix)));
        let written = write_file(&temporary, key, (view, origin), rng).and_then(|len| {
            fs::rename(&temporary, &path)?;
            File::open(&self.path)?.sync_all()?;
            Ok(len)
        });
        if written.is_err() {
            // The file may not exist, and the error of the write is the one to report.
            let _ignored = fs::remove_file(&temporary);
        }
        written
    }

    /// Removes a copy, if it exists.
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

    /// As [`Self::open`], in a directory that another process may own and write to meanwhile.
    pub fn open_in(
        directory: &Path,
        key: &CopyKey,
        staleness_limit: Option<Duration>,
    ) -> Result<Option<StoredView>, CopyRejection> {
        let Some((file, body_len)) = open_file(&path_in(directory, key))? else { return Ok(None) };
        read_file(file, body_len, key, staleness_limit).map(Some)
    }

    /// The process that wrote the copy of an API key, also if the copy is too old or its end is damaged; `None` if there is no
    /// authentic copy, or if the process may still run. Only the first chunk of the copy is read.
    pub fn ended_writer_of(&self, key: &CopyKey) -> Option<Instance> {
        let (file, _) = open_file(&self.path_of(key)).ok()??;
        let (mut reader, _) = open_body(file, key).ok()?;
        let (contact, instance) = read_origin(&mut reader).ok()?;
        self.lock.has_ended(contact.boot, contact.since_boot).then_some(instance)
    }
}

/// The file at a path, and its length without the header; `None` if there is none.
fn open_file(path: &Path) -> Result<Option<(File, u64)>, CopyRejection> {
    let is_file = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(_) => return Err(CopyRejection::Unreadable),
        Ok(metadata) => metadata.is_file(),
    };
    if !is_file {
        return Err(CopyRejection::Unreadable);
    }
    let file = File::open(path).map_err(|_| CopyRejection::Unreadable)?;
    // The file may have been replaced since its type was read.
    let len = file.metadata().map_err(|_| CopyRejection::Unreadable)?.len();
    if len > MAX_COPY_BYTES + HEADER_LEN as u64 {
        return Err(CopyRejection::TooLarge);
    }
    let body_len = len.checked_sub(HEADER_LEN as u64).ok_or(CopyRejection::Truncated)?;
    Ok(Some((file, body_len)))
}

/// The file of an API key in a directory.
pub fn path_in(directory: &Path, key: &CopyKey) -> PathBuf {
    directory.join(format!("view-{}.copy", hex(&key.id())))
}

fn has_extension(name: &str, extension: &str) -> bool {
    Path::new(name).extension().is_some_and(|it| it == extension)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn write_file(
    path: &Path,
    key: &CopyKey,
    (view, (contact, instance)): (&View, (Contact, Instance)),
    rng: &dyn Rng,
) -> io::Result<u64> {
    let mut salt = [0; SALT_LEN];
    rng.fill(&mut salt);
    let header = [&MAGIC[..], &VERSION.to_be_bytes(), &key.id(), &salt].concat();
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(&[0; HEADER_LEN])?;
    let mut writer = SealingWriter::new(file, (key, &salt), &header, MAX_COPY_BYTES)?;
    writer.write_all(&contact.to_bytes())?;
    writer.write_all(&instance.to_bytes())?;
    for page in pages_of(view) {
        let page = page.encode_to_vec();
        let len = u32::try_from(page.len()).ok().filter(|len| *len <= MAX_PAGE_BYTES);
        writer.write_all(&len.ok_or(io::ErrorKind::FileTooLarge)?.to_be_bytes())?;
        writer.write_all(&page)?;
    }
    let (mut file, sealed_len) = writer.finish()?;
    let header = [&header[..], &sealed_len.to_be_bytes()].concat();
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&header)?;
    file.write_all(&Sha256::digest(&header))?;
    file.sync_all()?;
    Ok(sealed_len + HEADER_LEN as u64)
}

/// Reads the header. Returns the reader of the sealed part, and the length of that part.
fn open_body<R: Read>(mut file: R, key: &CopyKey) -> Result<(OpeningReader<R>, u64), CopyRejection> {
    let mut header = [0; HEADER_LEN];
    file.read_exact(&mut header).map_err(|error| rejection_of(&error))?;
    let (salt, sealed_len) = parse_header(&header, key)?;
    let reader = OpeningReader::new(file, (key, &salt), &header[..SEALED_HEADER_LEN], sealed_len);
    Ok((reader.map_err(|_| CopyRejection::Corrupt)?, sealed_len))
}

/// Reads the begin of the sealed part.
fn read_origin(reader: &mut impl Read) -> Result<(Contact, Instance), CopyRejection> {
    let (mut contact, mut instance) = ([0; CONTACT_LEN], [0; INSTANCE_LEN]);
    reader.read_exact(&mut contact).map_err(|error| rejection_of(&error))?;
    reader.read_exact(&mut instance).map_err(|error| rejection_of(&error))?;
    let contact = Contact::from_bytes(&contact).ok_or(CopyRejection::Corrupt)?;
    Ok((contact, Instance::from_bytes(instance)))
}

fn read_file(
    file: impl Read,
    body_len: u64,
    key: &CopyKey,
    staleness_limit: Option<Duration>,
) -> Result<StoredView, CopyRejection> {
    let (mut reader, sealed_len) = open_body(file, key)?;
    if body_len != sealed_len {
        return Err(if body_len < sealed_len { CopyRejection::Truncated } else { CopyRejection::Corrupt });
    }
    let (contact, _) = read_origin(&mut reader)?;
    let mut view = ViewOfPages::new(staleness_limit);
    while let Some(page) = read_page(&mut reader).map_err(|error| rejection_of(&error))? {
        view.add(page).map_err(|error| rejection_of_page(&error))?;
    }
    Ok(StoredView { view: view.finish().map_err(|_| CopyRejection::Corrupt)?, contact })
}

fn rejection_of_page(error: &MessageError) -> CopyRejection {
    match error {
        MessageError::OtherProtocolVersion(_) => CopyRejection::UnknownVersion,
        _ => CopyRejection::Corrupt,
    }
}

/// The salt and the length of the sealed part.
fn parse_header(header: &[u8; HEADER_LEN], key: &CopyKey) -> Result<([u8; SALT_LEN], u64), CopyRejection> {
    let (content, checksum) = header.split_at(HEADER_LEN - CHECKSUM_LEN);
    let (start, rest) = content.split_at(12);
    if Sha256::digest(content)[..] != *checksum || start[..8] != MAGIC[..] {
        return Err(CopyRejection::Corrupt);
    }
    if start[8..] != VERSION.to_be_bytes() {
        return Err(CopyRejection::UnknownVersion);
    }
    let (id, rest) = rest.split_at(ID_LEN);
    if id != key.id() {
        return Err(CopyRejection::Foreign);
    }
    let (salt, len) = rest.split_at(SALT_LEN);
    let salt = salt.try_into().map_err(|_| CopyRejection::Corrupt)?;
    let len = len.try_into().map_err(|_| CopyRejection::Corrupt)?;
    Ok((salt, u64::from_be_bytes(len)))
}

/// The next page; `None` at the end.
fn read_page(reader: &mut impl Read) -> io::Result<Option<v1::SnapshotPage>> {
    let mut len = [0; 4];
    if reader.read(&mut len[..1])? == 0 {
        return Ok(None);
    }
    reader.read_exact(&mut len[1..])?;
    let len = u32::from_be_bytes(len);
    if len > MAX_PAGE_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut page = Vec::new();
    reader.take(len.into()).read_to_end(&mut page)?;
    if page.len() != len as usize {
        return Err(io::ErrorKind::InvalidData.into());
    }
    v1::SnapshotPage::decode(&page[..]).map(Some).map_err(|_| io::ErrorKind::InvalidData.into())
}

fn rejection_of(error: &io::Error) -> CopyRejection {
    match error.kind() {
        io::ErrorKind::InvalidData => CopyRejection::Corrupt,
        io::ErrorKind::UnexpectedEof => CopyRejection::Truncated,
        _ => CopyRejection::Unreadable,
    }
}
