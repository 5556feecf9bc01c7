//! `audit verify` and `audit export`: verify and export the audit log, with or without a running server.

mod archives;

use super::{
    AppError,
    database::{self, master_keys, refuse_missing_master_keys, wrong_master_key},
};
use crate::{
    config::Config,
    domain::audit::chain::BrokenChain,
    http::api::audit::audit_entry_record,
    metrics::{LabelValues, Metrics},
    store::{self, OpenMode, Store, StoreError, deployment},
};
use countersign_process::SystemClock;
use serde_json::json;
use std::{
    io::{self, Write},
    path::PathBuf,
    sync::Arc,
};

use archives::Archives;

/// Why `audit verify` or `audit export` failed.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The database cannot be opened.
    #[error(transparent)]
    App(#[from] AppError),
    /// The database cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The output cannot be written.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
    /// An archive cannot be read, or was changed.
    #[error("{path}: {reason}")]
    Archive {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The service has no audit chain.
    #[error("there is no audit chain of service `{0}`: omit --service to see all chains")]
    UnknownChain(String),
    /// At least one chain is broken.
    #[error("{broken} of {total} audit chains are broken")]
    BrokenChain {
        /// Number of broken chains.
        broken: usize,
        /// Number of chains verified.
        total: usize,
    },
}

/// Verifies the audit chain of a service, or all audit chains, and writes one line with the result of each chain. If there are
/// archives, they must be all archives, in their order, and contain all archived entries of each chain.
pub async fn verify_audit(
    config: &Config,
    service: Option<&str>,
    archives: &[PathBuf],
    mut out: impl Write,
) -> Result<(), AuditError> {
    let archives = (!archives.is_empty()).then(|| Archives::read(archives)).transpose()?;
    let log = AuditLog::open(config, service).await?;
    let mut broken = 0;
    for chain in &log.chains {
        let mut read = log.store.read().await?;
        match store::audit::verify_chain(read.conn(), log.store.audit_keys(), chain, |_| ()).await? {
            Ok(head) => {
                let floor = store::audit::find_floor(read.conn(), chain).await?;
                if archives.as_ref().is_some_and(|archives| !archives.end_at(chain, floor.as_ref())) {
                    broken += 1;
                    let text = "the archives do not end with the last archived entry of this chain";
                    writeln!(out, "{}: {text}", chain.escape_debug())?;
                    continue;
                }
                let of_them = floor.map_or(String::new(), |floor| format!(", {} of them archived", floor.length));
                writeln!(out, "{chain}: ok, {} entries{of_them}, head {}", head.length, head.hash)?;
            }
            Err(error) => {
                broken += 1;
                write_broken_chain(&mut out, chain, error)?;
            }
        }
    }
    // A chain that was removed with its service is found by its archive only.
    let expected = archives.as_ref().filter(|_| service.is_none()).map(Archives::chains).unwrap_or_default();
    for chain in expected.into_iter().filter(|expected| log.chains.iter().all(|chain| chain != expected)) {
        broken += 1;
        writeln!(out, "{}: the archives have entries of this chain, and the database has none", chain.escape_debug())?;
    }
    log.finish(broken)
}

/// Writes the audit chain of a service, or all audit chains, as JSON Lines. The export of a broken chain ends before its first
/// invalid entry.
pub async fn export_audit(config: &Config, service: Option<&str>, mut out: impl Write) -> Result<(), AuditError> {
    let log = AuditLog::open(config, service).await?;
    let mut broken = 0;
    for chain in &log.chains {
        let mut read = log.store.read().await?;
        let mut written = Ok(());
        let write = |entry: &_| {
            if written.is_ok() {
                written = writeln!(out, "{}", json!(audit_entry_record(entry)));
            }
        };
        let verified = store::audit::verify_chain(read.conn(), log.store.audit_keys(), chain, write).await?;
        written?;
        if let Err(error) = verified {
            broken += 1;
            write_broken_chain(io::stderr(), chain, error)?;
        }
    }
    out.flush()?;
    log.finish(broken)
}

fn write_broken_chain(mut out: impl Write, chain: &str, error: BrokenChain) -> io::Result<()> {
    // The name of an audit chain may have been tampered with: without escaping, the name could imitate a line of output.
    writeln!(out, "{}: {error}", chain.escape_debug())
}

/// An open database, and the names of the audit chains selected in it.
struct AuditLog {
    store: Store,
    chains: Vec<String>,
}

impl AuditLog {
    async fn open(config: &Config, service: Option<&str>) -> Result<Self, AuditError> {
        super::install_crypto_provider();
        let master = master_keys(config)?;
        let metrics = Metrics::new(&LabelValues::default()).map_err(AppError::from)?;
        let store = database::open(config, OpenMode::Inspect, &master, Arc::new(SystemClock), &metrics).await?;
        let mut read = store.read().await?;
        let deployment =
            deployment::find(read.conn()).await?.ok_or(AppError::DatabaseRejected("this database is empty"))?;
        if !master.contains(&deployment.master_key_fingerprint) {
            return Err(wrong_master_key(&deployment, &master).into());
        }
        refuse_missing_master_keys(&store, &master).await?;
        let mut chains = store::audit::list_chains(read.conn()).await?;
        if let Some(service) = service {
            chains.retain(|chain| chain == service);
            if chains.is_empty() {
                return Err(AuditError::UnknownChain(service.to_owned()));
            }
        }
        drop(read);
        Ok(Self { store, chains })
    }

    fn finish(self, broken: usize) -> Result<(), AuditError> {
        if broken == 0 { Ok(()) } else { Err(AuditError::BrokenChain { broken, total: self.chains.len() }) }
    }
}
