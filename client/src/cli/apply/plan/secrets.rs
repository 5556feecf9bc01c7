//! Plans the changes of webhooks and API keys, whose secrets are in files.

use super::{Change, ServicePlanner, sorted};
use crate::cli::{
    apply::{
        format::{DeclaredKey, DeclaredWebhook, KubernetesSecret},
        secret_target::{SecretState, state},
    },
    error::CliError,
};
use std::path::Path;

impl ServicePlanner<'_> {
    pub(super) fn plan_webhook(&mut self, declared: &DeclaredWebhook) -> Result<(), CliError> {
        let what = format!("service {}: the webhook {}", self.declared.name, declared.url);
        let file = declared.secret_file.as_deref();
        let managed_by = self.declared.managed_by.as_ref();
        let with_url = self.found.into_iter().flat_map(|found| &found.webhooks).filter(|it| it.url == declared.url);
        // If several webhooks have the URL, prefer the one that the files manage.
        let Some(webhook) = with_url.max_by_key(|webhook| webhook.managed_by.as_ref() == managed_by) else {
            Self::check_new_secret(&what, file)?;
            if file.is_none() {
                let next = "`countersign webhook rotate-secret` makes another";
                let warning = format!("{what} is new, and no secretFile is set, so nobody gets its secret: {next}");
                self.warnings.push(warning);
            }
            self.changes.push(Change::CreateWebhook(declared.clone()));
            return Ok(());
        };
        let id = &webhook.webhook_id;
        let from = DeclaredWebhook {
            url: webhook.url.clone(),
            events: sorted(&webhook.events),
            description: declared.description.as_ref().and(webhook.description.clone()),
            secret_file: None,
        };
        let to = DeclaredWebhook { events: sorted(&declared.events), secret_file: None, ..declared.clone() };
        let will_change = from != to || self.changes_managed_by(webhook.managed_by.as_ref());
        self.require_ownership(&what, webhook.managed_by.as_ref(), will_change)?;
        if will_change {
            let managed_by = webhook.managed_by.clone();
            self.changes.push(Change::ChangeWebhook { id: id.clone(), managed_by, from, to });
        }
        if let Some(file) = self.secret_to_replace(&what, file)? {
            let url = webhook.url.clone();
            self.changes.push(Change::ReplaceWebhookSecret { id: id.clone(), url, file: file.to_owned() });
        }
        Ok(())
    }

    pub(super) fn plan_key(&mut self, declared: &DeclaredKey) -> Result<(), CliError> {
        let what = format!("service {}: the key {}", self.declared.name, declared.name);
        let (file, secret) = (declared.secret_file.as_deref(), declared.kubernetes_secret.as_ref());
        let managed_by = self.declared.managed_by.as_ref();
        let keys = self.found.into_iter().flat_map(|found| &found.keys);
        let with_name = keys.filter(|key| key.name == declared.name && key.revoked_at.is_none());
        // If several keys have the name, prefer the one that the files manage.
        let Some(key) = with_name.max_by_key(|key| key.managed_by.as_ref() == managed_by) else {
            if file.is_none() && secret.is_none() {
                let problem = format!("{what} does not exist yet, and no secretFile is set, so nobody would get it");
                let next = "set `secretFile` or `kubernetesSecret`, or create the key with `countersign key create`";
                return Err(CliError::failed(problem).with_next(next));
            }
            Self::check_new_secret(&what, file)?;
            self.changes.push(Change::CreateKey { key: declared.clone(), replaces: None });
            return Ok(());
        };
        if let (Some(existing), true) = (&key.managed_by, self.changes_managed_by(key.managed_by.as_ref())) {
            // A warning suffices here: `plan_service` has already refused files to which the service of the key does not belong.
            let next = "--prune does not revoke it, because a key keeps the `managedBy` with which it was created";
            self.warnings.push(format!("{what} has managedBy {existing}: {next}"));
        }
        if key.scope != declared.scope.as_str() {
            let problem = format!("{what} exists with the scope {}, which cannot change", key.scope);
            let next = "give the key in the file another name, or revoke the key with `countersign key revoke`";
            return Err(CliError::failed(problem).with_next(next));
        }
        let is_lost = match secret {
            Some(secret) => self.is_lost(&what, secret, &key.key_id, &declared.name)?,
            None => self.secret_to_replace(&what, file)?.is_some(),
        };
        if is_lost {
            let replaces = Some(key.key_id.clone());
            self.changes.push(Change::CreateKey { key: declared.clone(), replaces });
        }
        Ok(())
    }

    /// Whether an existing API key is not in its Kubernetes Secret and must be replaced. Fails if it is missing and may not be replaced.
    fn is_lost(&self, what: &str, secret: &KubernetesSecret, key_id: &str, key: &str) -> Result<bool, CliError> {
        match self.existing.secret_entries.state(secret, key_id, &key_label(&self.declared.name, key)) {
            SecretState::Kept => Ok(false),
            SecretState::Interrupted => Ok(true),
            SecretState::Missing | SecretState::Impossible if self.args.replace_missing_secrets => Ok(true),
            SecretState::Missing | SecretState::Impossible => {
                let KubernetesSecret { name, key } = secret;
                let problem = format!("{what} exists, but the entry {key} of the Secret {name} does not contain it");
                let next =
                    "delete `kubernetesSecret` if it is elsewhere, or pass --replace-missing-secrets to make another";
                Err(CliError::failed(problem).with_next(next))
            }
        }
    }

    /// Refuses the path for a new secret if a file exists there already, or if none can be made there.
    fn check_new_secret(what: &str, file: Option<&Path>) -> Result<(), CliError> {
        let Some(file) = file else { return Ok(()) };
        match state(file) {
            SecretState::Interrupted | SecretState::Missing => Ok(()),
            SecretState::Kept => {
                let file = file.display();
                let problem = format!("{what} does not exist yet, and its secret would replace the file {file}");
                let next = "name another secretFile, or delete the file if nothing uses it";
                Err(CliError::failed(problem).with_next(next))
            }
            SecretState::Impossible => Err(no_file(what, file)),
        }
    }

    /// The file that needs a new secret although the webhook or key exists; `None` if its secret is kept.
    fn secret_to_replace<'f>(&self, what: &str, file: Option<&'f Path>) -> Result<Option<&'f Path>, CliError> {
        let Some(file) = file else { return Ok(None) };
        match state(file) {
            SecretState::Kept => Ok(None),
            SecretState::Interrupted => Ok(Some(file)),
            SecretState::Impossible => Err(no_file(what, file)),
            SecretState::Missing if self.args.replace_missing_secrets => Ok(Some(file)),
            SecretState::Missing => {
                let problem = format!("{what} exists, but not the file of its secret, {}", file.display());
                let next =
                    "put the file in its place, delete `secretFile`, or pass --replace-missing-secrets to make another";
                Err(CliError::failed(problem).with_next(next))
            }
        }
    }
}

/// The label of an API key in the annotation of its Secret.
pub fn key_label(service: &str, key: &str) -> String {
    format!("{service}/{key}")
}

fn no_file(what: &str, file: &Path) -> CliError {
    let file = file.display();
    let problem = format!("{what}: {file} cannot be a file: it is a directory, or its directory does not exist");
    CliError::failed(problem).with_next("create the directory, or name another secretFile")
}
