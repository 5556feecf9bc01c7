//! The operations of a history (a generated sequence of operations). An operation refers to entities by an index modulo
//! the number of existing entities, so that a history stays valid while it is shrunk.

use crate::rules::RuleSet;
use proptest::{collection::vec, option, prelude::*, sample::select};
use serde::{Deserialize, Serialize};

/// Number of services. Initially, only the first service accepts unbound tokens.
pub const SERVICES: usize = 2;

/// Possible role names.
pub const ROLE_NAMES: [&str; 2] = ["reader", "writer"];

/// Possible permission sets of roles. A recreated role may have other permissions.
pub const PERMISSIONS: [&[&str]; 3] = [&["read"], &["read", "write"], &["delete"]];

/// The scopes that OAuth clients ask for. The first one narrows nothing.
pub const SCOPES: [&str; 4] = ["", "read", "delete write", "other read write"];

/// The rule sets of the rules file. A history begins with the first.
pub const RULE_SETS: [RuleSet; 5] = [
    RuleSet { role: None, permission: None, allow_unassigned: false, dry_run: false },
    RuleSet { role: Some("writer"), permission: None, allow_unassigned: false, dry_run: false },
    RuleSet { role: None, permission: Some("write"), allow_unassigned: true, dry_run: false },
    RuleSet { role: Some("reader"), permission: Some("read"), allow_unassigned: false, dry_run: true },
    RuleSet { role: None, permission: None, allow_unassigned: true, dry_run: false },
];

/// Maximum number of agents, which is small, so that operations affect the same agents.
pub const MAX_AGENTS: usize = 3;

/// Seconds without contact to the control plane after which a sidecar must refuse requests.
pub const MAX_STALENESS: i64 = 1200;

/// An operation of a generated history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Operation {
    /// Sends a request, or several requests concurrently.
    Requests(Vec<Request>),
    /// Advances the clocks of the control plane and the sidecars, in seconds.
    Advance(u32),
    /// Sets the lag of the sidecars' wall clock, in seconds.
    Lag(u32),
    /// Closes all sync streams and rejects new connections.
    Disconnect,
    /// Accepts connections of sync streams again.
    Reconnect,
    /// Lets no bytes pass between the sidecar without a copy and the control plane, until [`Self::Reconnect`]. Keeps connections
    /// open.
    Freeze,
    /// Cuts one of the two addresses of the sidecar with a copy, so that it leads nowhere.
    CutAddress(usize),
    /// Lets this address lead to the control plane again.
    RestoreAddress(usize),
    /// Cuts the first address of the sidecar with a copy. For a while, its second address leads to a control plane that has the
    /// data from the start of the history. Only on SQLite.
    OldAddress,
    /// Stops the sidecars at once and starts them again.
    RestartSidecar,
    /// Replaces the rules file by a rule set. First replaces it by an invalid file, if `invalid_first`.
    ChangeRules { set: usize, invalid_first: bool },
    /// Sends requests concurrently, and asks at once for the receipt of the newest revision at a service. If `crash`, then kills
    /// the sidecar with a copy, and starts it from its copy while no address can be reached.
    Receipt { service: usize, requests: Vec<Request>, crash: bool },
    /// Stops the control plane, at once if killed, and starts it with another lifetime of access tokens.
    RestartControlPlane { killed: bool, token_seconds: u32 },
}

/// A request to the API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Registers an agent.
    Register,
    /// Creates a role at a service.
    CreateRole { service: usize, name: usize, permissions: usize },
    /// Replaces the permissions of a role.
    ChangeRole { service: usize, name: usize, permissions: usize },
    /// Deletes a role.
    DeleteRole { service: usize, name: usize },
    /// Sets `acceptsUnboundTokens`.
    SetAcceptsUnbound { service: usize, accepted: bool },
    /// Assigns a role, for this time.
    Assign { service: usize, agent: usize, name: usize, seconds: Option<u32> },
    /// Revokes a role.
    Revoke { service: usize, agent: usize, name: usize },
    /// Suspends, reactivates or revokes an agent.
    SetStatus { agent: usize, status: Status },
    /// Logs in with a challenge or, if there is a scope, as an OAuth client.
    Login { agent: usize, service: Option<usize>, scope: Option<usize> },
    /// Uses the newest refresh token of a login, or the first one, which is a used one if the session was refreshed. If there is a
    /// scope, refreshes as an OAuth client.
    Refresh { login: usize, first: bool, scope: Option<usize> },
    /// Submits the signed challenge or the assertion of a login again.
    Replay { login: usize },
    /// Rates an agent.
    Feedback { service: usize, agent: usize, score: u8 },
    /// Revokes an access token.
    RevokeToken { token: usize },
    /// Revokes a session.
    RevokeLogin { login: usize },
    /// Requests a rotation of the signing keys.
    Rotate,
    /// Revokes one of the current signing keys, in order of publication.
    RevokeKey { key: usize },
}

impl Request {
    /// The operation that sends only this request.
    pub fn alone(self) -> Operation {
        Operation::Requests(vec![self])
    }

    /// An assignment without expiry.
    pub const fn assign(service: usize, agent: usize, name: usize) -> Self {
        Self::Assign { service, agent, name, seconds: None }
    }

    /// A login with a challenge.
    pub const fn login(agent: usize, service: Option<usize>) -> Self {
        Self::Login { agent, service, scope: None }
    }
}

/// Status of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    Active,
    Suspended,
    Revoked,
}

pub fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        48 => request().prop_map(Request::alone),
        8 => vec(concurrent_request(), 2..6).prop_map(Operation::Requests),
        6 => select(vec![1_u32, 4, 11, 29, 61]).prop_map(Operation::Advance),
        4 => select(vec![301_u32, 599, 905, 1100, 1199, 1300]).prop_map(Operation::Advance),
        2 => select(vec![0_u32, 20, 400, 1000]).prop_map(Operation::Lag),
        4 => Just(Operation::Disconnect),
        4 => Just(Operation::Reconnect),
        2 => Just(Operation::RestartSidecar),
        3 => (any::<bool>(), select(vec![60_u32, 600, 3600]))
            .prop_map(|(killed, token_seconds)| Operation::RestartControlPlane { killed, token_seconds }),
        1 => Just(Operation::Freeze),
        3 => (0..2_usize).prop_map(Operation::CutAddress),
        3 => (0..2_usize).prop_map(Operation::RestoreAddress),
        3 => (0..SERVICES, vec(concurrent_request(), 1..4))
            .prop_map(|(service, requests)| Operation::Receipt { service, requests, crash: false }),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        20 => concurrent_request(),
        1 => Just(Request::Register),
        1 => any_index().prop_map(|login| Request::Replay { login }),
    ]
}

/// A request that may run concurrently with others.
fn concurrent_request() -> impl Strategy<Value = Request> {
    let service = || 0..SERVICES;
    let name = || 0..ROLE_NAMES.len();
    prop_oneof![
        3 => (service(), name(), 0..PERMISSIONS.len())
            .prop_map(|(service, name, permissions)| Request::CreateRole { service, name, permissions }),
        2 => (service(), name(), 0..PERMISSIONS.len())
            .prop_map(|(service, name, permissions)| Request::ChangeRole { service, name, permissions }),
        2 => (service(), name()).prop_map(|(service, name)| Request::DeleteRole { service, name }),
        1 => (service(), any::<bool>()).prop_map(|(service, accepted)| Request::SetAcceptsUnbound { service, accepted }),
        6 => (service(), any_index(), name(), option::weighted(0.4, select(vec![2_u32, 10, 60, 700, 4000])))
            .prop_map(|(service, agent, name, seconds)| Request::Assign { service, agent, name, seconds }),
        4 => (service(), any_index(), name()).prop_map(|(service, agent, name)| Request::Revoke { service, agent, name }),
        5 => (any_index(), status()).prop_map(|(agent, status)| Request::SetStatus { agent, status }),
        8 => (any_index(), option::of(service()), option::of(0..SCOPES.len()))
            .prop_map(|(agent, service, scope)| Request::Login { agent, service, scope }),
        3 => (any_index(), prop::bool::weighted(0.2), option::weighted(0.3, 0..SCOPES.len()))
            .prop_map(|(login, first, scope)| Request::Refresh { login, first, scope }),
        2 => (service(), any_index(), select(vec![0_u8, 50, 100]))
            .prop_map(|(service, agent, score)| Request::Feedback { service, agent, score }),
        2 => any_index().prop_map(|token| Request::RevokeToken { token }),
        1 => any_index().prop_map(|login| Request::RevokeLogin { login }),
        2 => Just(Request::Rotate),
        1 => any_index().prop_map(|key| Request::RevokeKey { key }),
    ]
}

/// Revocation is final, so it is rare.
fn status() -> impl Strategy<Value = Status> {
    prop_oneof![8 => Just(Status::Active), 6 => Just(Status::Suspended), 1 => Just(Status::Revoked)]
}

/// An index into the existing entities.
pub fn any_index() -> impl Strategy<Value = usize> {
    0_usize..12
}
