//! `countersign service`: the services of a human user.

use super::{
    complete,
    environment::variable,
    prelude::{
        API_ALLOWS_AT_ONCE, API_REFUSES_AT_ONCE, CliError, CommandOutput, Context, HumanArgs, OwnedServiceArgs,
        Receipt, Rows, WaitArgs, details,
    },
    transfer::{self, DeleteArgs, TransferArgs, find_offer},
};
use clap::{Args, Subcommand};
use clap_complete::ArgValueCandidates;
use countersign_client::api::{ChangedRecord, HumanUser, Service, ServiceApi, ServiceChange, all_pages};
use serde_json::json;

#[derive(Subcommand)]
pub enum ServiceCommand {
    /// Create a service, which the human user owns, and print its id
    #[command(after_help = "The profile saves the service for later commands; COUNTERSIGN_SERVICE_ID overrides it. \
        `countersign login` obtains the token of a human user. Without an identity provider, the operator mints \
        one: countersign-control-plane human-token mint --subject NAME.\n\n\
        Examples:\n  $ countersign service create Shop\n  $ countersign service create Payments --refuse-unbound\n\n\
        Next: countersign key create --scope full, and for its sidecar countersign key create --scope sync")]
    Create(CreateArgs),
    /// List the services of the human user; for an administrator, all services
    #[command(after_help = "Newest first.\n\n\
        Examples:\n  $ countersign service list\n\n\
        Next: countersign key list --service ID")]
    List(HumanArgs),
    /// Show a service
    #[command(
        visible_alias = "describe",
        after_help = "Examples:\n  $ countersign service show\n  $ countersign service show ID\n\n\
        Next: countersign key list, countersign role list"
    )]
    Show(ShowArgs),
    /// Change the name of a service, its resource URIs, or whether it accepts unbound tokens
    #[command(after_help = "A token is unbound if it has no service as its audience: the login named none, and the \
        control plane could not choose one. A service that receives an unbound token could use it at other services, \
        so a service whose roles grant many permissions should refuse them. Resource URIs are the URLs under which \
        clients reach the service; OAuth and MCP clients find the control plane from them. Every proxy applies the \
        change when it receives it.\n\n\
        Examples:\n  $ countersign service change --name Store\n  $ countersign service change --refuse-unbound\n  \
        $ countersign service change --resource-uri https://api.example.com/mcp\n\n\
        Next: countersign service show")]
    Change(ChangeArgs),
    /// Offer a service to another human user, accept an offered service, or list the offers to you
    #[command(
        after_help = "The other user has seven days to accept. Until then, nothing changes. API keys, webhooks and roles \
        continue to work after the transfer. The subject of a user is the claim `sub` of the user's token; \
        `countersign whoami` shows it.\n\n\
        Examples:\n  $ countersign service transfer ID --to SUBJECT\n  $ countersign service transfer\n  \
        $ countersign service transfer ID --accept\n  $ countersign service transfer ID --withdraw\n\n\
        Next: as the other user, countersign service transfer"
    )]
    Transfer(TransferArgs),
    /// Delete a service; this cannot be undone
    #[command(
        after_help = "The API keys, webhooks and roles of the service, and all tokens for it, end at once. Its audit \
        log remains for administrators.\n\n\
        Examples:\n  $ countersign service delete ID\n  $ countersign service delete ID --yes\n\n\
        Next: countersign service list"
    )]
    Delete(DeleteArgs),
}

#[derive(Args)]
pub struct ShowArgs {
    #[command(flatten)]
    owned: OwnedServiceArgs,
    /// The id of the service, like --service
    #[arg(value_name = "ID", add = ArgValueCandidates::new(complete::service_ids))]
    id: Option<String>,
}

#[derive(Args)]
pub struct ChangeArgs {
    #[command(flatten)]
    target: ShowArgs,
    /// The new display name
    #[arg(long)]
    name: Option<String>,
    /// Refuse unbound tokens
    #[arg(long, conflicts_with = "accept_unbound")]
    refuse_unbound: bool,
    /// Accept unbound tokens
    #[arg(long)]
    accept_unbound: bool,
    /// A URL under which clients reach the service; repeat the option for several. The new URLs replace all earlier ones
    #[arg(long, value_name = "URL", conflicts_with = "no_resource_uris")]
    resource_uri: Vec<String>,
    /// Remove all resource URIs
    #[arg(long)]
    no_resource_uris: bool,
    #[command(flatten)]
    wait: WaitArgs,
}

#[derive(Args)]
pub struct CreateArgs {
    #[command(flatten)]
    human: HumanArgs,
    /// The display name
    name: String,
    /// Refuse unbound tokens; recommended if roles grant many permissions
    #[arg(long)]
    refuse_unbound: bool,
}

pub async fn run(context: &Context, command: ServiceCommand) -> Result<CommandOutput, CliError> {
    match command {
        ServiceCommand::Create(args) => create(context, args).await,
        ServiceCommand::List(human) => list(context, human).await,
        ServiceCommand::Show(args) => show(context, args).await,
        ServiceCommand::Change(args) => change(context, args).await,
        ServiceCommand::Transfer(args) => transfer::transfer(context, args).await,
        ServiceCommand::Delete(args) => transfer::delete(context, args).await,
    }
}

async fn create(context: &Context, args: CreateArgs) -> Result<CommandOutput, CliError> {
    let CreateArgs { human, name, refuse_unbound } = args;
    let api = human.api(context).await?;
    context.check_writable()?;
    let accepts_unbound_tokens = Some(!refuse_unbound);
    let new = ServiceChange { name: Some(&name), accepts_unbound_tokens, ..ServiceChange::default() };
    let service = api.create_service(new).await?;
    let saved = context.update_profile(|profile| profile.service = Some(service.service_id.clone()));
    if variable("COUNTERSIGN_SERVICE_KEY").is_some() {
        context.messages.warning(
            "COUNTERSIGN_SERVICE_KEY is set, but an API key is valid for its own service only: unset it, or set it to a key \
             of the new service",
        );
    }
    let note = if saved.is_err() {
        "Pass the id with --service or COUNTERSIGN_SERVICE_ID to later commands."
    } else if variable("COUNTERSIGN_SERVICE_ID").is_some() {
        "COUNTERSIGN_SERVICE_ID is set, so later commands still use that service: unset it, or pass --service."
    } else {
        "The profile uses this service now.\nNext: countersign key create --scope full"
    };
    Ok(CommandOutput::new(service.service_id.clone(), json!(service)).with_note(note).with_profile_result(saved))
}

async fn list(context: &Context, human: HumanArgs) -> Result<CommandOutput, CliError> {
    let api = human.api(context).await?;
    let services = all_pages(async |start| api.list_services(&start).await).await?;
    let rows = Rows::of(&services)
        .fixed("ID", |service| service.service_id.clone())
        .text("NAME", |service| service.name.clone())
        .fixed("UNBOUND TOKENS", |service| unbound_tokens(service).to_owned())
        .time("CREATED", |service| service.created_at.clone());
    Ok(CommandOutput::list(rows))
}

async fn show(context: &Context, args: ShowArgs) -> Result<CommandOutput, CliError> {
    let service = args.service_api(context).await?;
    let shown = service.read().await?;
    let offered_to = find_offer(&service).await?.map(|offer| offer.new_owner);
    let mut rows = rows(&shown);
    let HumanUser { issuer, subject } = &shown.owner;
    rows.extend([("owner", subject.clone()), ("  issuer", issuer.clone())]);
    match &offered_to {
        Some(HumanUser { issuer, subject }) => {
            rows.extend([("offered to", subject.clone()), ("  issuer", issuer.clone())]);
        }
        None => rows.push(("offered to", "-".to_owned())),
    }
    let mut json = json!(shown);
    json["offeredTo"] = json!(offered_to);
    Ok(CommandOutput::new(details(rows), json))
}

impl ShowArgs {
    async fn service_api(self, context: &Context) -> Result<ServiceApi, CliError> {
        let Self { mut owned, id } = self;
        owned.service.service = id.or(owned.service.service);
        owned.service_api(context).await
    }
}

async fn change(context: &Context, args: ChangeArgs) -> Result<CommandOutput, CliError> {
    let ChangeArgs { target, name, refuse_unbound, accept_unbound, resource_uri, no_resource_uris, wait } = args;
    let accepts_unbound_tokens = (refuse_unbound || accept_unbound).then_some(accept_unbound);
    let resource_uris = (no_resource_uris || !resource_uri.is_empty()).then_some(&*resource_uri);
    if name.is_none() && accepts_unbound_tokens.is_none() && resource_uris.is_none() {
        let text =
            "no change is set: pass --name, --refuse-unbound, --accept-unbound, --resource-uri or --no-resource-uris";
        return Err(CliError::usage(text));
    }
    let service = target.service_api(context).await?;
    let name = name.as_deref();
    let change = ServiceChange { name, accepts_unbound_tokens, resource_uris, ..ServiceChange::default() };
    let ChangedRecord { record: changed, revision } = service.change(change).await?;
    let receipt = Receipt::of(context, wait.of(&service), revision).await;
    let text = receipt
        .details(rows(&changed), if changed.accepts_unbound_tokens { API_ALLOWS_AT_ONCE } else { API_REFUSES_AT_ONCE });
    Ok(receipt.output(text, json!(changed), Some("Next: countersign service show")))
}

fn rows(service: &Service) -> Vec<(&'static str, String)> {
    let Service { service_id, name, resource_uris, managed_by, created_at, .. } = service;
    let mut rows = vec![
        ("service", service_id.clone()),
        ("name", name.clone()),
        ("unbound tokens", unbound_tokens(service).into()),
        ("created", created_at.clone()),
    ];
    rows.extend(resource_uris.iter().map(|uri| ("resource URI", uri.clone())));
    rows.extend(managed_by.clone().map(|managed_by| ("managed by", managed_by)));
    rows
}

const fn unbound_tokens(service: &Service) -> &'static str {
    if service.accepts_unbound_tokens { "accepted" } else { "refused" }
}
