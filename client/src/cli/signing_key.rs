//! `countersign signing-key`: the keys that sign access tokens, for administrators.

use super::{
    Failure, Said,
    context::{Context, Human, person},
    said::table,
    service::all,
};
use clap::{Args, Subcommand};
use countersign_client::api::{Rotation, SigningKey as Key};
use countersign_identity::Kid;
use serde_json::json;

/// As many characters as a `kid` has, beyond which nothing is repeated.
const KID: usize = 43;

#[derive(Subcommand)]
pub enum SigningKey {
    /// List the signing keys, also those that are gone
    #[command(
        after_help = "One signs, one is next, and those before stay until the last token they signed is dead.\n\n\
        Next: countersign signing-key rotate"
    )]
    List(Human),
    /// Let the next key sign, as soon as every sidecar that still answers knows it
    #[command(
        after_help = "No token becomes invalid: the old key stays until its last token is dead. A key that somebody \
        else may have is revoked instead.\n\nNext: countersign signing-key list, which says from when the new one signs"
    )]
    Rotate(Human),
    /// Revoke a key at once, with every token that it signed
    #[command(
        after_help = "For a key that somebody else may have. Agents have to log in again, which the client library \
        does by itself; the next key signs at once.\n\nNext: countersign signing-key list"
    )]
    Revoke(Revoke),
}

#[derive(Args)]
pub struct Revoke {
    #[command(flatten)]
    human: Human,
    /// The key's id, as `countersign signing-key list` shows it
    // A thumbprint may begin with a hyphen.
    #[arg(allow_hyphen_values = true)]
    kid: String,
}

/// Does what was asked.
pub async fn run(context: &Context, command: SigningKey) -> Result<Said, Failure> {
    match command {
        SigningKey::List(human) => list(context, human).await,
        SigningKey::Rotate(human) => rotate(context, human).await,
        SigningKey::Revoke(asked) => revoke(context, asked).await,
    }
}

async fn list(context: &Context, human: Human) -> Result<Said, Failure> {
    let (api, person) = (context.api(&human.server)?, person(human.human_token.as_ref())?);
    let keys = all(async |offset| api.list_signing_keys(person, offset).await).await?;
    let head = ["ID", "STATUS", "PUBLISHED", "SIGNS FROM", "RETIRED", "REMOVED"].map(str::to_owned);
    let shown = |instant: &Option<String>| instant.clone().unwrap_or_else(|| "-".into());
    let row = |key: &Key| {
        let Key { kid, status, algorithm: _, published_at, signs_from, retired_at, removed_at } = key;
        let [from, retired, removed] = [signs_from, retired_at, removed_at].map(shown);
        [kid.clone(), status.clone(), published_at.clone(), from, retired, removed]
    };
    let rows: Vec<_> = std::iter::once(head).chain(keys.iter().map(row)).collect();
    Ok(Said::new(table(&rows), json!(keys)))
}

async fn rotate(context: &Context, human: Human) -> Result<Said, Failure> {
    let (api, person) = (context.api(&human.server)?, person(human.human_token.as_ref())?);
    let rotation = api.rotate_signing_key(person).await?;
    let Rotation { kid, status, signs_from } = &rotation;
    let rows = [["key", kid.as_str()], ["status", status], ["signs from", signs_from]];
    let text = table(&rows.map(|row| row.map(str::to_owned)));
    let note = if status == "signing" {
        "It signs now. The old key stays until its last token is dead."
    } else {
        "It signs from then on by itself: every sidecar that still answers knows it by then."
    };
    Ok(Said::new(text, json!(rotation)).noting(format!("{note}\nNext: countersign signing-key list")))
}

async fn revoke(context: &Context, asked: Revoke) -> Result<Said, Failure> {
    let Revoke { human, kid } = asked;
    if kid.parse::<Kid>().is_err() {
        let shown = if kid.len() <= KID { kid.as_str() } else { "…" };
        let next = "`countersign signing-key list` shows the ids";
        return Err(Failure::Usage(format!("`{shown}` is no id of a signing key: {KID} characters\nNext: {next}")));
    }
    let api = context.api(&human.server)?;
    let revoked = api.revoke_signing_key(person(human.human_token.as_ref())?, &kid).await?;
    let now = if revoked { "true" } else { "it was already" };
    let text = table(&[["key".into(), kid.clone()], ["revoked".into(), now.into()]]);
    let note = "Whatever it signed is refused, within a second everywhere.\nNext: countersign signing-key list";
    Ok(Said::new(text, json!({ "revoked": revoked, "kid": kid })).noting(note))
}
