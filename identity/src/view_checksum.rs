//! A checksum of the data of one service as of one revision, which the control plane and the sidecar compare now and then.
//!
//! Invariant: the checksum depends on what the data means and not on how it was received: the order of messages, facets that newer
//! ones replaced, what a side has at or below the floor, and grants that grant nothing do not matter. It finds errors; it does not
//! protect against somebody who chooses the data.

use crate::{
    AgentChanges, AgentHash, AgentHashKey, AgentStatus, Revision, RoleDefinition, RoleGrant, ServiceId, SessionId,
    StatusWithCutoff, Timestamp, TokenId, Versioned,
};
use sha2::{Digest, Sha256};
use std::collections::HashSet;

/// The length of a checksum in bytes.
pub const CHECKSUM_LEN: usize = 16;

/// What a checksum leaves out, because the sides may differ in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChecksumScope {
    /// Changes at or below this revision are left out, because a side may have dropped them.
    pub floor: Revision,
    /// Grants that end at this time or earlier are left out, because the control plane deletes them some time later.
    pub time: Timestamp,
    /// The roles of these agents are left out: the control plane deletes the grants of a deleted agent without a change.
    pub without_roles: HashSet<AgentHash>,
}

/// The settings of a service that a checksum contains.
#[derive(Debug, Clone, Copy)]
pub struct ChecksumSettings<'a> {
    /// The service.
    pub service: ServiceId,
    /// The required claim `iss`.
    pub issuer: &'a str,
    /// Whether the service accepts unbound tokens.
    pub accepts_unbound: bool,
    /// The maximum staleness in seconds.
    pub max_staleness_seconds: u64,
    /// The key of the hashes that name agents.
    pub agent_hash_key: &'a AgentHashKey,
}

/// A revoked token or session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChecksumRevocation {
    /// A token.
    Token(TokenId),
    /// A session.
    Session(SessionId),
}

/// Adds up the records of the data, each of which must be added once.
#[derive(Debug)]
pub struct ViewChecksum<'a> {
    scope: &'a ChecksumScope,
    roles: HashSet<crate::RoleId>,
    sum: u128,
}

/// The bytes of a record. Each part has a fixed length, or is preceded by its length.
struct Record(Sha256);

impl Record {
    fn new(kind: [u8; 4]) -> Self {
        Self(Sha256::new_with_prefix(kind))
    }

    fn number(mut self, number: i64) -> Self {
        self.0.update(number.to_be_bytes());
        self
    }

    fn bits(mut self, bits: u128) -> Self {
        self.0.update(bits.to_be_bytes());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.update((bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
        self
    }

    fn hash(self) -> u128 {
        let digest = self.0.finalize();
        digest.iter().take(CHECKSUM_LEN).fold(0, |bits, byte| bits << 8 | u128::from(*byte))
    }
}

impl<'a> ViewChecksum<'a> {
    /// Begins with the settings and all role definitions.
    pub fn new<'r>(
        scope: &'a ChecksumScope,
        settings: ChecksumSettings<'_>,
        roles: impl Iterator<Item = &'r RoleDefinition>,
    ) -> Self {
        let ChecksumSettings { service, issuer, accepts_unbound, max_staleness_seconds, agent_hash_key } = settings;
        let record = Record::new(*b"sets").bits(service.bits()).bytes(issuer.as_bytes());
        let record =
            record.number(accepts_unbound.into()).number(i64::try_from(max_staleness_seconds).unwrap_or(i64::MAX));
        let mut checksum = Self { scope, roles: HashSet::new(), sum: 0 };
        checksum.add(record.bytes(agent_hash_key.as_bytes()));
        for RoleDefinition { id, name, permissions, created_revision } in roles {
            let record = Record::new(*b"role").bits(id.bits()).bytes(name.as_str().as_bytes());
            let mut permissions: Vec<_> = permissions.iter().map(|permission| permission.as_str().as_bytes()).collect();
            permissions.sort_unstable();
            permissions.dedup();
            let record = record.number(created_revision.number());
            checksum.add(permissions.into_iter().fold(record, Record::bytes));
            checksum.roles.insert(*id);
        }
        checksum
    }

    fn add(&mut self, record: Record) {
        self.sum = self.sum.wrapping_add(record.hash());
    }

    /// Adds a signing key, as an uncompressed point.
    pub fn add_key(&mut self, point: &[u8]) {
        self.add(Record::new(*b"key ").bytes(point));
    }

    /// Adds the changes of an agent.
    pub fn add_agent(&mut self, agent: AgentHash, changes: &AgentChanges) {
        let AgentChanges { roles, trust, status } = changes;
        if let Some(Versioned { revision, value }) = self.above_floor(roles.as_ref())
            && !self.scope.without_roles.contains(&agent)
        {
            let mut grants: Vec<_> = value.iter().filter(|grant| self.grants(grant)).collect();
            grants.sort_unstable_by_key(|grant| (grant.role, grant.until));
            let record = Record::new(*b"held").bits(agent.bits()).number(revision.number());
            let record = grants.into_iter().fold(record, |record, RoleGrant { role, until }| {
                record.bits(role.bits()).number(until.map_or(i64::MIN, Timestamp::micros))
            });
            self.add(record);
        }
        if let Some(Versioned { revision, value }) = self.above_floor(trust.as_ref()) {
            let record = Record::new(*b"trst").bits(agent.bits()).number(revision.number());
            self.add(record.number(value.hundredths()));
        }
        if let Some(Versioned { revision, value: StatusWithCutoff { status, cutoff } }) =
            self.above_floor(status.as_ref())
        {
            let status = match status {
                AgentStatus::Active => 1,
                AgentStatus::Suspended => 2,
                AgentStatus::Revoked => 3,
            };
            let record = Record::new(*b"stat").bits(agent.bits()).number(revision.number());
            self.add(record.number(status).number(cutoff.number()));
        }
    }

    /// Adds the revocation of a token or session.
    pub fn add_revocation(&mut self, subject: ChecksumRevocation, revision: Revision) {
        if revision > self.scope.floor {
            let record = match subject {
                ChecksumRevocation::Token(token) => Record::new(*b"tokn").bits(token.bits()),
                ChecksumRevocation::Session(session) => Record::new(*b"sess").bits(session.bits()),
            };
            self.add(record.number(revision.number()));
        }
    }

    /// The checksum of what was added.
    pub const fn to_bytes(&self) -> [u8; CHECKSUM_LEN] {
        self.sum.to_be_bytes()
    }

    fn above_floor<'f, T>(&self, facet: Option<&'f Versioned<T>>) -> Option<&'f Versioned<T>> {
        facet.filter(|facet| facet.revision > self.scope.floor)
    }

    /// Whether a grant grants anything after the time of the scope.
    fn grants(&self, grant: &RoleGrant) -> bool {
        grant.until.is_none_or(|until| until > self.scope.time) && self.roles.contains(&grant.role)
    }
}

#[cfg(test)]
mod tests;
