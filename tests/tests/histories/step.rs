//! What can happen in a history. Entities are small numbers, taken modulo what exists, so that a history
//! keeps its meaning while it is shrunk.

use proptest::{collection::vec, option, prelude::*, sample::select};
use serde::{Deserialize, Serialize};

/// Services there are from the start; the second takes no unbound tokens, until that is changed.
pub const SERVICES: usize = 2;

/// Names a role may have.
pub const ROLE_NAMES: [&str; 2] = ["reader", "writer"];

/// Sets of permissions, so that a role made again may permit something else.
pub const PERMISSIONS: [&[&str]; 3] = [&["read"], &["read", "write"], &["delete"]];

/// Agents there may be: few, so that what happens meets.
pub const MOST_AGENTS: usize = 3;

/// After this without contact the sidecar must refuse, in seconds.
pub const MAX_STALENESS: i64 = 1200;

/// One line of a history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Step {
    /// One request, or several at the same time.
    Act(Vec<Act>),
    /// Both clocks go on, by seconds.
    Advance(u32),
    /// The sidecar's wall clock is behind from now on, by seconds.
    Lag(u32),
    /// The stream is cut and cannot be resumed.
    Cut,
    /// The stream can be resumed.
    Resume,
    /// The sidecar ends at once and is started again.
    RestartSidecar,
    /// The control plane ends, at once if killed, and is started again with tokens of another life.
    RestartPlane { killed: bool, token_seconds: u32 },
}

/// A request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Act {
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
    /// Whether the service takes tokens that are bound to none.
    SetUnbound {
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
    /// With the login's newest refresh token, or with its first, which was used if it was ever refreshed.
    Refresh {
        login: usize,
        first: bool,
    },
    /// Sends the answer to the login's challenge once more.
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
    /// The next signing key is to sign.
    Rotate,
    /// One of the signing keys that are believed, in the order of their publication.
    RevokeKey {
        key: usize,
    },
}

/// What an agent may be set to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    Active,
    Suspended,
    Revoked,
}

/// Histories of some length. Some steps come in pairs, since little follows from either alone.
pub fn histories() -> impl Strategy<Value = Vec<Step>> {
    vec(passage(), 10..36).prop_map(|passages| passages.concat())
}

fn passage() -> impl Strategy<Value = Vec<Step>> {
    let alone = |act: Act| Step::Act(vec![act]);
    let (service, name) = (|| 0..SERVICES, || 0..ROLE_NAMES.len());
    prop_oneof![
        80 => step().prop_map(|step| vec![step]),
        8 => (service(), some(), name()).prop_map(move |(service, agent, name)| vec![
            alone(Act::Assign { service, agent, name, seconds: None }),
            alone(Act::Login { agent, service: Some(service) }),
        ]),
        5 => (service(), name(), 0..PERMISSIONS.len()).prop_map(move |(service, name, permissions)| vec![
            alone(Act::DeleteRole { service, name }),
            alone(Act::CreateRole { service, name, permissions }),
        ]),
        16 => (service(), some(), name(), any::<bool>(), any::<bool>()).prop_map(
            move |(service, agent, name, give, refresh)| {
                let assign = Act::Assign { service, agent, name, seconds: None };
                let revoke = Act::Revoke { service, agent, name };
                let (before, beside) = if give { (revoke, assign) } else { (assign, revoke) };
                // More than one token, for what is looked for takes place between two statements.
                let token = |login| {
                    let anew = Act::Login { agent, service: Some(service) };
                    if refresh { Act::Refresh { login, first: false } } else { anew }
                };
                let beside = (0..3).map(token).chain([beside]).chain((3..6).map(token)).collect();
                vec![alone(before), alone(Act::Login { agent, service: Some(service) }), Step::Act(beside)]
            },
        ),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        48 => act().prop_map(|act| Step::Act(vec![act])),
        8 => vec(racing(), 2..6).prop_map(Step::Act),
        6 => select(vec![1_u32, 4, 11, 29, 61]).prop_map(Step::Advance),
        4 => select(vec![301_u32, 599, 905, 1100, 1199, 1300]).prop_map(Step::Advance),
        2 => select(vec![0_u32, 20, 400, 1000]).prop_map(Step::Lag),
        4 => Just(Step::Cut),
        4 => Just(Step::Resume),
        2 => Just(Step::RestartSidecar),
        3 => (any::<bool>(), select(vec![60_u32, 600, 3600]))
            .prop_map(|(killed, token_seconds)| Step::RestartPlane { killed, token_seconds }),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        20 => racing(),
        1 => Just(Act::Register),
        1 => some().prop_map(|login| Act::Replay { login }),
    ]
}

/// What may happen at the same time as something else.
fn racing() -> impl Strategy<Value = Act> {
    let service = || 0..SERVICES;
    let name = || 0..ROLE_NAMES.len();
    prop_oneof![
        3 => (service(), name(), 0..PERMISSIONS.len())
            .prop_map(|(service, name, permissions)| Act::CreateRole { service, name, permissions }),
        2 => (service(), name(), 0..PERMISSIONS.len())
            .prop_map(|(service, name, permissions)| Act::ChangeRole { service, name, permissions }),
        2 => (service(), name()).prop_map(|(service, name)| Act::DeleteRole { service, name }),
        1 => (service(), any::<bool>()).prop_map(|(service, accepted)| Act::SetUnbound { service, accepted }),
        6 => (service(), some(), name(), option::weighted(0.4, select(vec![2_u32, 10, 60, 700, 4000])))
            .prop_map(|(service, agent, name, seconds)| Act::Assign { service, agent, name, seconds }),
        4 => (service(), some(), name()).prop_map(|(service, agent, name)| Act::Revoke { service, agent, name }),
        5 => (some(), status()).prop_map(|(agent, status)| Act::SetStatus { agent, status }),
        8 => (some(), option::of(service())).prop_map(|(agent, service)| Act::Login { agent, service }),
        3 => (some(), prop::bool::weighted(0.2)).prop_map(|(login, first)| Act::Refresh { login, first }),
        2 => (service(), some(), select(vec![0_u8, 50, 100]))
            .prop_map(|(service, agent, score)| Act::Feedback { service, agent, score }),
        2 => some().prop_map(|token| Act::RevokeToken { token }),
        1 => some().prop_map(|login| Act::RevokeLogin { login }),
        2 => Just(Act::Rotate),
        1 => some().prop_map(|key| Act::RevokeKey { key }),
    ]
}

/// Revoking is for good, so it is rare.
fn status() -> impl Strategy<Value = Status> {
    prop_oneof![8 => Just(Status::Active), 6 => Just(Status::Suspended), 1 => Just(Status::Revoked)]
}

/// An index into whatever exists by then.
fn some() -> impl Strategy<Value = usize> {
    0_usize..12
}
