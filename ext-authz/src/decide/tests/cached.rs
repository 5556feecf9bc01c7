//! Property test: a cache with tokens of earlier checks changes no decision.

use super::*;
use countersign_identity::RoleDefinition;
use countersign_mangle::cases_divided_by;
use proptest::{collection::vec, prelude::*, sample::select};

/// Something that happens between two checks.
#[derive(Debug, Clone)]
enum Step {
    /// The clock is set to this many seconds after the tokens were issued, even if that sets it back.
    Time(i64),
    /// The status of the agent changes, and with it the cutoff, relative to the `rev` of the tokens.
    Status(AgentStatus, i64),
    /// The agent has these roles, some with an end.
    Roles(Vec<(RoleId, Option<i64>)>),
    Trust(f64),
    RevokeSession,
    RevokeToken,
    /// The definitions of the roles change.
    Definitions(Vec<RoleDefinition>),
    /// The signing keys are added (`true`) or removed.
    Keys(bool),
    /// Whether the service accepts unbound tokens.
    AcceptsUnbound(bool),
    /// A pong arrives, with a floor relative to the `rev` of the tokens.
    Confirm(i64),
    /// A snapshot arrives, without any change.
    Snapshot,
}

const WRITER_ROLE_ID: RoleId = RoleId::from_bits(33);

fn writer_role(permission: &str) -> RoleDefinition {
    RoleDefinition {
        id: WRITER_ROLE_ID,
        name: role_name("writer"),
        permissions: vec![Permission::try_from(permission).unwrap()],
        created_revision: Revision::new(60),
    }
}

fn steps() -> BoxedStrategy<Step> {
    let end = prop_oneof![Just(None), select(&[100, 200, 3700][..]).prop_map(Some)];
    let definitions =
        [vec![], vec![reader_role()], vec![reader_role(), writer_role("write")], vec![writer_role("read")]];
    prop_oneof![
        6 => select(&[0, 60, 99, 100, 101, 199, 200, 3599, 3600, 3601][..]).prop_map(Step::Time),
        2 => (select(&[AgentStatus::Active, AgentStatus::Suspended, AgentStatus::Revoked][..]), -1..2_i64)
            .prop_map(|(status, cutoff)| Step::Status(status, cutoff)),
        2 => vec((select(&[READER_ROLE_ID, WRITER_ROLE_ID][..]), end), 0..3).prop_map(Step::Roles),
        1 => (0..=100_u8).prop_map(|points| Step::Trust(points.into())),
        1 => Just(Step::RevokeSession),
        1 => Just(Step::RevokeToken),
        2 => select(definitions.to_vec()).prop_map(Step::Definitions),
        1 => any::<bool>().prop_map(Step::Keys),
        1 => any::<bool>().prop_map(Step::AcceptsUnbound),
        2 => (-2..2_i64).prop_map(Step::Confirm),
        1 => Just(Step::Snapshot),
    ]
    .boxed()
}

/// The view after a step at a revision.
fn after(view: &View, step: &Step, revision: Revision) -> View {
    let agent = |changes: AgentChanges| vec![(agent_hash_key().hash(AGENT_ID), changes)];
    let revoked = |subject| vec![Revocation { revision, subject }];
    let empty = Delta { revision, ..Delta::default() };
    let delta = match step {
        Step::Time(_) => return view.clone(),
        Step::Status(status, cutoff) => {
            let value = StatusWithCutoff { status: *status, cutoff: Revision::new(TOKEN_REVISION + cutoff) };
            let status = Some(Versioned { revision, value });
            Delta { agents: agent(AgentChanges { status, ..AgentChanges::default() }), ..empty }
        }
        Step::Roles(roles) => {
            let until = |end: &Option<i64>| end.map(|end| Timestamp::from_seconds(ISSUED_AT + end));
            let value = roles.iter().map(|(role, end)| RoleGrant { role: *role, until: until(end) }).collect();
            let roles = Some(Versioned { revision, value });
            Delta { agents: agent(AgentChanges { roles, ..AgentChanges::default() }), ..empty }
        }
        Step::Trust(points) => {
            let trust = Some(Versioned { revision, value: TrustScore::from_points(*points).unwrap() });
            Delta { agents: agent(AgentChanges { trust, ..AgentChanges::default() }), ..empty }
        }
        Step::RevokeSession => Delta { revocations: revoked(RevokedSubject::Session(SESSION_ID)), ..empty },
        Step::RevokeToken => Delta { revocations: revoked(RevokedSubject::Token(claims().jti)), ..empty },
        Step::Definitions(roles) => Delta { roles: Some(roles.iter().cloned().collect()), ..empty },
        Step::Keys(exist) => {
            let keys = KeySet::from_points(exist.then(|| TestIssuer::new(1).public_point())).unwrap();
            Delta { keys: Some(keys), ..empty }
        }
        Step::AcceptsUnbound(accepts_unbound) => {
            let settings = ServiceSettings { accepts_unbound: *accepts_unbound, ..view.settings().clone() };
            Delta { settings: Some(settings), ..empty }
        }
        Step::Confirm(floor) => {
            let floor = Revision::new(TOKEN_REVISION + floor);
            let (ping_sent_at, server_clock) = (CONFIRMED_AT, None);
            return view.confirm(Confirmation { revision, floor, ping_sent_at, server_clock });
        }
        Step::Snapshot => {
            let (settings, keys, roles) = (view.settings().clone(), view.keys().clone(), view.roles().clone());
            let mut snapshot = PartialView::new(revision, view.floor(), SnapshotHeader { settings, keys, roles });
            let agents = view.agents().map(|(agent, changes)| (agent, changes.clone())).collect();
            snapshot.add(view.floor(), agents, view.revocations().collect());
            return snapshot.complete(Some(view));
        }
    };
    view.apply(delta)
}

/// Roles of an unbound token. The definitions of the role with an end come and go.
fn unbound_roles() -> [RoleGrant; 2] {
    let until = Some(Timestamp::from_seconds(ISSUED_AT + 200));
    [RoleGrant { role: READER_ROLE_ID, until: None }, RoleGrant { role: WRITER_ROLE_ID, until }]
}

/// Tokens with and without roles, with roles that end, newer than the first view, and unbound.
fn tokens() -> Vec<String> {
    vec![
        token_with_claims(|_| ()),
        token_with_claims(|claims| claims.until = [(role_name("reader"), ISSUED_AT + 100)].into()),
        token_with_claims(|claims| {
            claims.roles = vec![role_name("reader"), role_name("writer")];
            claims.until = [(role_name("writer"), ISSUED_AT + 200)].into();
        }),
        token_with_claims(|claims| claims.rev = Revision::new(TOKEN_REVISION + 3)),
        token_with_claims(|claims| *claims = unbound_claims([])),
        token_with_claims(|claims| *claims = unbound_claims(unbound_roles())),
        token_with_claims(|claims| {
            *claims = Claims { rev: Revision::new(TOKEN_REVISION + 3), ..unbound_claims(unbound_roles()) };
        }),
        token_with_claims(|claims| claims.roles.clear()),
    ]
}

fn policies() -> [Policy; 3] {
    let any = Policy { allow_unassigned: true, ..Policy::default() };
    let reader = Policy { require_roles: vec![role_name("reader")], ..Policy::default() };
    let trusted = Policy { min_trust_score: TrustScore::from_points(40.0).ok(), ..any.clone() };
    [any, reader, trusted]
}

proptest! {
    #![proptest_config(cases_divided_by(4))]

    #[test]
    fn cached_decisions_are_those_without_a_cache(steps in vec(steps(), 1..20)) {
        let settings = ServiceSettings { max_staleness: Duration::from_hours(2), ..view().settings().clone() };
        let mut view = view().apply(Delta { settings: Some(settings), ..Delta::default() });
        let (tokens, policies, shared) = (tokens(), policies(), cache());
        let mut now = ISSUED_AT + 60;
        for (step, revision) in steps.iter().zip(TOKEN_REVISION + 1..) {
            view = after(&view, step, Revision::new(revision));
            if let Step::Time(seconds) = step {
                now = ISSUED_AT + seconds;
            }
            let time = CurrentTime { now: Timestamp::from_seconds(now), ..current_time() };
            for token in &tokens {
                for policy in &policies {
                    let decide = |cache: &VerifiedTokens| decide(&view, policy, PresentedToken::Unverified(token), time, cache);
                    prop_assert_eq!(decide(&shared), decide(&cache()), "{:?}", step);
                }
            }
        }
    }
}
