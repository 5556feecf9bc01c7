//! Webhook events and their JSON.

use crate::domain::{service::ServiceOrDeployment, string_enum::string_enum};
use core::net::IpAddr;
use countersign_identity::{AgentId, EventId, FeedbackId, Reason, RoleId, RoleName, ServiceId, Timestamp, WebhookId};
use countersign_process::format_rfc3339;
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

string_enum! {
    /// The kind of an event. The name of a kind is stable.
    EventKind {
        /// An agent authenticated.
        Authenticated = "agent.authenticated";
        /// An authentication was refused.
        AuthenticationFailed = "agent.authentication_failed";
        /// A role was assigned to an agent.
        RoleAssigned = "agent.role_assigned";
        /// A role assignment ended.
        RoleRevoked = "agent.role_revoked";
        /// A service submitted feedback on an agent.
        FeedbackReceived = "trust.feedback_received";
        /// A manager tested a target.
        Test = "webhook.test";
    }
}

impl EventKind {
    /// The kinds that a filter can contain. Test events are delivered regardless of the filter.
    pub fn filterable() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|kind| *kind != Self::Test)
    }
}

/// The kinds of events that a target receives. An empty list means all kinds, including kinds that later versions of
/// Countersign add.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventFilter(Vec<EventKind>);

/// Error for a filter with an unknown kind, a repeated kind, or no kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be [\"*\"], or an array of distinct event kinds such as `agent.role_revoked`")]
pub struct InvalidFilter;

impl EventFilter {
    /// The name that stands for all kinds.
    pub const ALL: &str = "*";

    /// Parses the names of kinds, or [`Self::ALL`] alone.
    pub fn parse<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidFilter> {
        let names: Vec<_> = names.into_iter().collect();
        if names == [Self::ALL] {
            return Ok(Self::default());
        }
        let kinds: Vec<_> = EventKind::filterable().filter(|kind| names.contains(&kind.as_str())).collect();
        // If a name is unknown or repeated, `kinds` is shorter than `names`.
        if kinds.is_empty() || kinds.len() != names.len() { Err(InvalidFilter) } else { Ok(Self(kinds)) }
    }

    /// The names of the kinds, or [`Self::ALL`] alone.
    pub fn names(&self) -> Vec<&'static str> {
        if self.0.is_empty() { vec![Self::ALL] } else { self.0.iter().map(|kind| kind.as_str()).collect() }
    }
}

/// A webhook event.
#[derive(Debug, Clone)]
pub struct Event {
    /// Identifier, the same for all targets and all attempts.
    pub id: EventId,
    /// When the event happened.
    pub at: Timestamp,
    /// Data of the event, depending on its kind.
    pub data: EventData,
}

/// The content of an event: `data` in its JSON.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum EventData {
    Authenticated(AuthenticatedEvent),
    AuthenticationFailed(AuthenticationFailedEvent),
    RoleAssigned(RoleAssignedEvent),
    RoleRevoked(RoleRevokedEvent),
    FeedbackReceived(FeedbackReceivedEvent),
    Test(TestEvent),
}

/// An agent authenticated.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuthenticatedEvent {
    /// The agent.
    #[schema(value_type = String, example = "agent_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub agent_id: AgentId,
    /// The service that the agent's token is bound to; null if the token is unbound.
    #[schema(value_type = Option<String>, required, example = "svc_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub service_id: Option<ServiceId>,
    /// IP address of the client.
    #[schema(value_type = Option<String>, required, example = "198.51.100.7")]
    pub ip_address: Option<IpAddr>,
}

/// An authentication was refused, or a refresh token was used twice. For one agent at one service, the first ten failures in
/// a minute are one event each. Failures after the tenth in a minute are counted in one event when the minute is over.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuthenticationFailedEvent {
    /// The agent in the request.
    #[schema(value_type = String, example = "agent_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub agent_id: AgentId,
    /// The service in the request; null if there was none, or if the agent is not known to the service.
    #[schema(value_type = Option<String>, required, example = "svc_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub service_id: Option<ServiceId>,
    /// `invalid_signature`, `challenge_expired`, `challenge_used`, `agent_suspended`, `agent_revoked` or
    /// `refresh_reused`; or `suppressed`, for the summary of suppressed failures.
    #[schema(value_type = String, example = "invalid_signature")]
    pub reason: LoginFailureReason,
    /// IP address of the client; null if `reason` is `suppressed`.
    #[schema(value_type = Option<String>, required, example = "198.51.100.7")]
    pub ip_address: Option<IpAddr>,
    /// Number of failures without a separate event. Present if `reason` is `suppressed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, example = 40)]
    pub suppressed: Option<u64>,
}

/// Why an authentication was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginFailureReason {
    /// The signature is malformed or does not match the challenge.
    InvalidSignature,
    /// The API refused the request for a documented reason.
    Refused(Reason),
    /// The event summarizes several failures.
    Suppressed,
}

impl Serialize for LoginFailureReason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::InvalidSignature => "invalid_signature",
            Self::Refused(reason) => reason.as_str(),
            Self::Suppressed => "suppressed",
        })
    }
}

/// A role was assigned to an agent, or the end of an assignment was changed.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RoleAssignedEvent {
    /// The agent.
    #[schema(value_type = String, example = "agent_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub agent_id: AgentId,
    /// The service.
    #[schema(value_type = String, example = "svc_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub service_id: ServiceId,
    /// The role.
    #[schema(value_type = String, example = "role_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub role_id: RoleId,
    /// Name of the role.
    #[schema(value_type = String, example = "billing-reader")]
    pub role_name: RoleName,
    /// When the assignment ends; null if it does not end.
    #[serde(serialize_with = "optional_timestamp")]
    #[schema(value_type = Option<String>, format = DateTime, required, example = "2031-01-31T12:00:00Z")]
    pub expires_at: Option<Timestamp>,
}

/// A role assignment ended.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RoleRevokedEvent {
    /// The agent.
    #[schema(value_type = String, example = "agent_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub agent_id: AgentId,
    /// The service.
    #[schema(value_type = String, example = "svc_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub service_id: ServiceId,
    /// The role.
    #[schema(value_type = String, example = "role_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub role_id: RoleId,
    /// Name of the role.
    #[schema(value_type = String, example = "billing-reader")]
    pub role_name: RoleName,
    /// `revoked` (a manager revoked it), `expired` (its end time passed), `role_deleted`, `agent_left` (the owner of the agent
    /// left the service), `service_deleted`, or `agent_deleted`.
    #[schema(value_type = String, example = "revoked")]
    pub reason: RevocationReason,
}

/// Why a role assignment ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RevocationReason {
    /// A manager revoked the role assignment.
    Revoked,
    /// The end time of the role assignment passed.
    Expired,
    /// The role was deleted.
    RoleDeleted,
    /// The owner of the agent left the service.
    AgentLeft,
    /// The service was deleted.
    ServiceDeleted,
    /// The agent was deleted.
    AgentDeleted,
}

/// A service submitted feedback on an agent.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FeedbackReceivedEvent {
    /// The agent.
    #[schema(value_type = String, example = "agent_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub agent_id: AgentId,
    /// The service that submitted the feedback.
    #[schema(value_type = String, example = "svc_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub service_id: ServiceId,
    /// The feedback.
    #[schema(value_type = String, example = "feedback_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub feedback_id: FeedbackId,
    /// Score of the feedback, in points.
    #[schema(minimum = 0, maximum = 100, example = 90.0)]
    pub score: f64,
    /// New trust score of the agent, in points.
    #[schema(minimum = 0, maximum = 100, example = 58.0)]
    pub new_trust_score: f64,
}

/// A manager tested the webhook that receives the event. A test event is sent once, even if the attempt fails.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TestEvent {
    /// The webhook.
    #[schema(value_type = String, example = "wh_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub webhook_id: WebhookId,
    /// The service of the webhook; null for a webhook of the whole Countersign deployment.
    #[schema(value_type = Option<String>, required, example = "svc_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub service_id: Option<ServiceId>,
}

impl EventData {
    /// The kind of the event.
    pub const fn kind(&self) -> EventKind {
        match self {
            Self::Authenticated(_) => EventKind::Authenticated,
            Self::AuthenticationFailed(_) => EventKind::AuthenticationFailed,
            Self::RoleAssigned(_) => EventKind::RoleAssigned,
            Self::RoleRevoked(_) => EventKind::RoleRevoked,
            Self::FeedbackReceived(_) => EventKind::FeedbackReceived,
            Self::Test(_) => EventKind::Test,
        }
    }

    /// What the event belongs to; `None` for a test event, which has one target.
    pub fn scope(&self) -> Option<ServiceOrDeployment> {
        match self {
            Self::Authenticated(AuthenticatedEvent { service_id, .. })
            | Self::AuthenticationFailed(AuthenticationFailedEvent { service_id, .. }) => {
                Some(ServiceOrDeployment::of(*service_id))
            }
            Self::RoleAssigned(RoleAssignedEvent { service_id, .. })
            | Self::RoleRevoked(RoleRevokedEvent { service_id, .. })
            | Self::FeedbackReceived(FeedbackReceivedEvent { service_id, .. }) => {
                Some(ServiceOrDeployment::Service(*service_id))
            }
            Self::Test(_) => None,
        }
    }
}

/// The JSON of a webhook event.
#[derive(Serialize)]
struct EventBody<'a> {
    event: &'static str,
    timestamp: String,
    data: &'a EventData,
}

impl Event {
    /// The request body of every delivery of the event. Signatures cover the exact bytes of the body.
    pub fn body(&self) -> String {
        let body = EventBody { event: self.data.kind().as_str(), timestamp: format_rfc3339(self.at), data: &self.data };
        // Serializing strings and numbers cannot fail.
        serde_json::to_string(&body).unwrap_or_default()
    }
}

#[expect(clippy::ref_option, reason = "serde requires this signature")]
fn optional_timestamp<S: Serializer>(at: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
    at.map(format_rfc3339).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_accepts_all_kinds_or_distinct_known_kinds() {
        assert_eq!(EventFilter::parse(["*"]).unwrap().names(), ["*"]);
        let two = EventFilter::parse(["trust.feedback_received", "agent.role_revoked"]).unwrap();
        assert_eq!(two.names(), ["agent.role_revoked", "trust.feedback_received"]);
        for wrong in
            [&[][..], &["*", "agent.authenticated"], &["webhook.test"], &["agent.*"], &["agent.authenticated"; 2]]
        {
            assert_eq!(EventFilter::parse(wrong.iter().copied()), Err(InvalidFilter), "{wrong:?}");
        }
    }

    #[test]
    fn body_matches_the_specification() {
        let data = EventData::AuthenticationFailed(AuthenticationFailedEvent {
            agent_id: AgentId::from_bits(1),
            service_id: None,
            reason: LoginFailureReason::Refused(Reason::ChallengeUsed),
            ip_address: Some([192, 0, 2, 1].into()),
            suppressed: None,
        });
        let event = Event { id: EventId::from_bits(2), at: Timestamp::from_seconds(1_800_000_000), data };
        let agent = AgentId::from_bits(1);
        let expected = format!(
            r#"{{"event":"agent.authentication_failed","timestamp":"2027-01-15T08:00:00Z","data":{{"agentId":"{agent}","serviceId":null,"reason":"challenge_used","ipAddress":"192.0.2.1"}}}}"#
        );
        assert_eq!(event.body(), expected);
    }
}
