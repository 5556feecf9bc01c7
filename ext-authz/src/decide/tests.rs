//! Tests of `decide`: every reason for a denial at a known service.

mod cached;

use super::*;
use crate::{
    fixtures::{
        AGENT_ID, ISSUED_AT, ISSUER, READER_ROLE_ID, SESSION_ID, TOKEN_ID, TOKEN_REVISION, TestIssuer, claims,
        reader_role, role_name,
    },
    view::{
        Confirmation, Delta, PartialView, Revocation, RevokedSubject, ServiceSettings, SnapshotHeader,
        tests::{header, view as snapshot_view},
    },
};
use countersign_identity::{
    AgentChanges, AgentHashKey, AgentStatus, Claims, KeySet, KeyedGrant, Permission, Revision, RoleGrant, RoleId,
    Scope, ServiceId, StatusWithCutoff, TrustScore, Versioned,
};
use prometheus::IntCounter;

/// The time since boot at which the last answered ping was sent.
const CONFIRMED_AT: Duration = Duration::from_secs(1000);

impl EvaluatedIdentity {
    /// The identity of an agent with these roles.
    pub fn fixture(roles: Vec<RoleName>) -> Self {
        Self::unshared(VerifiedIdentity {
            agent: AGENT_ID,
            name: "Reader".into(),
            roles,
            permissions: Vec::new(),
            trust_score: TrustScore::INITIAL,
            token: TOKEN_ID,
            valid_until: Timestamp::from_seconds(ISSUED_AT + 3600),
        })
    }

    /// An identity that applies at all times, with a content that no view has.
    pub fn unshared(identity: VerifiedIdentity) -> Self {
        Self { identity, content: ContentId::next(), evaluated_at: Timestamp::from_seconds(0) }
    }
}

fn cache() -> VerifiedTokens {
    let counter = |name| IntCounter::new(name, name).unwrap();
    VerifiedTokens::new(10, counter("hits"), counter("misses"))
}

fn agent_hash_key() -> AgentHashKey {
    AgentHashKey::from_bytes(&[7; 32]).unwrap()
}

/// The claims of an unbound token of an agent with these roles at the service.
pub fn unbound_claims(roles: impl IntoIterator<Item = RoleGrant>) -> Claims {
    let grants = roles.into_iter().map(|grant| KeyedGrant { key: agent_hash_key(), grant });
    let claims = Claims { aud: ISSUER.to_owned().into(), roles: vec![], permissions: vec![], ..claims() };
    claims.with_grants(grants, &AgentHashKey::from_bytes(&[8; 32]).unwrap())
}

fn unconfirmed_view() -> View {
    let mut header = header();
    header.settings.accepts_unbound = false;
    snapshot_view(TOKEN_REVISION, header)
}

fn view() -> View {
    let (revision, floor) = (Revision::new(TOKEN_REVISION), Revision::new(10));
    unconfirmed_view().confirm(Confirmation { revision, floor, ping_sent_at: CONFIRMED_AT, server_clock: None })
}

fn current_time() -> CurrentTime {
    CurrentTime { now: Timestamp::from_seconds(ISSUED_AT + 60), since_boot: CONFIRMED_AT + Duration::from_secs(1) }
}

fn decide_with_token(view: &View, policy: &Policy, token: &str) -> Decision {
    decide(view, policy, PresentedToken::Unverified(token), current_time(), &cache())
}

fn reason(decision: &Decision) -> Option<Reason> {
    match decision {
        Decision::Denied(denial) | Decision::DryRun(denial) => Some(denial.refusal.reason),
        Decision::Verified(..) | Decision::Anonymous => None,
    }
}

fn token_with_claims(change: impl FnOnce(&mut Claims)) -> String {
    let mut claims = claims();
    change(&mut claims);
    TestIssuer::new(1).sign(&claims)
}

fn view_with_changes(changes: AgentChanges) -> View {
    view().apply(Delta {
        revision: Revision::new(TOKEN_REVISION + 9),
        agents: vec![(agent_hash_key().hash(AGENT_ID), changes)],
        ..Delta::default()
    })
}

fn view_with_status(status: AgentStatus, cutoff: i64) -> View {
    let value = StatusWithCutoff { status, cutoff: Revision::new(cutoff) };
    view_with_changes(AgentChanges {
        status: Some(Versioned { revision: Revision::new(TOKEN_REVISION + 1), value }),
        ..AgentChanges::default()
    })
}

#[test]
fn allows_valid_token_with_current_roles_and_trust() {
    let Decision::Verified(identity, _) = decide_with_token(&view(), &Policy::default(), &token_with_claims(|_| ()))
    else {
        panic!("the request is denied")
    };
    let VerifiedIdentity { agent, roles, .. } = &identity.identity;
    assert_eq!((*agent, roles), (AGENT_ID, &vec![role_name("reader")]));
    let value = TrustScore::from_points(80.0).unwrap();
    let trust_change = AgentChanges {
        trust: Some(Versioned { revision: Revision::new(TOKEN_REVISION + 1), value }),
        ..AgentChanges::default()
    };
    let Decision::Verified(identity, _) =
        decide_with_token(&view_with_changes(trust_change), &Policy::default(), &token_with_claims(|_| ()))
    else {
        panic!("the request is denied")
    };
    assert_eq!(identity.identity.trust_score, value);
}

#[test]
fn validity_ends_with_the_token_the_role_or_the_view() {
    let until = |until: &[(&str, i64)], max_staleness: u64| {
        let token = token_with_claims(|claims| {
            claims.until = until.iter().map(|(role, end)| (role_name(role), *end)).collect();
        });
        let settings =
            ServiceSettings { max_staleness: Duration::from_secs(max_staleness), ..view().settings().clone() };
        let view = view().apply(Delta { settings: Some(settings), ..Delta::default() });
        let Decision::Verified(_, Validity { until, remaining }) = decide_with_token(&view, &Policy::default(), &token)
        else {
            panic!("the request is denied")
        };
        assert_eq!(until, current_time().now.saturating_add(remaining));
        until.seconds() - ISSUED_AT
    };
    assert_eq!(until(&[], 10_000), 3600, "the token expires");
    assert_eq!(until(&[("reader", ISSUED_AT + 600)], 10_000), 600, "the role ends");
    assert_eq!(until(&[("reader", ISSUED_AT + 600)], 60), 60 + 59, "the view was confirmed a second ago");
}

#[test]
fn denies_invalid_token_with_its_reason() {
    let valid = token_with_claims(|_| ());
    let (header_and_claims, _) = valid.rsplit_once('.').unwrap();
    let (_, other_signature) = TestIssuer::new(1)
        .sign(&Claims { name: "Other".into(), ..claims() })
        .rsplit_once('.')
        .map(|(signed, signature)| (signed.to_owned(), signature.to_owned()))
        .unwrap();
    let cases = [
        ("not.a.token".to_owned(), Reason::TokenMalformed),
        (TestIssuer::new(2).sign(&claims()), Reason::TokenKeyUnknown),
        (format!("{header_and_claims}.{other_signature}"), Reason::TokenSignatureInvalid),
        (token_with_claims(|claims| claims.iss = "https://other.test".into()), Reason::TokenClaimsInvalid),
        (token_with_claims(|claims| claims.nbf = ISSUED_AT + 91), Reason::TokenNotYetValid),
        (token_with_claims(|claims| claims.exp = ISSUED_AT + 60), Reason::TokenExpired),
        (
            token_with_claims(|claims| claims.aud = ServiceId::from_bits(9).to_string().into()),
            Reason::TokenAudienceMismatch,
        ),
        (token_with_claims(|claims| claims.aud = ISSUER.to_owned().into()), Reason::TokenUnbound),
        (token_with_claims(|claims| claims.rev = Revision::new(9)), Reason::TokenSuperseded),
    ];
    for (token, expected) in cases {
        assert_eq!(reason(&decide_with_token(&view(), &Policy::default(), &token)), Some(expected));
    }
}

#[test]
fn denies_agents_tokens_and_roles_revoked_after_issue() {
    let token = token_with_claims(|_| ());
    let reason_for = |view: &View| reason(&decide_with_token(view, &Policy::default(), &token));
    assert_eq!(reason_for(&view_with_status(AgentStatus::Suspended, 0)), Some(Reason::AgentSuspended));
    assert_eq!(reason_for(&view_with_status(AgentStatus::Revoked, 0)), Some(Reason::AgentRevoked));
    assert_eq!(
        reason_for(&view_with_status(AgentStatus::Active, TOKEN_REVISION + 1)),
        Some(Reason::TokenRevoked),
        "the agent was reactivated"
    );
    assert_eq!(reason_for(&view_with_status(AgentStatus::Active, 0)), None);
    let revision = Revision::new(TOKEN_REVISION + 1);
    let revocations = vec![Revocation { revision, subject: RevokedSubject::Session(SESSION_ID) }];
    assert_eq!(
        reason_for(&view().apply(Delta { revision, revocations, ..Delta::default() })),
        Some(Reason::TokenRevoked)
    );
    let roles = Some(Versioned { revision, value: vec![] });
    assert_eq!(reason_for(&view_with_changes(AgentChanges { roles, ..AgentChanges::default() })), Some(Reason::NoRole));
    let grants = vec![RoleGrant { role: READER_ROLE_ID, until: Some(current_time().now) }];
    let roles = Some(Versioned { revision, value: grants });
    assert_eq!(
        reason_for(&view_with_changes(AgentChanges { roles, ..AgentChanges::default() })),
        Some(Reason::NoRole),
        "the role assignment has ended"
    );
}

#[test]
fn routes_without_requirements_need_a_role_unless_they_allow_agents_without_one() {
    let without_roles = token_with_claims(|claims| claims.roles.clear());
    assert_eq!(reason(&decide_with_token(&view(), &Policy::default(), &without_roles)), Some(Reason::NoRole));
    let allows_unassigned = Policy { allow_unassigned: true, ..Policy::default() };
    assert_eq!(reason(&decide_with_token(&view(), &allows_unassigned, &without_roles)), None);
}

#[test]
fn unbound_token_has_the_roles_of_its_service() {
    let settings = ServiceSettings { accepts_unbound: true, ..view().settings().clone() };
    let accepting = view().apply(Delta { settings: Some(settings), ..Delta::default() });
    let reader = Policy { require_roles: vec![role_name("reader")], ..Policy::default() };
    let token = |roles: &[RoleId]| {
        let grants = roles.iter().map(|role| RoleGrant { role: *role, until: None });
        TestIssuer::new(1).sign(&unbound_claims(grants))
    };
    let other_role = RoleId::from_bits(99);
    assert_eq!(reason(&decide_with_token(&accepting, &reader, &token(&[READER_ROLE_ID, other_role]))), None);
    assert_eq!(reason(&decide_with_token(&accepting, &reader, &token(&[other_role]))), Some(Reason::NoRole));
    let refused = reason(&decide_with_token(&view(), &reader, &token(&[READER_ROLE_ID])));
    assert_eq!(refused, Some(Reason::TokenUnbound), "the service refuses unbound tokens");
}

#[test]
fn anonymous_route_still_refuses_invalid_tokens() {
    let anonymous = Policy { allow_anonymous: true, ..Policy::default() };
    let decide_with = |policy: &Policy, token| decide(&view(), policy, token, current_time(), &cache());
    assert_eq!(reason(&decide_with(&Policy::default(), PresentedToken::Absent)), Some(Reason::TokenMissing));
    assert_eq!(decide_with(&anonymous, PresentedToken::Absent), Decision::Anonymous);
    let repeated = PresentedToken::Invalid(Reason::TokenRepeated);
    assert_eq!(reason(&decide_with(&anonymous, repeated)), Some(Reason::TokenRepeated));
    assert_eq!(reason(&decide_with(&anonymous, PresentedToken::Unverified("bad"))), Some(Reason::TokenMalformed));
}

#[test]
fn denies_when_view_is_unconfirmed_or_stale() {
    let token = token_with_claims(|_| ());
    assert_eq!(reason(&decide_with_token(&unconfirmed_view(), &Policy::default(), &token)), Some(Reason::ViewMissing));
    let reason_after = |seconds| {
        let current_time = CurrentTime { since_boot: CONFIRMED_AT + Duration::from_secs(seconds), ..current_time() };
        reason(&decide(&view(), &Policy::default(), PresentedToken::Unverified(&token), current_time, &cache()))
    };
    assert_eq!((reason_after(59), reason_after(60)), (None, Some(Reason::ViewStale)));
}

#[test]
fn denial_contains_the_agent_only_if_the_signature_is_valid() {
    let denied_agent = |token: &str| match decide_with_token(
        &view_with_status(AgentStatus::Suspended, 0),
        &Policy::default(),
        token,
    ) {
        Decision::Denied(denial) => denial.agent,
        Decision::Verified(..) | Decision::Anonymous | Decision::DryRun(_) => panic!("the request is allowed"),
    };
    assert_eq!(denied_agent(&token_with_claims(|_| ())), Some(AGENT_ID));
    assert_eq!(denied_agent(&TestIssuer::new(2).sign(&claims())), None);
}

fn roles<T: FromIterator<RoleName>>(names: &[&str]) -> T {
    names.iter().map(|name| role_name(name)).collect()
}

fn permissions<T: FromIterator<Permission>>(names: &[&str]) -> T {
    names.iter().map(|name| Permission::try_from(*name).unwrap()).collect()
}

/// The agent has the role `reader`, the permission `read`, and a trust score of 50.
#[test]
fn denial_contains_the_requirement_that_the_agent_does_not_meet() {
    let require_roles = |names: &[&str]| Policy { require_roles: roles(names), ..Policy::default() };
    let any_role = |names: &[&str]| Policy { any_role: roles(names), ..Policy::default() };
    let require_permissions = |names: &[&str]| Policy { require_permissions: permissions(names), ..Policy::default() };
    let any_permission = |names: &[&str]| Policy { any_permission: permissions(names), ..Policy::default() };
    let score = |points| TrustScore::from_points(points).unwrap();
    let trust = |points| Policy { min_trust_score: Some(score(points)), ..Policy::default() };
    let reader = token_with_claims(|_| ());
    for policy in [
        require_roles(&["reader"]),
        any_role(&["writer", "reader"]),
        require_permissions(&["read"]),
        any_permission(&["write", "read"]),
        trust(50.0),
    ] {
        assert!(matches!(decide_with_token(&view(), &policy, &reader), Decision::Verified(..)), "{policy:?}");
    }
    let without_roles = token_with_claims(|claims| claims.roles.clear());
    let has_roles = |names: &[&str]| Qualification::Roles(roles(names));
    let has_permissions = |names: &[&str]| Qualification::Permissions(permissions(names));
    let has_trust = |points| Qualification::TrustScore(score(points));
    let both = ["reader", "writer"];
    for (token, policy, reason, required, actual) in [
        (&without_roles, require_roles(&both), Reason::NoRole, has_roles(&both), has_roles(&[])),
        (&reader, require_roles(&both), Reason::RoleMissing, has_roles(&both), has_roles(&["reader"])),
        (
            &reader,
            any_role(&["writer", "admin"]),
            Reason::RoleMissing,
            Qualification::AnyRole(roles(&["writer", "admin"])),
            has_roles(&["reader"]),
        ),
        (
            &reader,
            require_permissions(&["read", "write"]),
            Reason::PermissionMissing,
            has_permissions(&["read", "write"]),
            has_permissions(&["read"]),
        ),
        (
            &reader,
            any_permission(&["write"]),
            Reason::PermissionMissing,
            Qualification::AnyPermission(permissions(&["write"])),
            has_permissions(&["read"]),
        ),
        (&reader, trust(50.01), Reason::TrustTooLow, has_trust(50.01), has_trust(50.0)),
    ] {
        let Decision::Denied(denial) = decide_with_token(&view(), &policy, token) else { panic!("{policy:?}") };
        let expected = Some(UnmetRequirement { required, actual });
        assert_eq!((denial.refusal.reason, denial.unmet_requirement), (reason, expected), "{policy:?}");
    }
}

#[test]
fn scope_is_the_reason_only_if_a_token_without_it_would_be_allowed() {
    let narrowed = token_with_claims(|claims| claims.requested_scope = Some(Scope::try_from("list").unwrap()));
    let all = |names: &[&str]| Policy { require_permissions: permissions(names), ..Policy::default() };
    let any = |names: &[&str]| Policy { any_permission: permissions(names), ..Policy::default() };
    let with_trust = Policy { min_trust_score: TrustScore::from_points(50.01).ok(), ..all(&["read"]) };
    for (policy, expected) in [
        (all(&["read"]), Reason::TokenScopeInsufficient),
        (any(&["read", "write"]), Reason::TokenScopeInsufficient),
        (all(&["read", "write"]), Reason::PermissionMissing),
        (all(&["list"]), Reason::PermissionMissing),
        (any(&["list", "write"]), Reason::PermissionMissing),
        (with_trust, Reason::PermissionMissing),
    ] {
        assert_eq!(reason(&decide_with_token(&view(), &policy, &narrowed)), Some(expected), "{policy:?}");
    }
}

#[test]
fn dry_run_changes_denials_only() {
    let allowed = decide_with_token(&view(), &Policy::default(), &token_with_claims(|_| ()));
    assert_eq!(allowed.clone().into_dry_run(), allowed);
    assert_eq!(Decision::Anonymous.into_dry_run(), Decision::Anonymous);
    let denied = decide_with_token(&view(), &Policy::default(), "not.a.token");
    let Decision::DryRun(denial) = denied.into_dry_run() else { panic!("the decision is no dry run") };
    assert_eq!(denial.refusal.reason, Reason::TokenMalformed);
}
