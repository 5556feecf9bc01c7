//! The routes `/services/{service}/agents`, to read agents, and `/agents/{agent}/status`, to change the status of an agent.

use crate::{
    domain::agent::{Agent, status_text},
    http::{api::prelude::*, request::caller::access_error},
    operations::{AgentFilter, AgentWithRoles, ManagedGrant, require_manager},
};
use countersign_identity::{AgentId, AgentStatus, Revision, RoleId, RoleName, RoleTable, TrustScore};

body! {
    /// The new status of an agent.
    AgentStatusUpdate {
        required "status" status: AgentStatus,
    }
}

/// An agent.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentRecord {
    #[schema(value_type = schema::AgentIdSchema)]
    id: AgentId,
    name: DisplayName,
    #[schema(value_type = schema::PublicKeyHashSchema)]
    public_key_hash: String,
    #[schema(value_type = schema::AgentStatusSchema)]
    status: &'static str,
    #[schema(value_type = schema::TrustScoreSchema)]
    trust_score: TrustScore,
    /// Free-form data from the registration.
    metadata: Metadata,
    /// Time of registration.
    created_at: Rfc3339,
    /// Time of the last change of the status or the trust score, or of the registration.
    updated_at: Rfc3339,
    /// Time of the last login or refresh; null if the agent never logged in.
    #[schema(required)]
    last_seen_at: Option<Rfc3339>,
}

type ServiceAgentPage = PageResponse<ServiceAgentRecord>;

/// A changed agent.
#[derive(Serialize, ToSchema)]
pub struct ChangedAgent {
    #[serde(flatten)]
    agent: AgentRecord,
    #[schema(value_type = schema::RevisionSchema)]
    revision: Revision,
}

/// An agent with its roles at the service.
#[derive(Serialize, ToSchema)]
pub struct ServiceAgentRecord {
    #[serde(flatten)]
    agent: AgentRecord,
    /// The roles of the agent that have not expired.
    roles: Vec<AssignedRole>,
}

/// A role assigned to an agent.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct AssignedRole {
    #[schema(value_type = schema::RoleIdSchema)]
    id: RoleId,
    #[schema(value_type = schema::RoleNameSchema)]
    name: RoleName,
    /// Expiry time of the assignment, in whole seconds; null if it does not expire.
    #[schema(required)]
    expires_at: Option<Rfc3339>,
    /// The label of the declaration files that contain the assignment; null if no file does.
    #[schema(required)]
    managed_by: Option<ManagedBy>,
}

/// Read an agent
///
/// A service can read any agent, with or without a role at the service. The owner of an agent can read the agent under any
/// existing service.
#[utoipa::path(
    get, path = "/services/{service}/agents/{agent}", operation_id = "readAgent", tag = "Agents",
    params(ServicePathParam, AgentPathParam), security(("serviceKey" = []), ("humanToken" = [])),
    responses(
        (status = 200, description = "The agent", body = AgentRecord),
        Errors<(ManagerAuth, ServiceNotFound, AgentNotFound)>,
    )
)]
pub async fn read(
    call: Call,
    PathParams((service, agent)): PathParams<(String, String)>,
) -> Result<Json<AgentRecord>, ApiError> {
    let service = parse_id(&service)?;
    let caller = call.authenticate_caller().await?;
    let result = match parse_id(&agent) {
        Ok(agent) => operations::read_agent(call.context(), &caller, service, agent).await,
        // Callers without access to the service get the same error for all agent ids, even for malformed ones.
        Err(not_found) => match require_manager(call.context(), &caller, service).await {
            Ok(()) => return Err(not_found),
            Err(error) => Err(error),
        },
    };
    let agent = result.map_err(|error| access_error(error, &caller, service))?;
    Ok(Json(agent_record(agent)))
}

/// List the agents of a service
///
/// Agents that have at least one role at the service, with these roles. Expired roles do not count.
#[utoipa::path(
    get, path = "/services/{service}/agents", operation_id = "listAgents", tag = "Agents",
    params(
        ServicePathParam, PageParameters,
        ("role" = Option<schema::RoleIdSchema>, Query, description = "Only agents with this role"),
        ("status" = Option<schema::AgentStatusSchema>, Query, description = "Only agents with this status"),
    ),
    security(("serviceKey" = []), ("humanToken" = [])),
    responses(
        (status = 200, description = "A page of agents", body = ServiceAgentPage),
        Errors<(ManagerAuth, InvalidPaging, ServiceNotFound, RoleNotFound)>,
    )
)]
pub async fn list(
    call: Call,
    PathParams(service): PathParams<String>,
    page: Result<Page<AgentId>, ApiError>,
    query: QueryParams,
) -> Result<Json<ServiceAgentPage>, ApiError> {
    let (service, _) = call.require_manager_of(&service).await?;
    let page = page?;
    let filter = AgentFilter { role: query.id("role")?, status: query.field("status")? };
    let (agents, roles) = operations::list_agents(call.context(), service, filter, page).await?;
    Ok(Json(page_response(&page, agents, |agent| service_agent_record(agent, &roles))))
}

/// Suspend, reactivate or revoke an agent
///
/// Suspension and revocation invalidate all sessions and tokens of the agent, at all services within a second. Sessions and
/// tokens that a suspension invalidated stay invalid after a reactivation. Revocation is permanent.
#[utoipa::path(
    put, path = "/agents/{agent}/status", operation_id = "setAgentStatus", tag = "Agents",
    params(AgentPathParam), request_body = AgentStatusUpdate, security(("humanToken" = [])),
    responses(
        (status = 200, description = "The changed agent", body = ChangedAgent),
        Errors<(OwnerAuth, InvalidBody, AgentNotFound, RevokedIsFinal)>,
    )
)]
pub async fn set_status(
    call: Call,
    PathParams(agent): PathParams<String>,
    body: BodyFields,
) -> Result<Json<ChangedAgent>, ApiError> {
    let human = call.require_human().await?;
    let agent = parse_id(&agent)?;
    let AgentStatusUpdate { status } = body.read()?;
    let initiator = call.initiator_for_human(Some(&human));
    let result = operations::set_agent_status(call.context(), &initiator, &human, agent, status).await;
    let Changed { value: agent, revision } = result.map_err(|error| owner_access_error(error, &human))?;
    Ok(Json(ChangedAgent { agent: agent_record(agent), revision }))
}

pub(super) fn agent_record(agent: Agent) -> AgentRecord {
    AgentRecord {
        id: agent.id,
        name: agent.registration.name,
        public_key_hash: agent.registration.key_hash,
        status: status_text(agent.status),
        trust_score: agent.trust,
        metadata: agent.registration.metadata,
        created_at: Rfc3339(agent.created_at),
        updated_at: Rfc3339(agent.updated_at),
        last_seen_at: agent.last_seen_at.map(Rfc3339),
    }
}

fn service_agent_record(agent: AgentWithRoles, roles: &RoleTable) -> ServiceAgentRecord {
    let assigned = agent.roles.iter().filter_map(|ManagedGrant { grant, managed_by }| {
        // The grants and the roles were read in one transaction, so `roles` contains the role of every grant.
        let role = roles.get(grant.role)?;
        Some(AssignedRole {
            id: role.id,
            name: role.name.clone(),
            expires_at: grant.until.map(Rfc3339),
            managed_by: managed_by.clone(),
        })
    });
    ServiceAgentRecord { roles: assigned.collect(), agent: agent_record(agent.agent) }
}
