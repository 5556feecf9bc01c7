//! Compares the YAML files with what exists at the control plane, and plans the changes. Sends no request.
//!
//! Invariant: if everything is as the files declare it, the plan is empty.

mod assignments;
mod change;
mod secrets;

pub use change::{AssignmentState, Change};
pub use secrets::key_label;

use super::{
    existing::{Existing, ExistingService},
    format::{DeclaredRole, DeclaredService, normal_uri},
};
use crate::cli::error::CliError;
use clap::Args;
use countersign_client::api::{ListedKey, Role, Service, Webhook};
use std::collections::{BTreeSet, HashMap, HashSet};

/// The options that decide what a plan may contain.
#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub struct PlanArgs {
    /// Delete roles, assignments, webhooks and API keys that have the `managedBy` of the files and are not in them
    #[arg(long)]
    prune: bool,
    /// Like --prune, and delete services too, with all that belongs to them
    #[arg(long)]
    prune_services: bool,
    /// Change objects that have another `managedBy`, and give them the `managedBy` of the files
    #[arg(long)]
    take_ownership: bool,
    /// Make new secrets for the API keys and webhooks whose secret files do not exist
    #[arg(long)]
    replace_missing_secrets: bool,
}

impl PlanArgs {
    /// Whether the plan deletes objects that have the `managedBy` of the files and are in no file.
    pub const fn prunes(&self) -> bool {
        self.prune || self.prune_services
    }
}

/// The changes of all services. `execute` makes the changes in this order, but the deletions of all services last.
#[derive(Debug, Default)]
pub struct Plan {
    pub services: Vec<ServicePlan>,
    pub warnings: Vec<String>,
}

/// The changes of a service.
#[derive(Debug)]
pub struct ServicePlan {
    pub name: String,
    /// The id; `None` for a service that does not exist yet.
    pub id: Option<String>,
    /// The `managedBy` of the service's file. All objects that are created or changed get this value.
    pub managed_by: Option<String>,
    /// The ids of the existing roles, by name.
    pub role_ids: HashMap<String, String>,
    /// The ids of the existing API keys that the plan needs.
    pub key_ids: Vec<String>,
    /// The changes. Deletions come last.
    pub changes: Vec<Change>,
}

impl ServicePlan {
    pub fn without_deletions(&self) -> &[Change] {
        &self.changes[..self.first_deletion()]
    }

    pub fn deletions(&self) -> &[Change] {
        &self.changes[self.first_deletion()..]
    }

    fn first_deletion(&self) -> usize {
        self.changes.iter().position(Change::is_deletion).unwrap_or(self.changes.len())
    }
}

impl Plan {
    pub fn len(&self) -> usize {
        self.services.iter().map(|service| service.changes.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Plans the changes. `all_managed_by` has every `managedBy` of the files: `--prune-services` deletes services that have one of
/// these values and are in no file.
pub fn plan(
    declared: &[DeclaredService],
    all_managed_by: &[String],
    existing: &Existing,
    args: &PlanArgs,
) -> Result<Plan, CliError> {
    let mut plan = Plan::default();
    let mut seen = HashSet::new();
    for declared in declared {
        let found = find(declared, &existing.services)?;
        if found.is_some_and(|found| !seen.insert(&found.service.service_id)) {
            let problem = format!("the service {} is described by its name and by its id", declared.name);
            return Err(CliError::failed(problem).with_next("put all of it in one place"));
        }
        let mut planner = ServicePlanner { declared, found, existing, args, changes: Vec::new(), warnings: Vec::new() };
        planner.plan()?;
        plan.warnings.extend(planner.warnings);
        plan.services.push(ServicePlan {
            name: declared.name.clone(),
            id: found.map(|found| found.service.service_id.clone()),
            managed_by: declared.managed_by.clone(),
            role_ids: found
                .into_iter()
                .flat_map(|found| &found.roles)
                .map(|role| (role.name.clone(), role.role_id.clone()))
                .collect(),
            key_ids: found.into_iter().flat_map(|found| &found.keys).map(|key| key.key_id.clone()).collect(),
            changes: planner.changes,
        });
    }
    let is_managed = |service: &&Service| service.managed_by.as_ref().is_some_and(|it| all_managed_by.contains(it));
    for service in existing.services_in_no_file.iter().filter(|_| args.prunes()).filter(is_managed) {
        let Service { name, service_id, managed_by, .. } = service;
        if !args.prune_services {
            let managed_by = managed_by.as_deref().unwrap_or_default();
            let next = "It stays. --prune-services would delete it, with all that belongs to it";
            plan.warnings.push(format!("the service {name} has managedBy {managed_by}, but is in no file. {next}"));
            continue;
        }
        plan.services.push(ServicePlan {
            name: name.clone(),
            id: Some(service_id.clone()),
            managed_by: managed_by.clone(),
            role_ids: HashMap::new(),
            key_ids: Vec::new(),
            changes: vec![Change::DeleteService],
        });
    }
    Ok(plan)
}

/// The existing service that a file describes; `None` if the file has no `id`, and no service has the name.
fn find<'a>(
    declared: &DeclaredService,
    services: &'a [ExistingService],
) -> Result<Option<&'a ExistingService>, CliError> {
    if let Some(id) = &declared.id {
        let problem = || format!("there is no service {id} of this owner");
        let next = "`countersign service list` shows your services";
        let found = services.iter().find(|it| it.service.service_id == *id);
        return found.map(Some).ok_or_else(|| CliError::failed(problem()).with_next(next));
    }
    let mut found = services.iter().filter(|it| it.service.name == declared.name);
    let first = found.next();
    if found.next().is_some() {
        let problem = format!("several services have the name {}", declared.name);
        return Err(CliError::failed(problem).with_next("set `id` of this service in the file"));
    }
    Ok(first)
}

/// Plans the changes of one service.
struct ServicePlanner<'a> {
    declared: &'a DeclaredService,
    /// The service, if it exists.
    found: Option<&'a ExistingService>,
    existing: &'a Existing,
    args: &'a PlanArgs,
    changes: Vec<Change>,
    warnings: Vec<String>,
}

impl<'a> ServicePlanner<'a> {
    fn plan(&mut self) -> Result<(), CliError> {
        let DeclaredService { roles, webhooks, keys, .. } = self.declared;
        self.check_access()?;
        self.plan_service()?;
        for role in roles {
            self.plan_role(role)?;
        }
        self.plan_assignments()?;
        for webhook in webhooks {
            self.plan_webhook(webhook)?;
        }
        for key in keys {
            self.plan_key(key)?;
        }
        self.plan_deletions();
        self.changes.sort_by_key(Change::is_deletion);
        Ok(())
    }

    /// Refuses files that would revoke too much at a service of another owner, or change the wrong service.
    fn check_access(&self) -> Result<(), CliError> {
        let DeclaredService { name, id, assignments, .. } = self.declared;
        let has_patterns = || assignments.iter().any(|it| it.pattern.is_some());
        if self.found.is_some_and(|found| !found.is_own) && (self.args.prunes() || has_patterns()) {
            let problem = format!("you do not own the service {name}, and patterns match your own agents only");
            let next = "let the owner apply the file, or name agents by id and leave --prune away";
            return Err(CliError::failed(problem).with_next(next));
        }
        if self.existing.is_read_by_key && id.is_none() {
            let problem = format!("an API key cannot read the name of its service, so the service {name} needs an id");
            return Err(CliError::failed(problem).with_next("set `id`, so that nothing is changed at another service"));
        }
        Ok(())
    }

    fn plan_service(&mut self) -> Result<(), CliError> {
        let DeclaredService { name, accepts_unbound_tokens, resource_uris, managed_by, .. } = self.declared;
        // `format::parse` has refused URIs without a normal form, so `filter_map` drops none.
        let wanted_uris: Option<Vec<_>> =
            resource_uris.as_ref().map(|uris| uris.iter().filter_map(|uri| normal_uri(uri)).collect());
        let change_of_uris = |from: &[String]| {
            let to = wanted_uris.filter(|to| to != from)?;
            Some(Change::ChangeResourceUris { from: from.to_vec(), to })
        };
        let Some(ExistingService { service, .. }) = self.found else {
            self.changes.push(Change::CreateService { accepts_unbound: *accepts_unbound_tokens });
            self.changes.extend(change_of_uris(&[]));
            return Ok(());
        };
        if let Some(to) = managed_by.clone().filter(|_| service.managed_by != *managed_by) {
            self.changes.push(Change::ManageService { from: service.managed_by.clone(), to });
        }
        if service.name != *name {
            self.changes.push(Change::RenameService { from: service.name.clone(), to: name.clone() });
        }
        if let Some(accepts_unbound) = accepts_unbound_tokens.filter(|it| *it != service.accepts_unbound_tokens) {
            self.changes.push(Change::ChangeService { accepts_unbound });
        }
        self.changes.extend(change_of_uris(&service.resource_uris));
        self.require_ownership(&format!("the service {name}"), service.managed_by.as_ref(), !self.changes.is_empty())
    }

    fn plan_role(&mut self, declared: &DeclaredRole) -> Result<(), CliError> {
        let Some(role) = self.found.and_then(|found| found.roles.iter().find(|role| role.name == declared.name)) else {
            self.changes.push(Change::CreateRole(declared.clone()));
            return Ok(());
        };
        let what = format!("service {}: the role {}", self.declared.name, role.name);
        let from = DeclaredRole {
            name: role.name.clone(),
            description: declared.description.as_ref().map(|_| role.description.clone()),
            permissions: sorted(&role.permissions),
        };
        let to = DeclaredRole { permissions: sorted(&declared.permissions), ..declared.clone() };
        let will_change = from != to || self.changes_managed_by(role.managed_by.as_ref());
        self.require_ownership(&what, role.managed_by.as_ref(), will_change)?;
        if will_change {
            let managed_by = role.managed_by.clone();
            self.changes.push(Change::ChangeRole { id: role.role_id.clone(), managed_by, from, to });
        }
        Ok(())
    }

    /// Deletes the roles, webhooks and keys that have the `managedBy` of the file, but are not in it.
    fn plan_deletions(&mut self) {
        let Some(found) = self.found else { return };
        let DeclaredService { webhooks, keys, .. } = self.declared;
        let holders = |role: &Role| {
            found.holders.iter().filter(|holder| holder.roles.iter().any(|held| held.role_id == role.role_id)).count()
        };
        let roles: Vec<_> = self
            .roles_to_prune()
            .map(|it| Change::DeleteRole { id: it.role_id.clone(), name: it.name.clone(), holders: holders(it) })
            .collect();
        let to_prune =
            |it: &&Webhook| self.prunes(it.managed_by.as_ref()) && !webhooks.iter().any(|of| of.url == it.url);
        let webhooks: Vec<_> = found
            .webhooks
            .iter()
            .filter(to_prune)
            .map(|it| Change::DeleteWebhook { id: it.webhook_id.clone(), url: it.url.clone() })
            .collect();
        let to_prune = |it: &&ListedKey| {
            it.revoked_at.is_none() && self.prunes(it.managed_by.as_ref()) && !keys.iter().any(|of| of.name == it.name)
        };
        let keys: Vec<_> = found
            .keys
            .iter()
            .filter(to_prune)
            .map(|it| Change::RevokeKey {
                id: it.key_id.clone(),
                name: it.name.clone(),
                secrets: self.existing.secret_entries.with_key(&it.key_id),
            })
            .collect();
        self.changes.extend(roles.into_iter().chain(webhooks).chain(keys));
    }

    /// The roles that have the `managedBy` of the file, but are not in it.
    fn roles_to_prune(&self) -> impl Iterator<Item = &'a Role> {
        let is_declared = move |role: &Role| self.declared.roles.iter().any(|declared| declared.name == role.name);
        let roles = self.found.into_iter().flat_map(|found| &found.roles);
        roles.filter(move |role| self.prunes(role.managed_by.as_ref()) && !is_declared(role))
    }

    /// Checks that the files may change an object, which belongs to the files that have its `managedBy`. Files with another
    /// `managedBy` may not declare the object. Files without `managedBy` may declare it, but not change it.
    fn require_ownership(&self, what: &str, existing: Option<&String>, will_change: bool) -> Result<(), CliError> {
        match (existing, &self.declared.managed_by) {
            _ if self.args.take_ownership => Ok(()),
            (Some(existing), Some(wanted)) if existing != wanted => {
                let problem = format!("{what} has managedBy {existing}, and the file has managedBy {wanted}");
                Err(CliError::failed(problem).with_next("delete it from these files, or pass --take-ownership"))
            }
            (Some(existing), None) if will_change => {
                let problem = format!("{what} has managedBy {existing}, and the file has none");
                Err(CliError::failed(problem).with_next("set `managedBy` in the file, or pass --take-ownership"))
            }
            _ => Ok(()),
        }
    }

    /// Whether an object with this `managedBy` is deleted if the file does not declare it.
    fn prunes(&self, managed_by: Option<&String>) -> bool {
        self.args.prunes() && managed_by.is_some() && managed_by == self.declared.managed_by.as_ref()
    }

    /// Whether the file replaces this `managedBy` of an object by its own.
    fn changes_managed_by(&self, managed_by: Option<&String>) -> bool {
        self.declared.managed_by.is_some() && managed_by != self.declared.managed_by.as_ref()
    }
}

fn sorted(items: &[String]) -> Vec<String> {
    let unique: BTreeSet<_> = items.iter().collect();
    unique.into_iter().cloned().collect()
}
