//! Reads archives of the audit log, and verifies the hashes of their entries.

use crate::{
    app::AppError,
    domain::{
        audit::{chain::AuditEntry, keys::ChainMark},
        service::DEPLOYMENT_CHAIN,
    },
    http::timestamp,
};
use serde::Deserialize;
use serde_json::Value;
use std::{
    collections::{BTreeSet, HashMap},
    fs::File,
    io::{BufRead, BufReader},
    path::PathBuf,
};

/// The last entry of each chain in the archives: its sequence number and its hash.
pub struct Archives(HashMap<String, (i64, String)>);

/// A line of an archive: an audit entry, in the JSON format of `GET /audit`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ArchivedEntry {
    service_id: Option<String>,
    sequence: i64,
    at: String,
    action: String,
    actor: Actor,
    address: Option<String>,
    request_id: Option<String>,
    agent_id: Option<String>,
    object: Option<Object>,
    details: Value,
    previous_hash: String,
    hash: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Actor {
    kind: String,
    issuer: Option<String>,
    id: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Object {
    kind: Option<String>,
    id: String,
}

impl Archives {
    /// Reads all archives in their order. Fails unless each chain begins with its first entry and has no gap.
    pub fn read(paths: &[PathBuf]) -> Result<Self, AppError> {
        let mut archives = Self(HashMap::new());
        for path in paths {
            let error = |reason: String| AppError::Refused(format!("{}: {reason}", path.display()));
            let file = File::open(path).map_err(|failure| error(failure.to_string()))?;
            for (number, line) in (1..).zip(BufReader::new(file).lines()) {
                let line = line.map_err(|failure| error(failure.to_string()))?;
                archives.add(&line).map_err(|reason| error(format!("line {number}: {reason}")))?;
            }
        }
        Ok(archives)
    }

    fn add(&mut self, line: &str) -> Result<(), &'static str> {
        let archived: ArchivedEntry = serde_json::from_str(line).map_err(|_| "is not an audit entry")?;
        let entry = archived.into_entry().ok_or("has an invalid time")?;
        let (length, hash) = self.0.entry(entry.chain.clone()).or_default();
        if entry.sequence != *length + 1 || entry.previous_hash != *hash {
            return Err(
                "the entry does not follow the one before it in its chain: an archive is missing, or the order is wrong",
            );
        }
        if entry.digest() != entry.hash {
            return Err("the content of the entry does not match its hash");
        }
        (*length, *hash) = (entry.sequence, entry.hash);
        Ok(())
    }

    /// The chains with entries in the archives, in the order of their names.
    pub fn chains(&self) -> BTreeSet<&str> {
        self.0.keys().map(String::as_str).collect()
    }

    /// Whether the archives contain exactly the archived entries of a chain. `floor`: the last of them, says the database.
    pub fn end_at(&self, chain: &str, floor: Option<&ChainMark>) -> bool {
        let last = self.0.get(chain).map(|(length, hash)| (*length, hash));
        last == floor.map(|floor| (floor.length, &floor.hash))
    }
}

impl ArchivedEntry {
    /// The entry; `None` if its time is invalid.
    fn into_entry(self) -> Option<AuditEntry> {
        let (object_kind, object_id) = self.object.map_or((None, None), |object| (object.kind, Some(object.id)));
        Some(AuditEntry {
            chain: self.service_id.unwrap_or_else(|| DEPLOYMENT_CHAIN.to_owned()),
            sequence: self.sequence,
            at: timestamp::parse(&self.at)?,
            action: self.action,
            actor_kind: self.actor.kind,
            actor_issuer: self.actor.issuer,
            actor_id: self.actor.id,
            address: self.address,
            request_id: self.request_id,
            agent: self.agent_id,
            object_kind,
            object_id,
            details: self.details.to_string(),
            previous_hash: self.previous_hash,
            hash: self.hash,
            mac: String::new(), // not in archives, and not part of the hash
        })
    }
}
