//! `audit verify` and `audit export`: verify and export the audit log, with or without a running server.

mod archives;

use super::{
    AppError,
    database::{location, master_keys, open_for_command, refuse_missing_master_keys, wrong_master_key},
};
use crate::{
    config::Config,
    http::api::audit::audit_entry_record,
    store::{self, OpenMode, Store, deployment},
};
use serde_json::json;
use std::{
    fmt::Display,
    io::{self, Write},
    path::PathBuf,
};

use archives::Archives;

/// Verifies the audit chain of a service, or all audit chains, and writes one line with the result of each. If archives are given,
/// they must be complete and in order: together they must contain all archived entries of each chain.
pub async fn verify_audit(
    config: &Config,
    service: Option<&str>,
    archives: &[PathBuf],
    mut out: impl Write,
) -> Result<(), AppError> {
    let archives = (!archives.is_empty()).then(|| Archives::read(archives)).transpose()?;
    let log = AuditLog::open(config, service).await?;
    let mut broken = 0;
    for chain in &log.chains {
        let mut read = log.store.read().await?;
        match store::audit::verify_chain(read.conn(), log.store.audit_keys(), chain, |_| ()).await? {
            Ok(head) => {
                // The floor of a chain says how many of its entries are archived, and has the hash of the last archived entry.
                let floor = store::audit::find_floor(read.conn(), chain).await?;
                if archives.as_ref().is_some_and(|archives| !archives.end_at(chain, floor.as_ref())) {
                    broken += 1;
                    let text = "the archives do not end with the last archived entry of this chain";
                    write_problem(&mut out, chain, text)?;
                    continue;
                }
                let archived_part = floor.map_or(String::new(), |floor| format!(", {} of them archived", floor.length));
                writeln!(out, "{chain}: ok, {} entries{archived_part}, head {}", head.length, head.hash)
                    .map_err(AppError::Output)?;
            }
            Err(error) => {
                broken += 1;
                write_problem(&mut out, chain, error)?;
            }
        }
    }
    // The database can have lost a whole chain. Then only the archives show that the chain existed.
    let chains_of_archives = archives.as_ref().filter(|_| service.is_none()).map(Archives::chains).unwrap_or_default();
    let mut total = log.chains.len();
    for chain in chains_of_archives.into_iter().filter(|chain| log.chains.iter().all(|known| known != chain)) {
        (broken, total) = (broken + 1, total + 1);
        write_problem(&mut out, chain, "the archives have entries of this chain, and the database has none")?;
    }
    refuse_broken(broken, total)
}

/// Writes the audit chain of a service, or all audit chains, as JSON Lines. The export of a broken chain ends before its first
/// invalid entry.
pub async fn export_audit(config: &Config, service: Option<&str>, mut out: impl Write) -> Result<(), AppError> {
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
        written.map_err(AppError::Output)?;
        if let Err(error) = verified {
            broken += 1;
            write_problem(&mut io::stderr(), chain, error)?;
        }
    }
    out.flush().map_err(AppError::Output)?;
    refuse_broken(broken, log.chains.len())
}

fn refuse_broken(broken: usize, total: usize) -> Result<(), AppError> {
    if broken == 0 { Ok(()) } else { AppError::refuse(format!("{broken} of {total} audit chains are broken")) }
}

fn write_problem(out: &mut impl Write, chain: &str, problem: impl Display) -> Result<(), AppError> {
    // The name of an audit chain may have been tampered with: without escaping, the name could imitate a line of output.
    writeln!(out, "{}: {problem}", chain.escape_debug()).map_err(AppError::Output)
}

/// An open database, and the names of the audit chains selected in it.
struct AuditLog {
    store: Store,
    chains: Vec<String>,
}

impl AuditLog {
    async fn open(config: &Config, service: Option<&str>) -> Result<Self, AppError> {
        super::install_crypto_provider();
        let master = master_keys(config)?;
        let store = open_for_command(location(config)?, config, OpenMode::Inspect, &master).await?;
        let mut read = store.read().await?;
        let deployment =
            deployment::find(read.conn()).await?.ok_or(AppError::DatabaseRejected("this database is empty"))?;
        if !master.contains(&deployment.master_key_fingerprint) {
            return Err(wrong_master_key(&deployment, &master));
        }
        refuse_missing_master_keys(&store, &master).await?;
        let mut chains = store::audit::list_chains(read.conn()).await?;
        if let Some(service) = service {
            chains.retain(|chain| chain == service);
            if chains.is_empty() {
                return AppError::refuse(format!(
                    "there is no audit chain of service `{service}`: omit --service to see all chains"
                ));
            }
        }
        drop(read);
        Ok(Self { store, chains })
    }
}
