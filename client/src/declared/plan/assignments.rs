//! Plans the assignments of a service.
//!
//! Invariants: an assignment of other files stays, and a pattern gives roles only to agents of the human user who applies the files.

use super::{AssignmentState, Change, Existing, ExistingService, Options, PlanError};
use crate::{
    api::{AgentWithRoles, AssignedRole, ListedAgent},
    declared::{DeclaredService, file::DeclaredAssignment},
};
use std::collections::HashMap;

/// The assignments that are missing or end at another time. A stated agent takes precedence over a pattern, and of two patterns the
/// first.
pub fn plan_assignments(
    declared: &DeclaredService,
    found: Option<&ExistingService>,
    existing: &Existing,
    options: &Options<'_>,
    warnings: &mut Vec<String>,
) -> Result<Vec<Change>, PlanError> {
    let name = &declared.name;
    let held = held_roles(found);
    let names = names_of_agents(found, existing);
    let managed_by = declared.managed_by.as_ref();
    let mut changes = Vec::new();
    let mut seen = HashMap::new();
    let (stated, patterns): (Vec<_>, Vec<_>) = declared.assignments.iter().partition(|it| it.agent.is_some());
    for assignment in stated.into_iter().chain(patterns) {
        let DeclaredAssignment { role, agent: _, pattern, expires_at } = assignment;
        check_role(declared, found, role)?;
        let agents = agents_of(assignment, existing);
        if expires_at.as_deref().and_then(micros).is_some_and(|end| end <= existing.read_at.micros()) {
            warnings.push(format!("service {name}: an assignment of {role} has expired: delete it from the file"));
            seen.extend(agents.into_iter().map(|agent| ((agent, role.as_str()), assignment)));
            continue;
        }
        if let (true, Some(pattern)) = (agents.is_empty(), pattern) {
            let problem = format!("service {name}: none of your agents matches {pattern}");
            if options.prunes {
                let next = "delete the assignment from the file if this is right";
                return Err(PlanError::new(
                    format!("{problem}, so --prune would revoke {role} of all that matched before"),
                    next,
                ));
            }
            warnings.push(problem);
        }
        for agent in agents {
            let first = *seen.entry((agent, role.as_str())).or_insert(assignment);
            if !std::ptr::eq(first, assignment) {
                let is_same = is_same_end(first.expires_at.as_deref(), expires_at.as_deref());
                if first.pattern.is_some() && !is_same {
                    warnings.push(format!(
                        "service {name}: two patterns give {role} to {agent} with different ends: the first counts"
                    ));
                }
                continue;
            }
            let held = held.get(&(agent, role.as_str())).copied();
            let name = names.get(agent).copied().unwrap_or_default();
            changes.extend(plan_assignment(declared, assignment, agent, name, held, *options)?);
        }
    }
    if let (true, Some(found), Some(managed_by)) = (options.prunes, found, managed_by) {
        changes.extend(revocations(found, managed_by, &|role| seen.contains_key(role)));
    }
    Ok(changes)
}

/// The change for an agent, which has an id and a name, and holds the role or not.
fn plan_assignment(
    declared: &DeclaredService,
    assignment: &DeclaredAssignment,
    agent: &str,
    name: &str,
    held: Option<&AssignedRole>,
    options: Options<'_>,
) -> Result<Option<Change>, PlanError> {
    let role = &assignment.role;
    let expires_at = &assignment.expires_at;
    let managed_by = &declared.managed_by;
    let what = format!("service {}: the assignment {role} of {agent}", declared.name);
    let existing = held.and_then(|held| held.managed_by.as_deref());
    options.check_owner(&what, existing, managed_by.as_deref())?;
    let is_same = held.is_some_and(|held| {
        let is_same_name = managed_by.is_none() || held.managed_by == *managed_by;
        is_same_name && is_same_end(held.expires_at.as_deref(), expires_at.as_deref())
    });
    if is_same {
        return Ok(None);
    }
    options.check_change(&what, existing, managed_by.as_deref())?;
    let state = |held: &AssignedRole| AssignmentState {
        expires_at: held.expires_at.clone(),
        managed_by: held.managed_by.clone(),
    };
    Ok(Some(Change::Assign {
        role: role.clone(),
        agent: agent.to_owned(),
        name: name.to_owned(),
        expires_at: expires_at.clone(),
        managed_by: managed_by.clone(),
        from: held.map(state),
    }))
}

/// The assignments of the files that the files do not state any more. Those of a role that is deleted end with it.
fn revocations(found: &ExistingService, managed_by: &str, is_stated: &dyn Fn(&(&str, &str)) -> bool) -> Vec<Change> {
    let of_holder = |holder: &AgentWithRoles| {
        let agent = holder.agent.agent_id.as_str();
        let name = holder.agent.name.as_str();
        let lost = holder.roles.iter().filter(move |role| {
            role.managed_by.as_deref() == Some(managed_by) && !is_stated(&(agent, role.name.as_str()))
        });
        let revoke = |role: &AssignedRole| Change::Revoke {
            role_id: role.role_id.clone(),
            role: role.name.clone(),
            agent: agent.to_owned(),
            name: name.to_owned(),
        };
        lost.map(revoke).collect::<Vec<_>>()
    };
    found.holders.iter().flat_map(of_holder).collect()
}

fn check_role(declared: &DeclaredService, found: Option<&ExistingService>, role: &str) -> Result<(), PlanError> {
    let exists = found.is_some_and(|found| found.roles.iter().any(|it| it.name == role));
    if exists || declared.roles.iter().any(|it| it.name == role) {
        return Ok(());
    }
    let next = "add the role to `roles`, or correct its name";
    let name = &declared.name;
    Err(PlanError::new(format!("service {name}: assignments name the role {role}, which does not exist"), next))
}

/// The agents of an assignment.
fn agents_of<'a>(assignment: &'a DeclaredAssignment, existing: &'a Existing) -> Vec<&'a str> {
    match (&assignment.agent, &assignment.pattern) {
        (Some(agent), _) => vec![agent],
        (None, Some(pattern)) => {
            let is_usable = |agent: &&ListedAgent| {
                agent.status != "revoked" && pattern.matches(&agent.name, agent.email.as_deref())
            };
            let usable = existing.agents.iter().filter(is_usable);
            usable.map(|agent| agent.agent_id.as_str()).collect()
        }
        (None, None) => Vec::new(),
    }
}

/// The roles that agents hold.
fn held_roles(found: Option<&ExistingService>) -> HashMap<(&str, &str), &AssignedRole> {
    let holders = found.map(|found| found.holders.as_slice()).unwrap_or_default();
    let of_holder = holders.iter().flat_map(|holder| {
        let agent = holder.agent.agent_id.as_str();
        holder.roles.iter().map(move |role| ((agent, role.name.as_str()), role))
    });
    of_holder.collect()
}

/// The names of agents by id, to show them.
fn names_of_agents<'a>(found: Option<&'a ExistingService>, existing: &'a Existing) -> HashMap<&'a str, &'a str> {
    let holders = found.map(|found| found.holders.as_slice()).unwrap_or_default();
    let agents = existing.agents.iter().chain(holders.iter().map(|holder| &holder.agent));
    agents.map(|agent| (agent.agent_id.as_str(), agent.name.as_str())).collect()
}

/// Whether two ends are the same in the precision of the control plane.
fn is_same_end(first: Option<&str>, second: Option<&str>) -> bool {
    first.map(micros) == second.map(micros)
}

fn micros(time: &str) -> Option<i64> {
    time.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_microsecond)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_compared_as_times() {
        let same = |first, second| is_same_end(Some(first), Some(second));
        assert!(same("2027-01-31T12:00:00Z", "2027-01-31T13:00:00+01:00"));
        assert!(same("2027-01-31T12:00:00.123456Z", "2027-01-31T12:00:00.123456789Z"), "the server keeps microseconds");
        assert!(!same("2027-01-31T12:00:00Z", "2027-01-31T12:00:01Z"));
        assert!(is_same_end(None, None) && !is_same_end(None, Some("2027-01-31T12:00:00Z")));
    }
}
