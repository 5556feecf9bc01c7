//! Makes the changes of a plan.
//!
//! Invariant: each request can be repeated, or the plan of the next run sees what it did.

use super::{existing::Access, secret_target::SecretTarget, show::subject};
use crate::cli::{CliError, Messages, context::Context};
use countersign_client::{
    Api, ApiError,
    api::{WebhookChange, WebhookScope},
    declared::{Change, DeclaredKey, DeclaredRole, DeclaredWebhook, Plan, plan::ServicePlan},
};
use secrecy::SecretString;
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::task::JoinSet;

/// Assignments that are made at the same time.
const CONCURRENT_ASSIGNMENTS: usize = 8;

/// The pause after a rate limit without the header `Retry-After`.
const RATE_LIMIT_PAUSE: Duration = Duration::from_secs(1);

/// The result of a change; the error names the change.
type ChangeResult = Result<(), String>;

/// Makes all changes. After a failure, what does not depend on it continues. The results are in the order of the plan.
pub async fn execute(context: &Context, access: &Access, plan: &Plan) -> Vec<ChangeResult> {
    let mut results = Vec::new();
    for service in &plan.services {
        results.extend(execute_service(context, access, service).await);
    }
    results
}

/// The service whose changes are made.
struct Target<'a> {
    context: &'a Context,
    access: &'a Access,
    id: String,
    role_ids: HashMap<String, String>,
}

async fn execute_service(context: &Context, access: &Access, plan: &ServicePlan) -> Vec<ChangeResult> {
    let ServicePlan { name, id, role_ids, changes } = plan;
    let (mut results, mut rest) = (Vec::new(), changes.as_slice());
    let id = match (id, changes.split_first()) {
        (None, Some((Change::CreateService { accepts_unbound }, others))) => {
            let accepts = accepts_unbound.unwrap_or(true);
            let created =
                repeated(context, async || access.api.create_service(&access.credential, name, accepts).await).await;
            match created {
                Ok(service) => {
                    results.push(Ok(()));
                    rest = others;
                    service.service_id
                }
                Err(error) => {
                    results.push(Err(format!("service {name}: {error}")));
                    results.extend(
                        others.iter().map(|_| Err(format!("service {name}: not tried, because it does not exist"))),
                    );
                    return results;
                }
            }
        }
        (Some(id), _) => id.clone(),
        (None, _) => return results,
    };
    let mut target = Target { context, access, id, role_ids: role_ids.clone() };
    while let Some((change, others)) = rest.split_first() {
        let assignments = rest.iter().take_while(|change| matches!(change, Change::Assign { .. })).count();
        if assignments > 0 {
            let (batch, others) = rest.split_at(assignments);
            let made = target.assign_all(batch).await;
            results.extend(batch.iter().zip(made).map(|(change, result)| named(name, change, result)));
            rest = others;
        } else {
            results.push(named(name, change, target.make(name, change).await));
            rest = others;
        }
    }
    results
}

fn named(service: &str, change: &Change, result: Result<(), CliError>) -> ChangeResult {
    result.map_err(|error| format!("service {service}, {}: {error}", subject(change)))
}

impl Target<'_> {
    async fn make(&mut self, name: &str, change: &Change) -> Result<(), CliError> {
        let (api, credential, id) = (&self.access.api, &self.access.credential, self.id.as_str());
        match change {
            // Made before all others.
            Change::CreateService { .. } => Ok(()),
            Change::RenameService { .. } => {
                self.repeated(async || api.change_service(credential, id, Some(name), None).await).await.map(drop)
            }
            Change::ChangeService { accepts_unbound } => {
                let accepts = Some(*accepts_unbound);
                self.repeated(async || api.change_service(credential, id, None, accepts).await).await.map(drop)
            }
            Change::CreateRole(role) => self.create_role(role).await,
            Change::ChangeRole { id: role, from: _, to } => {
                let (description, permissions) = (to.description.as_deref(), Some(to.permissions.as_slice()));
                self.repeated(async || api.change_role(credential, id, role, description, permissions).await)
                    .await
                    .map(drop)
            }
            Change::Assign { .. } => self.assign_all(std::slice::from_ref(change)).await.pop().unwrap_or(Ok(())),
            Change::CreateWebhook(webhook) => self.create_webhook(webhook).await,
            Change::ChangeWebhook { id: webhook, from: _, to } => {
                let (scope, change) = (self.scope(), webhook_change(to));
                self.repeated(async || api.change_webhook(credential, &scope, webhook, &change).await).await.map(drop)
            }
            Change::ReplaceWebhookSecret { id: webhook, url: _, file } => {
                let scope = self.scope();
                let request = async || api.rotate_webhook_secret(credential, &scope, webhook).await;
                self.request_secret(Some(file), request, |new| &new.secret).await
            }
            Change::CreateKey { key, replaces } => self.create_key(key, replaces.as_deref()).await,
        }
    }

    fn scope(&self) -> WebhookScope {
        WebhookScope::Service(self.id.clone())
    }

    /// Creates a role. If another run has created it meanwhile, its permissions are set.
    async fn create_role(&mut self, role: &DeclaredRole) -> Result<(), CliError> {
        let (api, credential, id) = (&self.access.api, &self.access.credential, self.id.as_str());
        let DeclaredRole { name, description, permissions } = role;
        let text = description.as_deref().unwrap_or_default();
        let created = self.repeated(async || api.create_role(credential, id, name, text, permissions).await).await;
        let role = match created {
            Ok(role) => role,
            Err(CliError::Api(ApiError::Refused { status: 409, code, message, reason, details, retry_after })) => {
                let roles = self.repeated(async || api.list_roles(credential, id).await).await?;
                let Some(role) = roles.into_iter().find(|role| role.name == *name) else {
                    return Err(ApiError::Refused { status: 409, code, message, reason, details, retry_after }.into());
                };
                let permissions = Some(permissions.as_slice());
                let request =
                    async || api.change_role(credential, id, &role.role_id, description.as_deref(), permissions).await;
                self.repeated(request).await?
            }
            Err(error) => return Err(error),
        };
        self.role_ids.insert(name.clone(), role.role_id);
        Ok(())
    }

    /// Makes assignments, several at the same time. The results are in the order of the changes.
    async fn assign_all(&self, changes: &[Change]) -> Vec<Result<(), CliError>> {
        let mut results: Vec<Result<(), CliError>> = Vec::new();
        for batch in changes.chunks(CONCURRENT_ASSIGNMENTS) {
            let mut tasks = JoinSet::new();
            let first = results.len();
            for (number, change) in batch.iter().enumerate() {
                results.push(Ok(()));
                let Change::Assign { role, agent, expires_at, .. } = change else { continue };
                let Some(role_id) = self.role_ids.get(role).cloned() else {
                    let text = format!("not tried, because the role {role} does not exist");
                    results[first + number] = Err(CliError::Failed(text));
                    continue;
                };
                let assignment = Assignment {
                    api: self.access.api.clone(),
                    credential: self.access.credential.clone(),
                    service: self.id.clone(),
                    agent: agent.clone(),
                    role_id,
                    expires_at: expires_at.clone(),
                };
                let messages = self.context.messages.clone();
                tasks.spawn(async move { (number, assignment.make(&messages).await) });
            }
            while let Some(finished) = tasks.join_next().await {
                match finished {
                    Ok((number, result)) => results[first + number] = result,
                    Err(error) => return vec![Err(CliError::Failed(error.to_string()))],
                }
            }
        }
        results
    }

    async fn create_webhook(&self, webhook: &DeclaredWebhook) -> Result<(), CliError> {
        let (scope, change) = (self.scope(), webhook_change(webhook));
        let request = async || self.access.api.create_webhook(&self.access.credential, &scope, &change).await;
        self.request_secret(webhook.secret_file.as_ref(), request, |new| &new.secret).await
    }

    /// Creates a key, after the end of the key that it replaces.
    async fn create_key(&self, key: &DeclaredKey, replaces: Option<&str>) -> Result<(), CliError> {
        let (api, credential, id) = (&self.access.api, &self.access.credential, self.id.as_str());
        if let Some(lost) = replaces {
            self.repeated(async || api.revoke_key(credential, id, lost).await).await?;
        }
        let request = async || api.create_key(credential, id, &key.name, key.scope.as_str()).await;
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
                let is_refused = matches!(error, CliError::Api(ApiError::Refused { .. }));
                target.filter(|_| is_refused).into_iter().for_each(SecretTarget::discard);
                Err(error)
            }
        }
    }

    async fn repeated<T>(&self, request: impl AsyncFn() -> Result<T, ApiError>) -> Result<T, CliError> {
        repeated(self.context, request).await.map_err(Into::into)
    }
}

fn webhook_change(webhook: &DeclaredWebhook) -> WebhookChange {
    let DeclaredWebhook { url, events, description, secret_file: _ } = webhook;
    WebhookChange {
        url: Some(url.clone()),
        events: Some(events.clone()),
        description: description.clone(),
        status: None,
    }
}

/// An assignment that is made at the same time as others.
struct Assignment {
    api: Api,
    credential: SecretString,
    service: String,
    agent: String,
    role_id: String,
    expires_at: Option<String>,
}

impl Assignment {
    async fn make(self, messages: &Messages) -> Result<(), CliError> {
        let Self { api, credential, service, agent, role_id, expires_at } = self;
        loop {
            match api.assign_role(&credential, &service, &agent, &role_id, expires_at.as_deref()).await {
                Err(error) if error.is_rate_limited() => wait(messages, &error).await,
                result => return result.map(drop).map_err(Into::into),
            }
        }
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
