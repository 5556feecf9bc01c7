//! Plans the assignments of a service.
//!
//! Invariant: a pattern gives roles only to agents of the human user who applies the files.

use super::{Change, Existing, ExistingService};
use crate::declared::{DeclaredService, file::DeclaredAssignment};
use std::collections::{HashMap, HashSet};

/// The assignments that are missing or end at another time. A stated agent takes precedence over a pattern, and of two patterns the
/// first.
pub fn plan_assignments(
    declared: &DeclaredService,
    found: Option<&ExistingService>,
    existing: &Existing,
    warnings: &mut Vec<String>,
) -> Result<Vec<Change>, String> {
    let name = &declared.name;
    let held = held_roles(found);
    let names = names_of_agents(found, existing);
    let (mut changes, mut seen) = (Vec::new(), HashSet::new());
    let (stated, patterns): (Vec<_>, Vec<_>) = declared.assignments.iter().partition(|it| it.agent.is_some());
    for assignment in stated.into_iter().chain(patterns) {
        let DeclaredAssignment { role, agent: _, pattern, expires_at } = assignment;
        check_role(declared, found, role)?;
        if expires_at.as_deref().and_then(micros).is_some_and(|end| end <= existing.read_at.micros()) {
            warnings.push(format!("service {name}: an assignment of {role} has expired: delete it from the file"));
            continue;
        }
        let agents = agents_of(assignment, existing);
        if let (true, Some(pattern)) = (agents.is_empty(), pattern) {
            warnings.push(format!("service {name}: none of your agents matches the name {}", pattern.name));
        }
        for agent in agents {
            let from = held.get(&(agent, role.as_str())).map(|end| (*end).clone());
            let is_same = from.as_ref().is_some_and(|from| is_same_end(from.as_deref(), expires_at.as_deref()));
            if seen.insert((agent, role.as_str())) && !is_same {
                let name = names.get(agent).copied().unwrap_or_default().to_owned();
                let (role, agent, expires_at) = (role.clone(), agent.to_owned(), expires_at.clone());
                changes.push(Change::Assign { role, agent, name, expires_at, from });
            }
        }
    }
    Ok(changes)
}

fn check_role(declared: &DeclaredService, found: Option<&ExistingService>, role: &str) -> Result<(), String> {
    let exists = found.is_some_and(|found| found.roles.iter().any(|it| it.name == role));
    if exists || declared.roles.iter().any(|it| it.name == role) {
        return Ok(());
    }
    let next = "add the role to `roles`, or correct its name";
    let name = &declared.name;
    Err(format!("service {name}: assignments name the role {role}, which does not exist\nNext: {next}"))
}

/// The agents of an assignment.
fn agents_of<'a>(assignment: &'a DeclaredAssignment, existing: &'a Existing) -> Vec<&'a str> {
    match (&assignment.agent, &assignment.pattern) {
        (Some(agent), _) => vec![agent],
        (None, Some(pattern)) => {
            let usable =
                existing.agents.iter().filter(|agent| agent.status != "revoked" && pattern.matches(&agent.name));
            usable.map(|agent| agent.agent_id.as_str()).collect()
        }
        (None, None) => Vec::new(),
    }
}

/// The roles that agents hold, with their ends.
fn held_roles(found: Option<&ExistingService>) -> HashMap<(&str, &str), &Option<String>> {
    let holders = found.map(|found| found.holders.as_slice()).unwrap_or_default();
    let of_holder = holders.iter().flat_map(|holder| {
        let agent = holder.agent.agent_id.as_str();
        holder.roles.iter().map(move |role| ((agent, role.name.as_str()), &role.expires_at))
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
