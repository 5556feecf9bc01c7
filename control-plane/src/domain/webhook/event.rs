//! Events: what happened, exactly as it is told.

use crate::domain::{string_enum::string_enum, timestamp::format_rfc3339};
use core::net::IpAddr;
use countersign_identity::{AgentId, EventId, FeedbackId, Reason, RoleId, RoleName, ServiceId, Timestamp, WebhookId};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

string_enum! {
    /// What kind of event it is.
    EventKind {
        /// An agent logged in.
        Authenticated = "agent.authenticated";
        /// A login was refused.
        AuthenticationFailed = "agent.authentication_failed";
        /// An agent got a role.
        RoleAssigned = "agent.role_assigned";
        /// An agent has a role no more.
        RoleRevoked = "agent.role_revoked";
        /// A service said how an agent behaved.
        FeedbackReceived = "trust.feedback_received";
        /// Somebody tries whether a target can be reached.
        Test = "webhook.test";
    }
}

impl EventKind {
    /// The kinds that can be asked for: a test comes to whom it is sent, whatever they asked for.
    pub fn asked_for() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|kind| *kind != Self::Test)
    }
}

/// Which events a target gets: of these kinds, or, if there are none, of all kinds, also of those to come.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventFilter(Vec<EventKind>);

/// The kinds are not ones that can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be [\"*\"], or an array of kinds of events such as `agent.role_revoked`, each once")]
pub struct InvalidFilter;

impl EventFilter {
    /// What stands for all kinds.
    pub const ALL: &str = "*";

    /// Reads the names of kinds.
    pub fn parse<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidFilter> {
        let names: Vec<_> = names.into_iter().collect();
        if names == [Self::ALL] {
            return Ok(Self::default());
        }
        let asked: Vec<_> = EventKind::asked_for().filter(|kind| names.contains(&kind.as_str())).collect();
        // In the order of the list; a name that is twice there, or not known, makes a difference.
        if asked.is_empty() || asked.len() != names.len() { Err(InvalidFilter) } else { Ok(Self(asked)) }
    }

    /// The names of the kinds, or [`Self::ALL`] alone.
    pub fn names(&self) -> Vec<&'static str> {
        if self.0.is_empty() { vec![Self::ALL] } else { self.0.iter().map(|kind| kind.as_str()).collect() }
    }
}

/// Something that happened.
#[derive(Debug, Clone)]
pub struct Event {
    /// Its identifier: the same on every try, to every target.
    pub id: EventId,
    /// When it happened.
    pub at: Timestamp,
    /// What happened.
    pub news: News,
}

/// What happened.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum News {
    /// See [`Authenticated`].
    Authenticated(Authenticated),
    /// See [`AuthenticationFailed`].
    AuthenticationFailed(AuthenticationFailed),
    /// See [`RoleAssigned`].
    RoleAssigned(RoleAssigned),
    /// See [`RoleRevoked`].
    RoleRevoked(RoleRevoked),
    /// See [`FeedbackReceived`].
    FeedbackReceived(FeedbackReceived),
    /// See [`Test`].
    Test(Test),
}

/// An agent logged in.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = AuthenticatedEvent)]
pub struct Authenticated {
    /// The agent.
    #[schema(value_type = String, example = "agent_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub agent_id: AgentId,
    /// The service that its token is for; null if it is bound to none.
    #[schema(value_type = Option<String>, required, example = "svc_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub service_id: Option<ServiceId>,
    /// Where the request came from.
    #[schema(value_type = Option<String>, required, example = "198.51.100.7")]
    pub ip_address: Option<IpAddr>,
}

/// A login was refused, or a refresh token was used twice. Of one agent at one service the first ten in a minute are told
/// one by one, the others together when the minute is over.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = AuthenticationFailedEvent)]
pub struct AuthenticationFailed {
    /// The agent that somebody claimed to be.
    #[schema(value_type = String, example = "agent_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub agent_id: AgentId,
    /// The service that the token was asked for; null if none was named.
    #[schema(value_type = Option<String>, required, example = "svc_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub service_id: Option<ServiceId>,
    /// Why: `invalid_signature`, `challenge_expired`, `challenge_used`, `agent_suspended`, `agent_revoked`,
    /// `refresh_reused`; or `suppressed`, for those that are told together.
    #[schema(value_type = String, example = "invalid_signature")]
    pub reason: Failure,
    /// Where the request came from; null if several are told together.
    #[schema(value_type = Option<String>, required, example = "198.51.100.7")]
    pub ip_address: Option<IpAddr>,
    /// How many are told together.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, example = 40)]
    pub suppressed: Option<u64>,
}

/// Why a login was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The signature does not fit the challenge, or is none.
    InvalidSignature,
    /// For a reason of the closed list.
    Refused(Reason),
    /// Several, that are told together.
    Suppressed,
}

impl Serialize for LossReason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl Serialize for Failure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::InvalidSignature => "invalid_signature",
            Self::Refused(reason) => reason.as_str(),
            Self::Suppressed => "suppressed",
        })
    }
}

/// An agent got a role, or its role ends at another time.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = RoleAssignedEvent)]
pub struct RoleAssigned {
    /// The agent.
    #[schema(value_type = String, example = "agent_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub agent_id: AgentId,
    /// The service.
    #[schema(value_type = String, example = "svc_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub service_id: ServiceId,
    /// The role.
    #[schema(value_type = String, example = "role_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub role_id: RoleId,
    /// Its name.
    #[schema(value_type = String, example = "billing-reader")]
    pub role_name: RoleName,
    /// When it ends; null if it does not.
    #[serde(serialize_with = "optional_instant")]
    #[schema(value_type = Option<String>, format = DateTime, required, example = "2031-01-31T12:00:00Z")]
    pub expires_at: Option<Timestamp>,
}

/// An agent has a role no more.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = RoleRevokedEvent)]
pub struct RoleRevoked {
    /// The agent.
    #[schema(value_type = String, example = "agent_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub agent_id: AgentId,
    /// The service.
    #[schema(value_type = String, example = "svc_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub service_id: ServiceId,
    /// The role.
    #[schema(value_type = String, example = "role_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub role_id: RoleId,
    /// Its name.
    #[schema(value_type = String, example = "billing-reader")]
    pub role_name: RoleName,
    /// Why: `revoked` (it was taken away), `expired` (it ended) or `role_deleted`.
    #[schema(value_type = String, example = "revoked")]
    pub reason: LossReason,
}

string_enum! {
    /// Why an agent has a role no more.
    LossReason {
        /// It was taken away.
        Revoked = "revoked";
        /// It ended.
        Expired = "expired";
        /// There is no such role any more.
        RoleDeleted = "role_deleted";
    }
}

/// A service said how an agent behaved.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = FeedbackReceivedEvent)]
pub struct FeedbackReceived {
    /// Of whom it speaks.
    #[schema(value_type = String, example = "agent_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub agent_id: AgentId,
    /// Who speaks.
    #[schema(value_type = String, example = "svc_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub service_id: ServiceId,
    /// What was said.
    #[schema(value_type = String, example = "feedback_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub feedback_id: FeedbackId,
    /// The score that it gives, in points.
    #[schema(minimum = 0, maximum = 100, example = 90.0)]
    pub score: f64,
    /// The agent's trust after it, in points.
    #[schema(minimum = 0, maximum = 100, example = 58.0)]
    pub new_trust_score: f64,
}

/// Somebody tries whether this target can be reached. It is sent once, whatever comes of it.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TestEvent)]
pub struct Test {
    /// The target.
    #[schema(value_type = String, example = "wh_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub webhook_id: WebhookId,
    /// Its service; null if it gets the events of all.
    #[schema(value_type = Option<String>, required, example = "svc_01jyd3rqawfd15ypgw5mz4yjkb")]
    pub service_id: Option<ServiceId>,
}

/// Whom an event concerns: the targets of a service get it, or of all services where an agent holds a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concerns {
    /// One service.
    Service(ServiceId),
    /// An agent, at no service in particular.
    Agent(AgentId),
}

impl News {
    /// What kind of event it is.
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

    /// Whom it concerns; nobody but its target, if it is a test.
    pub const fn concerns(&self) -> Option<Concerns> {
        match self {
            Self::Authenticated(Authenticated { agent_id, service_id, .. })
            | Self::AuthenticationFailed(AuthenticationFailed { agent_id, service_id, .. }) => {
                Some(Concerns::of(*agent_id, *service_id))
            }
            Self::RoleAssigned(RoleAssigned { service_id, .. })
            | Self::RoleRevoked(RoleRevoked { service_id, .. })
            | Self::FeedbackReceived(FeedbackReceived { service_id, .. }) => Some(Concerns::Service(*service_id)),
            Self::Test(_) => None,
        }
    }
}

impl Concerns {
    /// The service, or else the agent.
    pub const fn of(agent: AgentId, service: Option<ServiceId>) -> Self {
        match service {
            Some(service) => Self::Service(service),
            None => Self::Agent(agent),
        }
    }
}

/// An event as it is sent: section 6 of the specification.
#[derive(Serialize)]
struct Body<'a> {
    event: &'static str,
    timestamp: String,
    data: &'a News,
}

impl Event {
    /// The body of every delivery, to the byte.
    pub fn body(&self) -> String {
        let body = Body { event: self.news.kind().as_str(), timestamp: format_rfc3339(self.at), data: &self.news };
        // A structure of texts and numbers can always be written.
        serde_json::to_string(&body).unwrap_or_default()
    }
}

#[expect(clippy::ref_option, reason = "what serde asks for")]
fn optional_instant<S: Serializer>(at: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
    at.map(format_rfc3339).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_all_or_kinds_that_can_be_asked_for() {
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
    fn a_body_is_what_the_specification_says() {
        let news = News::AuthenticationFailed(AuthenticationFailed {
            agent_id: AgentId::from_bits(1),
            service_id: None,
            reason: Failure::Refused(Reason::ChallengeUsed),
            ip_address: Some([192, 0, 2, 1].into()),
            suppressed: None,
        });
        let event = Event { id: EventId::from_bits(2), at: Timestamp::from_seconds(1_800_000_000), news };
        let agent = AgentId::from_bits(1);
        assert_eq!(
            event.body(),
            format!(
                r#"{{"event":"agent.authentication_failed","timestamp":"2027-01-15T08:00:00Z","data":{{"agentId":"{agent}","serviceId":null,"reason":"challenge_used","ipAddress":"192.0.2.1"}}}}"#
            )
        );
    }
}
