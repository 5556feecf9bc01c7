//! Targets are made, changed and deleted, and get other secrets.

use super::{Desk, One, Whose, shown};
use crate::cli::{Failure, Said, context::Context, said::table, secret_file::SecretFile};
use clap::Args;
use countersign_client::{
    ApiError,
    api::{NewSecret, NewWebhook, WebhookChange},
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(Args)]
pub struct Create {
    #[command(flatten)]
    whose: Whose,
    /// Where it is: https, with a public address
    #[arg(value_name = "URL")]
    target: String,
    /// Only events of these kinds, separated by commas; left out: all, also kinds that come later
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    events: Option<Vec<String>>,
    /// What it is for
    #[arg(long)]
    description: Option<String>,
    /// Write the secret to this new file, with mode 0600, and print only the target's id
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Args)]
pub struct Change {
    #[command(flatten)]
    one: One,
    /// Where it is from now on
    #[arg(long, value_name = "URL")]
    target: Option<String>,
    /// The kinds of event that it gets from now on, separated by commas; `*` for all
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    events: Option<Vec<String>>,
    /// What it is for
    #[arg(long)]
    description: Option<String>,
}

#[derive(Args)]
pub struct Rotate {
    #[command(flatten)]
    one: One,
    /// Write the secret to this new file, with mode 0600, and print only the target's id
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Makes a target.
pub async fn create(context: &Context, asked: Create) -> Result<Said, Failure> {
    let Create { whose, target, events, description, out } = asked;
    let desk = whose.desk(context)?;
    let file = out.as_deref().map(SecretFile::create).transpose()?;
    let wanted = WebhookChange { url: Some(target), events, description, status: None };
    let made = desk.api.create_webhook(desk.manager, &desk.targets, &wanted).await.map_err(no_room)?;
    let NewWebhook { webhook, secret } = made;
    let (id, flag) = (webhook.webhook_id.clone(), desk.flag());
    let if_lost = format!("nobody has seen the secret of {id}: countersign webhook rotate-secret{flag} {id}");
    let more = format!("\nNext: countersign webhook test{flag} {id}");
    Ok(secret_of(&id, &secret, json!(webhook), file, if_lost, &more))
}

/// There are as many targets as there may be.
pub fn no_room(error: ApiError) -> Failure {
    Failure::advised(error, "CONFLICT", || {
        "`countersign webhook list` shows them, and `countersign webhook delete ID` makes room".into()
    })
}

/// Gives a target another secret.
pub async fn rotate(context: &Context, asked: Rotate) -> Result<Said, Failure> {
    let Rotate { one, out } = asked;
    let (desk, id) = one.desk(context)?;
    let file = out.as_deref().map(SecretFile::create).transpose()?;
    let NewSecret { secret, previous_secret_expires_at: until } =
        desk.api.rotate_webhook_secret(desk.manager, &desk.targets, &id).await?;
    let flag = desk.flag();
    let if_lost = format!("nobody has seen the new secret: countersign webhook rotate-secret{flag} {id}");
    let more = format!(" The one before signs too until {until}.\nNext: countersign webhook test{flag} {id}");
    let value = json!({ "webhookId": id, "previousSecretExpiresAt": until });
    Ok(secret_of(&id, &secret, value, file, if_lost, &more))
}

/// Shows a secret, or keeps it in the file; what cannot be written is shown after all, for it is not to be had again.
fn secret_of(
    id: &str,
    secret: &SecretString,
    mut value: Value,
    file: Option<SecretFile>,
    if_lost: String,
    more: &str,
) -> Said {
    let failure = match file.map(|file| file.keep(secret)) {
        None => None,
        Some(Ok(path)) => {
            value["file"] = json!(path);
            return Said::new(id, value).noting(format!("The secret is in {}.{more}", path.display()));
        }
        Some(Err(failure)) => Some(failure),
    };
    value["secret"] = json!(secret.expose_secret());
    let note = format!("It is shown this once. The target is {id}.{more}");
    Said::new(secret.expose_secret(), value).noting(note).if_lost(if_lost).failing(failure)
}

/// Changes a target.
pub async fn change(context: &Context, asked: Change) -> Result<Said, Failure> {
    let Change { one, target, events, description } = asked;
    if target.is_none() && events.is_none() && description.is_none() {
        let text = "nothing is to be changed: give --target, --events or --description";
        return Err(Failure::Usage(text.to_owned()));
    }
    let (desk, id) = one.desk(context)?;
    changed(&desk, &id, &WebhookChange { url: target, events, description, status: None }, "test").await
}

/// Pauses a target, or lets it go on.
pub async fn set_status(context: &Context, one: One, status: &'static str) -> Result<Said, Failure> {
    let (desk, id) = one.desk(context)?;
    let next = if status == "active" { "deliveries" } else { "resume" };
    changed(&desk, &id, &WebhookChange { status: Some(status), ..WebhookChange::default() }, next).await
}

async fn changed(desk: &Desk<'_>, id: &str, change: &WebhookChange, next: &str) -> Result<Said, Failure> {
    let target = desk.api.change_webhook(desk.manager, &desk.targets, id, change).await?;
    Ok(shown::target(&target).noting(format!("Next: countersign webhook {next}{} {id}", desk.flag())))
}

/// Deletes a target.
pub async fn delete(context: &Context, one: One) -> Result<Said, Failure> {
    let (desk, id) = one.desk(context)?;
    desk.api.delete_webhook(desk.manager, &desk.targets, &id).await?;
    let text = table(&[["webhook".into(), id.clone()], ["deleted".into(), "true".into()]]);
    Ok(Said::new(text, json!({ "deleted": true, "webhookId": id }))
        .noting(format!("Next: countersign webhook list{}", desk.flag())))
}
