//! `countersign export`: writes the existing services as YAML that `countersign apply` reads.

use super::{
    existing::{Access, ExistingService},
    format::{
        DeclaredAssignment, DeclaredKey, DeclaredRole, DeclaredService, DeclaredWebhook, Document, KeyScope, Version,
    },
};
use crate::cli::prelude::{CliError, CommandOutput, Context, ManagerArgs};
use countersign_client::api::{ListedKey, Role, Webhook, all_pages};
use std::collections::HashSet;

pub const HELP: &str = "Without --service and COUNTERSIGN_SERVICE_ID, the file contains all your services, even if the profile \
    names one. The file contains all roles, assignments and webhooks, and the API keys that are not revoked, \
    but no secrets and no `managedBy`.\n\n\
    Examples:\n  $ countersign export > services.yaml\n  $ countersign export --service SERVICE > shop.yaml\n\n\
    Next: countersign apply -f services.yaml --dry-run";

/// Exports the service that an option or the environment names, or else all services of the human user.
pub async fn export(context: &Context, args: ManagerArgs) -> Result<CommandOutput, CliError> {
    let access = Access::open(context, &args, &[]).await?;
    let api = &access.api;
    let credential = &access.credential;
    let wanted = args.service.service.as_ref().map(|_| context.service(&args.service)).transpose()?;
    let services = match wanted {
        Some(id) => vec![api.service(&id, credential).read().await?],
        None => all_pages(async |start| api.human(credential).list_services(&start).await).await?,
    };
    let mut document = Document { api_version: Version::V1, managed_by: None, services: Vec::new() };
    let with_keys = true;
    for service in services {
        document.services.push(declared(access.read_service(service, with_keys).await?));
    }
    let yaml = serde_saphyr::to_string(&document).map_err(|error| CliError::failed(error.to_string()))?;
    Ok(CommandOutput::raw(yaml.into_bytes()))
}

fn declared(existing: ExistingService) -> DeclaredService {
    let ExistingService { service, roles, holders, webhooks, keys, is_own: _ } = existing;
    let mut assignments: Vec<_> = holders
        .into_iter()
        .flat_map(|holder| {
            let agent = holder.agent.agent_id;
            holder.roles.into_iter().map(move |role| DeclaredAssignment {
                role: role.name,
                agent: Some(agent.clone()),
                pattern: None,
                expires_at: role.expires_at,
            })
        })
        .collect();
    assignments.sort_by(|first, second| (&first.role, &first.agent).cmp(&(&second.role, &second.agent)));
    DeclaredService {
        name: service.name,
        id: Some(service.service_id),
        accepts_unbound_tokens: Some(service.accepts_unbound_tokens),
        resource_uris: Some(service.resource_uris).filter(|uris| !uris.is_empty()),
        roles: roles.into_iter().map(declared_role).collect(),
        assignments,
        webhooks: unique(webhooks.into_iter().map(declared_webhook), |webhook| webhook.url.clone()),
        keys: unique(keys.into_iter().filter_map(declared_key), |key| key.name.clone()),
        managed_by: None,
    }
}

/// Keeps the first item of each name: `countersign apply` refuses a file that names an object twice.
fn unique<T>(items: impl Iterator<Item = T>, name: impl Fn(&T) -> String) -> Vec<T> {
    let mut seen = HashSet::new();
    items.filter(|item| seen.insert(name(item))).collect()
}

fn declared_role(role: Role) -> DeclaredRole {
    DeclaredRole {
        name: role.name,
        description: Some(role.description).filter(|text| !text.is_empty()),
        permissions: role.permissions,
    }
}

fn declared_webhook(webhook: Webhook) -> DeclaredWebhook {
    let Webhook { url, events, description, .. } = webhook;
    DeclaredWebhook { url, events, description, secret_file: None }
}

/// The declaration of a key; `None` if it is revoked or has a scope that this version does not know.
fn declared_key(key: ListedKey) -> Option<DeclaredKey> {
    let scope = [KeyScope::Full, KeyScope::Sync].into_iter().find(|scope| scope.as_str() == key.scope)?;
    key.revoked_at.is_none().then_some(DeclaredKey {
        name: key.name,
        scope,
        secret_file: None,
        kubernetes_secret: None,
    })
}
