//! `countersign service` and `countersign key`: what people do with their token.

use super::{
    Failure, Said,
    context::{Context, Human, person},
    said::table,
};
use clap::{Args, Subcommand, ValueEnum};
use secrecy::ExposeSecret;
use serde_json::json;

#[derive(Subcommand)]
pub enum Service {
    /// Make a service, owned by the person who asks, and print its id
    #[command(after_help = "The profile remembers it for `key` and `role`; COUNTERSIGN_SERVICE_ID wins over that.\n\n\
        Next: countersign key create --scope full")]
    Create(CreateService),
}

#[derive(Args)]
pub struct CreateService {
    #[command(flatten)]
    human: Human,
    /// What people call it
    name: String,
    /// Refuse tokens that are bound to no service: advised where roles grant much
    #[arg(long)]
    refuse_unbound: bool,
}

#[derive(Subcommand)]
pub enum Key {
    /// Make an API key and print it: it is shown this once
    #[command(
        after_help = "Next, a full key: export COUNTERSIGN_SERVICE_KEY=KEY, then countersign role create --help.\n\
        Next, a sync key: into the file that COUNTERSIGN_SYNC__KEYS_FILE of countersign-ext-authz names."
    )]
    Create(CreateKey),
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
    /// The service
    #[arg(long, env = "COUNTERSIGN_SERVICE_ID")]
    service: Option<String>,
    /// What it is good for
    #[arg(long, value_enum)]
    scope: Scope,
    /// What people call it
    #[arg(long, default_value = "countersign")]
    name: String,
}

#[derive(Args)]
pub struct RevokeKey {
    #[command(flatten)]
    human: Human,
    /// The service
    #[arg(long, env = "COUNTERSIGN_SERVICE_ID")]
    service: Option<String>,
    /// The key's id, as told when it was made; not the key itself
    key_id: String,
}

/// Does what was asked.
pub async fn run(context: &Context, command: Service) -> Result<Said, Failure> {
    let Service::Create(CreateService { human, name, refuse_unbound }) = command;
    let api = context.api(&human.server)?;
    let made = api.create_service(person(human.human_token.as_ref())?, &name, !refuse_unbound).await?;
    context.remember(|profile| profile.service = Some(made.service_id.clone()))?;
    let note = if std::env::var_os("COUNTERSIGN_SERVICE_ID").is_some() {
        "COUNTERSIGN_SERVICE_ID is set, so other commands are still about that one: unset it, or give --service."
    } else {
        "The profile remembers it.\nNext: countersign key create --scope full"
    };
    Ok(Said::new(made.service_id.clone(), json!(made)).noting(note))
}

/// Does what was asked.
pub async fn run_key(context: &Context, command: Key) -> Result<Said, Failure> {
    match command {
        Key::Create(asked) => create(context, asked).await,
        Key::Revoke(asked) => revoke(context, asked).await,
    }
}

async fn create(context: &Context, asked: CreateKey) -> Result<Said, Failure> {
    let CreateKey { human, service, scope, name } = asked;
    let (api, service) = (context.api(&human.server)?, context.service(service)?);
    let scope = match scope {
        Scope::Full => "full",
        Scope::Sync => "sync",
    };
    let made = api.create_key(person(human.human_token.as_ref())?, &service, &name, scope).await?;
    let secret = made.api_key.expose_secret();
    let value = json!({
        "keyId": made.key_id, "apiKey": secret, "name": made.name, "scope": made.scope, "createdAt": made.created_at,
    });
    let note = format!("It is shown this once. `countersign key revoke {}` ends it.", made.key_id);
    Ok(Said::new(secret, value).noting(note))
}

async fn revoke(context: &Context, asked: RevokeKey) -> Result<Said, Failure> {
    let RevokeKey { human, service, key_id } = asked;
    let (api, service) = (context.api(&human.server)?, context.service(service)?);
    let revoked = api.revoke_key(person(human.human_token.as_ref())?, &service, &key_id).await?;
    let text = table(&[["key".into(), key_id], ["revoked".into(), revoked.to_string()]]);
    Ok(Said::new(text, json!({ "revoked": revoked })))
}
