//! Agents, as services and their owners see them.

use crate::{
    domain::{
        agent::{Agent, status_text},
        page::Page,
    },
    http::{
        error::{ApiError, Instant, Problem},
        openapi::{
            errors::{Body, Errors, FullKeyOfService, Manager, NoAgent, NoRole, NoService, Owner, Paging, Revoked},
            schema::{self, AgentInPath, ServiceInPath},
        },
        request::{
            body::{Fields, FromField, shape::body},
            caller::Presented,
            ids::{InPath, id},
            paging::{self, Paged},
        },
        state::AppState,
    },
    operations::{self, AgentFilter, AgentWithRoles},
};
use axum::{
    Json,
    extract::{RawQuery, State},
};
use countersign_identity::{AgentId, AgentStatus, RoleId, RoleName, RoleTable, TrustScore};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

body! {
    /// What becomes of an agent.
    StatusChange {
        required "status" status: AgentStatus,
    }
}

/// An agent.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentRecord {
    #[schema(value_type = schema::AgentId)]
    id: AgentId,
    #[schema(value_type = schema::DisplayName)]
    name: String,
    #[schema(value_type = schema::PublicKeyHash)]
    public_key_hash: String,
    #[schema(value_type = schema::AgentStatus)]
    status: &'static str,
    #[schema(value_type = schema::TrustScore)]
    trust_score: TrustScore,
    /// What its owner attached when it was registered.
    #[schema(value_type = schema::Metadata)]
    metadata: Map<String, Value>,
    /// When it was registered.
    #[schema(value_type = schema::Instant)]
    created_at: Instant,
    /// When its status was changed the last time, or when it was registered.
    #[schema(value_type = schema::Instant)]
    updated_at: Instant,
    /// When it logged in or continued a login the last time; null if it never did.
    #[schema(value_type = Option<schema::Instant>, required)]
    last_seen_at: Option<Instant>,
}

/// A page of a listing.
type HolderPage = Paged<HolderRecord>;

/// An agent, and the roles that it holds at the service that is asked about.
#[derive(Serialize, ToSchema)]
pub struct HolderRecord {
    #[serde(flatten)]
    agent: AgentRecord,
    /// Live roles only.
    roles: Vec<HeldRole>,
}

/// A role that an agent holds.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct HeldRole {
    #[schema(value_type = schema::RoleId)]
    id: RoleId,
    #[schema(value_type = schema::RoleName)]
    name: RoleName,
    /// The second at which it ends; null if it does not.
    #[schema(value_type = Option<schema::Instant>, required)]
    expires_at: Option<Instant>,
}

/// Read an agent
///
/// Any agent, whether it holds a role at the service or not.
#[utoipa::path(
    get, path = "/services/{service}/agents/{agent}", operation_id = "readAgent", tag = "Agents",
    params(ServiceInPath, AgentInPath), security(("serviceKey" = [])),
    responses(
        (status = 200, description = "The agent", body = AgentRecord),
        Errors<(FullKeyOfService, NoService, NoAgent)>,
    )
)]
pub async fn read(
    State(state): State<AppState>,
    presented: Presented,
    InPath((service, agent)): InPath<(String, String)>,
) -> Result<Json<AgentRecord>, ApiError> {
    presented.full_key_of(&state, id(&service)?).await?;
    let agent = operations::read_agent(&state.context, id(&agent)?).await?;
    Ok(Json(present(agent)))
}

/// List the agents of a service
///
/// Agents that hold a live role at the service, with these roles.
#[utoipa::path(
    get, path = "/services/{service}/agents", operation_id = "listAgents", tag = "Agents",
    params(
        ServiceInPath, Page,
        ("role" = Option<schema::RoleId>, Query, description = "Only agents that hold this role"),
        ("status" = Option<schema::AgentStatus>, Query, description = "Only agents of this status"),
    ),
    security(("serviceKey" = []), ("humanToken" = [])),
    responses(
        (status = 200, description = "A page of agents", body = HolderPage),
        Errors<(Manager, Paging, NoService, NoRole)>,
    )
)]
pub async fn list(
    State(state): State<AppState>,
    presented: Presented,
    InPath(service): InPath<String>,
    page: Result<Page, ApiError>,
    RawQuery(query): RawQuery,
) -> Result<Json<HolderPage>, ApiError> {
    let service = id(&service)?;
    presented.manager_of(&state, service).await?;
    let (page, filter) = (page?, filter(query.as_deref().unwrap_or_default())?);
    let (holders, roles) = operations::list_agents(&state.context, service, filter, page).await?;
    Ok(Json(paging::present(page, holders, |holder| present_holder(holder, &roles))))
}

/// `role` and `status` of the query; both are optional.
fn filter(query: &str) -> Result<AgentFilter, ApiError> {
    let parameter = |name| paging::parameter(query, name).map_err(|problem| ApiError::invalid(&[problem]));
    let role = parameter("role")?.map(|role| id(&role)).transpose()?;
    let status = parameter("status")?.map(|status| AgentStatus::from_field(Value::from(status.as_ref())));
    let wrong = |message| ApiError::invalid(&[Problem { field: "status".to_owned(), message }]);
    Ok(AgentFilter { role, status: status.transpose().map_err(wrong)? })
}

/// Suspend, reactivate or revoke an agent
///
/// Ends all its logins and tokens, at every service and within moments; they stay dead after a reactivation.
#[utoipa::path(
    put, path = "/agents/{agent}/status", operation_id = "setAgentStatus", tag = "Agents",
    params(AgentInPath), request_body = StatusChange, security(("humanToken" = [])),
    responses(
        (status = 200, description = "The agent as it is now", body = AgentRecord),
        Errors<(Owner, Body, NoAgent, Revoked)>,
    )
)]
pub async fn set_status(
    State(state): State<AppState>,
    presented: Presented,
    InPath(agent): InPath<String>,
    body: Fields,
) -> Result<Json<AgentRecord>, ApiError> {
    let human = presented.human(&state).await?;
    let agent = id(&agent)?;
    let StatusChange { status } = body.read()?;
    let agent =
        operations::set_agent_status(&state.context, &presented.author_of(Some(&human)), &human, agent, status).await?;
    Ok(Json(present(agent)))
}

fn present(agent: Agent) -> AgentRecord {
    AgentRecord {
        id: agent.id,
        name: agent.registration.name.to_string(),
        public_key_hash: agent.registration.key_hash,
        status: status_text(agent.status),
        trust_score: agent.trust,
        metadata: agent.registration.metadata.as_map().clone(),
        created_at: Instant(agent.created_at),
        updated_at: Instant(agent.updated_at),
        last_seen_at: agent.last_seen_at.map(Instant),
    }
}

fn present_holder(holder: AgentWithRoles, roles: &RoleTable) -> HolderRecord {
    let held = holder.roles.iter().filter_map(|grant| {
        let role = roles.get(grant.role)?;
        Some(HeldRole { id: role.id, name: role.name.clone(), expires_at: grant.until.map(Instant) })
    });
    HolderRecord { roles: held.collect(), agent: present(holder.agent) }
}
