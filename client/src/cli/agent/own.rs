//! `countersign agent list`, `services`, `leave` and `readmit`: what the owner of agents sees and decides.

use crate::cli::{
    args::HumanArgs,
    complete,
    context::Context,
    enforcement::{REFUSES, Receipt},
    error::CliError,
    ids::service_id,
    output::CommandOutput,
    table::{Column, Table},
};
use clap::Args;
use clap_complete::ArgValueCandidates;
use countersign_client::api::{Admission, HumanApi, ListedAgent, ServiceOfAgent, all_pages};
use serde_json::json;

#[derive(Args)]
pub struct ServicesArgs {
    #[command(flatten)]
    human: HumanArgs,
    /// The id of the agent
    #[arg(add = ArgValueCandidates::new(complete::agent_ids))]
    agent: String,
}

#[derive(Args)]
pub struct AdmissionArgs {
    #[command(flatten)]
    human: HumanArgs,
    /// The id of the agent
    #[arg(add = ArgValueCandidates::new(complete::agent_ids))]
    agent: String,
    /// The id of the service
    #[arg(add = ArgValueCandidates::new(complete::service_ids))]
    service: String,
}

/// Lists the agents of the human user.
pub async fn list(context: &Context, human: HumanArgs) -> Result<CommandOutput, CliError> {
    let api = human.api(context).await?;
    let agents = all_pages(async |start| api.list_own_agents(&start).await).await?;
    let header = [
        ("ID", Column::Fixed),
        ("NAME", Column::Text),
        ("STATUS", Column::Fixed),
        ("TRUST", Column::Fixed),
        ("LAST SEEN", Column::Time),
    ];
    let row = |agent: &ListedAgent| {
        let last_seen = agent.last_seen_at.clone().unwrap_or_else(|| "-".to_owned());
        [agent.agent_id.clone(), agent.name.clone(), agent.status.clone(), agent.trust_score.to_string(), last_seen]
    };
    Ok(CommandOutput::new(Table::new(header, agents.iter().map(row)), json!(agents)))
}

/// The name of an agent of the human user; `None` for an agent of somebody else.
pub async fn name_of_agent(api: &HumanApi, agent: &str) -> Result<Option<String>, CliError> {
    let agents = all_pages(async |start| api.list_own_agents(&start).await).await?;
    Ok(agents.into_iter().find(|listed| listed.agent_id == agent).map(|listed| listed.name))
}

/// Lists the services of an agent.
pub async fn services(context: &Context, args: ServicesArgs) -> Result<CommandOutput, CliError> {
    let ServicesArgs { human, agent } = args;
    let agent = context.agent(agent)?;
    let api = human.api(context).await?;
    let services = all_pages(async |start| api.list_services_of_agent(&agent, &start).await).await?;
    let header = [
        ("ID", Column::Fixed),
        ("NAME", Column::Text),
        ("ROLES", Column::Text),
        ("MAY ASSIGN ROLES", Column::Fixed),
        ("LEFT", Column::Time),
    ];
    let row = |service: &ServiceOfAgent| {
        let roles: Vec<_> = service.roles.iter().map(|role| role.name.as_str()).collect();
        let may_assign = if service.may_assign_roles { "yes" } else { "no" };
        let left_at = service.left_at.clone().unwrap_or_else(|| "-".to_owned());
        let name = service.name.clone().unwrap_or_else(|| "-".to_owned());
        [service.service_id.clone(), name, roles.join(","), may_assign.to_owned(), left_at]
    };
    Ok(CommandOutput::new(Table::new(header, services.iter().map(row)), json!(services)))
}

/// Leaves a service, or allows it to assign roles again.
pub async fn set_admission(
    context: &Context,
    args: AdmissionArgs,
    may_assign_roles: bool,
) -> Result<CommandOutput, CliError> {
    let AdmissionArgs { human, agent, service } = args;
    let agent = context.agent(agent)?;
    let service = service_id(service)?;
    let api = human.api(context).await?;
    let result = api.set_admission(&agent, &service, may_assign_roles).await;
    let next = || "`countersign agent services AGENT` shows the services of the agent".to_owned();
    let Admission { revoked_roles: ended, revision } =
        result.map_err(|error| CliError::from(error).with_next_for("SERVICE_NOT_FOUND", next))?;
    let receipt = Receipt::of(context, None, revision).await;
    let text = if may_assign_roles {
        format!("The service {service} may assign roles to the agent {agent}.")
    } else {
        format!("The agent {agent} has left the service {service}. Roles ended: {ended}.")
    };
    let json = json!({
        "agentId": agent, "serviceId": service, "mayAssignRoles": may_assign_roles, "revokedRoles": ended,
    });
    let text = format!("{text}\n{}", receipt.details([], REFUSES));
    Ok(receipt.output(text, json, ""))
}
