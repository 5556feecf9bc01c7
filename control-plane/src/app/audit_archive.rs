//! `audit archive`: writes old entries of the audit log to a file, and deletes them from the database, while control planes serve.
//!
//! First the file is completed on disk, then one transaction records what it contains, and only then the entries are deleted. The
//! operator may delete the file of a run that was interrupted before this transaction. After a later interruption, the next run
//! deletes the entries.

use super::{
    AppError, CommandReport,
    database::{lock_shared, master_keys, open_existing},
    install_crypto_provider,
};
use crate::{
    config::Config,
    domain::audit::chain::AuditEntry,
    files,
    http::{api::audit::audit_entry_record, timestamp},
    operations::{ArchivedChain, AuditArchive, OperationError, delete_archived_entries, record_audit_archive},
    store::{Store, audit},
};
use countersign_identity::Timestamp;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::{
    fs::{File, OpenOptions},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    time::Duration,
};

/// Maximum number of chains in one archive, so that one transaction can record them.
const MAX_CHAINS: usize = 1000;

/// How long we may read one chain: it can have millions of entries.
const MAX_READ_TIME: Duration = Duration::from_hours(24);

/// Moves audit entries from before a time, except for the last of each chain, to a new file. Changes nothing if a chain is broken.
pub async fn archive_audit(config: &Config, before: &str, output: &Path) -> Result<CommandReport, AppError> {
    let before = timestamp::parse(before).or_else(|| timestamp::parse(&format!("{before}T00:00:00Z")));
    let Some(before) = before else {
        return AppError::refuse(
            "--before: must be a date or a time in the format of RFC 3339, such as 2026-01-31 or 2026-01-31T00:00:00Z",
        );
    };
    install_crypto_provider();
    let master = master_keys(config)?;
    let _lock = lock_shared(config)?;
    let store = open_existing(config, &master).await?;
    let archive = write_archive(&store, before, output).await?;
    let mut report = CommandReport::default();
    if let Some(archive) = &archive {
        refuse_on_conflict(record_audit_archive(&store, archive).await)?;
        let AuditArchive { chains, entries, sha256 } = archive;
        report.line(format!("Archived: {entries} entries of {} chains, in {}.", chains.len(), output.display()));
        report.line(format!(
            "SHA-256 of the file: {sha256}. Keep the file: `audit verify --archive` needs all archives."
        ));
    } else {
        report.line("No entries before this time are left to archive, so no file was written.");
    }
    let deleted = refuse_on_conflict(delete_archived_entries(&store).await)?;
    report.line(format!("Deleted from the database: {deleted} archived entries."));
    if archive.is_some_and(|archive| archive.chains.len() == MAX_CHAINS) {
        report.line("The archive is full, but older entries may be left: run this command again with another file.");
    }
    store.close().await;
    Ok(report)
}

fn refuse_on_conflict<T>(result: Result<T, OperationError>) -> Result<T, AppError> {
    result.map_err(|error| match error {
        OperationError::Conflict(reason) => AppError::Refused(reason),
        error => error.into(),
    })
}

/// Writes the archive file. Returns `None` and creates no file if there are no entries to archive.
async fn write_archive(store: &Store, before: Timestamp, output: &Path) -> Result<Option<AuditArchive>, AppError> {
    if output.try_exists().map_err(AppError::file(output))? {
        return Err(AppError::file(output)(io::ErrorKind::AlreadyExists.into()));
    }
    let mut writer = ArchiveWriter::create(output).map_err(AppError::file(output))?;
    let archive = match write_chains(store, before, &mut writer).await {
        Ok(chains) if chains.is_empty() => Ok(None),
        Ok(chains) => writer.finish(output, chains).map(Some).map_err(AppError::file(output)),
        Err(error) => Err(error),
    };
    if !matches!(archive, Ok(Some(_))) {
        files::remove_if_exists(&temporary(output)).map_err(AppError::file(output))?;
    }
    archive
}

async fn write_chains(
    store: &Store,
    before: Timestamp,
    writer: &mut ArchiveWriter,
) -> Result<Vec<ArchivedChain>, AppError> {
    let mut archived = Vec::new();
    let mut read = store.read_for(MAX_READ_TIME).await?;
    let chains = audit::list_chains(read.conn()).await?;
    drop(read);
    for chain in chains {
        let mut read = store.read_for(MAX_READ_TIME).await?;
        // The floor of a chain says how many of its first entries are in earlier archives.
        let floor = audit::find_floor(read.conn(), &chain).await?;
        let mut prefix = PrefixArchiver {
            before,
            archived_already: floor.as_ref().map_or(0, |floor| floor.length),
            pending: None,
            // When the archive is full, further chains are only verified.
            is_over: archived.len() >= MAX_CHAINS,
            last: None,
        };
        let verified =
            audit::verify_chain(read.conn(), store.audit_keys(), &chain, |entry| prefix.visit(entry, writer));
        if let Err(broken) = verified.await? {
            return AppError::refuse(format!("{}: {broken}. Nothing was archived.", chain.escape_debug()));
        }
        if let Some((sequence, hash)) = prefix.last {
            archived.push(ArchivedChain { chain, previous_floor: floor, archived: sequence, hash });
        }
    }
    Ok(archived)
}

/// Visits the entries of a chain, and archives those that are old enough and in no earlier archive. It never archives the last
/// entry of a chain, because the next entry must contain the hash of the last one.
struct PrefixArchiver {
    /// The time before which entries are archived.
    before: Timestamp,
    /// Sequence number of the last entry in earlier archives.
    archived_already: i64,
    /// An entry that is old enough, but must not be archived unless another entry follows in its chain.
    pending: Option<AuditEntry>,
    is_over: bool,
    /// Sequence number and hash of the last entry that was written.
    last: Option<(i64, String)>,
}

impl PrefixArchiver {
    fn visit(&mut self, entry: &AuditEntry, writer: &mut ArchiveWriter) {
        if self.is_over || entry.sequence <= self.archived_already {
            return;
        }
        if let Some(pending) = self.pending.take() {
            writer.write(&pending);
            self.last = Some((pending.sequence, pending.hash));
        }
        if entry.at < self.before {
            self.pending = Some(entry.clone());
        } else {
            self.is_over = true;
        }
    }
}

/// Writes the temporary file of an archive.
struct ArchiveWriter {
    file: BufWriter<File>,
    hash: Sha256,
    entries: u64,
    /// The first error of a write, which [`Self::finish`] returns.
    failure: Option<io::Error>,
}

fn temporary(output: &Path) -> PathBuf {
    files::with_suffix(output, ".part")
}

impl ArchiveWriter {
    fn create(output: &Path) -> io::Result<Self> {
        let path = temporary(output);
        files::truncate_private_file(&path)?;
        let file = OpenOptions::new().write(true).open(&path)?;
        Ok(Self { file: BufWriter::new(file), hash: Sha256::new(), entries: 0, failure: None })
    }

    fn write(&mut self, entry: &AuditEntry) {
        let line = format!("{}\n", json!(audit_entry_record(entry)));
        self.hash.update(&line);
        self.entries += 1;
        if self.failure.is_none() {
            self.failure = self.file.write_all(line.as_bytes()).err();
        }
    }

    /// Syncs the file to disk, and gives it its final name.
    fn finish(self, output: &Path, chains: Vec<ArchivedChain>) -> io::Result<AuditArchive> {
        let Self { file, hash, entries, failure } = self;
        failure.map_or(Ok(()), Err)?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        files::rename_without_replacing(&temporary(output), output)?;
        Ok(AuditArchive { chains, entries, sha256: hex::encode(hash.finalize()) })
    }
}
