//! `countersign signing-key`: the keys that sign access tokens, for administrators.

use super::{
    ids,
    prelude::{
        API_ALLOWS_AT_ONCE, API_REFUSES_AT_ONCE, CliError, CommandOutput, ConfirmArgs, Context, HumanArgs, Receipt,
        Rows, or_dash,
    },
    time::relative,
};
use clap::{Args, Subcommand};
use countersign_client::api::{Revocation, Rotation, all_pages};
use serde_json::json;

#[derive(Subcommand)]
pub enum SigningKeyCommand {
    /// List the signing keys, removed ones included
    #[command(after_help = "One key signs and one is next. Retired keys stay until the last token that they signed \
        has expired.\n\n\
        Examples:\n  $ countersign signing-key list\n\n\
        Next: countersign signing-key rotate")]
    List(HumanArgs),
    /// Rotate the signing key: the next key signs at once, or as soon as every sidecar has had time to load it
    #[command(after_help = "No token becomes invalid: the old key stays until its last token has expired. For a key \
        that may have leaked see `countersign signing-key revoke --help`.\n\n\
        Examples:\n  $ countersign signing-key rotate\n\n\
        Next: countersign signing-key list, which shows when the new key signs")]
    Rotate(HumanArgs),
    /// Revoke a key and every token that it signed; this cannot be undone
    #[command(
        after_help = "Revoke a key that may have leaked. The next key signs at once. Agents have to log in again; the \
        client library does that automatically.\n\n\
        Examples:\n  $ countersign signing-key revoke KID\n  $ countersign signing-key revoke KID --yes\n\n\
        Next: countersign signing-key list"
    )]
    Revoke(RevokeArgs),
}

#[derive(Args)]
pub struct RevokeArgs {
    #[command(flatten)]
    human: HumanArgs,
    #[command(flatten)]
    confirm: ConfirmArgs,
    /// The id of the key, as `countersign signing-key list` shows it
    // A thumbprint may begin with a hyphen.
    #[arg(allow_hyphen_values = true)]
    kid: String,
}

pub async fn run(context: &Context, command: SigningKeyCommand) -> Result<CommandOutput, CliError> {
    match command {
        SigningKeyCommand::List(human) => list(context, human).await,
        SigningKeyCommand::Rotate(human) => rotate(context, human).await,
        SigningKeyCommand::Revoke(args) => revoke(context, args).await,
    }
}

async fn list(context: &Context, human: HumanArgs) -> Result<CommandOutput, CliError> {
    let api = human.api(context).await?;
    let keys = all_pages(async |start| api.list_signing_keys(&start).await).await?;
    let rows = Rows::of(&keys)
        .fixed("ID", |key| key.kid.clone())
        .fixed("STATUS", |key| key.status.clone())
        .time("PUBLISHED", |key| key.published_at.clone())
        .time("SIGNS FROM", |key| or_dash(key.signs_from.as_ref()))
        .time("RETIRED", |key| or_dash(key.retired_at.as_ref()))
        .time("REMOVED", |key| or_dash(key.removed_at.as_ref()));
    Ok(CommandOutput::list(rows))
}

async fn rotate(context: &Context, human: HumanArgs) -> Result<CommandOutput, CliError> {
    let api = human.api(context).await?;
    let rotation = api.rotate_signing_key().await?;
    let Rotation { kid, status, signs_from, revision } = &rotation;
    let receipt = Receipt::without_wait(*revision);
    let rows = [("key", kid.clone()), ("status", status.clone()), ("signs from", signs_from.clone())];
    let text = receipt.details(rows, API_ALLOWS_AT_ONCE);
    let note = if status == "signing" {
        "The new key signs now. The old key stays valid until its last token has expired.".to_owned()
    } else {
        format!(
            "The switch comes at {signs_from} ({}), without further action. Until then the current key signs, so that \
             every sidecar and every cache of the JWK Set can load the new key before it sees a token of it.",
            relative(signs_from)
        )
    };
    let note = format!("{note}\nNext: countersign signing-key list");
    Ok(receipt.output(text, json!(rotation), Some(&note)))
}

async fn revoke(context: &Context, args: RevokeArgs) -> Result<CommandOutput, CliError> {
    let RevokeArgs { human, confirm, kid } = args;
    let kid = ids::kid(kid)?;
    let api = human.api(context).await?;
    let consequence = "Every token that this key signed becomes invalid at once. This cannot be undone.";
    confirm.confirm(&context.messages, &format!("Revoke the signing key {kid}"), consequence)?;
    let Revocation { revoked, revision } = api.revoke_signing_key(&kid).await?;
    let receipt = Receipt::without_wait(revision);
    let result = if revoked { "true" } else { "it was already" };
    let text = receipt.details([("key", kid.clone()), ("revoked", result.into())], API_REFUSES_AT_ONCE);
    let note =
        "Tokens that this key signed are refused everywhere within a second.\nNext: countersign signing-key list";
    Ok(receipt.output(text, json!({ "revoked": revoked, "kid": kid }), Some(note)))
}
