//! `countersign audit`: who did what.

use super::{
    Failure, Said,
    context::{Context, Human, person},
    said::table,
};
use clap::{Args, Subcommand};
use countersign_client::api::{Act, ActFilter, Page};
use serde_json::json;

/// Acts that the API tells at once, at the most.
const LARGEST_PAGE: usize = 200;

#[derive(Subcommand)]
pub enum Audit {
    /// List who did what, newest first
    #[command(
        after_help = "At a service, for its owner; administrators may ask for --all. With -o json, the details and \
        hashes too.\n\nNext, whether the record was tampered with: the operator's countersign-control-plane audit verify"
    )]
    List(List),
}

#[derive(Args)]
pub struct List {
    #[command(flatten)]
    human: Human,
    /// The service; left out: the one made last with this profile
    #[arg(long, env = "COUNTERSIGN_SERVICE_ID")]
    service: Option<String>,
    /// At all services, and what concerns none; for administrators
    #[arg(long)]
    all: bool,
    /// Only about this agent
    #[arg(long, value_name = "ID")]
    agent: Option<String>,
    /// Only acts of this kind, such as role.assigned
    #[arg(long)]
    act: Option<String>,
    /// Not before this instant, such as 2030-01-31T12:00:00Z
    #[arg(long, value_name = "INSTANT")]
    since: Option<String>,
    /// Before this instant
    #[arg(long, value_name = "INSTANT")]
    until: Option<String>,
    /// How many, at the most
    #[arg(long, default_value_t = 50)]
    limit: usize,
}

/// Does what was asked.
pub async fn run(context: &Context, command: Audit) -> Result<Said, Failure> {
    let Audit::List(List { human, service, all, agent, act, since, until, limit }) = command;
    let api = context.api(&human.server)?;
    let service = if all { None } else { Some(context.service(service)?) };
    let (person, filter) = (person(human.human_token.as_ref())?, ActFilter { service, agent, act, since, until });
    let mut acts = Vec::new();
    while acts.len() < limit {
        let wanted = LARGEST_PAGE.min(limit - acts.len());
        let Page { data, pagination } = api.list_acts(person, &filter, wanted, acts.len()).await?;
        let more = pagination.has_more && !data.is_empty();
        acts.extend(data);
        if !more {
            break;
        }
    }
    let head = ["AT", "ACT", "BY", "FROM", "AGENT", "WITH"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(head).chain(acts.iter().map(row)).collect();
    Ok(Said::new(table(&rows), json!(acts)))
}

fn row(act: &Act) -> [String; 6] {
    let shown = |value: Option<&String>| value.map_or("-", String::as_str).to_owned();
    let by = act.actor.id.as_ref().unwrap_or(&act.actor.kind).clone();
    let with = act.object.as_ref().map(|object| &object.id);
    [act.at.clone(), act.act.clone(), by, shown(act.address.as_ref()), shown(act.agent_id.as_ref()), shown(with)]
}
