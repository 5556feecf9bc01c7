//! `/audit`: who did what.

use crate::{
    domain::{
        audit::{Act, Chain, chain::Link},
        page::Page,
    },
    http::{
        error::{ApiError, Instant},
        openapi::{
            errors::{Errors, NoAgent, NoService, Owner, Paging},
            schema,
        },
        request::{
            body::FromField,
            caller::Presented,
            ids::id,
            paging::{self, Paged, field},
        },
        state::AppState,
    },
    operations::{self, LinkFilter},
};
use axum::{
    Json,
    extract::{RawQuery, State},
};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

/// A page of a listing.
type LinkPage = Paged<LinkRecord>;

/// An act, and its place in the chain of its service or of the deployment.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LinkRecord {
    /// The service in whose chain it stands; null for the chain of the deployment.
    #[schema(value_type = Option<schema::ServiceId>, required)]
    service_id: Option<String>,
    /// Its place in the chain, from 1.
    #[schema(minimum = 1, example = 7)]
    sequence: i64,
    /// When it was done.
    #[schema(value_type = schema::Instant)]
    at: Instant,
    #[schema(value_type = schema::Act)]
    act: String,
    actor: ActorRecord,
    /// From which address; null if the control plane did it.
    #[schema(required, example = "192.0.2.7")]
    address: Option<String>,
    /// By which request: its `X-Request-Id`; null if the control plane did it.
    #[schema(required, example = "01979a3c5d1e7b429f601c2d3e4f5a6b")]
    request_id: Option<String>,
    /// To which agent; null if to none.
    #[schema(value_type = Option<schema::AgentId>, required)]
    agent_id: Option<String>,
    /// With what; null if with nothing.
    #[schema(required)]
    object: Option<ObjectRecord>,
    /// More about it, by names that depend on the act.
    #[schema(value_type = schema::ActDetails)]
    details: Value,
    /// The hash of the link before; empty in the first.
    #[schema(pattern = "^([0-9a-f]{64})?$", example = "")]
    previous_hash: String,
    /// SHA-256 of all above.
    #[schema(pattern = "^[0-9a-f]{64}$", example = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")]
    hash: String,
}

/// Who acted.
#[derive(Serialize, ToSchema)]
struct ActorRecord {
    /// `service_key`, `human`, `public` (a registration by nobody known) or `system` (the control plane itself).
    #[schema(example = "human")]
    kind: String,
    /// Of a person: who issued their token.
    #[schema(required, example = "https://login.example.org")]
    issuer: Option<String>,
    /// The id of the key, or the subject of the person.
    #[schema(required, example = "alice")]
    id: Option<String>,
}

/// With what an act was done.
#[derive(Serialize, ToSchema)]
struct ObjectRecord {
    /// What it is.
    #[schema(required, example = "role")]
    kind: Option<String>,
    /// Its id.
    #[schema(example = "role_01jyd3rq8yfd19yr0w5mz4ypkb")]
    id: String,
}

/// Read who did what
///
/// The latest first. Administrators read all; the owner of a service, what was done there: `serviceId` says where.
#[utoipa::path(
    get, path = "/audit", operation_id = "listActs", tag = "Services",
    params(
        Page,
        ("serviceId" = Option<schema::ServiceId>, Query, description = "Only at this service"),
        ("agentId" = Option<schema::AgentId>, Query, description = "Only to this agent"),
        ("act" = Option<schema::Act>, Query, description = "Only this"),
        ("since" = Option<schema::Instant>, Query, description = "Not before"),
        ("until" = Option<schema::Instant>, Query, description = "Before"),
    ),
    security(("humanToken" = [])),
    responses(
        (status = 200, description = "A page of acts", body = LinkPage),
        Errors<(Owner, Paging, NoService, NoAgent)>,
    )
)]
pub async fn list(
    State(state): State<AppState>,
    presented: Presented,
    page: Result<Page, ApiError>,
    RawQuery(query): RawQuery,
) -> Result<Json<LinkPage>, ApiError> {
    let human = presented.human(&state).await?;
    let (page, filter) = (page?, filter(query.as_deref().unwrap_or_default())?);
    let listed = operations::list_acts(&state.context, &human, &filter, page).await?;
    Ok(Json(paging::present(page, listed, |link| present(&link))))
}

/// `serviceId`, `act`, `agentId`, `since` and `until` of the query; all are optional.
fn filter(query: &str) -> Result<LinkFilter, ApiError> {
    let parameter = |name| paging::parameter(query, name).map_err(|problem| ApiError::invalid(&[problem]));
    let service = parameter("serviceId")?.map(|service| id(&service)).transpose()?;
    let agent = parameter("agentId")?.map(|agent| id(&agent)).transpose()?;
    let (since, until) = (field(query, "since")?, field(query, "until")?);
    Ok(LinkFilter { chain: service.map(Chain::Service), act: field(query, "act")?, agent, since, until })
}

impl FromField for Act {
    type Word = schema::Act;

    fn from_field(value: Value) -> Result<Self, String> {
        let names = || Self::ALL.iter().map(|act| act.as_str()).collect::<Vec<_>>().join("`, `");
        value.as_str().and_then(Self::parse).ok_or_else(|| format!("must be one of `{}`", names()))
    }
}

/// A link, for programs: here and in an export.
pub fn present(link: &Link) -> LinkRecord {
    let object = link.object_id.clone().map(|id| ObjectRecord { kind: link.object_kind.clone(), id });
    LinkRecord {
        service_id: Some(link.chain.clone()).filter(|chain| *chain != Chain::Deployment.to_string()),
        sequence: link.sequence,
        at: Instant(link.at),
        act: link.act.clone(),
        actor: ActorRecord {
            kind: link.actor_kind.clone(),
            issuer: link.actor_issuer.clone(),
            id: link.actor_id.clone(),
        },
        address: link.address.clone(),
        request_id: link.request_id.clone(),
        agent_id: link.agent.clone(),
        object,
        details: serde_json::from_str::<Value>(&link.details).unwrap_or_else(|_| json!(link.details)),
        previous_hash: link.previous.clone(),
        hash: link.hash.clone(),
    }
}
