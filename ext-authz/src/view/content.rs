//! Reads the whole content of a view, for its copy on disk and for its checksum.

use super::{Revocation, RevokedSubject, ServiceSettings, View};
use countersign_identity::{
    AgentChanges, AgentHash, ChecksumRevocation, ChecksumScope, ChecksumSettings, RoleTable, ViewChecksum,
    view_checksum::CHECKSUM_LEN,
};

impl View {
    /// All roles of the service.
    pub fn roles(&self) -> &RoleTable {
        &self.roles
    }

    /// The changes of agents, in no order.
    pub fn agents(&self) -> impl Iterator<Item = (AgentHash, &AgentChanges)> {
        self.agents.iter()
    }

    /// The revocations, in no order.
    pub fn revocations(&self) -> impl Iterator<Item = Revocation> + '_ {
        let tokens = self.revoked_tokens.iter().map(|(token, revision)| (RevokedSubject::Token(token), *revision));
        let sessions =
            self.revoked_sessions.iter().map(|(session, revision)| (RevokedSubject::Session(session), *revision));
        tokens.chain(sessions).map(|(subject, revision)| Revocation { revision, subject })
    }
    /// The checksum of the data, which takes some milliseconds for ten thousand changes.
    pub fn checksum(&self, scope: &ChecksumScope) -> [u8; CHECKSUM_LEN] {
        let ServiceSettings { service, issuer, accepts_unbound, max_staleness, agent_hash_key, resources: _ } =
            &self.settings;
        let settings = ChecksumSettings {
            service: *service,
            issuer,
            accepts_unbound: *accepts_unbound,
            max_staleness_seconds: max_staleness.as_secs(),
            agent_hash_key,
        };
        let mut checksum = ViewChecksum::new(scope, settings, self.roles.iter());
        for key in self.keys.public_keys() {
            checksum.add_key(&key.to_sec1());
        }
        for (agent, changes) in self.agents() {
            checksum.add_agent(agent, changes);
        }
        for Revocation { revision, subject } in self.revocations() {
            let subject = match subject {
                RevokedSubject::Token(token) => ChecksumRevocation::Token(token),
                RevokedSubject::Session(session) => ChecksumRevocation::Session(session),
            };
            checksum.add_revocation(subject, revision);
        }
        checksum.to_bytes()
    }
}
