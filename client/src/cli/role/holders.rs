//! `countersign role holders`: the agents that hold a role at a service.

use super::find::find_role;
use crate::cli::{
    args::ManagerArgs,
    context::Context,
    error::CliError,
    output::{CommandOutput, value_name},
    table::{Column, Table},
};
use clap::{Args, ValueEnum};
use countersign_client::api::{AgentFilter, AgentWithRoles, ListedAgent, all_pages};
use serde_json::json;

#[derive(Args)]
pub struct HoldersArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// Only agents that hold this role, by name or id
    role: Option<String>,
    /// Only agents of this status
    #[arg(long, value_enum)]
    status: Option<Status>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Status {
    /// Agents that can log in
    Active,
    /// Agents that cannot log in until they are reactivated
    Suspended,
    /// Agents that can never log in again
    Revoked,
}

/// Lists the agents of a service with their roles.
pub async fn list(context: &Context, args: HoldersArgs) -> Result<CommandOutput, CliError> {
    let HoldersArgs { manager, role, status } = args;
    let service = manager.service_api(context).await?;
    let role = match role {
        Some(role) => Some(find_role(&service, &role).await?.id),
        None => None,
    };
    let filter = AgentFilter { role, status: status.map(value_name) };
    let agents = all_pages(async |start| service.list_agents(&filter, &start).await).await?;
    let header = [
        ("ID", Column::Fixed),
        ("NAME", Column::Text),
        ("STATUS", Column::Fixed),
        ("TRUST", Column::Fixed),
        ("ROLES", Column::Text),
        ("LAST SEEN", Column::Time),
    ];
    Ok(CommandOutput::new(Table::new(header, agents.iter().map(row)), json!(agents)))
}

fn row(AgentWithRoles { agent, roles }: &AgentWithRoles) -> [String; 6] {
    let ListedAgent { agent_id, name, status, trust_score, last_seen_at, .. } = agent;
    let roles: Vec<_> = roles.iter().map(|role| role.name.as_str()).collect();
    let last_seen = last_seen_at.clone().unwrap_or_else(|| "-".to_owned());
    [agent_id.clone(), name.clone(), status.clone(), trust_score.to_string(), roles.join(","), last_seen]
}
