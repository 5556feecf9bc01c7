//! Plans webhooks and API keys, whose secrets are in files.

use super::{Change, ExistingService, Options, PlanError, sorted};
use crate::{
    api::Webhook,
    declared::file::{DeclaredKey, DeclaredService, DeclaredWebhook},
};

/// The webhook with a URL: of several, that of the files.
fn find_webhook<'a>(declared: &DeclaredWebhook, found: Option<&'a ExistingService>) -> Option<&'a Webhook> {
    let with_url = found.into_iter().flat_map(|found| &found.webhooks).filter(|webhook| webhook.url == declared.url);
    with_url.max_by_key(|webhook| webhook.managed_by == declared.managed_by)
}

/// The changes of a webhook.
pub(super) fn plan_webhook(
    service: &str,
    declared: &DeclaredWebhook,
    found: Option<&ExistingService>,
    options: Options<'_>,
    warnings: &mut Vec<String>,
) -> Result<Vec<Change>, PlanError> {
    let what = format!("service {service}: the webhook {}", declared.url);
    let file = declared.secret_file.as_deref();
    let Some(webhook) = find_webhook(declared, found) else {
        options.check_new_secret(&what, file)?;
        if file.is_none() {
            let next = "`countersign webhook rotate-secret` makes another";
            warnings.push(format!("{what} is new, and no secretFile is set, so nobody gets its secret: {next}"));
        }
        return Ok(vec![Change::CreateWebhook(declared.clone())]);
    };
    options.check_owner(&what, webhook.managed_by.as_deref(), declared.managed_by.as_deref())?;
    let mut changes = Vec::new();
    let from = DeclaredWebhook {
        url: webhook.url.clone(),
        events: sorted(&webhook.events),
        description: declared.description.as_ref().and(webhook.description.clone()),
        secret_file: None,
        managed_by: declared.managed_by.as_ref().and(webhook.managed_by.clone()),
    };
    let to = DeclaredWebhook { events: sorted(&declared.events), secret_file: None, ..declared.clone() };
    if from != to {
        options.check_change(&what, webhook.managed_by.as_deref(), to.managed_by.as_deref())?;
        changes.push(Change::ChangeWebhook { id: webhook.webhook_id.clone(), from, to });
    }
    if let (true, Some(file)) = (options.must_replace_secret(&what, file)?, file) {
        let id = webhook.webhook_id.clone();
        let url = webhook.url.clone();
        let file = file.to_owned();
        changes.push(Change::ReplaceWebhookSecret { id, url, file });
    }
    Ok(changes)
}

/// The change of an API key.
pub(super) fn plan_key(
    service: &DeclaredService,
    declared: &DeclaredKey,
    found: Option<&ExistingService>,
    options: Options<'_>,
    warnings: &mut Vec<String>,
) -> Result<Option<Change>, PlanError> {
    let managed_by = service.managed_by.as_ref();
    let file = declared.secret_file.as_deref();
    let what = format!("service {}: the key {}", service.name, declared.name);
    let keys = found.map(|found| found.keys.as_slice()).unwrap_or_default();
    let with_name = keys.iter().filter(|key| key.name == declared.name && key.revoked_at.is_none());
    // Of several keys with the name, that of the files.
    let Some(key) = with_name.max_by_key(|key| key.managed_by.as_ref() == managed_by) else {
        if file.is_none() {
            let next = "set `secretFile`, or create the key with `countersign key create`";
            return Err(PlanError::new(
                format!("{what} does not exist yet, and no secretFile is set, so nobody would get it"),
                next,
            ));
        }
        options.check_new_secret(&what, file)?;
        let key = declared.clone();
        let managed_by = managed_by.cloned();
        return Ok(Some(Change::CreateKey { key, replaces: None, managed_by }));
    };
    if let (Some(existing), Some(managed_by)) = (&key.managed_by, managed_by)
        && existing != managed_by
    {
        // The service has the `managedBy` of the files, or the plan ended before.
        let next = "--prune does not end it, because a key keeps the name with which it was created";
        warnings.push(format!("{what} has managedBy {existing}: {next}"));
    }
    if key.scope != declared.scope.as_str() {
        let next = "give the key in the file another name, or revoke the key with `countersign key revoke`";
        return Err(PlanError::new(format!("{what} exists with the scope {}, which cannot change", key.scope), next));
    }
    let must_replace = options.must_replace_secret(&what, file)?;
    Ok(must_replace.then(|| Change::CreateKey {
        key: declared.clone(),
        replaces: Some(key.key_id.clone()),
        managed_by: managed_by.cloned(),
    }))
}
