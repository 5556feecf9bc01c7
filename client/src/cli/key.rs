//! `countersign key`: the API keys of a service, which its owner makes.

use super::{
    Failure, Said,
    context::{Context, Human, person},
    said::table,
    secret_file::SecretFile,
    service::all,
};
use clap::{Args, Subcommand, ValueEnum};
use secrecy::ExposeSecret;
use serde_json::json;
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum Key {
    /// Make an API key and print it: it is shown this once
    #[command(
        after_help = "What a shell makes with `>` can mostly be read by others: --out makes a file that cannot.\n\n\
        Next, a full key: export COUNTERSIGN_SERVICE_KEY=KEY, then countersign role create --help.\n\
        Next, a sync key: into the file that COUNTERSIGN_SYNC__KEYS_FILE of countersign-ext-authz names, beside\n\
        COUNTERSIGN_SYNC__URL (the control plane's sync port, by default 8444) and COUNTERSIGN_SYNC__CA."
    )]
    Create(CreateKey),
    /// List the API keys of a service, also those that were revoked
    #[command(after_help = "Newest first. The keys themselves are kept nowhere: one that is lost is revoked, and \
        another made.\n\nNext: countersign key revoke ID")]
    List(ListKeys),
    /// Revoke an API key
    #[command(after_help = "Next: countersign key create makes another")]
    Revoke(RevokeKey),
}

/// What a key is good for.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Scope {
    /// Manages roles and verifies
    Full,
    /// Follows the stream and verifies: for sidecars
    Sync,
}

#[derive(Args)]
pub struct CreateKey {
    #[command(flatten)]
    human: Human,
    /// The service; left out: the one made last with this profile
    #[arg(long, env = "COUNTERSIGN_SERVICE_ID")]
    service: Option<String>,
    /// What it is good for
    #[arg(long, value_enum)]
    scope: Scope,
    /// What people call it
    #[arg(long, default_value = "countersign")]
    name: String,
    /// Write the key to this new file, with mode 0600, and print only its id
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Args)]
pub struct ListKeys {
    #[command(flatten)]
    human: Human,
    /// The service; left out: the one made last with this profile
    #[arg(long, env = "COUNTERSIGN_SERVICE_ID")]
    service: Option<String>,
}

#[derive(Args)]
pub struct RevokeKey {
    #[command(flatten)]
    human: Human,
    /// The service; left out: the one made last with this profile
    #[arg(long, env = "COUNTERSIGN_SERVICE_ID")]
    service: Option<String>,
    /// The key's id, as `countersign key list` shows it; not the key itself
    key_id: String,
}

/// Does what was asked.
pub async fn run(context: &Context, command: Key) -> Result<Said, Failure> {
    match command {
        Key::Create(asked) => create(context, asked).await,
        Key::List(asked) => list_keys(context, asked).await,
        Key::Revoke(asked) => revoke(context, asked).await,
    }
}

async fn create(context: &Context, asked: CreateKey) -> Result<Said, Failure> {
    let CreateKey { human, service, scope, name, out } = asked;
    let (api, service) = (context.api(&human.server)?, context.service(service)?);
    let scope = match scope {
        Scope::Full => "full",
        Scope::Sync => "sync",
    };
    let person = person(human.human_token.as_ref())?;
    let file = out.as_deref().map(SecretFile::create).transpose()?;
    let made = api.create_key(person, &service, &name, scope).await?;
    // What cannot be written is shown after all: it is not to be had again.
    let (path, failure) = match file.map(|file| file.keep(&made.api_key)) {
        None => (None, None),
        Some(Ok(path)) => (Some(path), None),
        Some(Err(failure)) => (None, Some(failure)),
    };
    let end = format!("`countersign key revoke {}` ends it.", made.key_id);
    let mut value = json!({
        "keyId": made.key_id, "serviceId": service, "name": made.name, "scope": made.scope, "createdAt": made.created_at,
    });
    if let Some(path) = path {
        value["file"] = json!(path);
        let note = format!("The key is in {}. {end}", path.display());
        return Ok(Said::new(made.key_id, value).noting(note));
    }
    let secret = made.api_key.expose_secret();
    value["apiKey"] = json!(secret);
    let if_lost = format!("nobody has seen this key, so end it: countersign key revoke {}", made.key_id);
    let note = format!("It is shown this once. {end}");
    Ok(Said::new(secret, value).noting(note).if_lost(if_lost).failing(failure))
}

async fn list_keys(context: &Context, asked: ListKeys) -> Result<Said, Failure> {
    let ListKeys { human, service } = asked;
    let (api, service) = (context.api(&human.server)?, context.service(service)?);
    let person = person(human.human_token.as_ref())?;
    let keys = all(async |offset| api.list_keys(person, &service, offset).await).await?;
    let head = ["ID", "NAME", "SCOPE", "CREATED", "REVOKED"].map(str::to_owned);
    let rows = keys.iter().map(|key| {
        let revoked = key.revoked_at.clone().unwrap_or_else(|| "-".into());
        [key.key_id.clone(), key.name.clone(), key.scope.clone(), key.created_at.clone(), revoked]
    });
    let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
    Ok(Said::new(table(&rows), json!(keys)))
}

async fn revoke(context: &Context, asked: RevokeKey) -> Result<Said, Failure> {
    let RevokeKey { human, service, key_id } = asked;
    let (api, service) = (context.api(&human.server)?, context.service(service)?);
    let revoked = api.revoke_key(person(human.human_token.as_ref())?, &service, &key_id).await?;
    let now = if revoked { "true" } else { "it was already" };
    let value = json!({ "revoked": revoked, "keyId": key_id, "serviceId": service });
    let text = table(&[["key".into(), key_id], ["revoked".into(), now.into()]]);
    Ok(Said::new(text, value).noting("Next: countersign key list"))
}
