//! `countersign service transfer` and `service delete`.

use super::{
    complete,
    ids::{no_secret, service_id},
    placeholders,
    prelude::{
        API_REFUSES_AT_ONCE, CliError, CommandOutput, ConfirmArgs, Context, HumanArgs, Receipt, Rows, details, quoted,
    },
};
use clap::Args;
use clap_complete::ArgValueCandidates;
use countersign_client::{
    ApiError,
    api::{HumanApi, HumanUser, ServiceApi, ServiceTransfer, all_pages},
};
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
    #[arg(long, value_name = "SUBJECT", value_parser = no_secret)]
    to: Option<String>,
    /// The issuer of that user [default: the issuer of your token]
    #[arg(long, value_name = "URL", requires = "to")]
    to_issuer: Option<String>,
    /// Accept the service, which becomes yours
    #[arg(long, conflicts_with_all = ["to", "withdraw"])]
    accept: bool,
    /// Withdraw the offer of your service, or decline a service that is offered to you
    #[arg(long, visible_alias = "decline", conflicts_with = "to")]
    withdraw: bool,
    /// The id of the service. Without an option, the command shows the offer of the service; without an id, the offers to you
    #[arg(add = ArgValueCandidates::new(complete::service_ids))]
    service: Option<String>,
}

pub async fn delete(context: &Context, args: DeleteArgs) -> Result<CommandOutput, CliError> {
    let DeleteArgs { human, confirm, service } = args;
    let service = service_id(service)?;
    let api = human.api(context).await?.service(&service);
    let name = api.read().await?.name;
    let consequence = "Its API keys, webhooks, roles and all tokens for it end at once. This cannot be undone.";
    confirm.confirm(&context.messages, &format!("Delete the service {service} ({})", quoted(&name)), consequence)?;
    let revision = api.delete().await?;
    let receipt = Receipt::without_wait(revision);
    let saved = context.update_profile(|profile| {
        let is_other = |id: &String| *id != service;
        profile.service = profile.service.take().filter(is_other);
        profile.audience = profile.audience.take().filter(is_other);
    });
    let text = receipt
        .details([("service", service.clone()), ("name", name), ("deleted", "true".into())], API_REFUSES_AT_ONCE);
    Ok(receipt.output(text, json!({ "deleted": true, "serviceId": service }), None).with_profile_result(saved))
}

/// Offers, accepts, withdraws or shows the transfer of a service, or lists the services that are offered to the user.
pub async fn transfer(context: &Context, args: TransferArgs) -> Result<CommandOutput, CliError> {
    let TransferArgs { human, to, to_issuer, accept, withdraw, service } = args;
    let service = service.map(service_id).transpose()?;
    if service.is_none() && (to.is_some() || accept || withdraw) {
        let next = "pass its id; `countersign service list` shows your services, `countersign service transfer` the \
                    services that are offered to you";
        return Err(CliError::missing("the service", next));
    }
    let api = human.api(context).await?;
    let Some(service) = service else { return list_offers(&api).await };
    context.messages.placeholders.set(placeholders::SERVICE, &service);
    let service_api = api.service(&service);
    if accept {
        return accept_offer(&service_api).await;
    }
    if withdraw {
        let declined = service_api.withdraw_transfer().await.map_err(with_offer_hint)?;
        let result = if declined { "declined" } else { "withdrawn" };
        let text = details([("service", service.clone()), (result, "true".into())]);
        let json = json!({ "withdrawn": true, "declined": declined, "serviceId": service });
        return Ok(CommandOutput::new(text, json));
    }
    let Some(subject) = to else {
        return Ok(output(&service_api.read_transfer().await.map_err(with_offer_hint)?, None));
    };
    let replaced = find_offer(&service_api).await?.map(|offer| offer.new_owner);
    let offer = service_api.offer(&subject, to_issuer.as_deref()).await?;
    let replaced = replaced.filter(|earlier| *earlier != offer.new_owner);
    Ok(output(&offer, replaced))
}

/// The offer of a service; `None` if there is none, or if the human user may not read it.
pub async fn find_offer(service: &ServiceApi) -> Result<Option<ServiceTransfer>, CliError> {
    match service.read_transfer().await {
        Err(ApiError::Refused { code, reason, .. })
            if code == "NOT_FOUND" || reason.as_deref() == Some("not_yours") =>
        {
            Ok(None)
        }
        result => Ok(Some(result?)),
    }
}

async fn list_offers(api: &HumanApi) -> Result<CommandOutput, CliError> {
    let offers = all_pages(async |start| api.list_service_transfers(&start).await).await?;
    let rows = Rows::of(&offers)
        .fixed("ID", |offer| offer.service_id.clone())
        .text("NAME", |offer| offer.name.clone())
        .text("FROM", |offer| offer.offered_by.subject.clone())
        .time("OFFER ENDS", |offer| offer.expires_at.clone());
    Ok(CommandOutput::list(rows))
}

async fn accept_offer(service: &ServiceApi) -> Result<CommandOutput, CliError> {
    let accepted = service.accept().await.map_err(with_offer_hint)?;
    let name = accepted.name.clone();
    let text = details([("service", service.id.clone()), ("name", name), ("accepted", "true".into())]);
    let note = "The earlier owner knows its API keys and the secrets of its webhooks: replace them.\n\
                Next: countersign key list --service SERVICE\n\
                Next: countersign webhook list --service SERVICE";
    Ok(CommandOutput::new(text, json!(accepted)).with_note(note))
}

/// Adds the next step to the error for an offer that does not exist, or that is for somebody else.
fn with_offer_hint(error: ApiError) -> CliError {
    let next = "`countersign service transfer` lists the services that are offered to you";
    match error {
        ApiError::Refused { reason: Some(ref reason), .. } if reason == "not_yours" => {
            CliError::from(error).with_next_for("INSUFFICIENT_PERMISSIONS", || next.to_owned())
        }
        error => CliError::from(error).with_next_for("NOT_FOUND", || {
            format!("{next}; `countersign service transfer SERVICE --to SUBJECT` offers a service of yours")
        }),
    }
}

/// The output for an offer. `replaced` is the user to whom the service was offered before.
fn output(offer: &ServiceTransfer, replaced: Option<HumanUser>) -> CommandOutput {
    let ServiceTransfer { service_id, name, offered_by: _, new_owner, offered_at: _, expires_at } = offer;
    let mut rows = vec![
        ("service", service_id.clone()),
        ("name", name.clone()),
        ("new owner", new_owner.subject.clone()),
        ("  issuer", new_owner.issuer.clone()),
        ("offer ends", expires_at.clone()),
    ];
    let mut json = json!(offer);
    if let Some(earlier) = replaced {
        json["replaced"] = json!(earlier);
        rows.extend([("replaces the offer to", earlier.subject), ("  issuer", earlier.issuer)]);
    }
    let note = format!("Next: as the new owner, countersign service transfer {service_id} --accept");
    CommandOutput::new(details(rows), json).with_note(note)
}
