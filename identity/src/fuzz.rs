//! The vocabulary, claims and headers: what is read is what is printed, and nothing panics.

use crate::{
    bearer::{from_authorization, from_token_header},
    key_set::JsonWebKey,
    names::is_printable,
    *,
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use countersign_mangle::{any_bytes, any_json, any_text, cases_divided_by, mutated_bytes, mutated_text};
use proptest::{collection::vec, prelude::*, sample::select};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use std::{collections::BTreeMap, fmt::Debug, str::FromStr, time::Duration};

/// An id that is read is printed letter by letter, as text and in JSON.
fn is_one_id<T: FromStr + ToString + Serialize + DeserializeOwned>(text: &str) -> Result<(), TestCaseError> {
    let in_json: Result<T, _> = serde_json::from_value(json!(text));
    let plain: Result<T, _> = text.parse();
    prop_assert_eq!(in_json.is_ok(), plain.is_ok());
    for id in in_json.ok().into_iter().chain(plain.ok()) {
        prop_assert_eq!(id.to_string(), text);
        prop_assert_eq!(json!(id), json!(text));
    }
    Ok(())
}

fn reads_back<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) -> Result<(), TestCaseError> {
    let text = serde_json::to_string(value).unwrap();
    prop_assert_eq!(&serde_json::from_str::<T>(&text).unwrap(), value);
    Ok(())
}

/// Whether what was found is the one token of the one value, behind `Bearer` or, if that may be, alone.
fn is_the_one(found: &str, values: &[&[u8]], alone: bool) -> bool {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_.=".contains(character);
    let [value] = values else { return false };
    let Ok(value) = std::str::from_utf8(value) else { return false };
    let words: Vec<&str> = value.split([' ', '\t']).filter(|word| !word.is_empty()).collect();
    let said = match words[..] {
        [scheme, token] => scheme.eq_ignore_ascii_case("bearer") && token == found,
        [token] => alone && token == found,
        _ => false,
    };
    said && !found.is_empty() && found.chars().all(plain)
}

fn record() -> impl Strategy<Value = AgentChanges> {
    let status = select(&[AgentStatus::Active, AgentStatus::Suspended, AgentStatus::Revoked][..]);
    let grant = (any::<u128>(), any::<Option<i64>>()).prop_map(|(role, until)| RoleGrant {
        role: RoleId::from_bits(role),
        until: until.map(Timestamp::from_micros),
    });
    let stamped = |revision| Revision::new(revision);
    (any::<[i64; 4]>(), status, vec(grant, 0..3), 0..=10_000_i64).prop_map(move |(at, status, grants, trust)| {
        let cutoff = stamped(at[3]);
        AgentChanges {
            roles: Some(Versioned { revision: stamped(at[0]), value: grants }),
            trust: TrustScore::from_hundredths(trust).ok().map(|value| Versioned { revision: stamped(at[1]), value }),
            status: Some(Versioned { revision: stamped(at[2]), value: StatusWithCutoff { status, cutoff } }),
        }
    })
}

/// Claims whose numbers are anything at all.
fn claims() -> impl Strategy<Value = Claims> {
    (any::<[i64; 5]>(), any::<[u128; 3]>(), select(&["https://issuer.test", "svc_", ""][..])).prop_map(
        |([iat, nbf, exp, rev, until], [sub, jti, sid], aud)| Claims {
            iss: "https://issuer.test".into(),
            sub: AgentId::from_bits(sub),
            aud: aud.into(),
            iat,
            nbf,
            exp,
            jti: TokenId::from_bits(jti),
            sid: SessionId::from_bits(sid),
            rev: Revision::new(rev),
            name: String::new(),
            roles: vec!["reader".try_into().unwrap()],
            permissions: vec![],
            trust_score: TrustScore::INITIAL,
            until: BTreeMap::from([("reader".try_into().unwrap(), until)]),
        },
    )
}

proptest! {
    #![proptest_config(cases_divided_by(1))]

    #[test]
    fn an_id_has_one_spelling(
        text in (any::<u128>(), select(&["agent_", "svc_", "role_", "key_", "tok_", "ses_", "ref_"][..]))
            .prop_map(|(bits, prefix)| AgentId::from_bits(bits).to_string().replace("agent_", prefix))
            .prop_flat_map(|good| prop_oneof![Just(good.clone()), mutated_text(&good), any_text()]),
    ) {
        is_one_id::<AgentId>(&text)?;
        is_one_id::<ServiceId>(&text)?;
        is_one_id::<RoleId>(&text)?;
        is_one_id::<ApiKeyId>(&text)?;
        is_one_id::<TokenId>(&text)?;
        is_one_id::<SessionId>(&text)?;
        is_one_id::<RefreshId>(&text)?;
    }

    #[test]
    fn names_are_kept_as_they_are_and_fit_a_header(text in prop_oneof![any_text(), mutated_text("billing reader")]) {
        if let Ok(name) = RoleName::try_from(text.as_str()) {
            prop_assert!((1..=64).contains(&text.chars().count()) && name.as_str() == text);
            prop_assert!(is_printable(&text) && !text.contains(char::is_control));
            prop_assert!(!text.starts_with(char::is_whitespace) && !text.ends_with(char::is_whitespace));
            reads_back(&name)?;
        }
        let visible = (1..=128).contains(&text.len()) && text.chars().all(|it| ('!'..='~').contains(&it) && it != ',');
        match Permission::try_from(text.as_str()) {
            Ok(permission) => {
                prop_assert!(visible && permission.as_str() == text);
                reads_back(&permission)?;
            }
            Err(_) => prop_assert!(!visible, "{:?}", text),
        }
    }

    #[test]
    fn a_trust_score_is_a_number_from_0_to_100(points in prop::num::f64::ANY, near in -1.0..101.0_f64, hundredths: i64, value in any_json()) {
        for points in [points, near] {
            let score = TrustScore::from_points(points);
            prop_assert_eq!(score.is_ok(), (0.0..=100.0).contains(&points));
            if let Ok(score) = score {
                prop_assert!((score.points() - points).abs() <= 0.005_000_1);
                reads_back(&score)?;
            }
        }
        let score = TrustScore::from_hundredths(hundredths);
        prop_assert_eq!(score.map(TrustScore::hundredths).ok(), Some(hundredths).filter(|it| (0..=10_000).contains(it)));
        let number = value.as_f64().is_some_and(|points| (0.0..=100.0).contains(&points));
        prop_assert_eq!(serde_json::from_value::<TrustScore>(value).is_ok(), number);
    }

    #[test]
    fn time_stops_at_its_ends(micros: i64, other: i64, span: Duration) {
        let at = Timestamp::from_micros(micros);
        prop_assert!(at.saturating_sub(span) <= at && at <= at.saturating_add(span));
        prop_assert!(at.truncated_to_second() <= at && at.duration_since(at.truncated_to_second()) < Duration::from_secs(1));
        prop_assert_eq!(Timestamp::from_seconds(at.seconds()).seconds(), at.seconds());
        let other = Timestamp::from_micros(other);
        prop_assert!(at.duration_since(other).is_zero() || other.duration_since(at).is_zero());
    }

    #[test]
    fn claims_that_are_read_are_written_the_same(good in claims(), field in any::<prop::sample::Index>(), value in any_json(), text in any_bytes()) {
        reads_back(&good)?;
        let mut said = json!(good);
        let names: Vec<String> = said.as_object().unwrap().keys().cloned().collect();
        said[field.get(&names)] = value.clone();
        for said in [said, value] {
            if let Ok(claims) = serde_json::from_value::<Claims>(said) {
                reads_back(&claims)?;
            }
        }
        let _nothing_panics = serde_json::from_slice::<Claims>(&text);
        let _nothing_panics = serde_json::from_slice::<Claims>(&bytes_of(&good, &text));
    }

    #[test]
    fn no_number_in_claims_or_records_breaks_a_judgement(
        claims in claims(), record in record(), revision: i64, floor: i64, now: i64, accepts_unbound: bool, revoked: bool,
    ) {
        let evaluation = EvaluationContext {
            service: ServiceId::from_bits(1),
            issuer: "https://issuer.test",
            accepts_unbound,
            revision: Revision::new(revision),
            floor: Revision::new(floor),
            roles: &RoleTable::default(),
            agent: Some(&record),
            revoked,
        };
        let now = Timestamp::from_micros(now);
        if let Ok(identity) = VerifiedIdentity::evaluate(&claims, &evaluation, now) {
            prop_assert!(accepts_unbound && claims.aud == claims.iss && !revoked);
            prop_assert!(now < Timestamp::from_seconds(claims.exp) && claims.rev >= evaluation.floor);
            prop_assert_eq!(identity.agent, claims.sub);
        }
    }

    #[test]
    fn a_token_that_is_found_is_the_one_that_was_sent(
        values in vec(prop_oneof![
            4 => mutated_text("Bearer a.b-c_d=").prop_map(String::into_bytes),
            2 => mutated_text("a.b.c").prop_map(String::into_bytes),
            1 => mutated_bytes(b"bearer\t a.b.c"),
            1 => any_text().prop_map(String::into_bytes),
        ], 0..3)
    ) {
        let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
        if let Ok(Some(found)) = from_authorization(&values) {
            prop_assert!(is_the_one(found, &values, false), "{:?} in {:?}", found, values);
        }
        if let Ok(Some(found)) = from_token_header(&values) {
            prop_assert!(is_the_one(found, &values, true), "{:?} in {:?}", found, values);
        }
        prop_assert_eq!(from_token_header(&values) == Ok(None), values.is_empty());
    }
}

proptest! {
    #![proptest_config(cases_divided_by(4))]

    #[test]
    fn a_key_set_holds_every_key_or_none_and_is_published_as_it_is(
        seeds in vec(1_u8..20, 0..5), bad in prop::option::of(any_bytes()), at in any::<prop::sample::Index>(),
    ) {
        let key = |seed: &u8| p256::SecretKey::from_slice(&[*seed; 32]).unwrap().public_key().to_sec1_bytes().to_vec();
        let good: Vec<Vec<u8>> = seeds.iter().map(key).collect();
        let set = KeySet::from_points(&good).unwrap();
        prop_assert_eq!(set.len(), seeds.iter().collect::<std::collections::BTreeSet<_>>().len());
        for point in &good {
            let published = json!(JsonWebKey::from_key(P256PublicKey::from_sec1(point).unwrap()));
            let part = |name: &str| URL_SAFE_NO_PAD.decode(published[name].as_str().unwrap()).unwrap();
            prop_assert_eq!(&[vec![4], part("x"), part("y")].concat(), point);
            let jwk: jsonwebtoken::jwk::Jwk = serde_json::from_value(published.clone()).unwrap();
            prop_assert_eq!(&json!(jwk.common.key_id), &published["kid"]);
            prop_assert!(set.get(&Kid::new(published["kid"].as_str().unwrap())).is_some());
        }
        if let Some(bad) = bad {
            let mut points = good;
            points.insert(at.index(points.len() + 1), bad);
            prop_assert!(KeySet::from_points(points).is_err());
        }
    }
}

/// The claims as text, with other bytes in their midst.
fn bytes_of(claims: &Claims, bytes: &[u8]) -> Vec<u8> {
    let text = serde_json::to_vec(claims).unwrap();
    let (before, after) = text.split_at(text.len() / 2);
    [before, bytes, after].concat()
}
