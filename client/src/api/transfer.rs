//! Requests of human users that transfer and delete services.

use super::{HumanApi, HumanUser, Page, PageStart, Result, Service, ServiceApi, management::Changed, response::id};
use countersign_identity::ServiceId;
use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// An offer to a human user to become the owner of a service.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceTransfer {
    /// The id of the service.
    #[serde(deserialize_with = "id::<_, ServiceId>")]
    pub service_id: String,
    /// The display name of the service.
    pub name: String,
    /// The owner of the service, who offers it.
    pub offered_by: HumanUser,
    /// The human user who may accept the offer.
    pub new_owner: HumanUser,
    /// When the service was offered (RFC 3339).
    pub offered_at: String,
    /// When the offer ends (RFC 3339).
    pub expires_at: String,
}

#[derive(Deserialize)]
struct Withdrawal {
    declined: bool,
}

impl ServiceApi {
    /// Deletes a service. The human user must be the owner of the service or an administrator. Returns the revision of the change.
    pub async fn delete(&self) -> Result<u64> {
        self.call(Method::DELETE, &[], None).await.map(|Changed { revision }| revision)
    }

    /// Offers a service to another human user. Without `issuer`, the other user has the same issuer as this one.
    pub async fn offer(&self, subject: &str, issuer: Option<&str>) -> Result<ServiceTransfer> {
        let body = json!({ "subject": subject, "issuer": issuer });
        self.call(Method::PUT, &["transfer"], Some(&body)).await
    }

    /// Reads the offer of a service, as its owner, as the user to whom it is offered, or as an administrator.
    pub async fn read_transfer(&self) -> Result<ServiceTransfer> {
        self.call(Method::GET, &["transfer"], None).await
    }

    /// Ends the offer of a service: its owner withdraws it, or the user who could accept it declines it, which returns `true`.
    pub async fn withdraw_transfer(&self) -> Result<bool> {
        let Withdrawal { declined } = self.call(Method::DELETE, &["transfer"], None).await?;
        Ok(declined)
    }

    /// Accepts a service that is offered to the human user, who becomes its owner.
    pub async fn accept(&self) -> Result<Service> {
        self.call(Method::POST, &["transfer", "accept"], None).await
    }
}

impl HumanApi {
    /// Lists a page of the services that are offered to the human user.
    pub async fn list_service_transfers(&self, start: &PageStart) -> Result<Page<ServiceTransfer>> {
        self.page(&["transfers"], start).await
    }
}
