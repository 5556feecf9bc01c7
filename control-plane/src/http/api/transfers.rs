//! `/services/{service}/transfer` and `/transfers`: services that their owners offer to other people.

use super::services::{ServiceRecord, UserRecord, service_record, user_record};
use crate::{
    domain::{
        agent::Owner,
        service::ServiceTransfer,
        text::{IssuerText, SubjectText},
    },
    http::{api::prelude::*, request::caller::human_access_error},
};
use countersign_identity::ServiceId;

body! {
    /// The human user who shall become the owner of a service.
    TransferRequest {
        required "subject" subject: SubjectText,
        /// An issuer that the control plane accepts. Default: the issuer of the calling user.
        optional "issuer" issuer: IssuerText,
    }
}

type TransferPage = PageResponse<TransferRecord>;

/// An offer to a human user to become the owner of a service.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TransferRecord {
    #[schema(value_type = schema::ServiceIdSchema)]
    service_id: ServiceId,
    name: DisplayName,
    /// The owner of the service, who offers it.
    offered_by: UserRecord,
    /// The human user who may accept the offer.
    new_owner: UserRecord,
    /// Time of the offer.
    offered_at: Rfc3339,
    /// Time from which the offer can no longer be accepted.
    expires_at: Rfc3339,
}

/// Result of a withdrawal.
#[derive(Serialize, ToSchema)]
pub struct TransferWithdrawn {
    /// Always true.
    #[schema(example = true)]
    withdrawn: bool,
    /// Whether the caller declined the offer as the user to whom the service was offered.
    #[schema(example = false)]
    declined: bool,
}

/// List the services offered to you
///
/// The services whose owners have offered them to the calling human user, newest service first.
#[utoipa::path(
    get, path = "/transfers", operation_id = "listTransfers", tag = "Services",
    params(PageParameters), security(("humanToken" = [])),
    responses((status = 200, description = "A page of offers", body = TransferPage), Errors<(HumanAuth, InvalidPaging)>)
)]
pub async fn list(call: Call, page: Result<Page<ServiceId>, ApiError>) -> Result<Json<TransferPage>, ApiError> {
    let (human, page) = (call.require_human().await?, page?);
    let offers = operations::list_service_offers(call.context(), &human, page).await?;
    Ok(Json(page_response(&page, offers, transfer_record)))
}

/// Offer a service to another user
///
/// The other user has seven days to accept, and replaces the owner then. An offer replaces an earlier one. Until the offer is
/// accepted, nothing changes.
#[utoipa::path(
    put, path = "/services/{service}/transfer", operation_id = "offerService", tag = "Services",
    params(ServicePathParam), request_body = TransferRequest, security(("humanToken" = [])),
    responses(
        (status = 200, description = "The offer", body = TransferRecord),
        Errors<(OwnerAuth, InvalidBody, UnknownIssuer, ServiceNotFound)>,
    )
)]
pub async fn offer(
    call: Call,
    PathParams(service): PathParams<String>,
    body: BodyFields,
) -> Result<Json<TransferRecord>, ApiError> {
    let (human, service) = call.require_owner_of(&service).await?;
    let TransferRequest { subject, issuer } = body.read()?;
    let issuer = match issuer {
        Some(issuer) => accepted_issuer(&call.state, issuer.as_str())?,
        None => human.identity.issuer.clone(),
    };
    let new_owner = Owner { issuer, subject: subject.as_str().to_owned() };
    let initiator = call.initiator_for_human(Some(&human));
    let result = operations::offer_service(call.context(), &initiator, service.id, &new_owner).await;
    Ok(Json(transfer_record(result.map_err(|error| owner_access_error(error, &human))?)))
}

/// Read the offer of a service
///
/// The user to whom the service is offered may read the offer, too.
#[utoipa::path(
    get, path = "/services/{service}/transfer", operation_id = "readTransfer", tag = "Services",
    params(ServicePathParam), security(("humanToken" = [])),
    responses(
        (status = 200, description = "The offer", body = TransferRecord),
        Errors<(TransferPartyAuth, ServiceNotFound, TransferNotFound)>,
    )
)]
pub async fn read(call: Call, PathParams(service): PathParams<String>) -> Result<Json<TransferRecord>, ApiError> {
    let human = call.require_human().await?;
    let result = operations::read_service_offer(call.context(), &human, parse_id(&service)?).await;
    Ok(Json(transfer_record(
        result.map_err(|error| human_access_error(error, &human, ApiError::transfer_party_required))?,
    )))
}

/// Withdraw or decline the offer of a service
///
/// The owner of the service withdraws the offer; the user to whom the service is offered declines it.
#[utoipa::path(
    delete, path = "/services/{service}/transfer", operation_id = "withdrawTransfer", tag = "Services",
    params(ServicePathParam), security(("humanToken" = [])),
    responses(
        (status = 200, description = "The offer is withdrawn", body = TransferWithdrawn),
        Errors<(TransferPartyAuth, ServiceNotFound, TransferNotFound)>,
    )
)]
pub async fn withdraw(
    call: Call,
    PathParams(service): PathParams<String>,
) -> Result<Json<TransferWithdrawn>, ApiError> {
    let human = call.require_human().await?;
    let service = parse_id(&service)?;
    let initiator = call.initiator_for_human(Some(&human));
    let result = operations::withdraw_service_offer(call.context(), &initiator, &human, service).await;
    let declined = result.map_err(|error| human_access_error(error, &human, ApiError::transfer_party_required))?;
    Ok(Json(TransferWithdrawn { withdrawn: true, declined }))
}

/// Accept an offered service
///
/// The user to whom the service is offered becomes its owner. API keys, webhooks and roles continue to work: the new owner
/// should replace the API keys and the secrets of webhooks, which the earlier owner knows. The feedback of the service counts
/// as feedback of the new owner.
#[utoipa::path(
    post, path = "/services/{service}/transfer/accept", operation_id = "acceptService", tag = "Services",
    params(ServicePathParam), security(("humanToken" = [])),
    responses(
        (status = 200, description = "The service", body = ServiceRecord),
        Errors<(ReceiverAuth, ServiceNotFound, TransferNotFound, ServiceLimit)>,
    )
)]
pub async fn accept(call: Call, PathParams(service): PathParams<String>) -> Result<Json<ServiceRecord>, ApiError> {
    let human = call.require_human().await?;
    let service = parse_id(&service)?;
    let initiator = call.initiator_for_human(Some(&human));
    let result = operations::accept_service(call.context(), &initiator, &human, service).await;
    Ok(Json(service_record(result.map_err(|error| human_access_error(error, &human, ApiError::receiver_required))?)))
}

/// Refuses an issuer whose tokens the control plane does not accept: nobody could accept the offer.
fn accepted_issuer(state: &AppState, issuer: &str) -> Result<String, ApiError> {
    let accepted = state.humans.issuers();
    if accepted.contains(&issuer) {
        return Ok(issuer.to_owned());
    }
    let message = format!("must be an issuer that this control plane accepts: {}", accepted.join(", "));
    Err(ApiError::invalid_field("issuer", message))
}

fn transfer_record(transfer: ServiceTransfer) -> TransferRecord {
    let ServiceTransfer { service, name, offered_by, new_owner, offered_at, expires_at } = transfer;
    TransferRecord {
        service_id: service,
        name,
        offered_by: user_record(offered_by),
        new_owner: user_record(new_owner),
        offered_at: Rfc3339(offered_at),
        expires_at: Rfc3339(expires_at),
    }
}
