//! Generates histories. Some fragments of a history combine operations that rarely have an effect separately.

use crate::operation::{
    Operation, PERMISSIONS, ROLE_NAMES, RULE_SETS, Request, SERVICES, Status, any_index, operation,
};
use proptest::{collection::vec, option, prelude::*, sample::select};

pub fn histories() -> impl Strategy<Value = Vec<Operation>> {
    (option::of(unbound_login_with_roles()), vec(fragment(), 10..36))
        .prop_map(|(first, fragments)| first.into_iter().chain(fragments).flatten().collect())
}

/// An agent that has not logged in for a service yet gets roles at both, and an unbound token. Later in a history, its login would be
/// for the service of an earlier login.
fn unbound_login_with_roles() -> impl Strategy<Value = Vec<Operation>> {
    (0..ROLE_NAMES.len(), option::weighted(0.4, select(vec![10_u32, 700]))).prop_map(|(name, seconds)| {
        let agent = 1;
        vec![
            Request::SetAcceptsUnbound { service: 1, accepted: true }.alone(),
            Request::Assign { service: 0, agent, name, seconds }.alone(),
            Request::assign(1, agent, name).alone(),
            Request::login(agent, None).alone(),
        ]
    })
}

fn fragment() -> impl Strategy<Value = Vec<Operation>> {
    let (service, name) = (|| 0..SERVICES, || 0..ROLE_NAMES.len());
    prop_oneof![
        80 => operation().prop_map(|operation| vec![operation]),
        4 => (service(), any_index(), name())
            .prop_map(|(service, agent, name)| change_after_refresh_of_unbound_session(service, agent, name)),
        2 => (service(), any_index()).prop_map(|(service, agent)| change_after_late_refresh(service, agent)),
        4 => (service(), any_index(), any::<bool>())
            .prop_map(|(service, agent, disconnected)| change_before_unbound_is_accepted(service, agent, disconnected)),
        8 => (service(), any_index(), name()).prop_map(|(service, agent, name)| {
            vec![Request::assign(service, agent, name).alone(), Request::login(agent, Some(service)).alone()]
        }),
        5 => (service(), name(), 0..PERMISSIONS.len()).prop_map(|(service, name, permissions)| {
            vec![Request::DeleteRole { service, name }.alone(), Request::CreateRole { service, name, permissions }.alone()]
        }),
        16 => (service(), any_index(), name(), any::<bool>(), any::<bool>()).prop_map(
            |(service, agent, name, assign_last, refresh)| {
                let (assign, revoke) = (Request::assign(service, agent, name), Request::Revoke { service, agent, name });
                let (before, concurrent) = if assign_last { (revoke, assign) } else { (assign, revoke) };
                let log_in = Request::login(agent, Some(service));
                // Send several token requests: the race occurs only if the role changes between two statements of such a request.
                let token = |login| {
                    if refresh { Request::Refresh { login, first: false, scope: None } } else { log_in.clone() }
                };
                let concurrent = (0..3).map(token).chain([concurrent]).chain((3..6).map(token)).collect();
                vec![before.alone(), log_in.clone().alone(), Operation::Requests(concurrent)]
            },
        ),
        2 => (service(), any_index(), name(), any::<bool>()).prop_map(|(service, agent, name, crash)| {
            revocation_with_receipt(service, agent, name, crash)
        }),
        2 => (service(), any_index(), name()).prop_map(|(service, agent, name)| receipt_without_a_sidecar(service, agent, name)),
        1 => (service(), any_index(), name()).prop_map(|(service, agent, name)| receipt_before_old_data(service, agent, name)),
        1 => (0..RULE_SETS.len(), prop::bool::weighted(0.3))
            .prop_map(|(set, invalid_first)| vec![Operation::ChangeRules { set, invalid_first }]),
    ]
}

/// The refresh of an unbound session issues a token for the service at which the agent now holds a role. After that, the
/// sidecar of this service must receive changes of the agent.
fn change_after_refresh_of_unbound_session(service: usize, agent: usize, name: usize) -> Vec<Operation> {
    let assign = Request::assign(service, agent, name).alone();
    [unbound_login(agent).to_vec(), vec![assign], refresh_all_and_suspend(agent)].concat()
}

/// An agent without roles gets an unbound token.
fn unbound_login(agent: usize) -> [Operation; 2] {
    let pairs = (0..SERVICES).flat_map(|service| (0..ROLE_NAMES.len()).map(move |name| (service, name)));
    let revocations = pairs.map(|(service, name)| Request::Revoke { service, agent, name }).collect();
    [Operation::Requests(revocations), Request::login(agent, None).alone()]
}

/// The sidecar of a service that refuses unbound tokens does not receive the change of the agent. When the service begins to accept
/// unbound tokens, the sidecar needs the change, whether it is connected at that moment or not.
fn change_before_unbound_is_accepted(service: usize, agent: usize, disconnected: bool) -> Vec<Operation> {
    let accept = |accepted| Request::SetAcceptsUnbound { service, accepted }.alone();
    let set_status = |status| Request::SetStatus { agent, status }.alone();
    let [revoke, log_in] = unbound_login(agent);
    let mut operations = vec![accept(false), revoke, log_in, set_status(Status::Suspended), accept(true)];
    if disconnected {
        operations.insert(operations.len() - 1, Operation::Disconnect);
        operations.push(Operation::Reconnect);
    }
    operations.push(set_status(Status::Active));
    operations
}

/// The control plane forgets the audience of the first token of a session when the session is refreshed. After the refresh, the
/// sidecar must still receive changes of the agent.
fn change_after_late_refresh(service: usize, agent: usize) -> Vec<Operation> {
    let before = vec![
        Operation::RestartControlPlane { killed: false, token_seconds: 60 },
        Request::login(agent, Some(service)).alone(),
        Operation::Advance(1300),
        Operation::Advance(1199),
    ];
    [before, refresh_all_and_suspend(agent)].concat()
}

fn refresh_all_and_suspend(agent: usize) -> Vec<Operation> {
    let refreshes = (0..24).map(|login| Request::Refresh { login, first: false, scope: None }).collect();
    let set_status = |status| Request::SetStatus { agent, status }.alone();
    vec![Operation::Requests(refreshes), set_status(Status::Suspended), set_status(Status::Active)]
}

/// Gives an agent a role and a token, revokes the role, and asks for the receipt of the revocation.
fn revocation_with_receipt(service: usize, agent: usize, name: usize, crash: bool) -> Vec<Operation> {
    let requests = vec![Request::Revoke { service, agent, name }];
    vec![
        Request::assign(service, agent, name).alone(),
        Request::login(agent, Some(service)).alone(),
        Operation::Receipt { service, requests, crash },
    ]
}

/// A sidecar is frozen, so the receipt must not be complete before this sidecar has the revocation.
fn receipt_without_a_sidecar(service: usize, agent: usize, name: usize) -> Vec<Operation> {
    let mut operations = revocation_with_receipt(service, agent, name, false);
    operations.insert(2, Operation::Freeze);
    operations.push(Operation::Reconnect);
    operations.push(Operation::Receipt { service, requests: Vec::new(), crash: false });
    operations
}

/// After the receipt, the sidecar with a copy reaches only a control plane whose data does not contain the revocation.
fn receipt_before_old_data(service: usize, agent: usize, name: usize) -> Vec<Operation> {
    let mut operations = revocation_with_receipt(service, agent, name, false);
    operations.push(Operation::OldAddress);
    operations.push(Operation::RestoreAddress(0));
    operations
}
