//! `/services/{service}/sidecars` and `/services/{service}/enforcement`: the sidecars of a service, and at which of them a change is
//! in force.

use crate::{
    domain::sidecar::{Enforcement, Sidecar, SidecarInstance},
    http::api::prelude::*,
};
use countersign_identity::{ApiKeyId, Revision};
use std::time::Duration;
use utoipa::IntoParams;

type SidecarPage = PageResponse<SidecarRecord>;

/// A sidecar that may decide. A sidecar with several API keys of the service is listed once for each of them.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({
    "instance": "9f86d081884c7d659a2feaa0c55ad015",
    "keyId": "key_01m7xt1btvex9v14wnb3rx44nb",
    "address": "192.0.2.7:41822",
    "release": "0.1.0",
    "status": "connected",
    "revision": 1_804_950_866_535_897_i64,
    "connectedAt": "2027-03-14T15:09:26.535897Z",
    "lastConfirmedAt": "2027-03-14T15:41:08.119204Z",
}))]
pub struct SidecarRecord {
    /// Identifies the process of the sidecar, and the one of its API keys with which it is connected: 32 hex digits.
    #[schema(pattern = "^[0-9a-f]{32}$", example = "9f86d081884c7d659a2feaa0c55ad015")]
    instance: String,
    #[schema(value_type = schema::ApiKeyIdSchema)]
    key_id: ApiKeyId,
    /// The address from which the sidecar is connected, as the control plane sees it.
    #[schema(example = "192.0.2.7:41822")]
    address: String,
    /// The release of the sidecar. Absent if the sidecar does not state it.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false, example = "0.1.0")]
    release: String,
    status: SidecarStatus,
    /// The sidecar decides with data that contains all changes up to this revision. Absent if the sidecar has not reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::RevisionSchema>, required = false, nullable = false)]
    revision: Option<Revision>,
    /// When the sidecar connected.
    connected_at: Rfc3339,
    /// When the data of the sidecar was last confirmed, as far as is known, or a little later. Later confirmations by another control plane,
    /// or by one that was killed, may be missing. Absent if no confirmation is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, nullable = false)]
    last_confirmed_at: Option<Rfc3339>,
    /// The latest time at which the sidecar refuses all requests by itself. Absent in the list of sidecars if the sidecar is connected.
    /// The time is up to five minutes later than necessary, because the clocks of control planes can differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, nullable = false)]
    refuses_by: Option<Rfc3339>,
}

/// Whether a sidecar is connected. A `silent` sidecar has lost its stream, or its control plane was killed, and it may still decide. A
/// sidecar that does not answer is `connected` until its connection times out, within a minute.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum SidecarStatus {
    Connected,
    Silent,
}

/// At which sidecars of a service a revision is in force.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({
    "revision": 1_804_950_866_535_897_i64,
    "enforced": true,
    "sidecars": 214,
    "enforcedSidecars": 214,
    "expiredSidecars": 0,
    "milliseconds": 38,
    "unconfirmed": [],
}))]
pub struct EnforcementRecord {
    #[schema(value_type = schema::RevisionSchema)]
    revision: Revision,
    /// Whether the revision is in force at all sidecars: no sidecar of the service will allow a request with older data.
    #[schema(example = true)]
    enforced: bool,
    /// Number of sidecars that may decide.
    #[schema(example = 214)]
    sidecars: usize,
    /// How many of these decide with data that contains all changes up to the revision.
    #[schema(example = 214)]
    enforced_sidecars: usize,
    /// Sidecars that had not confirmed the revision, and have refused all requests by themselves since.
    #[schema(example = 0)]
    expired_sidecars: usize,
    /// Milliseconds from the change until the last sidecar decided with it or refused all requests by itself, rounded up. An upper bound if
    /// a sidecar has received later changes since. Absent if the revision is not in force at all sidecars, if there are none, or if
    /// the time is not known any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, nullable = false, example = 38)]
    milliseconds: Option<u64>,
    /// Sidecars that have not confirmed the revision, at most 100 of them.
    unconfirmed: Vec<SidecarRecord>,
    /// The latest time at which all sidecars that have not confirmed the revision refuse all requests by themselves. Absent if there
    /// are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, nullable = false)]
    refuses_by: Option<Rfc3339>,
}

/// The query parameters of [`enforcement`], for the description of the API.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes the parameters; `QueryParams` reads them")]
pub struct EnforcementParameters {
    /// The `revision` of the answer to a change. Without it, the receipt is about the newest revision.
    #[param(minimum = 1, example = 1_804_950_866_535_897_i64)]
    revision: Option<i64>,
    /// The request waits until the revision is in force at all sidecars, at most for this number of seconds. Values above 3 are
    /// treated as 3.
    #[param(value_type = Option<schema::WaitSecondsSchema>, inline)]
    wait: Option<i64>,
}

/// List the sidecars of a service
///
/// The list contains the sidecars that may decide: those that are connected, and those that have lost contact and would not refuse
/// all requests yet.
#[utoipa::path(
    get, path = "/services/{service}/sidecars", operation_id = "listSidecars", tag = "Services",
    params(ServicePathParam, PageParameters), security(("serviceKey" = []), ("humanToken" = [])),
    responses(
        (status = 200, description = "A page of sidecars", body = SidecarPage),
        Errors<(ManagerAuth, InvalidPaging, ServiceNotFound)>,
    )
)]
pub async fn list(
    call: Call,
    PathParams(service): PathParams<String>,
    page: Result<Page<SidecarInstance>, ApiError>,
) -> Result<Json<SidecarPage>, ApiError> {
    let (service, _) = call.require_manager_of(&service).await?;
    let page = page?;
    let sidecars = operations::list_sidecars(call.context(), service, page).await?;
    let record = |mut sidecar: Sidecar| {
        sidecar.refuses_by = sidecar.refuses_by.filter(|_| !sidecar.is_connected);
        sidecar_record(sidecar)
    };
    Ok(Json(page_response(&page, sidecars, record)))
}

/// Read at which sidecars a change is in force
///
/// Every answer to a change that sidecars must learn contains its `revision`. The revision is in force at a sidecar when every
/// later request is decided with data that contains the change. The receipt covers the sidecars of this service, at all control planes.
#[utoipa::path(
    get, path = "/services/{service}/enforcement", operation_id = "readEnforcement", tag = "Services",
    params(ServicePathParam, EnforcementParameters), security(("serviceKey" = []), ("humanToken" = [])),
    responses(
        (status = 200, description = "At which sidecars the revision is in force", body = EnforcementRecord),
        Errors<(ManagerAuth, InvalidRevision, ServiceNotFound, UnknownRevision)>,
    )
)]
pub async fn enforcement(
    call: Call,
    PathParams(service): PathParams<String>,
    query: QueryParams,
) -> Result<Json<EnforcementRecord>, ApiError> {
    let (service, _) = call.require_manager_of(&service).await?;
    let revision = query.integer("revision", 1)?.map(Revision::new);
    let wait = Duration::from_secs(query.integer("wait", 0)?.unwrap_or(0).unsigned_abs());
    let receipt = operations::read_enforcement(call.context(), service, revision, wait).await?;
    Ok(Json(enforcement_record(receipt)))
}

fn enforcement_record(receipt: Enforcement) -> EnforcementRecord {
    let (enforced, elapsed) = (receipt.is_complete(), receipt.elapsed());
    EnforcementRecord {
        revision: receipt.revision,
        enforced,
        sidecars: receipt.sidecars,
        enforced_sidecars: receipt.enforced,
        expired_sidecars: receipt.expired,
        milliseconds: elapsed.map(|elapsed| u64::try_from(elapsed.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)),
        unconfirmed: receipt.unconfirmed.into_iter().map(sidecar_record).collect(),
        refuses_by: receipt.refuses_by.map(Rfc3339),
    }
}

fn sidecar_record(sidecar: Sidecar) -> SidecarRecord {
    let Sidecar {
        identity,
        connected_at,
        is_connected,
        in_force,
        last_known_confirmation,
        refuses_by,
        applied_at: _,
        max_staleness: _,
    } = sidecar;
    SidecarRecord {
        instance: identity.instance.to_string(),
        key_id: identity.api_key,
        address: identity.address,
        release: identity.release,
        status: if is_connected { SidecarStatus::Connected } else { SidecarStatus::Silent },
        revision: Some(in_force).filter(|in_force| *in_force > Revision::default()),
        connected_at: Rfc3339(connected_at),
        last_confirmed_at: last_known_confirmation.map(Rfc3339),
        refuses_by: refuses_by.map(Rfc3339),
    }
}
