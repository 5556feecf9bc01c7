//! `/services/{service}/assignments`: several changes of role assignments in one request.

use crate::{
    domain::audit::Initiator,
    http::{api::prelude::*, error::ErrorObject, request::body::typed::ObjectList},
    operations::{AssignmentRequest, Context},
};
use countersign_identity::{AgentId, Revision, RoleId, ServiceId, Timestamp};

/// Maximum number of changes in a request.
const MAX_CHANGES: usize = 32;

/// How many changes count as one request for the rate limit. Each change writes an audit entry and an event, so not all of them
/// together may count as one.
const CHANGES_PER_COUNTED_REQUEST: usize = 8;

body! {
    /// A role that an agent gets or loses.
    AssignmentChange {
        required "agentId" agent: UnparsedId<AgentId>,
        required "roleId" role: UnparsedId<RoleId>,
        /// True revokes the role. Default: false, which assigns it.
        optional "revoked" revoked: bool,
        /// Expiry time of the assignment. If `expiresAt` is absent, the assignment does not expire. Assigning the role again
        /// replaces the expiry time.
        optional "expiresAt" expires_at: Timestamp,
        /// The label of the declaration files that contain the assignment. If it is absent, an existing assignment keeps its label.
        optional "managedBy" managed_by: ManagedBy,
    }
    /// Changes of role assignments.
    AssignmentChanges {
        required "changes" changes: ObjectList<AssignmentChange, MAX_CHANGES>,
    }
}

/// The results of the changes, in their order.
#[derive(Serialize, ToSchema)]
pub struct AssignmentResults {
    #[schema(min_items = 1, max_items = 32)]
    results: Vec<AssignmentResult>,
}

/// The result of a change.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({ "status": 200, "changed": true, "revision": 1_804_950_866_535_897_u64, "error": null }))]
pub struct AssignmentResult {
    /// The HTTP status that a request with only this change has.
    #[schema(minimum = 200, maximum = 599, example = 200)]
    status: u16,
    /// False if the agent did not have the role that was to be revoked; null after an error.
    #[schema(required, example = true)]
    changed: Option<bool>,
    /// The revision of the change; null after an error.
    #[schema(value_type = Option<schema::RevisionSchema>, required)]
    revision: Option<Revision>,
    /// Why the change was not made; null if it was.
    #[schema(required)]
    error: Option<ErrorObject>,
}

/// Assign and revoke several roles
///
/// Makes 1 to 32 changes in their order, as if each were a request. Each succeeds or fails without effect on the others. For the rate
/// limit, 8 changes count as one request, and so does the rest.
#[utoipa::path(
    post, path = "/services/{service}/assignments", operation_id = "changeAssignments", tag = "Roles",
    params(ServicePathParam), request_body = AssignmentChanges, security(("serviceKey" = []), ("humanToken" = [])),
    responses(
        (status = 200, description = "The result of each change", body = AssignmentResults),
        Errors<(ManagerAuth, InvalidBody, ServiceNotFound)>,
    )
)]
pub async fn change(
    call: Call,
    PathParams(service): PathParams<String>,
    body: BodyFields,
) -> Result<Json<AssignmentResults>, ApiError> {
    let (service, initiator) = call.require_manager_of(&service).await?;
    let AssignmentChanges { changes: ObjectList(changes) } = body.read()?;
    let changes: Vec<_> =
        changes.into_iter().enumerate().map(|(position, change)| parse(position, change)).collect::<Result<_, _>>()?;
    // The authentication has already counted this request as one, so we only count the rest.
    call.count_more(changes.len().div_ceil(CHANGES_PER_COUNTED_REQUEST) - 1).await?;
    let mut results = Vec::with_capacity(changes.len());
    for change in changes {
        results.push(match make(call.context(), &initiator, service, change).await {
            Ok(Changed { value, revision }) => {
                AssignmentResult { status: 200, changed: Some(value), revision: Some(revision), error: None }
            }
            Err(error) => AssignmentResult {
                status: error.status().as_u16(),
                changed: None,
                revision: None,
                error: Some(error.body().error),
            },
        });
    }
    Ok(Json(AssignmentResults { results }))
}

/// A change whose ids are parsed.
struct ParsedChange {
    agent: AgentId,
    role: RoleId,
    is_revocation: bool,
    expires_at: Option<Timestamp>,
    managed_by: Option<ManagedBy>,
}

/// Parses the ids of the change at a position. In a list, an id that does not parse is reported as an invalid field, because a 404
/// would not say which change it concerns.
fn parse(position: usize, change: AssignmentChange) -> Result<ParsedChange, ApiError> {
    let AssignmentChange { agent, role, revoked, expires_at, managed_by } = change;
    let invalid = |problem: &str| ApiError::invalid_field("changes", format!("item {position}: {problem}"));
    let agent = agent.parse().map_err(|_| invalid("`agentId` must be the id of an agent"))?;
    let role = role.parse().map_err(|_| invalid("`roleId` must be the id of a role"))?;
    Ok(ParsedChange { agent, role, is_revocation: revoked.unwrap_or(false), expires_at, managed_by })
}

/// Makes one change. An error concerns this change only.
async fn make(
    context: &Context,
    initiator: &Initiator,
    service: ServiceId,
    change: ParsedChange,
) -> Result<Changed<bool>, ApiError> {
    let ParsedChange { agent, role, is_revocation, expires_at, managed_by } = change;
    if !is_revocation {
        let request = AssignmentRequest { service, agent, role, expires_at, managed_by };
        let assigned = operations::assign_role(context, initiator, request).await?;
        return Ok(Changed { value: true, revision: assigned.revision });
    }
    for (field, is_present) in [("expiresAt", expires_at.is_some()), ("managedBy", managed_by.is_some())] {
        if is_present {
            return Err(ApiError::invalid_field(field, "must be absent if `revoked` is true"));
        }
    }
    Ok(operations::revoke_role(context, initiator, service, agent, role).await?)
}
