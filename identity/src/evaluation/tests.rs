use super::*;
use crate::{Refusal, SessionId};
use proptest::prelude::*;

const ISSUER: &str = "https://id.example";
const HERE: ServiceId = ServiceId::from_bits(1);
const ELSEWHERE: ServiceId = ServiceId::from_bits(2);
const ISSUED: i64 = 1_000_000;

fn name(text: &str) -> RoleName {
    RoleName::try_from(text).unwrap()
}

fn permission(text: &str) -> Permission {
    Permission::try_from(text).unwrap()
}

fn role(id: u128, named: &str, permits: &[&str], created_revision: i64) -> RoleDefinition {
    let permissions = permits.iter().map(|text| permission(text)).collect();
    RoleDefinition {
        id: RoleId::from_bits(id),
        name: name(named),
        permissions,
        created_revision: Revision::new(created_revision),
    }
}

/// A token of revision 10 with the role `reader`.
fn token() -> Claims {
    Claims {
        iss: ISSUER.into(),
        sub: AgentId::from_bits(7),
        aud: HERE.to_string(),
        iat: ISSUED,
        nbf: ISSUED,
        exp: ISSUED + 3600,
        jti: TokenId::from_bits(8),
        sid: SessionId::from_bits(9),
        rev: Revision::new(10),
        name: "Agent".into(),
        roles: vec![name("reader")],
        permissions: vec![permission("read")],
        trust_score: TrustScore::INITIAL,
        until: BTreeMap::new(),
    }
}

fn table() -> RoleTable {
    [role(1, "reader", &["read"], 5), role(2, "writer", &["read", "write"], 5)].into_iter().collect()
}

struct Known {
    roles: RoleTable,
    agent: AgentChanges,
    revision: i64,
    floor: i64,
    accepts_unbound: bool,
    revoked: bool,
}

impl Default for Known {
    fn default() -> Self {
        let agent = AgentChanges::default();
        Self { roles: table(), agent, revision: 20, floor: 0, accepts_unbound: true, revoked: false }
    }
}

impl Known {
    fn judge(&self, claims: &Claims, seconds: i64) -> Result<VerifiedIdentity, Refusal> {
        let evaluation = EvaluationContext {
            service: HERE,
            issuer: ISSUER,
            accepts_unbound: self.accepts_unbound,
            revision: Revision::new(self.revision),
            floor: Revision::new(self.floor),
            roles: &self.roles,
            agent: Some(&self.agent),
            revoked: self.revoked,
        };
        VerifiedIdentity::evaluate(claims, &evaluation, Timestamp::from_seconds(seconds))
    }

    fn roles(&self, claims: &Claims) -> Vec<String> {
        self.judge(claims, ISSUED).unwrap().roles.iter().map(ToString::to_string).collect()
    }

    fn refuses(&self, claims: &Claims, seconds: i64) -> Reason {
        self.judge(claims, seconds).unwrap_err().reason
    }
}

fn at<T>(revision: i64, value: T) -> Versioned<T> {
    Versioned { revision: Revision::new(revision), value }
}

fn grant(id: u128, until: Option<i64>) -> RoleGrant {
    RoleGrant { role: RoleId::from_bits(id), until: until.map(Timestamp::from_seconds) }
}

fn status(status: AgentStatus, cutoff: i64) -> StatusWithCutoff {
    StatusWithCutoff { status, cutoff: Revision::new(cutoff) }
}

#[test]
fn expiry_is_exact_and_other_clocks_have_thirty_seconds() {
    let known = Known::default();
    assert!(known.judge(&token(), ISSUED + 3599).is_ok());
    assert_eq!(known.judge(&token(), ISSUED + 3600), Err(Refusal::expired(Timestamp::from_seconds(ISSUED + 3600))));
    assert!(known.judge(&token(), ISSUED - 30).is_ok());
    assert_eq!(known.refuses(&token(), ISSUED - 31), Reason::TokenNotYetValid);
    let later = Claims { iat: ISSUED + 31, ..token() };
    assert_eq!(known.refuses(&later, ISSUED), Reason::TokenNotYetValid);
}

#[test]
fn a_token_is_good_for_its_audience_only() {
    let mut known = Known::default();
    assert_eq!(
        known.refuses(&Claims { iss: "https://other.example".into(), ..token() }, ISSUED),
        Reason::TokenClaimsInvalid
    );
    assert_eq!(known.refuses(&Claims { aud: ELSEWHERE.to_string(), ..token() }, ISSUED), Reason::TokenAudienceMismatch);
    assert_eq!(known.refuses(&Claims { aud: "anything".into(), ..token() }, ISSUED), Reason::TokenAudienceMismatch);
    let unbound = Claims { aud: ISSUER.into(), roles: vec![], permissions: vec![], ..token() };
    assert!(known.roles(&unbound).is_empty());
    known.agent.roles = Some(at(11, vec![grant(1, None)]));
    assert_eq!(known.roles(&unbound), ["reader"], "a role given later counts here");
    known.accepts_unbound = false;
    assert_eq!(known.refuses(&unbound, ISSUED), Reason::TokenUnbound);
}

#[test]
fn newest_wins_facet_by_facet() {
    let mut known = Known::default();
    known.agent.roles = Some(at(10, vec![grant(2, None)]));
    assert_eq!(known.roles(&token()), ["reader"], "the token is as new as the record");
    known.agent.roles = Some(at(11, vec![grant(2, None)]));
    let standing = known.judge(&token(), ISSUED).unwrap();
    assert_eq!(standing.roles, [name("writer")]);
    assert_eq!(standing.permissions, [permission("read"), permission("write")]);
    assert_eq!(standing.trust_score, TrustScore::INITIAL, "a newer record of roles says nothing of trust");
    known.agent.trust = Some(at(11, TrustScore::MAX));
    assert_eq!(known.judge(&token(), ISSUED).unwrap().trust_score, TrustScore::MAX);
}

#[test]
fn status_then_cutoff_then_revocation() {
    let mut known = Known { revoked: true, ..Known::default() };
    known.agent.status = Some(at(11, status(AgentStatus::Suspended, 11)));
    assert_eq!(known.refuses(&token(), ISSUED), Reason::AgentSuspended);
    known.agent.status = Some(at(12, status(AgentStatus::Revoked, 12)));
    assert_eq!(known.refuses(&token(), ISSUED), Reason::AgentRevoked);
    known.agent.status = Some(at(12, status(AgentStatus::Active, 11)));
    assert_eq!(known.refuses(&token(), ISSUED), Reason::TokenRevoked, "dead also after reactivation");
    let later = Claims { rev: Revision::new(12), ..token() };
    assert_eq!(known.refuses(&later, ISSUED), Reason::TokenRevoked, "itself revoked");
    known.revoked = false;
    assert!(known.judge(&later, ISSUED).is_ok());
}

#[test]
fn a_token_below_the_floor_is_not_judged() {
    let known = Known { floor: 10, ..Known::default() };
    assert!(known.judge(&token(), ISSUED).is_ok());
    let known = Known { floor: 11, ..Known::default() };
    assert_eq!(known.refuses(&token(), ISSUED), Reason::TokenSuperseded);
}

#[test]
fn a_role_made_after_the_token_is_another_role() {
    let mut known = Known { roles: [role(3, "reader", &["everything"], 11)].into_iter().collect(), ..Known::default() };
    assert!(known.roles(&token()).is_empty(), "the name was deleted and made anew");
    known.roles = RoleTable::default();
    assert!(known.roles(&token()).is_empty());
    known.revision = 9;
    let standing = known.judge(&token(), ISSUED).unwrap();
    assert_eq!(standing.roles, [name("reader")], "the token is newer than all that is known here");
    assert_eq!(standing.permissions, [permission("read")]);
}

#[test]
fn what_a_role_permits_is_what_its_definition_says_today() {
    let known = Known { roles: [role(1, "reader", &["peek"], 5)].into_iter().collect(), ..Known::default() };
    assert_eq!(known.judge(&token(), ISSUED).unwrap().permissions, [permission("peek")]);
}

#[test]
fn assignments_end_at_their_second_in_token_and_record() {
    let mut known = Known::default();
    let ends = Claims { until: BTreeMap::from([(name("reader"), ISSUED + 5)]), ..token() };
    let held = |known: &Known, seconds| known.judge(&ends, ISSUED + seconds).unwrap().roles.len();
    assert_eq!((held(&known, 4), held(&known, 5)), (1, 0));
    known.revision = 9;
    assert_eq!((held(&known, 4), held(&known, 5)), (1, 0), "also where only the claims are known");
    assert!(known.judge(&ends, ISSUED + 5).unwrap().permissions.is_empty());
    let mut known = Known::default();
    known.agent.roles = Some(at(11, vec![grant(1, Some(ISSUED + 7)), grant(2, None)]));
    assert_eq!((held(&known, 6), held(&known, 7)), (2, 1));
}

#[test]
fn records_are_forgotten_at_the_floor_and_not_above() {
    let mut record = AgentChanges { roles: Some(at(11, vec![])), trust: Some(at(12, TrustScore::MAX)), status: None };
    assert!(!record.prune(Revision::new(11)));
    assert!(record.roles.is_none() && record.trust.is_some());
    assert!(record.prune(Revision::new(12)));
}

proptest! {
    #[test]
    fn merging_in_any_order_keeps_the_newest_of_each_facet(stamps in proptest::collection::vec((0_i64..50, 0_u8..3), 1..20)) {
        let record = |(revision, facet): &(i64, u8)| match facet {
            0 => AgentChanges { roles: Some(at(*revision, vec![grant(revision.unsigned_abs().into(), None)])), ..AgentChanges::default() },
            1 => AgentChanges { trust: Some(at(*revision, TrustScore::from_hundredths(*revision).unwrap())), ..AgentChanges::default() },
            _ => AgentChanges { status: Some(at(*revision, status(AgentStatus::Active, *revision))), ..AgentChanges::default() },
        };
        let (mut forwards, mut backwards) = (AgentChanges::default(), AgentChanges::default());
        for (early, late) in stamps.iter().zip(stamps.iter().rev()) {
            forwards.merge(record(early));
            backwards.merge(record(late));
        }
        prop_assert_eq!(&forwards, &backwards);
        let newest = |facet| stamps.iter().filter(|stamp| stamp.1 == facet).map(|stamp| Revision::new(stamp.0)).max();
        prop_assert_eq!(forwards.roles.map(|facet| facet.revision), newest(0));
        prop_assert_eq!(forwards.trust.map(|facet| facet.revision), newest(1));
        prop_assert_eq!(forwards.status.map(|facet| facet.revision), newest(2));
    }
}
