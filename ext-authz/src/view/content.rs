//! Reads the whole content of a view, for its copy on disk.

use super::{Revocation, RevokedSubject, View};
use countersign_identity::{AgentChanges, AgentHash, RoleTable};

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
}
