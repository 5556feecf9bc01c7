//! `countersign agent list`, `services`, `leave` and `readmit`: what the owner of agents sees and decides.

use crate::cli::{
    complete,
    ids::service_id,
    prelude::{
        API_REFUSES_AT_ONCE, CliError, CommandOutput, Context, HumanArgs, Receipt, RequiredAgentArg, Rows, or_dash,
    },
};
use clap::Args;
use clap_complete::ArgValueCandidates;
use countersign_client::api::{Admission, HeldRole, all_pages};
use serde_json::json;

#[derive(Args)]
pub struct ServicesArgs {
    #[command(flatten)]
    human: HumanArgs,
    #[command(flatten)]
    agent: RequiredAgentArg,
}

#[derive(Args)]
pub struct AdmissionArgs {
    #[command(flatten)]
    human: HumanArgs,
    #[command(flatten)]
    agent: RequiredAgentArg,
    /// The id of the service
    #[arg(add = ArgValueCandidates::new(complete::service_ids))]
    service: String,
}

pub async fn list(context: &Context, human: HumanArgs) -> Result<CommandOutput, CliError> {
    let api = human.api(context).await?;
    let agents = all_pages(async |start| api.list_own_agents(&start).await).await?;
    let rows = Rows::of(&agents)
        .fixed("ID", |agent| agent.agent_id.clone())
        .text("NAME", |agent| agent.name.clone())
        .fixed("STATUS", |agent| agent.status.clone())
        .fixed("TRUST", |agent| agent.trust_score.to_string())
        .time("LAST SEEN", |agent| or_dash(agent.last_seen_at.as_ref()));
    Ok(CommandOutput::list(rows))
}

pub async fn services(context: &Context, args: ServicesArgs) -> Result<CommandOutput, CliError> {
    let ServicesArgs { human, agent } = args;
    let agent = context.agent(&agent)?;
    let api = human.api(context).await?;
    let services = all_pages(async |start| api.list_services_of_agent(&agent, &start).await).await?;
    let names = |roles: &[HeldRole]| roles.iter().map(|role| role.name.as_str()).collect::<Vec<_>>().join(",");
    let rows = Rows::of(&services)
        .fixed("ID", |service| service.service_id.clone())
        .text("NAME", |service| or_dash(service.name.as_ref()))
        .text("ROLES", |service| names(&service.roles))
        .fixed("MAY ASSIGN ROLES", |service| if service.may_assign_roles { "yes" } else { "no" }.to_owned())
        .time("LEFT", |service| or_dash(service.left_at.as_ref()));
    Ok(CommandOutput::list(rows))
}

/// Makes the agent leave a service, or with `may_assign_roles`, allows the service again to assign roles to the agent.
pub async fn set_admission(
    context: &Context,
    args: AdmissionArgs,
    may_assign_roles: bool,
) -> Result<CommandOutput, CliError> {
    let AdmissionArgs { human, agent, service } = args;
    let agent = context.agent(&agent)?;
    let service = service_id(service)?;
    let api = human.api(context).await?;
    let result = api.set_admission(&agent, &service, may_assign_roles).await;
    let next = || "`countersign agent services AGENT` shows the services of the agent".to_owned();
    let Admission { revoked_roles: ended, revision } =
        result.map_err(|error| CliError::from(error).with_next_for("SERVICE_NOT_FOUND", next))?;
    let receipt = Receipt::without_wait(revision);
    let text = if may_assign_roles {
        format!("The service {service} may assign roles to the agent {agent}.")
    } else {
        format!("The agent {agent} has left the service {service}. Roles ended: {ended}.")
    };
    let json = json!({
        "agentId": agent, "serviceId": service, "mayAssignRoles": may_assign_roles, "revokedRoles": ended,
    });
    let text = format!("{text}\n{}", receipt.details([], API_REFUSES_AT_ONCE));
    Ok(receipt.output(text, json, None))
}
