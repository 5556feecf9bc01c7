//! Compares files with what exists, and plans the changes.

mod assignments;
mod change;

use super::file::{DeclaredKey, DeclaredRole, DeclaredService, DeclaredWebhook};
use crate::api::{AgentWithRoles, ListedAgent, ListedKey, Role, Service, Webhook};
use assignments::plan_assignments;
use countersign_identity::Timestamp;

pub use change::Change;
use std::{collections::HashMap, path::Path};

/// What exists at the control plane.
#[derive(Debug)]
pub struct Existing {
    /// The services of the human user, or the service of the API key.
    pub services: Vec<ExistingService>,
    /// The agents that the human user has registered. Patterns match these only: the owner of an agent chooses its name, so the name of
    /// another owner's agent says nothing.
    pub agents: Vec<ListedAgent>,
    /// The time at which it was read.
    pub read_at: Timestamp,
}

/// A service with what belongs to it.
#[derive(Debug)]
pub struct ExistingService {
    /// The service.
    pub service: Service,
    /// Its roles.
    pub roles: Vec<Role>,
    /// The agents that hold a role.
    pub holders: Vec<AgentWithRoles>,
    /// Its webhooks.
    pub webhooks: Vec<Webhook>,
    /// Its API keys.
    pub keys: Vec<ListedKey>,
}

/// Whether the file of a secret exists. The caller looks, because the plan opens no file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretState {
    /// The file exists, or none is named.
    Kept,
    /// A run was interrupted after it began to make the secret.
    Interrupted,
    /// There is no file.
    Missing,
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
    /// The changes.
    pub changes: Vec<Change>,
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

/// Plans the changes. `secret_state` looks for the file of a secret. With `replaces_missing`, secrets without a file are made again.
pub fn plan(
    declared: &[DeclaredService],
    existing: &Existing,
    secret_state: &dyn Fn(&Path) -> SecretState,
    replaces_missing: bool,
) -> Result<Plan, String> {
    let mut plan = Plan::default();
    for service in declared {
        let found = find(service, &existing.services)?;
        let secrets = Secrets { state: secret_state, replaces_missing };
        let changes = plan_service(service, found, existing, &secrets, &mut plan.warnings)?;
        let roles = found.map(|found| found.roles.as_slice()).unwrap_or_default();
        plan.services.push(ServicePlan {
            name: service.name.clone(),
            id: found.map(|found| found.service.service_id.clone()),
            role_ids: roles.iter().map(|role| (role.name.clone(), role.role_id.clone())).collect(),
            changes,
        });
    }
    Ok(plan)
}

/// The existing service that a file describes.
fn find<'a>(
    declared: &DeclaredService,
    services: &'a [ExistingService],
) -> Result<Option<&'a ExistingService>, String> {
    if let Some(id) = &declared.id {
        let found = services.iter().find(|it| it.service.service_id == *id);
        let next = "`countersign service list` shows your services";
        return found.map(Some).ok_or_else(|| format!("there is no service {id} of this owner\nNext: {next}"));
    }
    let mut found = services.iter().filter(|it| it.service.name == declared.name);
    let first = found.next();
    if found.next().is_some() {
        let name = &declared.name;
        return Err(format!("several services have the name {name}\nNext: set `id` of this service in the file"));
    }
    Ok(first)
}

struct Secrets<'a> {
    state: &'a dyn Fn(&Path) -> SecretState,
    replaces_missing: bool,
}

impl Secrets<'_> {
    /// Whether the secret of something that exists must be made again.
    fn must_replace(&self, what: &str, file: Option<&Path>) -> Result<bool, String> {
        match file.map_or(SecretState::Kept, |file| (self.state)(file)) {
            SecretState::Kept => Ok(false),
            SecretState::Interrupted => Ok(true),
            SecretState::Missing if self.replaces_missing => Ok(true),
            SecretState::Missing => {
                let file = file.map(|file| file.display().to_string()).unwrap_or_default();
                let next =
                    "put the file in its place, or pass --replace-missing-secrets to end the secret and make another";
                Err(format!("{what} exists, but not the file of its secret, {file}\nNext: {next}"))
            }
        }
    }
}

fn plan_service(
    declared: &DeclaredService,
    found: Option<&ExistingService>,
    existing: &Existing,
    secrets: &Secrets<'_>,
    warnings: &mut Vec<String>,
) -> Result<Vec<Change>, String> {
    let DeclaredService { name, id: _, accepts_unbound_tokens, roles, assignments: _, webhooks, keys } = declared;
    let mut changes = Vec::new();
    match found.map(|found| &found.service) {
        None => changes.push(Change::CreateService { accepts_unbound: *accepts_unbound_tokens }),
        Some(service) => {
            if service.name != *name {
                changes.push(Change::RenameService { from: service.name.clone() });
            }
            if let Some(accepts_unbound) = accepts_unbound_tokens.filter(|it| *it != service.accepts_unbound_tokens) {
                changes.push(Change::ChangeService { accepts_unbound });
            }
        }
    }
    changes.extend(roles.iter().filter_map(|role| plan_role(role, found)));
    changes.extend(plan_assignments(declared, found, existing, warnings)?);
    for webhook in webhooks {
        changes.extend(plan_webhook(webhook, found, secrets)?);
    }
    for key in keys {
        changes.extend(plan_key(key, found, secrets)?);
    }
    Ok(changes)
}

fn plan_role(declared: &DeclaredRole, found: Option<&ExistingService>) -> Option<Change> {
    let Some(role) = found.and_then(|found| found.roles.iter().find(|role| role.name == declared.name)) else {
        return Some(Change::CreateRole(declared.clone()));
    };
    let from = DeclaredRole {
        name: role.name.clone(),
        description: declared.description.as_ref().map(|_| role.description.clone()),
        permissions: sorted(&role.permissions),
    };
    let to = DeclaredRole { permissions: sorted(&declared.permissions), ..declared.clone() };
    (from != to).then(|| Change::ChangeRole { id: role.role_id.clone(), from, to })
}

fn sorted(items: &[String]) -> Vec<String> {
    let unique: std::collections::BTreeSet<_> = items.iter().cloned().collect();
    unique.into_iter().collect()
}

fn plan_webhook(
    declared: &DeclaredWebhook,
    found: Option<&ExistingService>,
    secrets: &Secrets<'_>,
) -> Result<Vec<Change>, String> {
    let Some(webhook) = found.and_then(|found| found.webhooks.iter().find(|webhook| webhook.url == declared.url))
    else {
        return Ok(vec![Change::CreateWebhook(declared.clone())]);
    };
    let mut changes = Vec::new();
    let from = DeclaredWebhook {
        url: webhook.url.clone(),
        events: sorted(&webhook.events),
        description: declared.description.as_ref().and(webhook.description.clone()),
        secret_file: None,
    };
    let to = DeclaredWebhook { events: sorted(&declared.events), secret_file: None, ..declared.clone() };
    if from != to {
        changes.push(Change::ChangeWebhook { id: webhook.webhook_id.clone(), from, to });
    }
    let file = declared.secret_file.as_deref();
    if let (true, Some(file)) = (secrets.must_replace(&format!("the webhook {}", webhook.url), file)?, file) {
        let (id, url, file) = (webhook.webhook_id.clone(), webhook.url.clone(), file.to_owned());
        changes.push(Change::ReplaceWebhookSecret { id, url, file });
    }
    Ok(changes)
}

fn plan_key(
    declared: &DeclaredKey,
    found: Option<&ExistingService>,
    secrets: &Secrets<'_>,
) -> Result<Option<Change>, String> {
    let keys = found.map(|found| found.keys.as_slice()).unwrap_or_default();
    let key = keys.iter().find(|key| key.name == declared.name && key.revoked_at.is_none());
    let Some(key) = key else { return Ok(Some(Change::CreateKey { key: declared.clone(), replaces: None })) };
    if key.scope != declared.scope.as_str() {
        let next = "give the key in the file another name, or revoke the key with `countersign key revoke`";
        return Err(format!(
            "the key {} exists with the scope {}, which cannot change\nNext: {next}",
            key.name, key.scope
        ));
    }
    let must_replace = secrets.must_replace(&format!("the key {}", key.name), declared.secret_file.as_deref())?;
    Ok(must_replace.then(|| Change::CreateKey { key: declared.clone(), replaces: Some(key.key_id.clone()) }))
}
