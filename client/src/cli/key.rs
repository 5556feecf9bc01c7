//! `countersign key`: the API keys of a service.

use super::{
    args::{HumanArgs, ServiceArg},
    confirm::ConfirmArgs,
    context::Context,
    enforcement::{REFUSES, Receipt, WaitArgs},
    error::CliError,
    ids::api_key_id,
    output::{CommandOutput, value_name},
    secret_file::SecretFile,
    table::{Column, Table},
};
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use countersign_client::api::{NewKeyProperties, Revocation, all_pages};
use secrecy::ExposeSecret;
use serde_json::json;
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum KeyCommand {
    /// Create an API key and print it; it is shown only once
    #[command(after_help = "Other users can usually read a file that a shell creates for `>`; they cannot read the \
        file of --out.\n\n\
        Examples:\n  $ countersign key create --scope full\n  \
        $ countersign key create --scope sync --name sidecar --out sidecar.key\n\n\
        Next: for a key of scope full, export COUNTERSIGN_SERVICE_KEY=KEY, then countersign role create --help\n\
        Next: for a key of scope sync, write it to the file of COUNTERSIGN_SYNC__KEYS_FILE of countersign-ext-authz, \
        next to COUNTERSIGN_SYNC__URLS (the sync port of the control plane, by default 8444) and COUNTERSIGN_SYNC__CA")]
    Create(CreateArgs),
    /// List the API keys of a service, revoked ones included
    #[command(after_help = "Newest first. The control plane does not store the keys themselves.\n\n\
        Examples:\n  $ countersign key list\n  $ countersign key list -o json\n\n\
        Next: countersign key create, for a new key")]
    List(ListArgs),
    /// Revoke an API key; this cannot be undone
    #[command(after_help = "With --wait, the result is a receipt of the sidecars of the service.\n\n\
        Examples:\n  $ countersign key revoke KEY_ID\n  $ countersign key revoke KEY_ID --yes\n  \
        $ countersign key revoke KEY_ID --yes --wait\n\n\
        Next: countersign key create, for a new key")]
    Revoke(RevokeArgs),
}

/// The scope of an API key.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Scope {
    /// Manage roles and verify tokens
    Full,
    /// Receive the sync stream and verify tokens; for sidecars
    Sync,
}

#[derive(Args)]
pub struct CreateArgs {
    #[command(flatten)]
    human: HumanArgs,
    #[command(flatten)]
    service: ServiceArg,
    /// The scope of the key
    #[arg(long, value_enum)]
    scope: Scope,
    /// The display name
    #[arg(long, default_value = "countersign")]
    name: String,
    /// Write the key to this new file of mode 0600, and print only its id
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    out: Option<PathBuf>,
}

#[derive(Args)]
pub struct ListArgs {
    #[command(flatten)]
    human: HumanArgs,
    #[command(flatten)]
    service: ServiceArg,
}

#[derive(Args)]
pub struct RevokeArgs {
    #[command(flatten)]
    human: HumanArgs,
    #[command(flatten)]
    service: ServiceArg,
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    wait: WaitArgs,
    /// The id of the key, as `countersign key list` shows it; not the key itself
    key_id: String,
}

/// Runs the command.
pub async fn run(context: &Context, command: KeyCommand) -> Result<CommandOutput, CliError> {
    match command {
        KeyCommand::Create(args) => create(context, args).await,
        KeyCommand::List(args) => list(context, args).await,
        KeyCommand::Revoke(args) => revoke(context, args).await,
    }
}

async fn create(context: &Context, args: CreateArgs) -> Result<CommandOutput, CliError> {
    let CreateArgs { human, service, scope, name, out } = args;
    let service = human.service_api(context, &service).await?;
    let file = out.as_deref().map(SecretFile::create).transpose()?;
    let new = NewKeyProperties { name: &name, scope: &value_name(scope), managed_by: None };
    let key = service.create_key(new).await?;
    // If the API key cannot be written to its file, the API key is printed, because the API returns it only once.
    let (path, error) = match file.map(|file| file.write(&key.api_key)) {
        None => (None, None),
        Some(Ok(path)) => (Some(path), None),
        Some(Err(error)) => (None, Some(error)),
    };
    let id = &key.key_id;
    let mut json = json!({
        "keyId": id, "serviceId": service.id, "name": key.name, "scope": key.scope, "createdAt": key.created_at,
    });
    if let Some(path) = path {
        json["file"] = json!(path);
        let note = format!("The key with the id {id} is in {}.", path.display());
        return Ok(CommandOutput::new(key.key_id, json).with_note(note));
    }
    let secret = key.api_key.expose_secret();
    json["apiKey"] = json!(secret);
    let hint_if_lost = format!("the key was not printed, so revoke it: countersign key revoke {id}");
    let note = format!("The key is shown only once. Its id is {id}.");
    Ok(CommandOutput::new(secret, json).with_note(note).with_hint_if_lost(hint_if_lost).with_error(error))
}

async fn list(context: &Context, args: ListArgs) -> Result<CommandOutput, CliError> {
    let ListArgs { human, service } = args;
    let service = human.service_api(context, &service).await?;
    let keys = all_pages(async |start| service.list_keys(&start).await).await?;
    let header = [
        ("ID", Column::Fixed),
        ("NAME", Column::Text),
        ("SCOPE", Column::Fixed),
        ("CREATED", Column::Time),
        ("REVOKED", Column::Time),
    ];
    let rows = keys.iter().map(|key| {
        let revoked = key.revoked_at.clone().unwrap_or_else(|| "-".into());
        [key.key_id.clone(), key.name.clone(), key.scope.clone(), key.created_at.clone(), revoked]
    });
    Ok(CommandOutput::new(Table::new(header, rows), json!(keys)))
}

async fn revoke(context: &Context, args: RevokeArgs) -> Result<CommandOutput, CliError> {
    let RevokeArgs { human, service, confirm, wait, key_id } = args;
    // The id is checked before any request, because an API key in place of its id must not become part of a URL.
    let key_id = api_key_id(key_id)?;
    let service = human.service_api(context, &service).await?;
    let consequence = "Requests with this key are refused at once. This cannot be undone.";
    confirm.confirm(&context.messages, &format!("Revoke the API key {key_id} of {}", service.id), consequence)?;
    let Revocation { revoked, revision } = service.revoke_key(&key_id).await?;
    let receipt = Receipt::of(context, wait.of(&service), revision).await;
    let result = if revoked { "true" } else { "it was already" };
    let json = json!({ "revoked": revoked, "keyId": key_id, "serviceId": service.id });
    let text = receipt.details([("key", key_id), ("revoked", result.into())], REFUSES);
    Ok(receipt.output(text, json, "Next: countersign key list"))
}
