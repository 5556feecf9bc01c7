//! The operations of a history (a generated sequence of operations). An operation refers to entities by an index modulo
//! the number of existing entities, so that a history stays valid while it is shrunk.

use proptest::{collection::vec, option, prelude::*, sample::select};
use serde::{Deserialize, Serialize};

/// Number of services. Initially, only the first service accepts unbound tokens.
pub const SERVICES: usize = 2;

/// Possible role names.
pub const ROLE_NAMES: [&str; 2] = ["reader", "writer"];

/// Possible permission sets of roles. A recreated role may have other permissions.
pub const PERMISSIONS: [&[&str]; 3] = [&["read"], &["read", "write"], &["delete"]];

/// Maximum number of agents, which is small, so that operations affect the same agents.
pub const MAX_AGENTS: usize = 3;

/// Seconds without contact to the control plane after which the sidecar must refuse requests.
pub const MAX_STALENESS: i64 = 1200;

/// An operation of a generated history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Operation {
    /// Sends a request, or several requests concurrently.
    Requests(Vec<Request>),
    /// Advances the clocks of the control plane and the sidecar, in seconds.
    Advance(u32),
    /// Sets the lag of the sidecar's wall clock, in seconds.
    Lag(u32),
    /// Closes the sync stream and rejects new connections.
    Disconnect,
    /// Accepts connections of the sync stream again.
    Reconnect,
    /// Stops the sidecar at once and starts it again.
    RestartSidecar,
    /// Stops the control plane, at once if killed, and starts it with another lifetime of access tokens.
    RestartControlPlane { killed: bool, token_seconds: u32 },
}

/// A request to the API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Request {
    Register,
    CreateRole {
        service: usize,
        name: usize,
        permissions: usize,
    },
    ChangeRole {
        service: usize,
        name: usize,
        permissions: usize,
    },
    DeleteRole {
        service: usize,
        name: usize,
    },
    /// Sets `acceptsUnboundTokens`.
    SetAcceptsUnbound {
        service: usize,
        accepted: bool,
    },
    Assign {
        service: usize,
        agent: usize,
        name: usize,
        seconds: Option<u32>,
    },
    Revoke {
        service: usize,
        agent: usize,
        name: usize,
    },
    SetStatus {
        agent: usize,
        status: Status,
    },
    Login {
        agent: usize,
        service: Option<usize>,
    },
    /// Uses the newest refresh token, or the first refresh token, which has been used if the session was refreshed.
    Refresh {
        login: usize,
        first: bool,
    },
    /// Submits the signature for the challenge of a login again.
    Replay {
        login: usize,
    },
    Feedback {
        service: usize,
        agent: usize,
        score: u8,
    },
    RevokeToken {
        token: usize,
    },
    RevokeLogin {
        login: usize,
    },
    /// Requests a rotation of the signing keys.
    Rotate,
    /// Revokes one of the current signing keys, in order of publication.
    RevokeKey {
        key: usize,
    },
}

/// Status of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    Active,
    Suspended,
    Revoked,
}

/// Generates histories. Some fragments of a history combine operations that rarely have an effect separately.
pub fn histories() -> impl Strategy<Value = Vec<Operation>> {
    vec(fragment(), 10..36).prop_map(|fragments| fragments.concat())
}

fn fragment() -> impl Strategy<Value = Vec<Operation>> {
    let single = |request: Request| Operation::Requests(vec![request]);
    let (service, name) = (|| 0..SERVICES, || 0..ROLE_NAMES.len());
    prop_oneof![
        80 => operation().prop_map(|operation| vec![operation]),
        4 => (service(), any_index(), name())
            .prop_map(|(service, agent, name)| change_after_refresh_of_unbound_session(service, agent, name)),
        2 => (service(), any_index()).prop_map(|(service, agent)| change_after_late_refresh(service, agent)),
        4 => (service(), any_index(), any::<bool>())
            .prop_map(|(service, agent, disconnected)| change_before_unbound_is_accepted(service, agent, disconnected)),
        8 => (service(), any_index(), name()).prop_map(move |(service, agent, name)| vec![
            single(Request::Assign { service, agent, name, seconds: None }),
            single(Request::Login { agent, service: Some(service) }),
        ]),
        5 => (service(), name(), 0..PERMISSIONS.len()).prop_map(move |(service, name, permissions)| vec![
            single(Request::DeleteRole { service, name }),
            single(Request::CreateRole { service, name, permissions }),
        ]),
        16 => (service(), any_index(), name(), any::<bool>(), any::<bool>()).prop_map(
            move |(service, agent, name, assign_last, refresh)| {
                let assign = Request::Assign { service, agent, name, seconds: None };
                let revoke = Request::Revoke { service, agent, name };
                let (before, concurrent) = if assign_last { (revoke, assign) } else { (assign, revoke) };
                // Several token requests are sent, because the race occurs between two statements of a request.
                let token = |login| {
                    let login_again = Request::Login { agent, service: Some(service) };
                    if refresh { Request::Refresh { login, first: false } } else { login_again }
                };
                let concurrent = (0..3).map(token).chain([concurrent]).chain((3..6).map(token)).collect();
                vec![single(before), single(Request::Login { agent, service: Some(service) }), Operation::Requests(concurrent)]
            },
        ),
    ]
}

/// The refresh of an unbound session issues a token for the service at which the agent now holds a role. After that, the
/// sidecar of this service must receive changes of the agent.
fn change_after_refresh_of_unbound_session(service: usize, agent: usize, name: usize) -> Vec<Operation> {
    let assign = Request::Assign { service, agent, name, seconds: None };
    [unbound_login(agent).to_vec(), vec![Operation::Requests(vec![assign])], refresh_all_and_suspend(agent)].concat()
}

/// An agent without roles gets an unbound token.
fn unbound_login(agent: usize) -> [Operation; 2] {
    let pairs = (0..SERVICES).flat_map(|service| (0..ROLE_NAMES.len()).map(move |name| (service, name)));
    let revocations = pairs.map(|(service, name)| Request::Revoke { service, agent, name }).collect();
    [Operation::Requests(revocations), Operation::Requests(vec![Request::Login { agent, service: None }])]
}

/// The sidecar of a service that refuses unbound tokens does not receive the change of the agent. It needs the change when the
/// service begins to accept unbound tokens, while the sidecar is connected or not.
fn change_before_unbound_is_accepted(service: usize, agent: usize, disconnected: bool) -> Vec<Operation> {
    let single = |request: Request| Operation::Requests(vec![request]);
    let accept = |accepted| single(Request::SetAcceptsUnbound { service, accepted });
    let set_status = |status| single(Request::SetStatus { agent, status });
    let [revoke, log_in] = unbound_login(agent);
    let mut operations = vec![accept(false), revoke, log_in, set_status(Status::Suspended), accept(true)];
    if disconnected {
        operations.insert(operations.len() - 1, Operation::Disconnect);
        operations.push(Operation::Reconnect);
    }
    operations.push(set_status(Status::Active));
    operations
}

/// The audience of the first token of a session is forgotten when the session is refreshed. After the refresh, the sidecar must
/// still receive changes of the agent.
fn change_after_late_refresh(service: usize, agent: usize) -> Vec<Operation> {
    let before = vec![
        Operation::RestartControlPlane { killed: false, token_seconds: 60 },
        Operation::Requests(vec![Request::Login { agent, service: Some(service) }]),
        Operation::Advance(1300),
        Operation::Advance(1199),
    ];
    [before, refresh_all_and_suspend(agent)].concat()
}

fn refresh_all_and_suspend(agent: usize) -> Vec<Operation> {
    let refreshes = (0..24).map(|login| Request::Refresh { login, first: false }).collect();
    let set_status = |status| Operation::Requests(vec![Request::SetStatus { agent, status }]);
    vec![Operation::Requests(refreshes), set_status(Status::Suspended), set_status(Status::Active)]
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        48 => request().prop_map(|request| Operation::Requests(vec![request])),
        8 => vec(concurrent_request(), 2..6).prop_map(Operation::Requests),
        6 => select(vec![1_u32, 4, 11, 29, 61]).prop_map(Operation::Advance),
        4 => select(vec![301_u32, 599, 905, 1100, 1199, 1300]).prop_map(Operation::Advance),
        2 => select(vec![0_u32, 20, 400, 1000]).prop_map(Operation::Lag),
        4 => Just(Operation::Disconnect),
        4 => Just(Operation::Reconnect),
        2 => Just(Operation::RestartSidecar),
        3 => (any::<bool>(), select(vec![60_u32, 600, 3600]))
            .prop_map(|(killed, token_seconds)| Operation::RestartControlPlane { killed, token_seconds }),
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
        8 => (any_index(), option::of(service())).prop_map(|(agent, service)| Request::Login { agent, service }),
        3 => (any_index(), prop::bool::weighted(0.2)).prop_map(|(login, first)| Request::Refresh { login, first }),
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
fn any_index() -> impl Strategy<Value = usize> {
    0_usize..12
}
