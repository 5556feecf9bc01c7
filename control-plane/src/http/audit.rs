//! `/audit`: who did what.

use super::{
    body::FromField,
    caller::Presented,
    error::{ApiError, Problem, timestamp},
    ids::id,
    paging,
    router::AppState,
};
use crate::{
    domain::{
        audit::{Act, Chain, chain::Link},
        page::Page,
    },
    operations::{self, LinkFilter},
};
use axum::{
    Json,
    extract::{RawQuery, State},
};
use serde_json::{Value, json};

/// `GET /audit`
pub async fn list(
    State(state): State<AppState>,
    presented: Presented,
    page: Result<Page, ApiError>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, ApiError> {
    let human = presented.human(&state).await?;
    let (page, filter) = (page?, filter(query.as_deref().unwrap_or_default())?);
    let listed = operations::list_acts(&state.context, &human, &filter, page).await?;
    Ok(Json(paging::present(page, &listed, present)))
}

/// `serviceId`, `act`, `agentId`, `since` and `until` of the query; all are optional.
fn filter(query: &str) -> Result<LinkFilter, ApiError> {
    let parameter = |name| paging::parameter(query, name).map_err(|problem| ApiError::invalid(&[problem]));
    let service = parameter("serviceId")?.map(|service| id(&service)).transpose()?;
    let agent = parameter("agentId")?.map(|agent| id(&agent)).transpose()?;
    let instant = |name| field(name, parameter(name)?.as_deref());
    let (since, until) = (instant("since")?, instant("until")?);
    Ok(LinkFilter {
        chain: service.map(Chain::Service),
        act: field("act", parameter("act")?.as_deref())?,
        agent,
        since,
        until,
    })
}

fn field<T: FromField>(name: &str, value: Option<&str>) -> Result<Option<T>, ApiError> {
    let wrong = |message| ApiError::invalid(&[Problem { field: name.to_owned(), message }]);
    value.map(|value| T::from_field(Value::from(value))).transpose().map_err(wrong)
}

impl FromField for Act {
    fn from_field(value: Value) -> Result<Self, String> {
        let names = || Self::ALL.iter().map(|act| act.as_str()).collect::<Vec<_>>().join("`, `");
        value.as_str().and_then(Self::parse).ok_or_else(|| format!("must be one of `{}`", names()))
    }
}

/// A link, for programs: here and in an export.
pub fn present(link: &Link) -> Value {
    let object = link.object_id.as_ref().map(|id| json!({ "kind": link.object_kind, "id": id }));
    json!({
        "serviceId": Some(&link.chain).filter(|chain| **chain != Chain::Deployment.to_string()),
        "sequence": link.sequence,
        "at": timestamp(link.at),
        "act": link.act,
        "actor": { "kind": link.actor_kind, "issuer": link.actor_issuer, "id": link.actor_id },
        "address": link.address,
        "requestId": link.request_id,
        "agentId": link.agent,
        "object": object,
        "details": serde_json::from_str::<Value>(&link.details).unwrap_or_else(|_| json!(link.details)),
        "previousHash": link.previous,
        "hash": link.hash,
    })
}
