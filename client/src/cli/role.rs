//! `countersign role`: what a service lets its agents do.

use super::{
    Failure, Said,
    context::{Context, Manager},
    said::{table, typed},
    when::ahead,
};
use clap::{Args, Subcommand};
use countersign_client::Api;
use countersign_identity::RoleId;
use jiff::Timestamp;
use serde_json::json;

#[derive(Subcommand)]
pub enum Role {
    /// Define a role and print its id
    #[command(after_help = "It counts at its service only: take the one that the agent is going to call. That is \
        COUNTERSIGN_SERVICE_ID, with its key in COUNTERSIGN_SERVICE_KEY or its owner's token in \
        COUNTERSIGN_HUMAN_TOKEN; `countersign service list` shows a person's services, `countersign service create` makes \
        one, `countersign key create` makes its key.\n\nNext: countersign role assign NAME --agent AGENT")]
    Create(Create),
    /// List the roles of the service
    #[command(after_help = "Next: countersign role assign NAME --agent AGENT")]
    List(Manager),
    /// Delete a role, whoever holds it
    #[command(after_help = "All who hold it lose it at once, also by tokens that state it. A role that is made later \
        under the same name is another one, which nobody holds yet.\n\nNext: countersign role list")]
    Delete(Delete),
    /// Give a role to an agent, for good or until an instant
    #[command(after_help = "Given again, the end is replaced. It counts at every proxy as soon as the change arrives \
        there.\n\nNext, as the agent: countersign agent call URL")]
    Assign(Assign),
    /// Take a role away; tokens that state it lose it at once
    #[command(after_help = "Next: countersign role list")]
    Revoke(Held),
}

#[derive(Args)]
pub struct Create {
    #[command(flatten)]
    manager: Manager,
    /// Its name, unique at the service and never changed
    name: String,
    /// What its holders may do; may stand several times
    #[arg(long = "permission", value_name = "PERMISSION")]
    permissions: Vec<String>,
    /// What it is for
    #[arg(long, default_value = "")]
    description: String,
}

#[derive(Args)]
pub struct Delete {
    #[command(flatten)]
    manager: Manager,
    /// The role, by name or id
    role: String,
}

#[derive(Args)]
pub struct Held {
    #[command(flatten)]
    manager: Manager,
    /// The role, by name or id
    role: String,
    /// The agent; left out: the profile's
    #[arg(long)]
    agent: Option<String>,
}

#[derive(Args)]
pub struct Assign {
    #[command(flatten)]
    held: Held,
    /// When it ends: 2030-01-31T12:00:00Z, or from now: 30m, 8h, 7d
    #[arg(long, value_name = "WHEN", value_parser = ahead)]
    expires: Option<Timestamp>,
}

/// Does what was asked.
pub async fn run(context: &Context, command: Role) -> Result<Said, Failure> {
    match command {
        Role::Create(asked) => create(context, asked).await,
        Role::List(manager) => list(context, manager).await,
        Role::Delete(asked) => delete(context, asked).await,
        Role::Assign(asked) => assign(context, asked).await,
        Role::Revoke(asked) => revoke(context, asked).await,
    }
}

async fn create(context: &Context, asked: Create) -> Result<Said, Failure> {
    let Create { manager, name, permissions, description } = asked;
    let (api, service) = (context.api(&manager.server)?, context.service(manager.service.clone())?);
    let made = api.create_role(manager.credential()?, &service, &name, &description, &permissions).await?;
    let note = format!("Next: countersign role assign {} --agent AGENT", typed(&name));
    Ok(Said::new(made.role_id.clone(), json!(made)).noting(note))
}

async fn list(context: &Context, manager: Manager) -> Result<Said, Failure> {
    let (api, service) = (context.api(&manager.server)?, context.service(manager.service.clone())?);
    let roles = api.list_roles(manager.credential()?, &service).await?;
    let head = ["ID", "NAME", "PERMISSIONS", "DESCRIPTION"].map(str::to_owned);
    let rows = roles
        .iter()
        .map(|role| [role.role_id.clone(), role.name.clone(), role.permissions.join(","), role.description.clone()]);
    let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
    Ok(Said::new(table(&rows), json!(roles)))
}

async fn delete(context: &Context, asked: Delete) -> Result<Said, Failure> {
    let Delete { manager, role } = asked;
    let (api, service) = (context.api(&manager.server)?, context.service(manager.service.clone())?);
    let role = role_id(&api, &manager, &service, &role).await?;
    api.delete_role(manager.credential()?, &service, &role).await?;
    let text = table(&[["role".into(), role.clone()], ["deleted".into(), "true".into()]]);
    Ok(Said::new(text, json!({ "deleted": true, "roleId": role, "serviceId": service }))
        .noting("Next: countersign role list"))
}

async fn assign(context: &Context, asked: Assign) -> Result<Said, Failure> {
    let Assign { held, expires } = asked;
    let (api, service, agent, role) = resolve(context, &held).await?;
    let expires = expires.map(|at| at.to_string());
    api.assign_role(held.manager.credential()?, &service, &agent, &role, expires.as_deref()).await?;
    let end = expires.clone().unwrap_or_else(|| "never".into());
    let rows = [["role".into(), role.clone()], ["agent".into(), agent.clone()], ["expires".into(), end]];
    let value = json!({
        "assigned": true, "roleId": role, "agentId": agent, "serviceId": service, "expiresAt": expires,
    });
    Ok(Said::new(table(&rows), value).noting("Next, as the agent: countersign agent call URL"))
}

async fn revoke(context: &Context, held: Held) -> Result<Said, Failure> {
    let (api, service, agent, role) = resolve(context, &held).await?;
    let revoked = api.revoke_role(held.manager.credential()?, &service, &agent, &role).await?;
    let now = if revoked { "true" } else { "the agent did not hold it" };
    let rows = [["role".into(), role.clone()], ["agent".into(), agent.clone()], ["revoked".into(), now.into()]];
    Ok(Said::new(table(&rows), json!({ "revoked": revoked, "roleId": role, "agentId": agent, "serviceId": service }))
        .noting("Next: countersign role list"))
}

/// The control plane, the service, the agent and the role's id.
async fn resolve(context: &Context, held: &Held) -> Result<(Api, String, String, String), Failure> {
    let (api, service) = (context.api(&held.manager.server)?, context.service(held.manager.service.clone())?);
    let agent = context.agent(held.agent.clone())?;
    let role = role_id(&api, &held.manager, &service, &held.role).await?;
    Ok((api, service, agent, role))
}

/// The id of a role that was given by name or id.
async fn role_id(api: &Api, manager: &Manager, service: &str, given: &str) -> Result<String, Failure> {
    if given.parse::<RoleId>().is_ok() {
        return Ok(given.to_owned());
    }
    let roles = api.list_roles(manager.credential()?, service).await?;
    let found = roles.into_iter().find(|role| role.name == given).ok_or_else(|| {
        let next = "`countersign role list` shows what there is; `countersign role create` makes one";
        Failure::denied(format!("the service has no role `{given}`\nNext: {next}"), "")
    })?;
    Ok(found.role_id)
}
