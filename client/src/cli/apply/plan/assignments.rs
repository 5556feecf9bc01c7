//! Plans which agents get and lose which roles of a service.
//!
//! Invariants: assignments that other files manage stay. A pattern gives roles only to agents of the human user who applies the files.

use super::{AssignmentState, Change, ServicePlanner};
use crate::cli::{
    apply::format::{DeclaredAssignment, Match},
    error::CliError,
};
use countersign_client::api::{AgentWithRoles, AssignedRole, ListedAgent};
use std::collections::HashMap;

impl<'a> ServicePlanner<'a> {
    /// Plans to make missing assignments, to change the end of others, and to revoke those that the files no longer declare. For a
    /// role of an agent, an assignment that names the agent's id counts, or else the first one with a matching pattern.
    pub(super) fn plan_assignments(&mut self) -> Result<(), CliError> {
        let name = &self.declared.name;
        let holders: HashMap<_, _> = self.holders().map(|holder| (holder.agent.agent_id.as_str(), holder)).collect();
        let agents = self.existing.agents.iter().chain(self.holders().map(|holder| &holder.agent));
        let names: HashMap<_, _> = agents.map(|agent| (agent.agent_id.as_str(), agent.name.as_str())).collect();
        // For each agent and role, the assignment that counts.
        let mut seen = HashMap::new();
        let (by_id, patterns): (Vec<_>, Vec<_>) = self.declared.assignments.iter().partition(|it| it.agent.is_some());
        for assignment in by_id.into_iter().chain(patterns) {
            let DeclaredAssignment { role, agent: _, pattern, expires_at } = assignment;
            self.check_role(role)?;
            let agents = self.agents_of(assignment);
            if expires_at.as_deref().and_then(seconds).is_some_and(|end| end <= self.existing.read_at.seconds()) {
                let next = "delete it from the file";
                self.warnings.push(format!("service {name}: an assignment of {role} has expired: {next}"));
                // The agent may hold the role for longer. The file names this assignment, so --prune does not revoke it.
                seen.extend(agents.into_iter().map(|agent| ((agent, role.as_str()), assignment)));
                continue;
            }
            if let (true, Some(pattern)) = (agents.is_empty(), pattern) {
                let problem = format!("service {name}: none of your agents matches {pattern}");
                if self.args.prunes() {
                    let problem = format!("{problem}, so --prune would revoke {role} from all that matched before");
                    return Err(
                        CliError::failed(problem).with_next("delete the assignment from the file if this is right")
                    );
                }
                self.warnings.push(problem);
            }
            for agent in agents {
                let first = *seen.entry((agent, role.as_str())).or_insert(assignment);
                if std::ptr::eq(first, assignment) {
                    let held =
                        holders.get(agent).and_then(|holder| holder.roles.iter().find(|held| held.name == *role));
                    let agent_name = names.get(agent).copied().unwrap_or_default();
                    self.plan_assignment(assignment, agent, agent_name, held)?;
                } else if first.pattern.is_some() && !is_same_end(first.expires_at.as_deref(), expires_at.as_deref()) {
                    let problem = format!("two patterns give {role} to {agent} with different ends");
                    self.warnings.push(format!("service {name}: {problem}: the first counts"));
                }
            }
        }
        self.plan_revocations(&seen);
        Ok(())
    }

    /// Plans an assignment for one of the agents that it names. `held` is the role if the agent has it already.
    fn plan_assignment(
        &mut self,
        assignment: &DeclaredAssignment,
        agent: &str,
        name: &str,
        held: Option<&AssignedRole>,
    ) -> Result<(), CliError> {
        let DeclaredAssignment { role, agent: _, pattern: _, expires_at } = assignment;
        let what = format!("service {}: the assignment {role} of {agent}", self.declared.name);
        let managed_by = held.and_then(|held| held.managed_by.as_ref());
        let has_same_end = |held: &AssignedRole| is_same_end(held.expires_at.as_deref(), expires_at.as_deref());
        let will_change = !held.is_some_and(has_same_end) || self.changes_managed_by(managed_by);
        self.require_ownership(&what, managed_by, will_change)?;
        if !will_change {
            return Ok(());
        }
        let state = |held: &AssignedRole| AssignmentState {
            expires_at: held.expires_at.clone(),
            managed_by: held.managed_by.clone(),
        };
        self.changes.push(Change::Assign {
            role: role.clone(),
            agent: agent.to_owned(),
            name: name.to_owned(),
            expires_at: expires_at.clone(),
            from: held.map(state),
        });
        Ok(())
    }

    /// Revokes the assignments that the files no longer declare, except of roles that are deleted: these assignments end with the role.
    fn plan_revocations(&mut self, seen: &HashMap<(&str, &str), &DeclaredAssignment>) {
        let roles_to_prune: Vec<_> = self.roles_to_prune().map(|role| role.role_id.as_str()).collect();
        for AgentWithRoles { agent: ListedAgent { agent_id: agent, name, .. }, roles } in self.holders() {
            for AssignedRole { role_id, name: role, managed_by, .. } in roles {
                let to_prune = self.prunes(managed_by.as_ref())
                    && !seen.contains_key(&(agent.as_str(), role.as_str()))
                    && !roles_to_prune.contains(&role_id.as_str());
                if to_prune {
                    self.changes.push(Change::Revoke {
                        role_id: role_id.clone(),
                        role: role.clone(),
                        agent: agent.clone(),
                        name: name.clone(),
                    });
                }
            }
        }
    }

    fn check_role(&self, role: &str) -> Result<(), CliError> {
        let declared = self.declared.roles.iter().map(|role| &role.name);
        let existing = self.found.into_iter().flat_map(|found| &found.roles).map(|role| &role.name);
        if declared.chain(existing).any(|name| name == role) {
            return Ok(());
        }
        let name = &self.declared.name;
        let problem = format!("service {name}: assignments name the role {role}, which does not exist");
        Err(CliError::failed(problem).with_next("add the role to `roles`, or correct its name"))
    }

    /// The agent that an assignment names by its id, or the agents that match its pattern. Revoked agents match none.
    fn agents_of(&self, assignment: &'a DeclaredAssignment) -> Vec<&'a str> {
        let DeclaredAssignment { agent, pattern, .. } = assignment;
        let matches = |own: &&ListedAgent| {
            let is_match = |pattern: &Match| pattern.matches(&own.name, own.email.as_deref());
            own.status != "revoked" && pattern.as_ref().is_some_and(is_match)
        };
        let matching = self.existing.agents.iter().filter(matches).map(|own| own.agent_id.as_str());
        agent.as_deref().into_iter().chain(matching).collect()
    }

    /// The agents that hold a role at the service.
    fn holders(&self) -> impl Iterator<Item = &'a AgentWithRoles> + use<'a> {
        self.found.into_iter().flat_map(|found| &found.holders)
    }
}

/// Whether two assignments end in the same second, to which the control plane cuts their ends. A time can be written in several ways.
fn is_same_end(first: Option<&str>, second: Option<&str>) -> bool {
    first.map(seconds) == second.map(seconds)
}

fn seconds(time: &str) -> Option<i64> {
    time.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_compared_as_times() {
        let same = |first, second| is_same_end(Some(first), Some(second));
        assert!(same("2027-01-31T12:00:00Z", "2027-01-31T13:00:00+01:00"));
        assert!(same("2027-01-31T12:00:00Z", "2027-01-31T12:00:00.9Z"), "the control plane keeps whole seconds");
        assert!(!same("2027-01-31T12:00:00Z", "2027-01-31T12:00:01Z"));
        assert!(is_same_end(None, None) && !is_same_end(None, Some("2027-01-31T12:00:00Z")));
    }
}
