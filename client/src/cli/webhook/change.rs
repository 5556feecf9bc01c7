//! Creates, changes and deletes webhooks, and rotates their secrets.

use super::{
    display,
    scope::{ScopeArgs, SelectedWebhook, WebhookArgs, scope_option},
};
use crate::cli::{
    complete,
    prelude::{CliError, CommandOutput, ConfirmArgs, Context, SecretFile, details},
};
use clap::{Args, ValueHint};
use clap_complete::ArgValueCompleter;
use countersign_client::{
    ApiError,
    api::{NewSecret, NewWebhook, WebhookApi, WebhookChange, WebhookScope},
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(Args)]
pub struct CreateArgs {
    #[command(flatten)]
    scope: ScopeArgs,
    /// The URL of the receiver: https, with a public address
    #[arg(value_name = "URL", value_hint = ValueHint::Url)]
    target: String,
    /// The event kinds, separated by commas [default: all, also future kinds]
    #[arg(long, value_name = "KINDS", value_delimiter = ',', add = ArgValueCompleter::new(complete::event_kinds))]
    events: Option<Vec<String>>,
    /// The description
    #[arg(long)]
    description: Option<String>,
    /// Write the secret to this new file of mode 0600, and print only the id of the webhook
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    out: Option<PathBuf>,
}

#[derive(Args)]
pub struct ChangeArgs {
    #[command(flatten)]
    webhook: WebhookArgs,
    /// The new URL of the receiver
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    target: Option<String>,
    /// The new event kinds, separated by commas; `*` for all
    #[arg(long, value_name = "KINDS", value_delimiter = ',', add = ArgValueCompleter::new(complete::event_kinds))]
    events: Option<Vec<String>>,
    /// The new description
    #[arg(long)]
    description: Option<String>,
}

#[derive(Args)]
pub struct RotateArgs {
    #[command(flatten)]
    webhook: WebhookArgs,
    #[command(flatten)]
    confirm: ConfirmArgs,
    /// Write the secret to this new file of mode 0600, and print only the id of the webhook
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    out: Option<PathBuf>,
}

#[derive(Args)]
pub struct DeleteArgs {
    #[command(flatten)]
    webhook: WebhookArgs,
    #[command(flatten)]
    confirm: ConfirmArgs,
}

pub async fn create(context: &Context, args: CreateArgs) -> Result<CommandOutput, CliError> {
    let CreateArgs { scope, target, events, description, out } = args;
    let webhooks = scope.api(context).await?;
    let file = out.as_deref().map(SecretFile::create).transpose()?;
    let request = WebhookChange { url: Some(target), events, description, managed_by: None, status: None };
    let result = webhooks.create(&request).await;
    let NewWebhook { webhook, secret } = result.map_err(|error| with_limit_hint(error, &webhooks.scope))?;
    let id = webhook.webhook_id.clone();
    let option = scope_option(&webhooks.scope);
    let hint_if_lost =
        format!("the secret of {id} was not printed; create another: countersign webhook rotate-secret{option} {id}");
    let note = format!("\nNext: countersign webhook test{option} {id}");
    Ok(secret_output(&id, &secret, json!(webhook), file, hint_if_lost, &note))
}

/// Adds a hint to a conflict, which means that the service or the deployment has the maximum number of webhooks.
pub fn with_limit_hint(error: ApiError, scope: &WebhookScope) -> CliError {
    CliError::from(error).with_next_for("CONFLICT", || {
        let list = match scope {
            WebhookScope::Service(service) => format!("countersign webhook list --service {service}"),
            WebhookScope::Deployment => "countersign webhook list --deployment".to_owned(),
        };
        format!("`{list}` shows the webhooks: change or delete one")
    })
}

pub async fn rotate(context: &Context, args: RotateArgs) -> Result<CommandOutput, CliError> {
    let RotateArgs { webhook, confirm, out } = args;
    let SelectedWebhook { webhooks, id } = webhook.api(context).await?;
    let consequence = "The current secret expires after a day. This cannot be undone.";
    confirm.confirm(&context.messages, &format!("Create a new secret of the webhook {id}"), consequence)?;
    let file = out.as_deref().map(SecretFile::create).transpose()?;
    let NewSecret { secret, previous_secret_expires_at: until } = webhooks.rotate_secret(&id).await?;
    let option = scope_option(&webhooks.scope);
    let hint_if_lost =
        format!("the new secret was not printed; create another: countersign webhook rotate-secret{option} {id}");
    let note = format!(
        " Requests are signed with the previous secret too until {until}.\nNext: countersign webhook test{option} {id}"
    );
    let json = json!({ "webhookId": id, "previousSecretExpiresAt": until });
    Ok(secret_output(&id, &secret, json, file, hint_if_lost, &note))
}

/// Writes a secret to the file, or prints it. If writing fails, the secret is printed, because the API returns it only once.
fn secret_output(
    id: &str,
    secret: &SecretString,
    mut json: Value,
    file: Option<SecretFile>,
    hint_if_lost: String,
    note: &str,
) -> CommandOutput {
    let written = file.map(|file| file.write(secret)).transpose();
    if let Ok(Some(path)) = written {
        json["file"] = json!(path);
        return CommandOutput::new(id, json).with_note(format!("The secret is in {}.{note}", path.display()));
    }
    json["secret"] = json!(secret.expose_secret());
    let note = format!("The secret is shown only once. The id of the webhook is {id}.{note}");
    let output = CommandOutput::new(secret.expose_secret(), json).with_note(note);
    output.with_hint_if_lost(hint_if_lost).with_error(written.err())
}

pub async fn change(context: &Context, args: ChangeArgs) -> Result<CommandOutput, CliError> {
    let ChangeArgs { webhook, target, events, description } = args;
    if target.is_none() && events.is_none() && description.is_none() {
        return Err(CliError::usage("no change is set: pass --target, --events or --description"));
    }
    let SelectedWebhook { webhooks, id } = webhook.api(context).await?;
    apply(&webhooks, &id, &WebhookChange { url: target, events, description, managed_by: None, status: None }, "test")
        .await
}

pub async fn set_status(context: &Context, args: WebhookArgs, status: &'static str) -> Result<CommandOutput, CliError> {
    let SelectedWebhook { webhooks, id } = args.api(context).await?;
    let next = if status == "active" { "deliveries" } else { "resume" };
    apply(&webhooks, &id, &WebhookChange { status: Some(status), ..WebhookChange::default() }, next).await
}

/// Changes a webhook, and shows it. `next` is the verb of the next step.
async fn apply(webhooks: &WebhookApi, id: &str, change: &WebhookChange, next: &str) -> Result<CommandOutput, CliError> {
    let webhook = webhooks.change(id, change).await?;
    Ok(display::webhook(&webhook)
        .with_note(format!("Next: countersign webhook {next}{} {id}", scope_option(&webhooks.scope))))
}

pub async fn delete(context: &Context, args: DeleteArgs) -> Result<CommandOutput, CliError> {
    let DeleteArgs { webhook, confirm } = args;
    let SelectedWebhook { webhooks, id } = webhook.api(context).await?;
    let consequence = "The pending deliveries of the webhook are lost. This cannot be undone.";
    confirm.confirm(&context.messages, &format!("Delete the webhook {id}"), consequence)?;
    webhooks.delete(&id).await?;
    let text = details([("webhook", id.clone()), ("deleted", "true".into())]);
    let note = format!("Next: countersign webhook list{}", scope_option(&webhooks.scope));
    Ok(CommandOutput::new(text, json!({ "deleted": true, "webhookId": id })).with_note(note))
}
