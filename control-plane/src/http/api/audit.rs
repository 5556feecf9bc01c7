//! `GET /audit`: reads the audit log.

use crate::{
    domain::{
        audit::{AuditAction, chain::AuditEntry},
        service::{DEPLOYMENT_CHAIN, ServiceOrDeployment},
    },
    http::{api::prelude::*, request::body::FromField},
    operations::{AuditFilter, AuditPosition},
};
use serde_json::{Value, json};

type AuditEntryPage = PageResponse<AuditEntryRecord>;

/// An entry of the audit log.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuditEntryRecord {
    /// The service whose chain contains the entry; null for the chain of the deployment.
    #[schema(value_type = Option<schema::ServiceIdSchema>, required)]
    service_id: Option<String>,
    /// Position in the chain, from 1.
    #[schema(minimum = 1, example = 7)]
    sequence: i64,
    /// Time of the action.
    at: Rfc3339,
    #[schema(value_type = schema::AuditActionSchema)]
    action: String,
    actor: ActorRecord,
    /// IP address of the client; null if the control plane acted by itself.
    #[schema(required, example = "192.0.2.7")]
    address: Option<String>,
    /// `X-Request-Id` of the request; null if the control plane acted by itself.
    #[schema(required, example = "01979a3c5d1e7b429f601c2d3e4f5a6b")]
    request_id: Option<String>,
    /// The agent that the action affects; null if it affects none.
    #[schema(value_type = Option<schema::AgentIdSchema>, required)]
    agent_id: Option<String>,
    /// The object that the action affects; null if it affects none.
    #[schema(required)]
    object: Option<ObjectRecord>,
    /// Additional fields; their names depend on the action.
    #[schema(value_type = schema::AuditDetailsSchema)]
    details: Value,
    /// Hash of the previous entry in the chain; empty in the first.
    #[schema(
        pattern = "^([0-9a-f]{64})?$",
        example = "60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752"
    )]
    previous_hash: String,
    /// SHA-256 of all other fields of the audit entry.
    #[schema(pattern = "^[0-9a-f]{64}$", example = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")]
    hash: String,
}

/// The actor of an audited action.
#[derive(Serialize, ToSchema)]
struct ActorRecord {
    /// `service_key`, `human`, `public` (an unauthenticated registration) or `system` (the control plane itself).
    #[schema(example = "human")]
    kind: String,
    /// Token issuer of a human user; null if the actor is not a human user.
    #[schema(required, example = "https://login.example.org")]
    issuer: Option<String>,
    /// Id of the API key, or subject of the human user.
    #[schema(required, example = "alice")]
    id: Option<String>,
}

/// The object of an audited action.
#[derive(Serialize, ToSchema)]
struct ObjectRecord {
    /// Kind of the object that the action affects.
    #[schema(required, example = "role")]
    kind: Option<String>,
    /// Id of the object.
    #[schema(example = "role_01jyd3rq8yfd19yr0w5mz4ypkb")]
    id: String,
}

/// List audit entries
///
/// Newest first. Administrators can read all entries. The owner of a service can read the entries of that service, and must
/// pass `serviceId`.
#[utoipa::path(
    get, path = "/audit", operation_id = "listAuditEntries", tag = "Services",
    params(
        PageParameters,
        ("serviceId" = Option<schema::ServiceIdSchema>, Query, description = "Only entries of this service"),
        ("agentId" = Option<schema::AgentIdSchema>, Query, description = "Only entries about this agent"),
        ("action" = Option<schema::AuditActionSchema>, Query, description = "Only this action"),
        ("since" = Option<Rfc3339>, Query, description = "Earliest time, inclusive"),
        ("until" = Option<Rfc3339>, Query, description = "Latest time, exclusive"),
    ),
    security(("humanToken" = [])),
    responses(
        (status = 200, description = "A page of audit entries", body = AuditEntryPage),
        Errors<(OwnerAuth, InvalidPaging, ServiceNotFound, AgentNotFound)>,
    )
)]
pub async fn list(
    call: Call,
    page: Result<Page<AuditPosition>, ApiError>,
    query: QueryParams,
) -> Result<Json<AuditEntryPage>, ApiError> {
    let human = call.require_human().await?;
    let (page, filter) = (page?, parse_filter(&query)?);
    let result = operations::list_audit_entries(call.context(), &human, &filter, &page).await;
    let list_page = result.map_err(|error| owner_access_error(error, &human))?;
    Ok(Json(page_response(&page, list_page, |entry| audit_entry_record(&entry))))
}

/// Reads `serviceId`, `action`, `agentId`, `since` and `until` from the query; all are optional.
fn parse_filter(query: &QueryParams) -> Result<AuditFilter, ApiError> {
    Ok(AuditFilter {
        chain: query.id("serviceId")?.map(ServiceOrDeployment::Service),
        agent: query.id("agentId")?,
        action: query.field("action")?,
        since: query.field("since")?,
        until: query.field("until")?,
    })
}

impl FromField for AuditAction {
    type Schema = schema::AuditActionSchema;

    fn from_field(value: Value) -> Result<Self, String> {
        let names = || Self::ALL.iter().map(|action| action.as_str()).collect::<Vec<_>>().join("`, `");
        value.as_str().and_then(Self::parse).ok_or_else(|| format!("must be one of `{}`", names()))
    }
}

/// Converts an entry to its JSON form, for the API and for `audit export`.
pub fn audit_entry_record(entry: &AuditEntry) -> AuditEntryRecord {
    let object = entry.object_id.clone().map(|id| ObjectRecord { kind: entry.object_kind.clone(), id });
    AuditEntryRecord {
        service_id: Some(entry.chain.clone()).filter(|chain| chain != DEPLOYMENT_CHAIN),
        sequence: entry.sequence,
        at: Rfc3339(entry.at),
        action: entry.action.clone(),
        actor: ActorRecord {
            kind: entry.actor_kind.clone(),
            issuer: entry.actor_issuer.clone(),
            id: entry.actor_id.clone(),
        },
        address: entry.address.clone(),
        request_id: entry.request_id.clone(),
        agent_id: entry.agent.clone(),
        object,
        details: serde_json::from_str::<Value>(&entry.details).unwrap_or_else(|_| json!(entry.details)),
        previous_hash: entry.previous_hash.clone(),
        hash: entry.hash.clone(),
    }
}
