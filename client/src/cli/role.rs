//! `countersign role`: the roles of a service, and their assignments.

mod find;

use super::{
    enforcement::Wait,
    ids::no_secret,
    prelude::{
        API_ALLOWS_AT_ONCE, API_REFUSES_AT_ONCE, CliError, CommandOutput, ConfirmArgs, Context, ManagerArgs,
        OutputFormat, Receipt, RequiredAgentArg, Rows, WaitArgs, id_with_name, or_dash, quoted, value_name,
    },
    time::parse_future_time,
};
use clap::{Args, Subcommand, ValueEnum};
use countersign_client::api::{
    AgentFilter, AssignedRole, Revocation, RoleAssignment, RoleChange, ServiceApi, all_pages,
};
use find::{RoleRef, find_role};
use jiff::Timestamp;
use serde_json::json;

#[derive(Subcommand)]
pub enum RoleCommand {
    /// Create a role and print its id
    #[command(after_help = "A role is valid at its service only, so create it at the service that the agent calls: \
        COUNTERSIGN_SERVICE_ID, with its API key in COUNTERSIGN_SERVICE_KEY or its owner's token in \
        COUNTERSIGN_HUMAN_TOKEN.\n\n\
        Examples:\n  $ countersign role create reader --permission read\n  \
        $ countersign role create editor --permission read --permission write --description 'Edits orders'\n\n\
        Next: countersign role assign NAME AGENT")]
    Create(CreateArgs),
    /// List the roles of the service
    #[command(after_help = "Examples:\n  $ countersign role list\n  $ countersign role list -o json\n\n\
        Next: countersign role assign NAME AGENT")]
    List(ManagerArgs),
    /// List the agents that hold a role at the service
    #[command(after_help = "Newest first. Agents without a role at the service are not listed.\n\n\
        Examples:\n  $ countersign role holders\n  $ countersign role holders reader --status active\n\n\
        Next: countersign role revoke ROLE AGENT, or countersign agent show AGENT")]
    Holders(HoldersArgs),
    /// Delete a role and its assignments; this cannot be undone
    #[command(
        after_help = "All agents lose the role at once, even those whose token contains it. A new role of the same \
        name has no assignments.\n\n\
        Examples:\n  $ countersign role delete reader\n  $ countersign role delete reader --yes --wait\n\n\
        Next: countersign role list"
    )]
    Delete(DeleteArgs),
    /// Assign a role to an agent, permanently or until a time
    #[command(
        after_help = "Assigning a role again replaces the expiry time. Every proxy applies the change when it receives \
        it, mostly within a second.\n\n\
        Examples:\n  $ countersign role assign reader AGENT\n  $ countersign role assign reader AGENT --expires 8h\n  \
        $ countersign role assign reader AGENT --wait\n\n\
        Next: as the agent, countersign agent call URL"
    )]
    Assign(AssignArgs),
    /// Revoke a role of an agent, at once and even for existing tokens
    #[command(
        after_help = "Every proxy applies the change when it receives it, mostly within a second. --wait prints a \
        receipt: `enforced  at 214 of 214 sidecars within 38 ms`.\n\n\
        Examples:\n  $ countersign role revoke reader AGENT\n  $ countersign role revoke reader AGENT --wait\n  \
        $ countersign role revoke reader AGENT --wait=2m -o json\n\n\
        Next: countersign role list, or countersign sidecar list"
    )]
    Revoke(AssignmentArgs),
}

#[derive(Args)]
pub struct CreateArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// The name, unique at the service; it cannot be changed
    #[arg(value_parser = no_secret)]
    name: String,
    /// A permission that the role grants; can be repeated
    #[arg(long = "permission", value_name = "PERMISSION")]
    permissions: Vec<String>,
    /// The description
    #[arg(long, default_value = "")]
    description: String,
}

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

#[derive(Args)]
pub struct DeleteArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    wait: WaitArgs,
    /// The name or id of the role
    role: String,
}

#[derive(Args)]
pub struct AssignmentArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    #[command(flatten)]
    wait: WaitArgs,
    /// The name or id of the role
    role: String,
    #[command(flatten)]
    agent: RequiredAgentArg,
}

#[derive(Args)]
pub struct AssignArgs {
    #[command(flatten)]
    assignment: AssignmentArgs,
    /// When the assignment ends: 2030-01-31T12:00:00Z, 2030-01-31, or after 30m, 8h or 7d [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_future_time)]
    expires: Option<Timestamp>,
}

pub async fn run(context: &Context, command: RoleCommand) -> Result<CommandOutput, CliError> {
    match command {
        RoleCommand::Create(args) => create(context, args).await,
        RoleCommand::Holders(args) => list_holders(context, args).await,
        RoleCommand::List(manager) => list(context, manager).await,
        RoleCommand::Delete(args) => delete(context, args).await,
        RoleCommand::Assign(args) => assign(context, args).await,
        RoleCommand::Revoke(args) => revoke(context, args).await,
    }
}

async fn create(context: &Context, args: CreateArgs) -> Result<CommandOutput, CliError> {
    let CreateArgs { manager, name, permissions, description } = args;
    let service = manager.service_api(context).await?;
    let new = RoleChange {
        name: Some(&name),
        description: Some(&description),
        permissions: Some(&permissions),
        managed_by: None,
    };
    let role = service.create_role(new).await?;
    let note = format!("Next: countersign role assign {} AGENT", quoted(&name));
    Ok(CommandOutput::new(role.role_id.clone(), json!(role)).with_note(note))
}

async fn list(context: &Context, manager: ManagerArgs) -> Result<CommandOutput, CliError> {
    let service = manager.service_api(context).await?;
    let roles = service.list_roles().await?;
    let rows = Rows::of(&roles)
        .fixed("ID", |role| role.role_id.clone())
        .text("NAME", |role| role.name.clone())
        .text("PERMISSIONS", |role| role.permissions.join(","))
        .text("DESCRIPTION", |role| role.description.clone());
    Ok(CommandOutput::list(rows))
}

async fn list_holders(context: &Context, args: HoldersArgs) -> Result<CommandOutput, CliError> {
    let HoldersArgs { manager, role, status } = args;
    let service = manager.service_api(context).await?;
    let role = match role {
        Some(role) => Some(find_role(&service, &role).await?.id),
        None => None,
    };
    let filter = AgentFilter { role, status: status.map(value_name) };
    let agents = all_pages(async |start| service.list_agents(&filter, &start).await).await?;
    let names = |roles: &[AssignedRole]| roles.iter().map(|role| role.name.as_str()).collect::<Vec<_>>().join(",");
    let rows = Rows::of(&agents)
        .fixed("ID", |holder| holder.agent.agent_id.clone())
        .text("NAME", |holder| holder.agent.name.clone())
        .fixed("STATUS", |holder| holder.agent.status.clone())
        .fixed("TRUST", |holder| holder.agent.trust_score.to_string())
        .text("ROLES", |holder| names(&holder.roles))
        .time("LAST SEEN", |holder| or_dash(holder.agent.last_seen_at.as_ref()));
    Ok(CommandOutput::list(rows))
}

async fn delete(context: &Context, args: DeleteArgs) -> Result<CommandOutput, CliError> {
    let DeleteArgs { manager, confirm, wait, role } = args;
    let service = manager.service_api(context).await?;
    let RoleRef { id, name } = find_role(&service, &role).await?;
    let shown = id_with_name(&id, name.as_deref());
    let consequence = "All agents lose the role at once. This cannot be undone.";
    confirm.confirm(&context.messages, &format!("Delete the role {shown} of {}", service.id), consequence)?;
    let revision = service.delete_role(&id).await?;
    let receipt = Receipt::of(context, wait.of(&service), revision).await;
    let text = receipt.details([("role", shown), ("deleted", "true".into())], API_REFUSES_AT_ONCE);
    let json = json!({ "deleted": true, "roleId": id, "serviceId": service.id });
    Ok(receipt.output(text, json, Some("Next: countersign role list")))
}

/// Proxies and servers that accept 8 KiB of headers refuse a larger token. The rest is for the other headers of a request.
const LARGE_TOKEN_BYTES: u64 = 7 * 1024;

async fn assign(context: &Context, args: AssignArgs) -> Result<CommandOutput, CliError> {
    let AssignArgs { assignment, expires } = args;
    let Assignment { service, agent, role, wait } = assignment.resolve(context).await?;
    let expires = expires.map(|time| time.to_string());
    let RoleAssignment { token_bytes, revision } = service.assign_role(&agent, &role.id, expires.as_deref()).await?;
    if token_bytes > LARGE_TOKEN_BYTES {
        context.messages.warning(&format!(
            "a token of the agent can have about {token_bytes} bytes now: many proxies and servers refuse headers of more than 8 KiB, \
             so give the agent fewer roles or permissions, or raise their limits (docs/use/verify-and-headers.md#sizes-of-headers)"
        ));
    }
    let receipt = Receipt::of(context, wait, revision).await;
    let name = agent_name(context, &service, &agent).await;
    let rows = [
        ("role", id_with_name(&role.id, role.name.as_deref())),
        ("agent", id_with_name(&agent, name.as_deref())),
        ("expires", expires.clone().unwrap_or_else(|| "never".into())),
    ];
    let text = receipt.details(rows, API_ALLOWS_AT_ONCE);
    let json = json!({
        "assigned": true, "roleId": role.id, "agentId": agent, "serviceId": service.id, "expiresAt": expires,
        "tokenBytes": token_bytes,
    });
    Ok(receipt.output(text, json, Some("Next: as the agent, countersign agent call URL")))
}

async fn revoke(context: &Context, args: AssignmentArgs) -> Result<CommandOutput, CliError> {
    let Assignment { service, agent, role, wait } = args.resolve(context).await?;
    let Revocation { revoked, revision } = service.revoke_role(&agent, &role.id).await?;
    let receipt = Receipt::of(context, wait, revision).await;
    let result = if revoked { "true" } else { "the agent did not hold it" };
    let name = agent_name(context, &service, &agent).await;
    let rows = [
        ("role", id_with_name(&role.id, role.name.as_deref())),
        ("agent", id_with_name(&agent, name.as_deref())),
        ("revoked", result.into()),
    ];
    let text = receipt.details(rows, API_REFUSES_AT_ONCE);
    let json = json!({ "revoked": revoked, "roleId": role.id, "agentId": agent, "serviceId": service.id });
    Ok(receipt.output(text, json, Some("Next: countersign role list")))
}

/// What the arguments name: the service, the agent and the role of an assignment, and how long to wait for the sidecars.
struct Assignment {
    service: ServiceApi,
    agent: String,
    role: RoleRef,
    wait: Option<Wait>,
}

impl AssignmentArgs {
    async fn resolve(&self, context: &Context) -> Result<Assignment, CliError> {
        let agent = context.agent(&self.agent)?;
        let service = self.manager.service_api(context).await?;
        let role = find_role(&service, &self.role).await?;
        let wait = self.wait.of(&service);
        Ok(Assignment { service, agent, role, wait })
    }
}

/// The name of an agent, for text output only; `None` if it cannot be read, for example because the credential may not.
async fn agent_name(context: &Context, service: &ServiceApi, agent: &str) -> Option<String> {
    if context.format() == OutputFormat::Json {
        return None;
    }
    let record = service.read_agent(agent).await.ok()?;
    record["name"].as_str().map(str::to_owned)
}
