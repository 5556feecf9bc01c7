//! Makes the changes of a plan.
//!
//! Invariant: each request can be repeated, or the plan of the next run sees what it did.

use super::{existing::Access, secret_target::SecretTarget, show::subject};
use crate::cli::{
    context::Context,
    error::{Cause, CliError},
    messages::Messages,
};
use countersign_client::{
    ApiError,
    api::{
        AssignmentChange, NewKeyProperties, Role, RoleChange, Service, ServiceApi, ServiceChange, WebhookChange,
        all_pages,
    },
    declared::{Change, DeclaredKey, DeclaredRole, DeclaredWebhook, Plan, plan::ServicePlan},
};
use secrecy::SecretString;
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    time::Duration,
};

/// The pause after a rate limit without the header `Retry-After`.
const RATE_LIMIT_PAUSE: Duration = Duration::from_secs(1);

/// The result of a change; the error names the change.
type ChangeResult = Result<(), String>;

/// Makes all changes. After a failure, what does not depend on it continues, but nothing is deleted: what was to replace it may be missing.
/// The results are in the order of the plan.
pub async fn execute(context: &Context, access: &Access, plan: &Plan) -> Vec<ChangeResult> {
    let mut results = Vec::new();
    let mut targets = Vec::new();
    for service in &plan.services {
        let made = make_service(context, access, service).await;
        results.push(made.results);
        targets.push(made.target);
    }
    let has_failed = results.iter().flatten().any(Result::is_err);
    for ((service, results), target) in plan.services.iter().zip(&mut results).zip(targets) {
        let deletions = service.deletions();
        if let (Some(mut target), false) = (target, has_failed) {
            results.extend(target.make_all(&service.name, deletions).await);
        } else {
            let failed = || CliError::failed("not tried, because other changes failed".to_owned());
            results.extend(deletions.iter().map(|deletion| named(&service.name, deletion, Err(failed()))));
        }
    }
    results.into_iter().flatten().collect()
}

/// The service whose changes are made.
struct Target<'a> {
    context: &'a Context,
    api: ServiceApi,
    role_ids: HashMap<String, String>,
}

/// The results of the changes of a service, and the service if it exists.
struct MadeService<'a> {
    results: Vec<ChangeResult>,
    target: Option<Target<'a>>,
}

/// Makes the changes of a service that delete nothing.
async fn make_service<'a>(context: &'a Context, access: &'a Access, plan: &ServicePlan) -> MadeService<'a> {
    let ServicePlan { name, id, role_ids, changes: _ } = plan;
    let mut rest = plan.without_deletions();
    let mut results = Vec::new();
    let id = match (id, rest.split_first()) {
        (None, Some((Change::CreateService { accepts_unbound, managed_by }, others))) => {
            let new = ServiceChange {
                name: Some(name),
                accepts_unbound_tokens: *accepts_unbound,
                managed_by: managed_by.as_deref(),
                ..ServiceChange::default()
            };
            match create_service(context, access, new).await {
                Ok(id) => {
                    results.push(Ok(()));
                    rest = others;
                    id
                }
                Err(error) => {
                    results.push(Err(format!("service {name}: {error}")));
                    results.extend(
                        others.iter().map(|_| Err(format!("service {name}: not tried, because it does not exist"))),
                    );
                    return MadeService { results, target: None };
                }
            }
        }
        (Some(id), _) => id.clone(),
        (None, _) => return MadeService { results, target: None },
    };
    let api = access.api.service(&id, &access.credential);
    let mut target = Target { context, api, role_ids: role_ids.clone() };
    results.extend(target.make_all(name, rest).await);
    MadeService { results, target: Some(target) }
}

/// Creates a service. Returns its id, or that of the same service if another run has created it meanwhile.
async fn create_service(context: &Context, access: &Access, new: ServiceChange<'_>) -> Result<String, CliError> {
    let Access { api, credential, .. } = access;
    match repeated(context, async || api.human(credential).create_service(new).await).await {
        Ok(service) => Ok(service.service_id),
        Err(error @ ApiError::Refused { status: 409, .. }) if new.managed_by.is_some() => {
            let services = all_pages(async |start| api.human(credential).list_services(&start).await).await?;
            let is_same = |it: &Service| {
                Some(it.name.as_str()) == new.name
                    && it.managed_by.as_deref() == new.managed_by
                    && access.is_of_human(it)
            };
            let created = services.into_iter().find(is_same);
            created.map(|service| service.service_id).ok_or_else(|| error.into())
        }
        Err(error) => Err(error.into()),
    }
}

fn named(service: &str, change: &Change, result: Result<(), CliError>) -> ChangeResult {
    result.map_err(|error| format!("service {service}, {}: {error}", subject(change)))
}

impl Target<'_> {
    /// Makes changes, and those of assignments that follow each other together.
    async fn make_all(&mut self, name: &str, changes: &[Change]) -> Vec<ChangeResult> {
        let mut results = Vec::new();
        let mut rest = changes;
        while let Some((change, others)) = rest.split_first() {
            let is_of_assignment = |change: &&Change| matches!(change, Change::Assign { .. } | Change::Revoke { .. });
            let assignments = rest.iter().take_while(is_of_assignment).count();
            if assignments > 0 {
                let (batch, others) = rest.split_at(assignments);
                let made = self.assign_all(batch).await;
                results.extend(batch.iter().zip(made).map(|(change, result)| named(name, change, result)));
                rest = others;
            } else {
                results.push(named(name, change, self.make(change).await));
                rest = others;
            }
        }
        results
    }

    async fn make(&mut self, change: &Change) -> Result<(), CliError> {
        match change {
            // Made before all others.
            Change::CreateService { .. } => Ok(()),
            Change::RenameService { from: _, to } => {
                self.change_service(ServiceChange { name: Some(to), ..ServiceChange::default() }).await
            }
            Change::ManageService { from: _, to } => {
                self.change_service(ServiceChange { managed_by: Some(to), ..ServiceChange::default() }).await
            }
            Change::DeleteService => self.repeated(async || self.api.delete().await).await.map(drop),
            Change::ChangeService { accepts_unbound } => {
                let accepts_unbound_tokens = Some(*accepts_unbound);
                self.change_service(ServiceChange { accepts_unbound_tokens, ..ServiceChange::default() }).await
            }
            Change::ChangeResourceUris { from: _, to } => {
                self.change_service(ServiceChange { resource_uris: Some(to), ..ServiceChange::default() }).await
            }
            Change::CreateRole(role) => self.create_role(role).await,
            Change::ChangeRole { id: role, from: _, to } => {
                self.repeated(async || self.api.change_role(role, changed_role(to)).await).await.map(drop)
            }
            Change::DeleteRole { id: role, .. } => {
                self.repeated(async || self.api.delete_role(role).await).await.map(drop)
            }
            Change::DeleteWebhook { id: webhook, url: _ } => {
                self.repeated(async || self.api.webhooks().delete(webhook).await).await
            }
            Change::RevokeKey { id: key, name: _ } => {
                self.repeated(async || self.api.revoke_key(key).await).await.map(drop)
            }
            Change::Assign { .. } | Change::Revoke { .. } => {
                self.assign_all(std::slice::from_ref(change)).await.pop().unwrap_or(Ok(()))
            }
            Change::CreateWebhook(webhook) => self.create_webhook(webhook).await,
            Change::ChangeWebhook { id: webhook, from: _, to } => {
                let change = webhook_change(to);
                self.repeated(async || self.api.webhooks().change(webhook, &change).await).await.map(drop)
            }
            Change::ReplaceWebhookSecret { id: webhook, url: _, file } => {
                let request = async || self.api.webhooks().rotate_secret(webhook).await;
                self.request_secret(Some(file), request, |new| &new.secret).await
            }
            Change::CreateKey { key, replaces, managed_by } => {
                self.create_key(key, replaces.as_deref(), managed_by.as_deref()).await
            }
        }
    }

    async fn change_service(&self, change: ServiceChange<'_>) -> Result<(), CliError> {
        self.repeated(async || self.api.change(change).await).await.map(drop)
    }

    /// Creates a role. If another run has created it meanwhile, its permissions are set.
    async fn create_role(&mut self, role: &DeclaredRole) -> Result<(), CliError> {
        let name = &role.name;
        let properties = changed_role(role);
        let new = RoleChange { name: Some(name), ..properties };
        let created = match self.repeated(async || self.api.create_role(new).await).await {
            Ok(created) => created,
            Err(conflict) if matches!(conflict.cause, Cause::Api(ApiError::Refused { status: 409, .. })) => {
                let roles = self.repeated(async || self.api.list_roles().await).await?;
                let Some(Role { role_id, .. }) = roles.into_iter().find(|role| role.name == *name) else {
                    return Err(conflict);
                };
                self.repeated(async || self.api.change_role(&role_id, properties).await).await?
            }
            Err(error) => return Err(error),
        };
        self.role_ids.insert(name.clone(), created.role_id);
        Ok(())
    }

    /// Makes and ends assignments, several in one request. The results are in the order of the changes.
    async fn assign_all(&self, changes: &[Change]) -> Vec<Result<(), CliError>> {
        let mut results: Vec<Result<(), CliError>> = Vec::new();
        for batch in changes.chunks(AssignmentChange::MAX) {
            let mut requested = Vec::new();
            let mut places = Vec::new();
            for change in batch {
                match self.assignment_change(change) {
                    Ok(change) => {
                        requested.push(change);
                        places.push(results.len());
                        results.push(Ok(()));
                    }
                    Err(error) => results.push(Err(error)),
                }
            }
            if requested.is_empty() {
                continue;
            }
            match self.repeated(async || self.api.change_assignments(&requested).await).await {
                Ok(made) => {
                    for (place, made) in places.into_iter().zip(made) {
                        results[place] = made.map_err(Into::into);
                    }
                }
                Err(error) => {
                    let text = error.to_string();
                    for place in places {
                        results[place] = Err(CliError::failed(text.clone()));
                    }
                }
            }
        }
        results
    }

    /// The request for a change of an assignment, whose role may be new.
    fn assignment_change(&self, change: &Change) -> Result<AssignmentChange, CliError> {
        match change {
            Change::Revoke { role_id, agent, .. } => Ok(AssignmentChange {
                agent_id: agent.clone(),
                role_id: role_id.clone(),
                revoked: true,
                expires_at: None,
                managed_by: None,
            }),
            Change::Assign { role, agent, expires_at, managed_by, .. } => {
                let missing = || CliError::failed(format!("not tried, because the role {role} does not exist"));
                Ok(AssignmentChange {
                    agent_id: agent.clone(),
                    role_id: self.role_ids.get(role).cloned().ok_or_else(missing)?,
                    revoked: false,
                    expires_at: expires_at.clone(),
                    managed_by: managed_by.clone(),
                })
            }
            _ => Err(CliError::failed("is not a change of an assignment".to_owned())),
        }
    }

    async fn create_webhook(&self, webhook: &DeclaredWebhook) -> Result<(), CliError> {
        let change = webhook_change(webhook);
        let request = async || self.api.webhooks().create(&change).await;
        self.request_secret(webhook.secret_file.as_ref(), request, |new| &new.secret).await
    }

    /// Creates a key, after the end of the key that it replaces.
    async fn create_key(
        &self,
        key: &DeclaredKey,
        replaces: Option<&str>,
        managed_by: Option<&str>,
    ) -> Result<(), CliError> {
        let new = NewKeyProperties { name: &key.name, scope: key.scope.as_str(), managed_by };
        // Another run may be making the secret, so no key ends before this run has locked the file of the secret.
        let request = async || {
            if let Some(lost) = replaces {
                self.api.revoke_key(lost).await?;
            }
            self.api.create_key(new).await
        };
        self.request_secret(key.secret_file.as_ref(), request, |new| &new.api_key).await
    }

    /// Requests something with a secret, and writes the secret to its file. Without a file, the secret is lost: the next run does not
    /// miss it, and `countersign key create` or `webhook rotate-secret` makes another.
    async fn request_secret<T>(
        &self,
        file: Option<&PathBuf>,
        request: impl AsyncFn() -> Result<T, ApiError>,
        secret: impl FnOnce(&T) -> &SecretString,
    ) -> Result<(), CliError> {
        let target = file.map(|file: &PathBuf| SecretTarget::create(Path::new(file))).transpose()?;
        match (self.repeated(request).await, target) {
            (Ok(made), Some(target)) => target.write(secret(&made)),
            (Ok(_), None) => Ok(()),
            (Err(error), target) => {
                // The control plane may have made the secret although its answer did not arrive.
                let is_refused = matches!(error.cause, Cause::Api(ApiError::Refused { .. }));
                target.filter(|_| is_refused).into_iter().for_each(SecretTarget::discard);
                Err(error)
            }
        }
    }

    async fn repeated<T>(&self, request: impl AsyncFn() -> Result<T, ApiError>) -> Result<T, CliError> {
        repeated(self.context, request).await.map_err(Into::into)
    }
}

fn changed_role(role: &DeclaredRole) -> RoleChange<'_> {
    let DeclaredRole { name: _, description, permissions, managed_by } = role;
    RoleChange {
        name: None,
        description: description.as_deref(),
        permissions: Some(permissions),
        managed_by: managed_by.as_deref(),
    }
}

fn webhook_change(webhook: &DeclaredWebhook) -> WebhookChange {
    let DeclaredWebhook { url, events, description, secret_file: _, managed_by } = webhook;
    WebhookChange {
        url: Some(url.clone()),
        events: Some(events.clone()),
        description: description.clone(),
        managed_by: managed_by.clone(),
        status: None,
    }
}

/// Sends a request, and again after a rate limit.
async fn repeated<T>(context: &Context, request: impl AsyncFn() -> Result<T, ApiError>) -> Result<T, ApiError> {
    loop {
        match request().await {
            Err(error) if error.is_rate_limited() => wait(&context.messages, &error).await,
            result => return result,
        }
    }
}

/// Waits until the control plane accepts requests again.
async fn wait(messages: &Messages, error: &ApiError) {
    let pause = error.retry_after().unwrap_or(RATE_LIMIT_PAUSE);
    messages.note(&format!("The control plane limits the rate; continuing in {} s.", pause.as_secs()));
    tokio::time::sleep(pause).await;
}
