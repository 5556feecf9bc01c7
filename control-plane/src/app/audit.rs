//! The audit, seen from beside the server: checked, and written out.

use super::{
    AppError,
    database::{self, master_key},
};
use crate::{
    config::Config,
    domain::audit::chain::Broken,
    http::audit::present,
    metrics::{LabelValues, Metrics},
    store::{self, Purpose, Store, StoreError, deployment},
};
use countersign_process::SystemClock;
use serde_json::json;
use std::{
    io::{self, Write},
    sync::Arc,
};

/// Why an audit could not be read, or what came of it.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The database cannot be opened.
    #[error(transparent)]
    App(#[from] AppError),
    /// It cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What was found cannot be written down.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
    /// There is no such chain.
    #[error("there is no chain of `{0}`: leave --service out to see all")]
    Unknown(String),
    /// Chains are broken.
    #[error("broken: {broken} of {all} chains")]
    Broken {
        /// How many.
        broken: usize,
        /// Of how many.
        all: usize,
    },
}

/// Checks the chain of a service, or all, and writes what was found into `out`: a line for each chain.
pub async fn verify_audit(config: &Config, service: Option<&str>, mut out: impl Write) -> Result<(), AuditError> {
    let archive = Archive::open(config, service).await?;
    let mut broken = 0;
    for chain in &archive.chains {
        let mut read = archive.store.read().await?;
        match store::audit::walk(read.conn(), archive.store.audit_keys(), chain, |_| ()).await? {
            Ok(head) => writeln!(out, "{chain}: ok, {} links, head {}", head.length, head.hash)?,
            Err(found) => {
                broken += 1;
                tell(&mut out, chain, found)?;
            }
        }
    }
    archive.conclude(broken)
}

/// Writes the chain of a service, or all, into `out`: a line of JSON for each link, up to the first broken one.
pub async fn export_audit(config: &Config, service: Option<&str>, mut out: impl Write) -> Result<(), AuditError> {
    let archive = Archive::open(config, service).await?;
    let mut broken = 0;
    for chain in &archive.chains {
        let mut read = archive.store.read().await?;
        let mut written = Ok(());
        let write = |link: &_| {
            if written.is_ok() {
                written = writeln!(out, "{}", json!(present(link)));
            }
        };
        let walked = store::audit::walk(read.conn(), archive.store.audit_keys(), chain, write).await?;
        written?;
        if let Err(found) = walked {
            broken += 1;
            tell(io::stderr(), chain, found)?;
        }
    }
    out.flush()?;
    archive.conclude(broken)
}

fn tell(mut to: impl Write, chain: &str, broken: Broken) -> io::Result<()> {
    // Whatever stands there: it is not taken for a line of ours.
    writeln!(to, "{}: {broken}", chain.escape_debug())
}

/// A database that is looked at, and which of its chains.
struct Archive {
    store: Store,
    chains: Vec<String>,
}

impl Archive {
    async fn open(config: &Config, service: Option<&str>) -> Result<Self, AuditError> {
        super::install_crypto_provider();
        let master = master_key(config)?;
        let metrics = Metrics::new(&LabelValues::default()).map_err(AppError::from)?;
        let store = database::open(config, Purpose::Inspect, &master, Arc::new(SystemClock), &metrics).await?;
        let mut read = store.read().await?;
        let kept = deployment::find(read.conn()).await?.ok_or(AppError::DatabaseRejected("this database is empty"))?;
        if kept.master_key_fingerprint != master.fingerprint() {
            return Err(AppError::DatabaseRejected("the master key is not the one of this database").into());
        }
        let mut chains = store::audit::chains(read.conn()).await?;
        if let Some(service) = service {
            chains.retain(|chain| chain == service);
            if chains.is_empty() {
                return Err(AuditError::Unknown(service.to_owned()));
            }
        }
        drop(read);
        Ok(Self { store, chains })
    }

    fn conclude(self, broken: usize) -> Result<(), AuditError> {
        if broken == 0 { Ok(()) } else { Err(AuditError::Broken { broken, all: self.chains.len() }) }
    }
}
