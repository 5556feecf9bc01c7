//! Makes the changes of a plan at the control plane.
//!
//! Invariant: after an interruption, the user can run the command again. Either the interrupted request can be repeated, or the next plan
//! sees what it did.

use super::{
    existing::Access,
    format::{DeclaredKey, DeclaredRole, DeclaredWebhook},
    kubernetes::{EntryTarget, Kubernetes},
    plan::{Change, Plan, ServicePlan, key_label},
    secret_target::SecretTarget,
    show::subject,
};
use crate::cli::{
    context::Context,
    error::{Cause, CliError},
};
use countersign_client::{
    ApiError,
    api::{
        AssignmentChange, NewKeyProperties, RoleChange, Service, ServiceApi, ServiceChange, WebhookChange, all_pages,
    },
};
use secrecy::SecretString;
use std::{collections::HashMap, path::Path, time::Duration};

/// The pause after a rate limit without the header `Retry-After`.
const RATE_LIMIT_PAUSE: Duration = Duration::from_secs(1);

/// The result of a change; the error names the change.
type ChangeResult = Result<(), String>;

/// Makes all changes. After a failure, changes that do not depend on it continue, but nothing is deleted: the objects that replace the
/// deleted ones may be missing. The results are in the order of the plan.
pub async fn execute(
    context: &Context,
    access: &Access,
    kubernetes: Option<&Kubernetes>,
    plan: &Plan,
) -> Vec<ChangeResult> {
    let mut results = Vec::new();
    let mut targets = Vec::new();
    for service in &plan.services {
        let changes = service.without_deletions();
        match ServiceTarget::open(context, access, kubernetes, service).await {
            Ok(mut target) => {
                results.push(target.make_all(changes).await);
                targets.push(Some(target));
            }
            // Only the creation of a new service can fail in `open`. It is the first change, so the other changes are not tried.
            Err(error) => {
                let name = &service.name;
                let not_tried = || Err(format!("service {name}: not tried, because it does not exist"));
                let others = changes.iter().skip(1).map(|_| not_tried());
                results.push(std::iter::once(Err(format!("service {name}: {error}"))).chain(others).collect());
                targets.push(None);
            }
        }
    }
    let has_failed = results.iter().flatten().any(Result::is_err);
    for ((service, results), target) in plan.services.iter().zip(&mut results).zip(targets) {
        let deletions = service.deletions();
        if let (Some(mut target), false) = (target, has_failed) {
            results.extend(target.make_all(deletions).await);
        } else {
            let failed = || CliError::failed("not tried, because other changes failed");
            results.extend(deletions.iter().map(|deletion| named(&service.name, deletion, Err(failed()))));
        }
    }
    results.into_iter().flatten().collect()
}

fn named(service: &str, change: &Change, result: Result<(), CliError>) -> ChangeResult {
    result.map_err(|error| format!("service {service}, {}: {error}", subject(change)))
}

/// The service whose changes are made.
struct ServiceTarget<'a> {
    context: &'a Context,
    /// `None` if the files name no Kubernetes Secret.
    kubernetes: Option<&'a Kubernetes>,
    plan: &'a ServicePlan,
    api: ServiceApi,
    role_ids: HashMap<String, String>,
}

impl<'a> ServiceTarget<'a> {
    /// Finds the service of a plan, or creates it if it does not exist.
    async fn open(
        context: &'a Context,
        access: &Access,
        kubernetes: Option<&'a Kubernetes>,
        plan: &'a ServicePlan,
    ) -> Result<Self, CliError> {
        let id = match &plan.id {
            Some(id) => id.clone(),
            None => create_service(context, access, plan).await?,
        };
        let api = access.api.service(&id, &access.credential);
        Ok(Self { context, kubernetes, plan, api, role_ids: plan.role_ids.clone() })
    }

    /// Makes changes in order. Consecutive changes of assignments share requests.
    async fn make_all(&mut self, changes: &[Change]) -> Vec<ChangeResult> {
        let is_of_assignment = |change: &Change| matches!(change, Change::Assign { .. } | Change::Revoke { .. });
        let mut results = Vec::new();
        for batch in changes.chunk_by(|first, second| is_of_assignment(first) && is_of_assignment(second)) {
            let made = match batch {
                [change] => vec![self.make(change).await],
                assignments => self.assign_all(assignments).await,
            };
            results.extend(batch.iter().zip(made).map(|(change, result)| named(&self.plan.name, change, result)));
        }
        results
    }

    async fn make(&mut self, change: &Change) -> Result<(), CliError> {
        let api = &self.api;
        match change {
            // `open` has created the service already.
            Change::CreateService { .. } => Ok(()),
            Change::RenameService { from: _, to } => {
                self.change_service(ServiceChange { name: Some(to), ..ServiceChange::default() }).await
            }
            Change::ManageService { from: _, to } => {
                self.change_service(ServiceChange { managed_by: Some(to), ..ServiceChange::default() }).await
            }
            Change::ChangeService { accepts_unbound } => {
                let accepts_unbound_tokens = Some(*accepts_unbound);
                self.change_service(ServiceChange { accepts_unbound_tokens, ..ServiceChange::default() }).await
            }
            Change::ChangeResourceUris { from: _, to } => {
                self.change_service(ServiceChange { resource_uris: Some(to), ..ServiceChange::default() }).await
            }
            Change::DeleteService => self.complete(async || api.delete().await).await,
            Change::CreateRole(role) => self.create_role(role).await,
            Change::ChangeRole { id, managed_by: _, from: _, to } => {
                let change = RoleChange { name: None, ..self.role_properties(to) };
                self.complete(async || api.change_role(id, change).await).await
            }
            Change::DeleteRole { id, .. } => self.complete(async || api.delete_role(id).await).await,
            Change::Assign { .. } | Change::Revoke { .. } => {
                self.assign_all(std::slice::from_ref(change)).await.pop().unwrap_or(Ok(()))
            }
            Change::CreateWebhook(webhook) => {
                let properties = self.webhook_properties(webhook);
                let request = async || api.webhooks().create(&properties).await;
                self.request_secret(webhook.secret_file.as_deref(), request, |new| &new.secret).await
            }
            Change::ChangeWebhook { id, managed_by: _, from: _, to } => {
                let change = self.webhook_properties(to);
                self.complete(async || api.webhooks().change(id, &change).await).await
            }
            Change::ReplaceWebhookSecret { id, url: _, file } => {
                let request = async || api.webhooks().rotate_secret(id).await;
                self.request_secret(Some(file), request, |new| &new.secret).await
            }
            Change::DeleteWebhook { id, url: _ } => self.complete(async || api.webhooks().delete(id).await).await,
            Change::CreateKey { key, replaces } => self.create_key(key, replaces.as_deref()).await,
            Change::RevokeKey { id, name: _, secrets } => {
                self.complete(async || api.revoke_key(id).await).await?;
                for secret in secrets {
                    if let Some(kubernetes) = self.kubernetes {
                        kubernetes.remove(secret, id).await?;
                    }
                }
                Ok(())
            }
        }
    }

    async fn change_service(&self, change: ServiceChange<'_>) -> Result<(), CliError> {
        self.complete(async || self.api.change(change).await).await
    }

    /// Creates a role. If another run has created the role meanwhile, changes it instead.
    async fn create_role(&mut self, role: &DeclaredRole) -> Result<(), CliError> {
        let properties = self.role_properties(role);
        let created = match self.repeated(async || self.api.create_role(properties).await).await {
            Ok(created) => created,
            Err(conflict) if matches!(conflict.cause, Cause::Api(ApiError::Refused { status: 409, .. })) => {
                let roles = self.repeated(async || self.api.list_roles().await).await?;
                let existing = roles.into_iter().find(|existing| existing.name == role.name).ok_or(conflict)?;
                let change = RoleChange { name: None, ..properties };
                self.repeated(async || self.api.change_role(&existing.role_id, change).await).await?
            }
            Err(error) => return Err(error),
        };
        self.role_ids.insert(role.name.clone(), created.role_id);
        Ok(())
    }

    /// Assigns and revokes roles, many in one request. The results are in the order of the changes.
    async fn assign_all(&self, changes: &[Change]) -> Vec<Result<(), CliError>> {
        let mut results = Vec::new();
        for batch in changes.chunks(AssignmentChange::MAX) {
            let wanted: Vec<_> = batch.iter().map(|change| self.assignment_change(change)).collect();
            let requests: Vec<_> = wanted.iter().flatten().cloned().collect();
            let made: Vec<Result<(), CliError>> = if requests.is_empty() {
                Vec::new()
            } else {
                match self.repeated(async || self.api.change_assignments(&requests).await).await {
                    Ok(made) => made.into_iter().map(|result| result.map_err(Into::into)).collect(),
                    Err(error) => requests.iter().map(|_| Err(CliError::failed(error.to_string()))).collect(),
                }
            };
            // A change for which no request could be made keeps its error. The others get the results in the response, in order.
            let mut made = made.into_iter();
            results.extend(wanted.into_iter().map(|wanted| wanted.and_then(|_| made.next().unwrap_or(Ok(())))));
        }
        results
    }

    /// The request for a change of an assignment. Fails if the role does not exist, because an earlier change could not create it.
    fn assignment_change(&self, change: &Change) -> Result<AssignmentChange, CliError> {
        match change {
            Change::Revoke { role_id, agent, .. } => Ok(AssignmentChange {
                agent_id: agent.clone(),
                role_id: role_id.clone(),
                revoked: true,
                expires_at: None,
                managed_by: None,
            }),
            Change::Assign { role, agent, expires_at, .. } => {
                let missing = || CliError::failed(format!("not tried, because the role {role} does not exist"));
                Ok(AssignmentChange {
                    agent_id: agent.clone(),
                    role_id: self.role_ids.get(role).cloned().ok_or_else(missing)?,
                    revoked: false,
                    expires_at: expires_at.clone(),
                    managed_by: self.plan.managed_by.clone(),
                })
            }
            _ => Err(CliError::failed("is not a change of an assignment")),
        }
    }

    /// Creates a key. First revokes the key that it replaces.
    async fn create_key(&self, key: &DeclaredKey, replaces: Option<&str>) -> Result<(), CliError> {
        let managed_by = self.plan.managed_by.as_deref();
        let new = NewKeyProperties { name: &key.name, scope: key.scope.as_str(), managed_by };
        // Another run may be making this secret, so we revoke no key before `request_secret` has locked its file.
        let request = async || {
            if let Some(lost) = replaces {
                self.api.revoke_key(lost).await?;
            }
            self.api.create_key(new).await
        };
        let (Some(secret), Some(kubernetes)) = (&key.kubernetes_secret, self.kubernetes) else {
            return self.request_secret(key.secret_file.as_deref(), request, |new| &new.api_key).await;
        };
        let label = key_label(&self.plan.name, &key.name);
        let target = EntryTarget::create(kubernetes, secret, &label).await?;
        match self.repeated(request).await {
            Ok(made) => target.write(&made.api_key, &self.plan.key_ids).await,
            Err(error) => {
                // Without an answer, the control plane may have made the key. With the annotation, the next run replaces it.
                if matches!(error.cause, Cause::Api(ApiError::Refused { status: ..500, .. })) {
                    target.discard().await;
                }
                Err(error)
            }
        }
    }

    /// Sends a request that returns a secret, and writes the secret to its file. Without a file, the secret is dropped: the user can make
    /// another one with `countersign key create` or `webhook rotate-secret`.
    async fn request_secret<T>(
        &self,
        file: Option<&Path>,
        request: impl AsyncFn() -> Result<T, ApiError>,
        secret: impl FnOnce(&T) -> &SecretString,
    ) -> Result<(), CliError> {
        let secret_target = file.map(SecretTarget::create).transpose()?;
        match (self.repeated(request).await, secret_target) {
            (Ok(made), Some(secret_target)) => secret_target.write(secret(&made)),
            (Ok(_), None) => Ok(()),
            (Err(error), secret_target) => {
                // Without an answer, the control plane may have made the secret. With `PATH.pending`, the next run replaces it.
                let is_refused = matches!(error.cause, Cause::Api(ApiError::Refused { status: ..500, .. }));
                secret_target.filter(|_| is_refused).into_iter().for_each(SecretTarget::discard);
                Err(error)
            }
        }
    }

    fn role_properties<'r>(&'r self, role: &'r DeclaredRole) -> RoleChange<'r> {
        let DeclaredRole { name, description, permissions } = role;
        RoleChange {
            name: Some(name),
            description: description.as_deref(),
            permissions: Some(permissions),
            managed_by: self.plan.managed_by.as_deref(),
        }
    }

    fn webhook_properties(&self, webhook: &DeclaredWebhook) -> WebhookChange {
        let DeclaredWebhook { url, events, description, secret_file: _ } = webhook;
        WebhookChange {
            url: Some(url.clone()),
            events: Some(events.clone()),
            description: description.clone(),
            managed_by: self.plan.managed_by.clone(),
            status: None,
        }
    }

    async fn complete<T>(&self, request: impl AsyncFn() -> Result<T, ApiError>) -> Result<(), CliError> {
        self.repeated(request).await.map(drop)
    }

    async fn repeated<T>(&self, request: impl AsyncFn() -> Result<T, ApiError>) -> Result<T, CliError> {
        repeated(self.context, request).await.map_err(Into::into)
    }
}

/// Creates the service of a plan and returns its id. If another run has created the service meanwhile, returns its id.
async fn create_service(context: &Context, access: &Access, plan: &ServicePlan) -> Result<String, CliError> {
    let Access { api, credential, .. } = access;
    let ServicePlan { name, managed_by, changes, .. } = plan;
    let accepts_unbound_tokens = changes.iter().find_map(|change| {
        if let Change::CreateService { accepts_unbound } = change { *accepts_unbound } else { None }
    });
    let managed_by_name = managed_by.as_deref();
    let new =
        ServiceChange { name: Some(name), accepts_unbound_tokens, managed_by: managed_by_name, resource_uris: None };
    match repeated(context, async || api.human(credential).create_service(new).await).await {
        Ok(service) => Ok(service.service_id),
        Err(error @ ApiError::Refused { status: 409, .. }) if managed_by.is_some() => {
            let services = all_pages(async |start| api.human(credential).list_services(&start).await).await?;
            let is_same = |it: &Service| it.name == *name && it.managed_by == *managed_by && access.human_owns(it);
            let created = services.into_iter().find(is_same);
            created.map(|service| service.service_id).ok_or_else(|| error.into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Sends a request. If the control plane limits the rate, waits as long as it asks and sends the request again.
async fn repeated<T>(context: &Context, request: impl AsyncFn() -> Result<T, ApiError>) -> Result<T, ApiError> {
    loop {
        match request().await {
            Err(error) if error.is_rate_limited() => {
                let pause = error.retry_after().unwrap_or(RATE_LIMIT_PAUSE);
                let seconds = pause.as_secs();
                context.messages.note(&format!("The control plane limits the rate; continuing in {seconds} s."));
                tokio::time::sleep(pause).await;
            }
            result => return result,
        }
    }
}
