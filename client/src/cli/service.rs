//! `countersign service`: what people do with their token.

use super::{
    Failure, Said,
    context::{Context, Human, person},
    parse::variable,
    said::table,
};
use clap::{Args, Subcommand};
use countersign_client::{
    ApiError,
    api::{Page, Service as Record},
};
use serde_json::json;

#[derive(Subcommand)]
pub enum Service {
    /// Make a service, owned by the person who asks, and print its id
    #[command(
        after_help = "The operator mints a person's token: countersign-control-plane human-token mint --subject \
        NAME. The profile remembers the service for `key` and `role`; COUNTERSIGN_SERVICE_ID wins over that.\n\n\
        Roles of a service count where that service is guarded: by a sidecar with a key of this service.\n\n\
        Next: countersign key create --scope full, and for its sidecar countersign key create --scope sync"
    )]
    Create(CreateService),
    /// List the services of the person who asks; of an administrator, all
    #[command(after_help = "Newest first.\n\nNext: countersign key list --service ID")]
    List(Human),
    /// Show a service
    #[command(after_help = "Next: countersign key list, countersign role list")]
    Show(One),
    /// Change what people call a service, and whether it accepts tokens that are bound to none
    #[command(
        after_help = "An agent that holds no role anywhere gets a token that is bound to no service. Whoever is sent \
        one could pass it on to another service, so services whose roles grant much refuse these. It counts at every \
        proxy as soon as the change arrives there.\n\nNext: countersign service show"
    )]
    Change(Change),
}

#[derive(Args)]
pub struct One {
    #[command(flatten)]
    human: Human,
    /// The service; left out: the one made last with this profile
    #[arg(long, env = "COUNTERSIGN_SERVICE_ID")]
    service: Option<String>,
}

#[derive(Args)]
pub struct Change {
    #[command(flatten)]
    one: One,
    /// What people call it from now on
    #[arg(long)]
    name: Option<String>,
    /// Refuse tokens that are bound to no service
    #[arg(long, conflicts_with = "accept_unbound")]
    refuse_unbound: bool,
    /// Accept them
    #[arg(long)]
    accept_unbound: bool,
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

/// Does what was asked.
pub async fn run(context: &Context, command: Service) -> Result<Said, Failure> {
    match command {
        Service::Create(asked) => create_service(context, asked).await,
        Service::List(human) => list(context, human).await,
        Service::Show(one) => show(context, one).await,
        Service::Change(asked) => change(context, asked).await,
    }
}

async fn create_service(context: &Context, asked: CreateService) -> Result<Said, Failure> {
    let CreateService { human, name, refuse_unbound } = asked;
    let api = context.api(&human.server)?;
    let person = person(human.human_token.as_ref())?;
    context.check_writable()?;
    let made = api.create_service(person, &name, !refuse_unbound).await?;
    let saved = context.remember(|profile| profile.service = Some(made.service_id.clone()));
    let note = if saved.is_err() {
        "The profile does not know it: name it with --service or COUNTERSIGN_SERVICE_ID."
    } else if variable("COUNTERSIGN_SERVICE_ID").is_some() {
        "COUNTERSIGN_SERVICE_ID is set, so other commands are still about that one: unset it, or give --service."
    } else {
        "The profile remembers it.\nNext: countersign key create --scope full"
    };
    Ok(Said::new(made.service_id.clone(), json!(made)).noting(note).remembered(saved))
}

async fn list(context: &Context, human: Human) -> Result<Said, Failure> {
    let (api, person) = (context.api(&human.server)?, person(human.human_token.as_ref())?);
    let services = all(async |offset| api.list_services(person, offset).await).await?;
    let head = ["ID", "NAME", "UNBOUND TOKENS", "CREATED"].map(str::to_owned);
    let rows = services.iter().map(|service| {
        let Record { service_id, name, accepts_unbound_tokens: _, created_at } = service;
        [service_id.clone(), name.clone(), unbound(service).to_owned(), created_at.clone()]
    });
    let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
    Ok(Said::new(table(&rows), json!(services)))
}

async fn show(context: &Context, asked: One) -> Result<Said, Failure> {
    let One { human, service } = asked;
    let (api, service) = (context.api(&human.server)?, context.service(service)?);
    Ok(told(&api.read_service(person(human.human_token.as_ref())?, &service).await?))
}

async fn change(context: &Context, asked: Change) -> Result<Said, Failure> {
    let Change { one: One { human, service }, name, refuse_unbound, accept_unbound } = asked;
    let accepts = (refuse_unbound || accept_unbound).then_some(accept_unbound);
    if name.is_none() && accepts.is_none() {
        let text = "nothing is to be changed: give --name, --refuse-unbound or --accept-unbound";
        return Err(Failure::Usage(text.to_owned()));
    }
    let (api, service) = (context.api(&human.server)?, context.service(service)?);
    let person = person(human.human_token.as_ref())?;
    Ok(told(&api.change_service(person, &service, name.as_deref(), accepts).await?)
        .noting("Next: countersign service show"))
}

fn told(service: &Record) -> Said {
    let Record { service_id, name, accepts_unbound_tokens: _, created_at } = service;
    let rows = [
        ["service".to_owned(), service_id.clone()],
        ["name".into(), name.clone()],
        ["unbound tokens".into(), unbound(service).into()],
        ["created".into(), created_at.clone()],
    ];
    Said::new(table(&rows), json!(service))
}

const fn unbound(service: &Record) -> &'static str {
    if service.accepts_unbound_tokens { "accepted" } else { "refused" }
}

/// What is on all pages.
pub(super) async fn all<T>(page: impl AsyncFn(usize) -> Result<Page<T>, ApiError>) -> Result<Vec<T>, Failure> {
    let mut items = Vec::new();
    loop {
        let Page { data, pagination } = page(items.len()).await?;
        let more = pagination.has_more && !data.is_empty();
        items.extend(data);
        if !more {
            return Ok(items);
        }
    }
}
