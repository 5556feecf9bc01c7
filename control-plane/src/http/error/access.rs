//! Errors for callers whose credential is valid, but does not allow the request. They say what is required and what the caller has.

use super::ApiError;
use crate::domain::{agent::Owner, service::KeyScope};
use countersign_identity::{Reason, ServiceId};
use serde_json::{Value, json};

impl ApiError {
    /// The scope of the API key is `sync`, and the request requires `full`.
    pub fn scope_insufficient(scope: KeyScope) -> Self {
        let [required, actual] = [KeyScope::Full, scope].map(|scope| json!({ "scope": scope.as_str() }));
        Self::from(Reason::ScopeInsufficient).with_requirement(required, actual)
    }

    /// The API key belongs to another service.
    pub fn other_service(required: ServiceId, actual: ServiceId) -> Self {
        let [required, actual] = [required, actual].map(|service| json!({ "serviceId": service }));
        Self::from(Reason::NotYours).with_requirement(required, actual)
    }

    /// The human user is neither the owner nor an administrator. The `details` of the error identify the calling user, never
    /// the owner of the resource.
    pub fn owner_required(caller: &Owner) -> Self {
        Self::access_required(Reason::NotYours, &["owner", "administrator"], caller)
    }

    /// The human user is neither the owner of the service, nor an administrator, nor the user to whom it is offered.
    pub fn transfer_party_required(caller: &Owner) -> Self {
        Self::access_required(Reason::NotYours, &["owner", "administrator", "receiver"], caller)
    }

    /// The service is not offered to the human user.
    pub fn receiver_required(caller: &Owner) -> Self {
        let message = "The service is not offered to you".to_owned();
        Self { message, ..Self::access_required(Reason::NotYours, &["receiver"], caller) }
    }

    /// The human user is not an administrator, and only administrators may create services.
    pub fn service_creator_required(caller: &Owner) -> Self {
        let error = Self::admin_required(caller).with_details([("setting", json!("services.created_by"))]);
        let message = "Only administrators may create services: the setting `services.created_by` is `admin`";
        Self { message: message.to_owned(), ..error }
    }

    pub fn admin_required(caller: &Owner) -> Self {
        Self::access_required(Reason::AdminRequired, &["administrator"], caller)
    }

    /// If a token was refused because it was issued for another service, adds the service that it must be issued for.
    pub fn with_required_service(self, service: ServiceId) -> Self {
        if self.reason.is_some_and(Reason::is_wrong_audience) {
            self.with_details([("required", json!({ "serviceId": service }))])
        } else {
            self
        }
    }

    /// The error for a user who has none of the kinds of access in `required`, each of which would suffice.
    fn access_required(reason: Reason, required: &[&str], caller: &Owner) -> Self {
        let actual = json!({ "issuer": caller.issuer, "subject": caller.subject });
        Self::from(reason).with_requirement(json!({ "access": required }), actual)
    }

    fn with_requirement(self, required: Value, actual: Value) -> Self {
        self.with_details([("required", required), ("actual", actual)])
    }
}
