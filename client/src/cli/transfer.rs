//! `countersign service transfer` and `service delete`.

use super::{
    CliError, CommandOutput,
    args::HumanArgs,
    complete,
    confirm::ConfirmArgs,
    context::Context,
    ids::{no_secret, service_id},
    output::quoted,
    service::all_pages,
    table::{Column, Table, details},
};
use clap::Args;
use clap_complete::ArgValueCandidates;
use countersign_client::api::ServiceTransfer;
use serde_json::json;

#[derive(Args)]
pub struct DeleteArgs {
    #[command(flatten)]
    human: HumanArgs,
    #[command(flatten)]
    confirm: ConfirmArgs,
    /// The id of the service
    #[arg(add = ArgValueCandidates::new(complete::service_ids))]
    service: String,
}

#[derive(Args)]
pub struct TransferArgs {
    #[command(flatten)]
    human: HumanArgs,
    /// Offer the service to the human user with this subject (the claim `sub` of the token, as `whoami` shows it)
    #[arg(long, value_name = "SUBJECT", value_parser = no_secret, requires = "service")]
    to: Option<String>,
    /// The issuer of that user [default: the issuer of your token]
    #[arg(long, value_name = "URL", requires = "to")]
    to_issuer: Option<String>,
    /// Accept the service, which becomes yours
    #[arg(long, conflicts_with_all = ["to", "withdraw"], requires = "service")]
    accept: bool,
    /// Withdraw the offer of your service, or decline a service that is offered to you
    #[arg(long, conflicts_with = "to", requires = "service")]
    withdraw: bool,
    /// The id of the service; without it, the command lists the services that are offered to you
    #[arg(add = ArgValueCandidates::new(complete::service_ids))]
    service: Option<String>,
}

/// Deletes a service.
pub async fn delete(context: &Context, args: DeleteArgs) -> Result<CommandOutput, CliError> {
    let DeleteArgs { human, confirm, service } = args;
    let (api, service) = (context.api(&human.server)?, service_id(service)?);
    let credential = human.credential(context).await?;
    let name = api.read_service(&credential, &service).await?.name;
    let consequence = "Its API keys, webhooks, roles and all tokens for it end at once. This cannot be undone.";
    confirm.confirm(&context.messages, &format!("Delete the service {service} ({})", quoted(&name)), consequence)?;
    api.delete_service(&credential, &service).await?;
    let text = details([("service", service.clone()), ("name", name), ("deleted", "true".into())]);
    Ok(CommandOutput::new(text, json!({ "deleted": true, "serviceId": service })))
}

/// Offers, accepts, withdraws or shows the transfer of a service, or lists the services that are offered to the user.
pub async fn transfer(context: &Context, args: TransferArgs) -> Result<CommandOutput, CliError> {
    let TransferArgs { human, to, to_issuer, accept, withdraw, service } = args;
    let api = context.api(&human.server)?;
    let service = service.map(service_id).transpose()?;
    let credential = &human.credential(context).await?;
    let Some(service) = service else {
        let offers = all_pages(async |offset| api.list_service_transfers(credential, offset).await).await?;
        let header = [("ID", Column::Fixed), ("NAME", Column::Text), ("OFFER ENDS", Column::Time)];
        let row = |offer: &ServiceTransfer| [offer.service_id.clone(), offer.name.clone(), offer.expires_at.clone()];
        return Ok(CommandOutput::new(Table::new(header, offers.iter().map(row)), json!(offers)));
    };
    if accept {
        let accepted = api.accept_service(credential, &service).await?;
        let text = details([("service", service), ("name", accepted.name.clone()), ("accepted", "true".into())]);
        let note = "Next: replace its API keys (countersign key list, create, revoke) and its webhook secrets, which \
                    the earlier owner knows";
        return Ok(CommandOutput::new(text, json!(accepted)).with_note(note));
    }
    if withdraw {
        api.withdraw_service_transfer(credential, &service).await?;
        let text = details([("service", service.clone()), ("withdrawn", "true".into())]);
        return Ok(CommandOutput::new(text, json!({ "withdrawn": true, "serviceId": service })));
    }
    let offer = match to {
        Some(subject) => api.offer_service(credential, &service, &subject, to_issuer.as_deref()).await?,
        None => api.read_service_transfer(credential, &service).await?,
    };
    Ok(output(&offer))
}

fn output(offer: &ServiceTransfer) -> CommandOutput {
    let text = details([
        ("service", offer.service_id.clone()),
        ("name", offer.name.clone()),
        ("new owner", offer.new_owner.subject.clone()),
        ("  issuer", offer.new_owner.issuer.clone()),
        ("offer ends", offer.expires_at.clone()),
    ]);
    let note = format!("Next: as the new owner, countersign service transfer {} --accept", offer.service_id);
    CommandOutput::new(text, json!(offer)).with_note(note)
}
