//! Compares files with what exists, and plans the changes.

mod assignments;
mod change;
mod options;
mod secrets;

use super::file::{DeclaredRole, DeclaredService, normal_uri};
use crate::api::{AgentWithRoles, ListedAgent, ListedKey, Role, Service, Webhook};
use assignments::plan_assignments;
use countersign_identity::Timestamp;
use secrets::{plan_key, plan_webhook};
use std::collections::{HashMap, HashSet};

pub use change::{AssignmentState, Change};
pub use options::{Options, PlanError, SecretState};

/// What exists at the control plane.
#[derive(Debug)]
pub struct Existing {
    /// The services of the human user, or the service of the API key.
    pub services: Vec<ExistingService>,
    /// The agents that the human user has registered. Patterns match these only: the owner of an agent chooses its name, so the name of
    /// another owner's agent says nothing.
    pub agents: Vec<ListedAgent>,
    /// The services of the human user that no file states.
    pub services_in_no_file: Vec<Service>,
    /// Whether an API key is used, which allows one service only.
    pub is_read_by_key: bool,
    /// The time at which it was read.
    pub read_at: Timestamp,
}

/// A service with what belongs to it.
#[derive(Debug)]
pub struct ExistingService {
    /// The service.
    pub service: Service,
    /// Whether the human user owns it. An administrator also reads the services of others.
    pub is_own: bool,
    /// Its roles.
    pub roles: Vec<Role>,
    /// The agents that hold a role.
    pub holders: Vec<AgentWithRoles>,
    /// Its webhooks.
    pub webhooks: Vec<Webhook>,
    /// Its API keys.
    pub keys: Vec<ListedKey>,
}

/// The changes of all services, in the order in which they are made.
#[derive(Debug, Default)]
pub struct Plan {
    /// The changes of each service.
    pub services: Vec<ServicePlan>,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// The changes of a service.
#[derive(Debug)]
pub struct ServicePlan {
    /// The name.
    pub name: String,
    /// The id; `None` for a service that does not exist yet.
    pub id: Option<String>,
    /// The ids of the roles that exist, by name.
    pub role_ids: HashMap<String, String>,
    /// The changes: first all others, then deletions.
    pub changes: Vec<Change>,
}

impl ServicePlan {
    /// The changes that delete nothing.
    pub fn without_deletions(&self) -> &[Change] {
        &self.changes[..self.first_deletion()]
    }

    /// The deletions.
    pub fn deletions(&self) -> &[Change] {
        &self.changes[self.first_deletion()..]
    }

    fn first_deletion(&self) -> usize {
        self.changes.iter().position(Change::is_deletion).unwrap_or(self.changes.len())
    }
}

impl Plan {
    /// The number of changes.
    pub fn len(&self) -> usize {
        self.services.iter().map(|service| service.changes.len()).sum()
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Plans the changes. `managed_by` has the values of `managedBy` in the files.
pub fn plan(
    declared: &[DeclaredService],
    managed_by: &[String],
    existing: &Existing,
    options: Options<'_>,
) -> Result<Plan, PlanError> {
    let mut plan = Plan::default();
    let mut stated = HashSet::new();
    for service in declared {
        let found = find(service, &existing.services)?;
        if found.is_some_and(|found| !stated.insert(&found.service.service_id)) {
            let next = "put all of it in one place";
            return Err(PlanError::new(
                format!("the service {} is described by its name and by its id", service.name),
                next,
            ));
        }
        check_access(service, found, existing, options)?;
        let changes = plan_service(service, found, existing, options, &mut plan.warnings)?;
        let roles = found.map(|found| found.roles.as_slice()).unwrap_or_default();
        plan.services.push(ServicePlan {
            name: service.name.clone(),
            id: found.map(|found| found.service.service_id.clone()),
            role_ids: roles.iter().map(|role| (role.name.clone(), role.role_id.clone())).collect(),
            changes,
        });
    }
    let is_managed = |service: &&Service| service.managed_by.as_ref().is_some_and(|name| managed_by.contains(name));
    for service in existing.services_in_no_file.iter().filter(|_| options.prunes).filter(is_managed) {
        if !options.prunes_services {
            let name = &service.name;
            let managed_by = service.managed_by.as_deref().unwrap_or_default();
            let next = "It stays. --prune-services would delete it, with all that belongs to it";
            plan.warnings.push(format!("the service {name} has managedBy {managed_by}, but is in no file. {next}"));
            continue;
        }
        plan.services.push(ServicePlan {
            name: service.name.clone(),
            id: Some(service.service_id.clone()),
            role_ids: HashMap::new(),
            changes: vec![Change::DeleteService],
        });
    }
    Ok(plan)
}

/// Refuses what would go wrong at a service of another owner, or at a service that was not meant.
fn check_access(
    declared: &DeclaredService,
    found: Option<&ExistingService>,
    existing: &Existing,
    options: Options<'_>,
) -> Result<(), PlanError> {
    let DeclaredService { name, id, assignments, .. } = declared;
    let patterns = || assignments.iter().filter_map(|it| it.pattern.as_ref());
    if found.is_some_and(|found| !found.is_own) && (options.prunes || patterns().next().is_some()) {
        let next = "let the owner apply the file, or name agents by id and leave --prune away";
        return Err(PlanError::new(
            format!("you do not own the service {name}, and patterns match your own agents only"),
            next,
        ));
    }
    if existing.is_read_by_key && id.is_none() {
        let next = "set `id`, so that nothing is changed at another service";
        return Err(PlanError::new(
            format!("an API key cannot read the name of its service, so the service {name} needs an id"),
            next,
        ));
    }
    Ok(())
}

/// The existing service that a file describes.
fn find<'a>(
    declared: &DeclaredService,
    services: &'a [ExistingService],
) -> Result<Option<&'a ExistingService>, PlanError> {
    if let Some(id) = &declared.id {
        let found = services.iter().find(|it| it.service.service_id == *id);
        let next = "`countersign service list` shows your services";
        return found.map(Some).ok_or_else(|| PlanError::new(format!("there is no service {id} of this owner"), next));
    }
    let mut found = services.iter().filter(|it| it.service.name == declared.name);
    let first = found.next();
    if found.next().is_some() {
        let name = &declared.name;
        return Err(PlanError::new(
            format!("several services have the name {name}"),
            "set `id` of this service in the file",
        ));
    }
    Ok(first)
}

fn plan_service(
    declared: &DeclaredService,
    found: Option<&ExistingService>,
    existing: &Existing,
    options: Options<'_>,
    warnings: &mut Vec<String>,
) -> Result<Vec<Change>, PlanError> {
    let DeclaredService { name, accepts_unbound_tokens, resource_uris, roles, webhooks, keys, managed_by, .. } =
        declared;
    let wanted_uris = resource_uris.as_ref().map(|uris| uris.iter().filter_map(|uri| normal_uri(uri)).collect());
    let change_of_uris = |from: &[String]| {
        let to = wanted_uris.clone().filter(|to: &Vec<String>| to != from)?;
        Some(Change::ChangeResourceUris { from: from.to_vec(), to })
    };
    let mut changes = Vec::new();
    match found.map(|found| &found.service) {
        None => {
            let accepts_unbound = *accepts_unbound_tokens;
            let managed_by = managed_by.clone();
            changes.push(Change::CreateService { accepts_unbound, managed_by });
            changes.extend(change_of_uris(&[]));
        }
        Some(service) => {
            let what = format!("the service {name}");
            let existing = service.managed_by.as_deref();
            options.check_owner(&what, existing, managed_by.as_deref())?;
            if let Some(to) = managed_by.clone().filter(|_| service.managed_by != *managed_by) {
                changes.push(Change::ManageService { from: service.managed_by.clone(), to });
            }
            if service.name != *name {
                changes.push(Change::RenameService { from: service.name.clone(), to: name.clone() });
            }
            if let Some(accepts_unbound) = accepts_unbound_tokens.filter(|it| *it != service.accepts_unbound_tokens) {
                changes.push(Change::ChangeService { accepts_unbound });
            }
            changes.extend(change_of_uris(&service.resource_uris));
            if !changes.is_empty() {
                options.check_change(&what, existing, managed_by.as_deref())?;
            }
        }
    }
    for role in roles {
        changes.extend(plan_role(name, role, found, options)?);
    }
    let assignments = plan_assignments(declared, found, existing, &options, warnings)?;
    let deleted = found.map(|found| plan_deletions(declared, found, options)).unwrap_or_default();
    let is_kept = |change: &Change| match change {
        Change::Revoke { role_id, .. } => {
            !deleted.iter().any(|it| matches!(it, Change::DeleteRole { id, .. } if id == role_id))
        }
        _ => true,
    };
    let (revocations, assignments): (Vec<_>, Vec<_>) =
        assignments.into_iter().filter(is_kept).partition(Change::is_deletion);
    changes.extend(assignments);
    for webhook in webhooks {
        changes.extend(plan_webhook(name, webhook, found, options, warnings)?);
    }
    for key in keys {
        changes.extend(plan_key(declared, key, found, options, warnings)?);
    }
    changes.extend(revocations);
    changes.extend(deleted);
    Ok(changes)
}

/// Deletions of the roles, webhooks and keys that have the `managedBy` of the file and are not in it.
fn plan_deletions(declared: &DeclaredService, found: &ExistingService, options: Options<'_>) -> Vec<Change> {
    let Some(name) = declared.managed_by.as_ref().filter(|_| options.prunes) else { return Vec::new() };
    let is_managed = |managed_by: &Option<String>| managed_by.as_ref() == Some(name);
    let DeclaredService { roles, webhooks, keys, .. } = declared;
    let lost_roles =
        found.roles.iter().filter(|it| is_managed(&it.managed_by) && !roles.iter().any(|role| role.name == it.name));
    let lost_webhooks = found
        .webhooks
        .iter()
        .filter(|it| is_managed(&it.managed_by) && !webhooks.iter().any(|webhook| webhook.url == it.url));
    let lost_keys = found.keys.iter().filter(|it| {
        it.revoked_at.is_none() && is_managed(&it.managed_by) && !keys.iter().any(|key| key.name == it.name)
    });
    let holders = |role: &Role| {
        found.holders.iter().filter(|holder| holder.roles.iter().any(|held| held.role_id == role.role_id)).count()
    };
    let role =
        |role: &Role| Change::DeleteRole { id: role.role_id.clone(), name: role.name.clone(), holders: holders(role) };
    let webhook = |it: &Webhook| Change::DeleteWebhook { id: it.webhook_id.clone(), url: it.url.clone() };
    let key = |it: &ListedKey| Change::RevokeKey { id: it.key_id.clone(), name: it.name.clone() };
    lost_roles.map(role).chain(lost_webhooks.map(webhook)).chain(lost_keys.map(key)).collect()
}

fn plan_role(
    service: &str,
    declared: &DeclaredRole,
    found: Option<&ExistingService>,
    options: Options<'_>,
) -> Result<Option<Change>, PlanError> {
    let Some(role) = found.and_then(|found| found.roles.iter().find(|role| role.name == declared.name)) else {
        return Ok(Some(Change::CreateRole(declared.clone())));
    };
    let what = format!("service {service}: the role {}", role.name);
    options.check_owner(&what, role.managed_by.as_deref(), declared.managed_by.as_deref())?;
    let from = DeclaredRole {
        name: role.name.clone(),
        description: declared.description.as_ref().map(|_| role.description.clone()),
        permissions: sorted(&role.permissions),
        managed_by: declared.managed_by.as_ref().and(role.managed_by.clone()),
    };
    let to = DeclaredRole { permissions: sorted(&declared.permissions), ..declared.clone() };
    if from == to {
        return Ok(None);
    }
    options.check_change(&what, role.managed_by.as_deref(), to.managed_by.as_deref())?;
    Ok(Some(Change::ChangeRole { id: role.role_id.clone(), from, to }))
}

fn sorted(items: &[String]) -> Vec<String> {
    let unique: std::collections::BTreeSet<_> = items.iter().cloned().collect();
    unique.into_iter().collect()
}
