//! Every reason that a check at a known service can have, and what passes.

use super::*;
use crate::{
    fixtures::{AGENT, ISSUED, ISSUER, READER, REV, SERVICE, SESSION, Signer, claims, reader, role_name},
    view::{Confirmation, Dead, Delta, Revoked, Snapshot, Terms},
};
use countersign_identity::{
    AgentChanges, AgentStatus, Claims, KeySet, Permission, Revision, RoleGrant, ServiceId, StatusWithCutoff,
    TrustScore, Versioned,
};
use prometheus::IntCounter;

const CONFIRMED: Duration = Duration::from_secs(1000);

fn cache() -> TokenCache {
    let counter = |name| IntCounter::new(name, name).unwrap();
    TokenCache::new(10, counter("hits"), counter("misses"))
}

fn unconfirmed() -> View {
    let terms = Terms {
        service: SERVICE,
        issuer: ISSUER.into(),
        accepts_unbound: false,
        max_staleness: Duration::from_mins(1),
    };
    let snapshot = Snapshot {
        revision: Revision::new(REV),
        floor: Revision::new(10),
        terms,
        keys: KeySet::from_points([Signer::new(1).point()]).unwrap(),
        roles: [reader()].into_iter().collect(),
        agents: vec![],
        revoked: vec![],
    };
    View::of(snapshot, None)
}

fn view() -> View {
    let (revision, floor) = (Revision::new(REV), Revision::new(10));
    unconfirmed().confirm(Confirmation { revision, floor, asked_at: CONFIRMED })
}

fn moment() -> Moment {
    Moment { now: Timestamp::from_seconds(ISSUED + 60), since_boot: CONFIRMED + Duration::from_secs(1) }
}

fn asked(view: &View, policy: &Policy, token: &str) -> Decision {
    decide(view, policy, Presented::Token(token), moment(), &cache())
}

fn reason(decision: &Decision) -> Option<Reason> {
    match decision {
        Decision::Refused(refused) => Some(refused.refusal.reason),
        Decision::Verified(_) | Decision::Anonymous => None,
    }
}

fn changed(change: impl FnOnce(&mut Claims)) -> String {
    let mut claims = claims();
    change(&mut claims);
    Signer::new(1).sign(&claims)
}

fn with(record: AgentChanges) -> View {
    view().apply(Delta { revision: Revision::new(REV + 9), agents: vec![(AGENT, record)], ..Delta::default() })
}

fn status(status: AgentStatus, cutoff: i64) -> View {
    let value = StatusWithCutoff { status, cutoff: Revision::new(cutoff) };
    with(AgentChanges {
        status: Some(Versioned { revision: Revision::new(REV + 1), value }),
        ..AgentChanges::default()
    })
}

#[test]
fn a_good_token_passes_with_the_present_truth() {
    let Decision::Verified(identity) = asked(&view(), &Policy::default(), &changed(|_| ())) else { panic!("verified") };
    assert_eq!((identity.agent, identity.roles), (AGENT, vec![role_name("reader")]));
    let value = TrustScore::from_points(80.0).unwrap();
    let trusted =
        AgentChanges { trust: Some(Versioned { revision: Revision::new(REV + 1), value }), ..AgentChanges::default() };
    let Decision::Verified(identity) = asked(&with(trusted), &Policy::default(), &changed(|_| ())) else {
        panic!("verified")
    };
    assert_eq!(identity.trust_score, value);
}

#[test]
fn a_bad_token_is_refused_with_its_reason() {
    let good = changed(|_| ());
    let (head, _) = good.rsplit_once('.').unwrap();
    let (_, other_signature) = Signer::new(1)
        .sign(&Claims { name: "Other".into(), ..claims() })
        .rsplit_once('.')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    let cases = [
        ("not.a.token".to_owned(), Reason::TokenMalformed),
        (Signer::new(2).sign(&claims()), Reason::TokenKeyUnknown),
        (format!("{head}.{other_signature}"), Reason::TokenSignatureInvalid),
        (changed(|it| it.iss = "https://other.test".into()), Reason::TokenClaimsInvalid),
        (changed(|it| it.nbf = ISSUED + 91), Reason::TokenNotYetValid),
        (changed(|it| it.exp = ISSUED + 60), Reason::TokenExpired),
        (changed(|it| it.aud = ServiceId::from_bits(9).to_string()), Reason::TokenAudienceMismatch),
        (changed(|it| it.aud = ISSUER.into()), Reason::TokenUnbound),
        (changed(|it| it.rev = Revision::new(9)), Reason::TokenSuperseded),
    ];
    for (token, expected) in cases {
        assert_eq!(reason(&asked(&view(), &Policy::default(), &token)), Some(expected));
    }
}

#[test]
fn what_was_revoked_since_is_refused() {
    let token = changed(|_| ());
    let ask = |view: &View| reason(&asked(view, &Policy::default(), &token));
    assert_eq!(ask(&status(AgentStatus::Suspended, 0)), Some(Reason::AgentSuspended));
    assert_eq!(ask(&status(AgentStatus::Revoked, 0)), Some(Reason::AgentRevoked));
    assert_eq!(ask(&status(AgentStatus::Active, REV + 1)), Some(Reason::TokenRevoked), "reactivated");
    assert_eq!(ask(&status(AgentStatus::Active, 0)), None);
    let revision = Revision::new(REV + 1);
    let revoked = vec![Revoked { revision, what: Dead::Session(SESSION) }];
    assert_eq!(ask(&view().apply(Delta { revision, revoked, ..Delta::default() })), Some(Reason::TokenRevoked));
    let roles = Some(Versioned { revision, value: vec![] });
    assert_eq!(ask(&with(AgentChanges { roles, ..AgentChanges::default() })), Some(Reason::NoRole));
    let grants = vec![RoleGrant { role: READER, until: Some(moment().now) }];
    let roles = Some(Versioned { revision, value: grants });
    assert_eq!(ask(&with(AgentChanges { roles, ..AgentChanges::default() })), Some(Reason::NoRole), "over this second");
}

#[test]
fn a_route_may_require_more_or_less() {
    let token = changed(|_| ());
    let ask = |policy: Policy| reason(&asked(&view(), &policy, &token));
    let permission = |text| Permission::try_from(text).unwrap();
    let roles = |names: &[&str]| Policy {
        require_roles: names.iter().map(|name| role_name(name)).collect(),
        ..Policy::default()
    };
    assert_eq!(ask(roles(&["reader"])), None);
    assert_eq!(ask(roles(&["reader", "writer"])), Some(Reason::RoleMissing));
    let permissions = |names: Vec<Permission>| Policy { require_permissions: names, ..Policy::default() };
    assert_eq!(ask(permissions(vec![permission("read")])), None);
    assert_eq!(ask(permissions(vec![permission("read"), permission("write")])), Some(Reason::PermissionMissing));
    let trust = |points| Policy { min_trust_score: TrustScore::from_points(points).ok(), ..Policy::default() };
    assert_eq!(ask(trust(50.0)), None);
    assert_eq!(ask(trust(50.01)), Some(Reason::TrustTooLow));
    let without = changed(|it| it.roles.clear());
    assert_eq!(reason(&asked(&view(), &Policy::default(), &without)), Some(Reason::NoRole));
    let unassigned = Policy { allow_unassigned: true, ..Policy::default() };
    assert_eq!(reason(&asked(&view(), &unassigned, &without)), None);
}

#[test]
fn only_the_silent_are_anonymous() {
    let anonymous = Policy { allow_anonymous: true, ..Policy::default() };
    let ask = |policy: &Policy, presented| decide(&view(), policy, presented, moment(), &cache());
    assert_eq!(reason(&ask(&Policy::default(), Presented::Nothing)), Some(Reason::TokenMissing));
    assert_eq!(ask(&anonymous, Presented::Nothing), Decision::Anonymous);
    let repeated = Presented::Unreadable(Reason::TokenRepeated);
    assert_eq!(reason(&ask(&anonymous, repeated)), Some(Reason::TokenRepeated));
    assert_eq!(reason(&ask(&anonymous, Presented::Token("bad"))), Some(Reason::TokenMalformed));
}

#[test]
fn a_view_that_is_unconfirmed_or_too_old_decides_nothing() {
    let token = changed(|_| ());
    assert_eq!(reason(&asked(&unconfirmed(), &Policy::default(), &token)), Some(Reason::ViewMissing));
    let at = |seconds| {
        let moment = Moment { since_boot: CONFIRMED + Duration::from_secs(seconds), ..moment() };
        reason(&decide(&view(), &Policy::default(), Presented::Token(&token), moment, &cache()))
    };
    assert_eq!((at(59), at(60)), (None, Some(Reason::ViewStale)));
}

#[test]
fn the_cache_spares_the_signature_and_nothing_else() {
    let (cache, token, policy) = (cache(), changed(|_| ()), Policy::default());
    let ask = |view: &View, moment| reason(&decide(view, &policy, Presented::Token(&token), moment, &cache));
    assert_eq!(ask(&view(), moment()), None);
    assert!(cache.get(&TokenCache::place(SERVICE, &token)).is_some());
    assert!(cache.get(&TokenCache::place(ServiceId::from_bits(9), &token)).is_none());
    let late = Moment { now: Timestamp::from_seconds(ISSUED + 3600), ..moment() };
    assert_eq!(ask(&view(), late), Some(Reason::TokenExpired));
    let delta = Delta { revision: Revision::new(REV + 1), keys: Some(KeySet::default()), ..Delta::default() };
    assert_eq!(ask(&view().apply(delta), moment()), Some(Reason::TokenKeyUnknown));
}

#[test]
fn a_refusal_names_the_agent_only_if_the_signature_does() {
    let whom = |token: &str| match asked(&status(AgentStatus::Suspended, 0), &Policy::default(), token) {
        Decision::Refused(refused) => refused.agent,
        Decision::Verified(_) | Decision::Anonymous => panic!("refused"),
    };
    assert_eq!(whom(&changed(|_| ())), Some(AGENT));
    assert_eq!(whom(&Signer::new(2).sign(&claims())), None);
}
