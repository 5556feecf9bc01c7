//! `countersign key`: the API keys of a service.

use super::{
    apply::KeyScope,
    ids::api_key_id,
    prelude::{
        API_REFUSES_AT_ONCE, CliError, CommandOutput, ConfirmArgs, Context, OwnedServiceArgs, Receipt, Rows,
        SecretFile, WaitArgs, or_dash,
    },
};
use clap::{Args, Subcommand, ValueHint};
use countersign_client::api::{NewKeyProperties, Revocation, all_pages};
use secrecy::ExposeSecret;
use serde_json::json;
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum KeyCommand {
    /// Create an API key and print it; it is shown only once
    #[command(after_help = "Use --out instead of `>`: other users can usually read a file that a shell creates.\n\n\
        Examples:\n  $ countersign key create --scope full\n  \
        $ countersign key create --scope sync --name sidecar --out sidecar.key\n\n\
        Next: for a key of scope full, export COUNTERSIGN_SERVICE_KEY=KEY, then countersign role create --help\n\
        Next: for a key of scope sync, set COUNTERSIGN_SYNC__KEYS_FILE of countersign-ext-authz to a file with the key; \
        also set COUNTERSIGN_SYNC__URLS (the sync port of the control plane, by default 8444) and \
        COUNTERSIGN_SYNC__CA")]
    Create(CreateArgs),
    /// List the API keys of a service, revoked ones included
    #[command(after_help = "Newest first. The control plane does not store the keys themselves.\n\n\
        Examples:\n  $ countersign key list\n  $ countersign key list -o json\n\n\
        Next: countersign key create, for a new key")]
    List(OwnedServiceArgs),
    /// Revoke an API key; this cannot be undone
    #[command(after_help = "--wait prints a receipt: at how many sidecars of the service the change is in force.\n\n\
        Examples:\n  $ countersign key revoke KEY_ID\n  $ countersign key revoke KEY_ID --yes\n  \
        $ countersign key revoke KEY_ID --yes --wait\n\n\
        Next: countersign key create, for a new key")]
    Revoke(RevokeArgs),
}

#[derive(Args)]
pub struct CreateArgs {
    #[command(flatten)]
    owned: OwnedServiceArgs,
    /// The scope of the key
    #[arg(long, value_enum)]
    scope: KeyScope,
    /// The display name
    #[arg(long, default_value = "countersign")]
    name: String,
    /// Write the key to this new file of mode 0600, and print only its id
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    out: Option<PathBuf>,
}

#[derive(Args)]
pub struct RevokeArgs {
    #[command(flatten)]
    owned: OwnedServiceArgs,
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    wait: WaitArgs,
    /// The id of the key, as `countersign key list` shows it; not the key itself
    key_id: String,
}

pub async fn run(context: &Context, command: KeyCommand) -> Result<CommandOutput, CliError> {
    match command {
        KeyCommand::Create(args) => create(context, args).await,
        KeyCommand::List(owned) => list(context, owned).await,
        KeyCommand::Revoke(args) => revoke(context, args).await,
    }
}

async fn create(context: &Context, args: CreateArgs) -> Result<CommandOutput, CliError> {
    let CreateArgs { owned, scope, name, out } = args;
    let service = owned.service_api(context).await?;
    let file = out.as_deref().map(SecretFile::create).transpose()?;
    let new = NewKeyProperties { name: &name, scope: scope.as_str(), managed_by: None };
    let key = service.create_key(new).await?;
    let id = &key.key_id;
    let mut json = json!({
        "keyId": id, "serviceId": service.id, "name": key.name, "scope": key.scope, "createdAt": key.created_at,
    });
    // If the file cannot be written, the key is printed, because the API returns it only once.
    let written = file.map(|file| file.write(&key.api_key)).transpose();
    if let Ok(Some(path)) = written {
        json["file"] = json!(path);
        let note = format!("The key with the id {id} is in {}.", path.display());
        return Ok(CommandOutput::new(key.key_id, json).with_note(note));
    }
    let secret = key.api_key.expose_secret();
    json["apiKey"] = json!(secret);
    let hint_if_lost = format!("the key was not printed, so revoke it: countersign key revoke {id}");
    let note = format!("The key is shown only once. Its id is {id}.");
    Ok(CommandOutput::new(secret, json).with_note(note).with_hint_if_lost(hint_if_lost).with_error(written.err()))
}

async fn list(context: &Context, owned: OwnedServiceArgs) -> Result<CommandOutput, CliError> {
    let service = owned.service_api(context).await?;
    let keys = all_pages(async |start| service.list_keys(&start).await).await?;
    let rows = Rows::of(&keys)
        .fixed("ID", |key| key.key_id.clone())
        .text("NAME", |key| key.name.clone())
        .fixed("SCOPE", |key| key.scope.clone())
        .time("CREATED", |key| key.created_at.clone())
        .time("REVOKED", |key| or_dash(key.revoked_at.as_ref()));
    Ok(CommandOutput::list(rows))
}

async fn revoke(context: &Context, args: RevokeArgs) -> Result<CommandOutput, CliError> {
    let RevokeArgs { owned, confirm, wait, key_id } = args;
    // Users may pass the key instead of its id. We check the id first, so that a key never becomes part of a URL.
    let key_id = api_key_id(key_id)?;
    let service = owned.service_api(context).await?;
    let consequence = "Requests with this key are refused at once. This cannot be undone.";
    confirm.confirm(&context.messages, &format!("Revoke the API key {key_id} of {}", service.id), consequence)?;
    let Revocation { revoked, revision } = service.revoke_key(&key_id).await?;
    let receipt = Receipt::of(context, wait.of(&service), revision).await;
    let result = if revoked { "true" } else { "it was already" };
    let json = json!({ "revoked": revoked, "keyId": key_id, "serviceId": service.id });
    let text = receipt.details([("key", key_id), ("revoked", result.into())], API_REFUSES_AT_ONCE);
    Ok(receipt.output(text, json, Some("Next: countersign key list")))
}
