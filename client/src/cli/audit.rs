//! `countersign audit`: the audit log.

use super::{
    complete,
    enforcement::sidecars,
    ids::{agent_id, no_secret},
    prelude::{CliError, CommandOutput, Context, OutputFormat, OwnedServiceArgs, Rows, id_with_name, or_dash},
    time::parse_past_time,
};
use clap::{Args, Subcommand};
use clap_complete::ArgValueCandidates;
use countersign_client::api::{AgentFilter, AuditEntry, AuditFilter, Listing, PageStart, ServiceApi, items_up_to};
use jiff::Timestamp;
use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Subcommand)]
pub enum AuditCommand {
    /// List the entries of the audit log, newest first
    #[command(after_help = "The owner of a service reads its entries; administrators read all, with --all-services. \
        With -o json, the output has the details and hashes of each entry.\n\n\
        Examples:\n  $ countersign audit list --since 1d\n  \
        $ countersign audit list --action role.assigned --agent AGENT --all\n  \
        $ countersign audit list --all-services --since 2030-01-01T00:00:00Z -o json\n\n\
        Next: the operator verifies that the log is complete with countersign-control-plane audit verify")]
    List(ListArgs),
}

#[derive(Args)]
pub struct ListArgs {
    #[command(flatten)]
    owned: OwnedServiceArgs,
    /// Entries of all services and of the deployment; for administrators
    #[arg(long)]
    all_services: bool,
    /// Entries about this agent
    #[arg(long, value_name = "AGENT", add = ArgValueCandidates::new(complete::agent_ids))]
    agent: Option<String>,
    /// Entries of this action, such as role.assigned
    #[arg(long, value_parser = no_secret, add = ArgValueCandidates::new(complete::audit_actions))]
    action: Option<String>,
    /// Entries since this time: 2030-01-31T12:00:00Z, 2030-01-31, or 5m, 8h or 7d ago
    #[arg(long, value_name = "TIME", value_parser = parse_past_time)]
    since: Option<Timestamp>,
    /// Entries before this time, in the forms of --since
    #[arg(long, value_name = "TIME", value_parser = parse_past_time)]
    until: Option<Timestamp>,
    /// The maximum number of entries
    #[arg(long, default_value_t = 50)]
    limit: usize,
    /// All entries, whatever their number
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

pub async fn run(context: &Context, command: AuditCommand) -> Result<CommandOutput, CliError> {
    let AuditCommand::List(ListArgs { owned, all_services, agent, action, since, until, limit, all }) = command;
    let service = if all_services { None } else { Some(context.service(&owned.service)?) };
    let agent = agent.map(agent_id).transpose()?;
    let [since, until] = [since, until].map(|time| time.map(|time| time.to_string()));
    let filter = AuditFilter { service, agent, action, since, until };
    let api = owned.human.api(context).await?;
    let limit = if all { usize::MAX } else { limit };
    let fetch = async |limit, start| api.list_audit_entries(&filter, limit, &start).await;
    let Listing { items: entries, has_more } = items_up_to(limit, PageStart::FIRST, fetch).await?;
    let names = match (context.format(), &filter.service) {
        (OutputFormat::Text, Some(service)) => agent_names(&api.service(service), &entries).await,
        _ => agent_names_in(&entries),
    };
    let mut rows =
        Rows::of(&entries).fixed("ENTRY", |entry| entry.sequence.to_string()).time("TIME", |entry| entry.at.clone());
    if filter.service.is_none() {
        rows = rows.fixed("SERVICE", |entry| or_dash(entry.service_id.as_ref()));
    }
    let rows = rows
        .fixed("ACTION", |entry| entry.action.clone())
        .fixed("ACTOR", |entry| entry.actor.id.as_ref().unwrap_or(&entry.actor.kind).clone())
        .fixed("ADDRESS", |entry| or_dash(entry.address.as_ref()))
        .fixed("AGENT", |entry| or_dash(shown_agent(entry, &names).as_ref()))
        .fixed("OBJECT", |entry| or_dash(shown_object(entry).as_ref()));
    let note = summary(&filter, entries.len(), has_more);
    Ok(CommandOutput::list(rows).with_note(note))
}

/// The note below the entries: the filter, and how many entries are listed.
fn summary(filter: &AuditFilter, count: usize, more: bool) -> String {
    let AuditFilter { service, agent, action, since, until } = filter;
    let filters = [("agent", agent), ("action", action), ("since", since), ("until", until)];
    let filters = filters.into_iter().filter_map(|(name, value)| Some(format!(", {name} {}", value.as_deref()?)));
    let scope = service.as_ref().map_or_else(|| "all services".to_owned(), |service| format!("service {service}"));
    let plural = if count == 1 { "entry" } else { "entries" };
    let filters: String = filters.collect();
    let next = if more { "\nNext: --all or --limit shows more" } else { "" };
    let first = if more { "the newest " } else { "" };
    format!("Filter: {scope}{filters}. Showing {first}{count} {plural}.{next}")
}

/// The names of the agents in these entries: from registrations in the log, and from the current agents of the service.
async fn agent_names(service: &ServiceApi, entries: &[AuditEntry]) -> BTreeMap<String, String> {
    let mut names = agent_names_in(entries);
    let is_unknown = |entry: &AuditEntry| entry.agent_id.as_ref().is_some_and(|agent| !names.contains_key(agent));
    // We read only one page of agents, which is enough for most services. Errors are ignored: the entries are useful without names.
    if entries.iter().any(is_unknown)
        && let Ok(page) = service.list_agents(&AgentFilter::default(), &PageStart::FIRST).await
    {
        names.extend(page.data.into_iter().map(|agent| (agent.agent.agent_id, agent.agent.name)));
    }
    names
}

fn agent_names_in(entries: &[AuditEntry]) -> BTreeMap<String, String> {
    let registrations = entries.iter().filter(|entry| entry.action == "agent.registered");
    registrations.filter_map(|entry| Some((entry.agent_id.clone()?, object_name(entry)?.to_owned()))).collect()
}

fn shown_agent(entry: &AuditEntry, names: &BTreeMap<String, String>) -> Option<String> {
    entry.agent_id.as_ref().map(|id| id_with_name(id, names.get(id).map(String::as_str)))
}

fn shown_object(entry: &AuditEntry) -> Option<String> {
    let object = entry.object.as_ref().map(|object| id_with_name(&object.id, object_name(entry)));
    object.or_else(|| object_in_details(entry))
}

/// What the details show in place of an object: the user to whom a service is offered, the service that an agent left, or the entries
/// whose changes are in force.
fn object_in_details(entry: &AuditEntry) -> Option<String> {
    let text = |pointer| entry.details.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let number = |pointer| entry.details.pointer(pointer).and_then(Value::as_u64);
    let entries = || {
        let first = number("/firstSequence")?;
        let last = number("/lastSequence")?;
        let of_entries = if first == last { format!("entry {first}") } else { format!("entries {first} to {last}") };
        let of_sidecars = sidecars(number("/sidecars").unwrap_or_default());
        let elapsed = number("/milliseconds").map(|milliseconds| format!(" within {milliseconds} ms"));
        Some(format!("{of_entries} at {of_sidecars}{}", elapsed.unwrap_or_default()))
    };
    text("/to/id").or_else(|| text("/serviceId")).or_else(entries)
}

/// The name of the object, or of the agent in a registration.
fn object_name(entry: &AuditEntry) -> Option<&str> {
    entry.details.get("name").and_then(Value::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_states_the_filter_and_whether_more_entries_exist() {
        let filter = AuditFilter { action: Some("role.assigned".into()), ..AuditFilter::default() };
        let text = "Filter: all services, action role.assigned. Showing 1 entry.";
        assert_eq!(summary(&filter, 1, false), text);
        let filter = AuditFilter { service: Some("svc_1".into()), ..AuditFilter::default() };
        let text = "Filter: service svc_1. Showing the newest 50 entries.\nNext: --all or --limit shows more";
        assert_eq!(summary(&filter, 50, true), text);
    }
}
