//! `/agents`: how owners list and delete their agents, and decide which services may assign roles to them.

use super::agents::{AgentRecord, agent_record};
use crate::{
    domain::{
        agent::{Agent, ServiceOfAgent},
        text::EmailAddress,
    },
    http::api::prelude::*,
};
use countersign_identity::{AgentId, Revision, RoleName, ServiceId, Timestamp};

body! {
    // The owner of an agent leaves or readmits a service by changing this value, the admission of the service.
    /// Whether a service may assign roles to an agent.
    ServiceAdmission {
        /// False leaves the service: all roles of the agent there end. True allows the service to assign roles again.
        required "mayAssignRoles" may_assign_roles: bool,
    }
}

type AgentPage = PageResponse<OwnAgentRecord>;
type AgentServicePage = PageResponse<AgentServiceRecord>;

/// An agent of the calling human user.
#[derive(Serialize, ToSchema)]
pub struct OwnAgentRecord {
    #[serde(flatten)]
    agent: AgentRecord,
    /// The e-mail address in the registration, which only the owner of the agent reads.
    email: EmailAddress,
}

/// A service at which an agent holds a role, or which its owner has left.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentServiceRecord {
    #[schema(value_type = schema::ServiceIdSchema)]
    service_id: ServiceId,
    // Null hides the name. Otherwise, anyone with an agent could read the name of any service by letting the agent leave it.
    /// Name of the service; null if the agent held no role there when its owner left the service.
    #[schema(required)]
    name: Option<DisplayName>,
    /// The roles that the agent holds at the service.
    roles: Vec<HeldRole>,
    /// Whether the service may assign roles to the agent.
    #[schema(example = true)]
    may_assign_roles: bool,
    /// When the owner of the agent left the service; null if the service may assign roles.
    #[schema(required)]
    left_at: Option<Rfc3339>,
}

/// A role that an agent holds.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeldRole {
    #[schema(value_type = schema::RoleNameSchema)]
    name: RoleName,
    /// Expiry time of the assignment, in whole seconds; null if it does not expire.
    #[schema(required)]
    expires_at: Option<Rfc3339>,
}

/// Result of a change of the admission.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionResponse {
    /// Whether the service may assign roles to the agent.
    #[schema(example = false)]
    may_assign_roles: bool,
    /// Number of role assignments that this request ended.
    #[schema(minimum = 0, example = 2)]
    revoked_roles: usize,
    #[schema(value_type = schema::RevisionSchema)]
    revision: Revision,
}

/// List your agents
///
/// The agents that the calling human user has registered, newest first.
#[utoipa::path(
    get, path = "/agents", operation_id = "listOwnAgents", tag = "Agents",
    params(PageParameters), security(("humanToken" = [])),
    responses((status = 200, description = "A page of agents", body = AgentPage), Errors<(HumanAuth, InvalidPaging)>)
)]
pub async fn list(call: Call, page: Result<Page<AgentId>, ApiError>) -> Result<Json<AgentPage>, ApiError> {
    let human = call.require_human().await?;
    let page = page?;
    let agents = operations::list_own_agents(call.context(), &human, page).await?;
    Ok(Json(page_response(&page, agents, own_agent_record)))
}

/// Result of the deletion of an agent.
#[derive(Serialize, ToSchema)]
pub struct AgentDeleted {
    /// Always true.
    #[schema(example = true)]
    deleted: bool,
    #[schema(value_type = schema::RevisionSchema)]
    revision: Revision,
}

/// Delete an agent
///
/// Revokes the agent at all services within a second, and erases its owner, e-mail address, name, metadata and public key. Its
/// id remains in the audit log, and for about 30 days in feedback. A deletion cannot be undone; the same key can be
/// registered again as another agent.
#[utoipa::path(
    delete, path = "/agents/{agent}", operation_id = "deleteAgent", tag = "Agents",
    params(AgentPathParam), security(("humanToken" = [])),
    responses((status = 200, description = "The agent is deleted", body = AgentDeleted), Errors<(OwnerAuth, AgentNotFound)>)
)]
pub async fn remove(call: Call, PathParams(agent): PathParams<String>) -> Result<Json<AgentDeleted>, ApiError> {
    let human = call.require_human().await?;
    let agent = parse_id(&agent)?;
    let initiator = call.initiator_for_human(Some(&human));
    let result = operations::delete_agent(call.context(), &initiator, &human, agent).await;
    let Changed { value: (), revision } = result.map_err(|error| owner_access_error(error, &human))?;
    Ok(Json(AgentDeleted { deleted: true, revision }))
}

/// List the services of an agent
///
/// The services at which the agent holds a role, and the services that the owner of the agent has left, newest first.
#[utoipa::path(
    get, path = "/agents/{agent}/services", operation_id = "listServicesOfAgent", tag = "Agents",
    params(AgentPathParam, PageParameters), security(("humanToken" = [])),
    responses(
        (status = 200, description = "A page of services", body = AgentServicePage),
        Errors<(OwnerAuth, InvalidPaging, AgentNotFound)>,
    )
)]
pub async fn list_services(
    call: Call,
    PathParams(agent): PathParams<String>,
    page: Result<Page<ServiceId>, ApiError>,
) -> Result<Json<AgentServicePage>, ApiError> {
    let human = call.require_human().await?;
    let (agent, page) = (parse_id(&agent)?, page?);
    let result = operations::list_services_of_agent(call.context(), &human, agent, page).await;
    let services = result.map_err(|error| owner_access_error(error, &human))?;
    Ok(Json(page_response(&page, services, service_record)))
}

/// Leave a service, or allow it again
///
/// `mayAssignRoles: false` ends all roles of the agent at the service within a second, and refuses new assignments.
#[utoipa::path(
    put, path = "/agents/{agent}/services/{service}", operation_id = "setServiceAdmission", tag = "Agents",
    params(AgentPathParam, ServicePathParam), request_body = ServiceAdmission, security(("humanToken" = [])),
    responses(
        (status = 200, description = "The admission is set", body = AdmissionResponse),
        Errors<(OwnerAuth, InvalidBody, AgentNotFound, ServiceNotFound)>,
    )
)]
pub async fn leave_or_readmit(
    call: Call,
    PathParams((agent, service)): PathParams<(String, String)>,
    body: BodyFields,
) -> Result<Json<AdmissionResponse>, ApiError> {
    let human = call.require_human().await?;
    let (agent, service) = (parse_id(&agent)?, parse_id(&service)?);
    let ServiceAdmission { may_assign_roles } = body.read()?;
    let initiator = call.initiator_for_human(Some(&human));
    let result = if may_assign_roles {
        let readmitted = operations::readmit_service(call.context(), &initiator, &human, agent, service).await;
        readmitted.map(|Changed { value: (), revision }| Changed { value: 0, revision })
    } else {
        operations::leave_service(call.context(), &initiator, &human, agent, service).await
    };
    let Changed { value: revoked_roles, revision } = result.map_err(|error| owner_access_error(error, &human))?;
    Ok(Json(AdmissionResponse { may_assign_roles, revoked_roles, revision }))
}

fn own_agent_record(agent: Agent) -> OwnAgentRecord {
    OwnAgentRecord { email: agent.registration.email.clone(), agent: agent_record(agent) }
}

fn service_record(service: ServiceOfAgent) -> AgentServiceRecord {
    let ServiceOfAgent { service, name, left_at, roles } = service;
    let held = |(name, until): (RoleName, Option<Timestamp>)| HeldRole { name, expires_at: until.map(Rfc3339) };
    AgentServiceRecord {
        service_id: service,
        name,
        roles: roles.into_iter().map(held).collect(),
        may_assign_roles: left_at.is_none(),
        left_at: left_at.map(Rfc3339),
    }
}
