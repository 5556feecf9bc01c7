//! Tests of [`VerifiedIdentity::evaluate`], and of merging and pruning changes.

use super::*;
use crate::{KeyedGrant, Refusal, Scope, claims::tests::claims as token};
use proptest::prelude::*;

const ISSUER: &str = "https://issuer.test";
const SERVICE_ID: ServiceId = ServiceId::from_bits(1);
const OTHER_SERVICE_ID: ServiceId = ServiceId::from_bits(2);
const ISSUED_AT: i64 = 1_000_000;

/// The key of a service.
fn key(service: ServiceId) -> AgentHashKey {
    AgentHashKey::derive(&[7; 32], service)
}

/// An unbound token of an agent with roles at some services.
fn unbound(grants: &[(ServiceId, RoleGrant)]) -> Claims {
    let roles = grants.iter().map(|(service, grant)| KeyedGrant { key: key(*service), grant: *grant });
    let claims = Claims { aud: ISSUER.to_owned().into(), roles: vec![], permissions: vec![], ..token() };
    claims.with_grants(roles, &key(ServiceId::from_bits(0)))
}

fn role_name(text: &str) -> RoleName {
    RoleName::try_from(text).unwrap()
}

fn permission(text: &str) -> Permission {
    Permission::try_from(text).unwrap()
}

fn role(id: u128, name: &str, permissions: &[&str], created_revision: i64) -> RoleDefinition {
    let permissions = permissions.iter().map(|text| permission(text)).collect();
    RoleDefinition {
        id: RoleId::from_bits(id),
        name: role_name(name),
        permissions,
        created_revision: Revision::new(created_revision),
    }
}

fn role_table() -> RoleTable {
    [role(1, "reader", &["read"], 5), role(2, "writer", &["read", "write"], 5)].into_iter().collect()
}

struct EvaluationSetup {
    roles: RoleTable,
    agent: AgentChanges,
    revision: i64,
    floor: i64,
    accepts_unbound: bool,
    revoked: bool,
}

impl Default for EvaluationSetup {
    fn default() -> Self {
        let agent = AgentChanges::default();
        Self { roles: role_table(), agent, revision: 20, floor: 0, accepts_unbound: true, revoked: false }
    }
}

impl EvaluationSetup {
    fn evaluate(&self, claims: &Claims, seconds: i64) -> Result<VerifiedIdentity, Refusal> {
        let context = EvaluationContext {
            service: SERVICE_ID,
            issuer: ISSUER,
            accepts_unbound: self.accepts_unbound,
            revision: Revision::new(self.revision),
            floor: Revision::new(self.floor),
            roles: &self.roles,
            agent_hash_key: &key(SERVICE_ID),
            agent: Some(&self.agent),
            revoked: self.revoked,
        };
        VerifiedIdentity::evaluate(claims, &context, Timestamp::from_seconds(seconds))
    }

    fn roles(&self, claims: &Claims) -> Vec<String> {
        self.evaluate(claims, ISSUED_AT).unwrap().roles.iter().map(ToString::to_string).collect()
    }

    fn refusal(&self, claims: &Claims, seconds: i64) -> Reason {
        self.evaluate(claims, seconds).unwrap_err().reason
    }
}

fn versioned<T>(revision: i64, value: T) -> Versioned<T> {
    Versioned { revision: Revision::new(revision), value }
}

fn grant(id: u128, until: Option<i64>) -> RoleGrant {
    RoleGrant { role: RoleId::from_bits(id), until: until.map(Timestamp::from_seconds) }
}

fn status(status: AgentStatus, cutoff: i64) -> StatusWithCutoff {
    StatusWithCutoff { status, cutoff: Revision::new(cutoff) }
}

#[test]
fn checks_exp_exactly_and_nbf_and_iat_with_leeway() {
    let setup = EvaluationSetup::default();
    assert!(setup.evaluate(&token(), ISSUED_AT + 3599).is_ok());
    assert_eq!(
        setup.evaluate(&token(), ISSUED_AT + 3600),
        Err(Refusal::expired(Timestamp::from_seconds(ISSUED_AT + 3600)))
    );
    assert!(setup.evaluate(&token(), ISSUED_AT - 30).is_ok());
    assert_eq!(setup.refusal(&token(), ISSUED_AT - 31), Reason::TokenNotYetValid);
    let issued_later = Claims { iat: ISSUED_AT + 31, ..token() };
    assert_eq!(setup.refusal(&issued_later, ISSUED_AT), Reason::TokenNotYetValid);
}

#[test]
fn refuses_other_issuers_and_audiences() {
    let mut setup = EvaluationSetup::default();
    assert_eq!(
        setup.refusal(&Claims { iss: "https://other.example".into(), ..token() }, ISSUED_AT),
        Reason::TokenClaimsInvalid
    );
    assert_eq!(
        setup.refusal(&Claims { aud: OTHER_SERVICE_ID.to_string().into(), ..token() }, ISSUED_AT),
        Reason::TokenAudienceMismatch
    );
    assert_eq!(
        setup.refusal(&Claims { aud: "anything".to_owned().into(), ..token() }, ISSUED_AT),
        Reason::TokenAudienceMismatch
    );
    let unbound = unbound(&[(SERVICE_ID, grant(1, None))]);
    assert_eq!(setup.roles(&unbound), ["reader"]);
    setup.accepts_unbound = false;
    assert_eq!(setup.refusal(&unbound, ISSUED_AT), Reason::TokenUnbound, "whatever the token contains");
}

#[test]
fn unbound_token_has_the_roles_of_each_service() {
    let mut setup = EvaluationSetup::default();
    let with_role = unbound(&[(SERVICE_ID, grant(1, None)), (OTHER_SERVICE_ID, grant(2, None))]);
    let identity = setup.evaluate(&with_role, ISSUED_AT).unwrap();
    assert_eq!((identity.roles, identity.permissions), (vec![role_name("reader")], vec![permission("read")]));
    assert!(setup.roles(&unbound(&[(OTHER_SERVICE_ID, grant(1, None))])).is_empty(), "the key of another service");
    let without_role = unbound(&[]);
    assert!(setup.roles(&without_role).is_empty());
    setup.agent.roles = Some(versioned(10, vec![]));
    assert_eq!(setup.roles(&with_role), ["reader"], "the token wins if the revisions are equal");
    setup.agent.roles = Some(versioned(11, vec![]));
    assert!(setup.roles(&with_role).is_empty(), "the role was revoked later");
    setup.agent.roles = Some(versioned(11, vec![grant(2, None)]));
    for token in [with_role, without_role] {
        assert_eq!(setup.roles(&token), ["writer"], "roles that changed later replace those of the token");
    }
}

#[test]
fn unbound_token_means_the_id_of_a_role() {
    let mut setup = EvaluationSetup::default();
    let token = unbound(&[(SERVICE_ID, grant(1, None))]);
    setup.roles = [role(1, "reader", &["peek"], 5)].into_iter().collect();
    assert_eq!(setup.evaluate(&token, ISSUED_AT).unwrap().permissions, [permission("peek")], "the current definition");
    // The creation revision shows that the name decides nothing, even where it would not refuse the role.
    setup.roles = [role(3, "reader", &["read"], 5)].into_iter().collect();
    assert!(setup.roles(&token).is_empty(), "the role was deleted, and created again with another id");
    setup.roles = RoleTable::default();
    assert!(setup.roles(&token).is_empty());
    for revision in [9, 20] {
        setup = EvaluationSetup { revision, ..EvaluationSetup::default() };
        let of_unknown_role = unbound(&[(SERVICE_ID, grant(1, None)), (SERVICE_ID, grant(3, None))]);
        assert_eq!(setup.roles(&of_unknown_role), ["reader"], "the table has no role 3 at revision {revision}");
    }
}

#[test]
fn claims_in_clear_count_only_in_tokens_for_the_service() {
    let setup = EvaluationSetup::default();
    let named = Claims { roles: vec![role_name("writer")], permissions: vec![permission("write")], ..unbound(&[]) };
    let newer = EvaluationSetup { revision: 9, ..EvaluationSetup::default() };
    assert!(setup.roles(&named).is_empty() && newer.roles(&named).is_empty());
    let bound = Claims { aud: SERVICE_ID.to_string().into(), ..unbound(&[(SERVICE_ID, grant(1, None))]) };
    assert!(setup.roles(&bound).is_empty(), "a token for the service names its roles");
}

#[test]
fn newer_revision_of_each_facet_wins() {
    let mut setup = EvaluationSetup::default();
    setup.agent.roles = Some(versioned(10, vec![grant(2, None)]));
    assert_eq!(setup.roles(&token()), ["reader"], "the token wins if the revisions are equal");
    setup.agent.roles = Some(versioned(11, vec![grant(2, None)]));
    let identity = setup.evaluate(&token(), ISSUED_AT).unwrap();
    assert_eq!(identity.roles, [role_name("writer")]);
    assert_eq!(identity.permissions, [permission("read"), permission("write")]);
    assert_eq!(identity.trust_score, TrustScore::INITIAL, "a change of roles does not affect trust");
    setup.agent.trust = Some(versioned(11, TrustScore::MAX));
    assert_eq!(setup.evaluate(&token(), ISSUED_AT).unwrap().trust_score, TrustScore::MAX);
}

#[test]
fn checks_status_before_cutoff_before_revocation() {
    let mut setup = EvaluationSetup { revoked: true, ..EvaluationSetup::default() };
    setup.agent.status = Some(versioned(11, status(AgentStatus::Suspended, 11)));
    assert_eq!(setup.refusal(&token(), ISSUED_AT), Reason::AgentSuspended);
    setup.agent.status = Some(versioned(12, status(AgentStatus::Revoked, 12)));
    assert_eq!(setup.refusal(&token(), ISSUED_AT), Reason::AgentRevoked);
    setup.agent.status = Some(versioned(12, status(AgentStatus::Active, 11)));
    assert_eq!(
        setup.refusal(&token(), ISSUED_AT),
        Reason::TokenRevoked,
        "the cutoff revision still applies after reactivation"
    );
    let newer_token = Claims { rev: Revision::new(12), ..token() };
    assert_eq!(setup.refusal(&newer_token, ISSUED_AT), Reason::TokenRevoked, "the token itself is revoked");
    setup.revoked = false;
    assert!(setup.evaluate(&newer_token, ISSUED_AT).is_ok());
}

#[test]
fn refuses_tokens_below_the_floor() {
    let setup = EvaluationSetup { floor: 10, ..EvaluationSetup::default() };
    assert!(setup.evaluate(&token(), ISSUED_AT).is_ok());
    let setup = EvaluationSetup { floor: 11, ..EvaluationSetup::default() };
    assert_eq!(setup.refusal(&token(), ISSUED_AT), Reason::TokenSuperseded);
}

#[test]
fn ignores_a_role_created_after_the_token() {
    let mut setup = EvaluationSetup {
        roles: [role(3, "reader", &["everything"], 11)].into_iter().collect(),
        ..EvaluationSetup::default()
    };
    assert!(setup.roles(&token()).is_empty(), "the role was deleted and created again");
    setup.roles = RoleTable::default();
    assert!(setup.roles(&token()).is_empty());
    setup.revision = 9;
    let identity = setup.evaluate(&token(), ISSUED_AT).unwrap();
    assert_eq!(identity.roles, [role_name("reader")], "the token is newer than the local data");
    assert_eq!(identity.permissions, [permission("read")]);
}

#[test]
fn permissions_come_from_the_current_role_definition() {
    let setup = EvaluationSetup {
        roles: [role(1, "reader", &["peek"], 5)].into_iter().collect(),
        ..EvaluationSetup::default()
    };
    assert_eq!(setup.evaluate(&token(), ISSUED_AT).unwrap().permissions, [permission("peek")]);
}

#[test]
fn scope_narrows_whatever_the_roles_grant() {
    let scope = |text: &str| Some(Scope::try_from(text).unwrap());
    let permissions = |setup: &EvaluationSetup, claims: &Claims| {
        setup.evaluate(claims, ISSUED_AT).unwrap().permissions.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let narrowed = Claims { requested_scope: scope("write"), ..token() };
    let mut setup = EvaluationSetup::default();
    assert!(permissions(&setup, &narrowed).is_empty(), "the scope grants nothing");
    assert_eq!(setup.roles(&narrowed), ["reader"]);
    let newer = EvaluationSetup { revision: 9, ..EvaluationSetup::default() };
    assert!(permissions(&newer, &narrowed).is_empty(), "also if the claims are newer than the local data");
    setup.agent.roles = Some(versioned(11, vec![grant(2, None)]));
    assert_eq!(permissions(&setup, &token()), ["read", "write"]);
    assert_eq!(permissions(&setup, &narrowed), ["write"], "roles that the agent got later do not widen it");
    assert!(permissions(&setup, &Claims { requested_scope: scope(""), ..token() }).is_empty());
    assert_eq!(permissions(&setup, &Claims { scope: Some("read".into()), ..token() }), ["read", "write"]);
}

#[test]
fn client_must_be_the_subject() {
    let setup = EvaluationSetup::default();
    let of_client = |bits| Claims { client_id: Some(AgentId::from_bits(bits)), ..token() };
    assert!(setup.evaluate(&of_client(7), ISSUED_AT).is_ok());
    assert_eq!(setup.refusal(&of_client(8), ISSUED_AT), Reason::TokenClaimsInvalid);
}

#[test]
fn role_assignments_end_at_the_exact_second() {
    let mut setup = EvaluationSetup::default();
    let expiring = Claims { until: BTreeMap::from([(role_name("reader"), ISSUED_AT + 5)]), ..token() };
    let role_count =
        |setup: &EvaluationSetup, seconds| setup.evaluate(&expiring, ISSUED_AT + seconds).unwrap().roles.len();
    assert_eq!((role_count(&setup, 4), role_count(&setup, 5)), (1, 0));
    setup.revision = 9;
    assert_eq!(
        (role_count(&setup, 4), role_count(&setup, 5)),
        (1, 0),
        "the claims decide if the local data is older than the token"
    );
    assert!(setup.evaluate(&expiring, ISSUED_AT + 5).unwrap().permissions.is_empty());
    let mut setup = EvaluationSetup::default();
    setup.agent.roles = Some(versioned(11, vec![grant(1, Some(ISSUED_AT + 7)), grant(2, None)]));
    assert_eq!((role_count(&setup, 6), role_count(&setup, 7)), (2, 1));
}

#[test]
fn valid_until_is_the_first_time_at_which_the_identity_differs() {
    let (reader, writer) = (role_name("reader"), role_name("writer"));
    let claimed = Claims {
        roles: vec![reader.clone(), writer.clone()],
        until: BTreeMap::from([(reader, ISSUED_AT + 5), (writer, ISSUED_AT + 9), (role_name("other"), ISSUED_AT + 1)]),
        ..token()
    };
    let outdated = EvaluationSetup { revision: 9, ..EvaluationSetup::default() };
    let mut changed = EvaluationSetup::default();
    // Role 4 is undefined, so it grants nothing.
    let grants = vec![grant(1, Some(ISSUED_AT + 7)), grant(2, Some(ISSUED_AT + 8)), grant(4, Some(ISSUED_AT + 2))];
    changed.agent.roles = Some(versioned(11, grants));
    let current = EvaluationSetup::default();
    let of_unbound = [(1, Some(ISSUED_AT + 5)), (2, Some(ISSUED_AT + 9)), (4, Some(ISSUED_AT + 1))];
    let unbound = unbound(&of_unbound.map(|(role, until)| (SERVICE_ID, grant(role, until))));
    for (case, setup, claims, ends) in [
        ("a token without ends", &current, &token(), [3600].as_slice()),
        ("roles of the token", &current, &claimed, &[5, 9, 3600]),
        ("a token newer than the data", &outdated, &claimed, &[5, 9, 3600]),
        ("roles of an unbound token", &current, &unbound, &[5, 9, 3600]),
        ("an unbound token newer than the data", &outdated, &unbound, &[5, 9, 3600]),
        ("an unbound token, and roles that changed", &changed, &unbound, &[7, 8, 3600]),
        ("roles that changed", &changed, &claimed, &[7, 8, 3600]),
    ] {
        let mut start = ISSUED_AT;
        for end in ends.iter().map(|end| ISSUED_AT + end) {
            let identity = setup.evaluate(claims, start).unwrap();
            assert_eq!(identity.valid_until, Timestamp::from_seconds(end), "{case}");
            assert_eq!(setup.evaluate(claims, end - 1), Ok(identity.clone()), "{case}");
            assert_ne!(setup.evaluate(claims, end), Ok(identity), "{case}");
            start = end;
        }
    }
}

#[test]
fn prune_drops_facets_up_to_the_floor() {
    let mut changes =
        AgentChanges { roles: Some(versioned(11, vec![])), trust: Some(versioned(12, TrustScore::MAX)), status: None };
    assert!(!changes.prune(Revision::new(11)));
    assert!(changes.roles.is_none() && changes.trust.is_some());
    assert!(changes.prune(Revision::new(12)));
}

proptest! {
    #[test]
    fn merge_keeps_the_newest_facet_in_any_order(versions in proptest::collection::vec((0_i64..50, 0_u8..3), 1..20)) {
        let changes = |(revision, facet): &(i64, u8)| match facet {
            0 => AgentChanges { roles: Some(versioned(*revision, vec![grant(revision.unsigned_abs().into(), None)])), ..AgentChanges::default() },
            1 => AgentChanges { trust: Some(versioned(*revision, TrustScore::from_hundredths(*revision).unwrap())), ..AgentChanges::default() },
            _ => AgentChanges { status: Some(versioned(*revision, status(AgentStatus::Active, *revision))), ..AgentChanges::default() },
        };
        let (mut merged, mut merged_in_reverse) = (AgentChanges::default(), AgentChanges::default());
        for (version, reverse_version) in versions.iter().zip(versions.iter().rev()) {
            merged.merge(changes(version));
            merged_in_reverse.merge(changes(reverse_version));
        }
        prop_assert_eq!(&merged, &merged_in_reverse);
        let newest = |facet| versions.iter().filter(|version| version.1 == facet).map(|version| Revision::new(version.0)).max();
        prop_assert_eq!(merged.roles.map(|facet| facet.revision), newest(0));
        prop_assert_eq!(merged.trust.map(|facet| facet.revision), newest(1));
        prop_assert_eq!(merged.status.map(|facet| facet.revision), newest(2));
    }
}
