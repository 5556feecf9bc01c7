//! `/services`: services.

use crate::{
    domain::{
        agent::Owner,
        resource_uri::ResourceUris,
        service::Service,
        text::{IssuerText, SubjectText},
    },
    http::api::prelude::*,
    operations::{NewService, ServiceChange},
};
use countersign_identity::{Revision, ServiceId};

body! {
    /// A service to create.
    ServiceRequest {
        required "name" name: DisplayName,
        /// Whether the service accepts tokens that are bound to no service. Default: true. Another service that receives an
        /// unbound token could replay the token, so set the value to false where roles grant access to valuable resources.
        optional "acceptsUnboundTokens" accepts_unbound: bool,
        /// The label of the declaration files that contain the service. An owner has at most one service with this name and label.
        optional "managedBy" managed_by: ManagedBy,
    }
    /// Changes to a service. Absent fields keep their value.
    ServiceChanges {
        optional "name" name: DisplayName,
        /// Whether the service accepts tokens that are bound to no service.
        optional "acceptsUnboundTokens" accepts_unbound: bool,
        /// The URLs under which clients reach the service, in place of all others: at most 8. Clients can name the service by them
        /// (RFC 8707), and find this server from them (RFC 9728).
        optional "resourceUris" resource_uris: ResourceUris,
        /// The new `managedBy` value.
        optional "managedBy" managed_by: ManagedBy,
    }
}

type ServicePage = PageResponse<ServiceRecord>;

/// A service.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceRecord {
    #[schema(value_type = schema::ServiceIdSchema)]
    service_id: ServiceId,
    name: DisplayName,
    /// The human user who owns the service.
    owner: UserRecord,
    /// Whether the service accepts tokens that are bound to no service.
    #[schema(example = true)]
    accepts_unbound_tokens: bool,
    /// The URLs under which clients reach the service.
    #[schema(value_type = schema::ResourceUrisSchema)]
    resource_uris: Vec<String>,
    /// The label of the declaration files that contain the service; null if no file does.
    #[schema(required)]
    managed_by: Option<ManagedBy>,
    /// Time of creation.
    created_at: Rfc3339,
}

/// A changed service.
#[derive(Serialize, ToSchema)]
pub struct ChangedService {
    #[serde(flatten)]
    service: ServiceRecord,
    #[schema(value_type = schema::RevisionSchema)]
    revision: Revision,
}

/// A human user.
#[derive(Serialize, ToSchema)]
pub struct UserRecord {
    #[schema(value_type = IssuerText)]
    issuer: String,
    #[schema(value_type = SubjectText)]
    subject: String,
}

/// Result of the deletion of a service.
#[derive(Serialize, ToSchema)]
pub struct ServiceDeleted {
    /// Always true.
    #[schema(example = true)]
    deleted: bool,
    #[schema(value_type = schema::RevisionSchema)]
    revision: Revision,
}

/// Create a service
///
/// The calling human user becomes the owner of the service. Only administrators may create services if the setting
/// `services.created_by` is `admin`.
#[utoipa::path(
    post, path = "/services", operation_id = "createService", tag = "Services",
    request_body = ServiceRequest, security(("humanToken" = [])),
    responses((status = 201, description = "The service", body = ServiceRecord), Errors<(ServiceCreatorAuth, InvalidBody, ServiceLimit, AlreadyManaged)>)
)]
pub async fn create(call: Call, body: BodyFields) -> Result<(StatusCode, Json<ServiceRecord>), ApiError> {
    let human = call.require_service_creator().await?;
    let ServiceRequest { name, accepts_unbound, managed_by } = body.read()?;
    let request = NewService { name, accepts_unbound: accepts_unbound.unwrap_or(true), managed_by };
    let initiator = call.initiator_for_human(Some(&human));
    let service = operations::create_service(call.context(), &initiator, human.identity, request).await?;
    Ok((StatusCode::CREATED, Json(service_record(service))))
}

/// List services
///
/// Lists the services that the caller owns. Administrators get all services.
#[utoipa::path(
    get, path = "/services", operation_id = "listServices", tag = "Services",
    params(PageParameters), security(("humanToken" = [])),
    responses((status = 200, description = "A page of services", body = ServicePage), Errors<(HumanAuth, InvalidPaging)>)
)]
pub async fn list(call: Call, page: Result<Page<ServiceId>, ApiError>) -> Result<Json<ServicePage>, ApiError> {
    let (human, page) = (call.require_human().await?, page?);
    let list_page = operations::list_services(call.context(), &human, page).await?;
    Ok(Json(page_response(&page, list_page, service_record)))
}

/// Read a service
#[utoipa::path(
    get, path = "/services/{service}", operation_id = "readService", tag = "Services",
    params(ServicePathParam), security(("humanToken" = [])),
    responses((status = 200, description = "The service", body = ServiceRecord), Errors<(OwnerAuth, ServiceNotFound)>)
)]
pub async fn read(call: Call, PathParams(service): PathParams<String>) -> Result<Json<ServiceRecord>, ApiError> {
    let (_, service) = call.require_owner_of(&service).await?;
    Ok(Json(service_record(service)))
}

/// Change a service
///
/// Connected sidecars receive the change within a second.
#[utoipa::path(
    patch, path = "/services/{service}", operation_id = "changeService", tag = "Services",
    params(ServicePathParam), request_body = ServiceChanges, security(("humanToken" = [])),
    responses(
        (status = 200, description = "The changed service", body = ChangedService),
        Errors<(OwnerAuth, InvalidBody, ServiceNotFound, AlreadyManaged)>,
    )
)]
pub async fn change(
    call: Call,
    PathParams(service): PathParams<String>,
    body: BodyFields,
) -> Result<Json<ChangedService>, ApiError> {
    let (human, service) = call.require_owner_of(&service).await?;
    let ServiceChanges { name, accepts_unbound, resource_uris, managed_by } = body.read()?;
    let initiator = call.initiator_for_human(Some(&human));
    let change = ServiceChange { name, accepts_unbound, resource_uris, managed_by };
    let changed = operations::change_service(call.context(), &initiator, service.id, &change).await;
    let Changed { value: service, revision } = changed.map_err(|error| owner_access_error(error, &human))?;
    Ok(Json(ChangedService { service: service_record(service), revision }))
}

/// Delete a service
///
/// Takes effect at once: the API keys, webhooks, roles and tokens of the service are refused everywhere. The feedback of the
/// service remains in the trust scores of agents. Administrators can still read the audit log of the service. A deletion
/// cannot be undone.
#[utoipa::path(
    delete, path = "/services/{service}", operation_id = "deleteService", tag = "Services",
    params(ServicePathParam), security(("humanToken" = [])),
    responses((status = 200, description = "The service is deleted", body = ServiceDeleted), Errors<(OwnerAuth, ServiceNotFound)>)
)]
pub async fn remove(call: Call, PathParams(service): PathParams<String>) -> Result<Json<ServiceDeleted>, ApiError> {
    let (human, service) = call.require_owner_of(&service).await?;
    let initiator = call.initiator_for_human(Some(&human));
    let deleted = operations::delete_service(call.context(), &initiator, service.id).await;
    let Changed { value: (), revision } = deleted.map_err(|error| owner_access_error(error, &human))?;
    Ok(Json(ServiceDeleted { deleted: true, revision }))
}

pub(super) fn service_record(service: Service) -> ServiceRecord {
    let Service { id, owner, name, accepts_unbound, resource_uris, managed_by, created_at, deleted_at: _ } = service;
    ServiceRecord {
        service_id: id,
        name,
        owner: user_record(owner),
        accepts_unbound_tokens: accepts_unbound,
        resource_uris: resource_uris.iter().map(|uri| uri.as_str().to_owned()).collect(),
        managed_by,
        created_at: Rfc3339(created_at),
    }
}

pub(super) fn user_record(user: Owner) -> UserRecord {
    let Owner { issuer, subject } = user;
    UserRecord { issuer, subject }
}
