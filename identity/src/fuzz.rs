//! Property tests of ids, names, hosts, numbers, claims, headers and keys: values round-trip, no input causes a panic, and only valid
//! tokens are accepted.

use crate::{
    bearer::{from_authorization, from_token_header},
    dns_rebinding::can_be_rebound,
    key_set::JsonWebKey,
    names::is_printable,
    *,
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use countersign_mangle::{any_bytes, any_json, any_text, cases_divided_by, mutated_bytes, mutated_text};
use proptest::{collection::vec, prelude::*, sample::select};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use std::{collections::BTreeMap, fmt::Debug, net::IpAddr, str::FromStr, time::Duration};

/// Checks that a text that parses as an id is printed unchanged, both as text and in JSON.
fn check_id_round_trip<T: FromStr + ToString + Serialize + DeserializeOwned>(text: &str) -> Result<(), TestCaseError> {
    let from_json: Result<T, _> = serde_json::from_value(json!(text));
    let from_text: Result<T, _> = text.parse();
    prop_assert_eq!(from_json.is_ok(), from_text.is_ok());
    for id in from_json.ok().into_iter().chain(from_text.ok()) {
        prop_assert_eq!(id.to_string(), text);
        prop_assert_eq!(json!(id), json!(text));
    }
    Ok(())
}

fn check_json_round_trip<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) -> Result<(), TestCaseError> {
    let text = serde_json::to_string(value).unwrap();
    prop_assert_eq!(&serde_json::from_str::<T>(&text).unwrap(), value);
    Ok(())
}

/// True if `token` is the only token in the only value, after the scheme `Bearer` or, with `allow_bare`, without a scheme.
fn is_only_token(token: &str, values: &[&[u8]], allow_bare: bool) -> bool {
    let is_token_character = |character: char| character.is_ascii_alphanumeric() || "-_.=".contains(character);
    let [value] = values else { return false };
    let Ok(value) = std::str::from_utf8(value) else { return false };
    let words: Vec<&str> = value.split([' ', '\t']).filter(|word| !word.is_empty()).collect();
    let matches = match words[..] {
        [scheme, word] => scheme.eq_ignore_ascii_case("bearer") && word == token,
        [word] => allow_bare && word == token,
        _ => false,
    };
    matches && !token.is_empty() && token.chars().all(is_token_character)
}

fn agent_changes() -> impl Strategy<Value = AgentChanges> {
    let status = select(&[AgentStatus::Active, AgentStatus::Suspended, AgentStatus::Revoked][..]);
    let grant = (any::<u128>(), any::<Option<i64>>()).prop_map(|(role, until)| RoleGrant {
        role: RoleId::from_bits(role),
        until: until.map(Timestamp::from_micros),
    });
    (any::<[i64; 4]>(), status, vec(grant, 0..3), 0..=10_000_i64).prop_map(|(revisions, status, grants, hundredths)| {
        let [of_roles, of_trust, of_status, cutoff] = revisions.map(Revision::new);
        let trust = TrustScore::from_hundredths(hundredths).ok();
        AgentChanges {
            roles: Some(Versioned { revision: of_roles, value: grants }),
            trust: trust.map(|value| Versioned { revision: of_trust, value }),
            status: Some(Versioned { revision: of_status, value: StatusWithCutoff { status, cutoff } }),
        }
    })
}

/// The key of a service.
fn agent_hash_key(service: u128) -> AgentHashKey {
    AgentHashKey::derive(&[7; 32], ServiceId::from_bits(service))
}

/// Claims with arbitrary numbers. Unbound tokens have the roles of [`role_table`].
fn claims() -> impl Strategy<Value = Claims> {
    (any::<[i64; 5]>(), any::<[u128; 3]>(), select(&["https://issuer.test", "svc_", ""][..])).prop_map(
        |([iat, nbf, exp, rev, until], [sub, jti, sid], aud)| {
            let grant = RoleGrant { role: RoleId::from_bits(1), until: Some(Timestamp::from_micros(until)) };
            let claims = Claims {
                sub: AgentId::from_bits(sub),
                aud: aud.to_owned().into(),
                iat,
                nbf,
                exp,
                jti: TokenId::from_bits(jti),
                sid: SessionId::from_bits(sid),
                rev: Revision::new(rev),
                permissions: vec![],
                until: BTreeMap::from([("reader".try_into().unwrap(), until)]),
                ..claims::tests::claims()
            };
            claims.with_grants([KeyedGrant { key: agent_hash_key(1), grant }], &agent_hash_key(0))
        },
    )
}

/// The roles of the service.
fn role_table() -> RoleTable {
    let definition = RoleDefinition {
        id: RoleId::from_bits(1),
        name: "reader".try_into().unwrap(),
        permissions: vec![],
        created_revision: Revision::new(0),
    };
    [definition].into_iter().collect()
}

proptest! {
    #![proptest_config(cases_divided_by(1))]

    #[test]
    fn ids_parse_only_in_their_canonical_form(
        text in (any::<u128>(), select(&["agent_", "svc_", "role_", "key_", "tok_", "ses_", "ref_"][..]))
            .prop_map(|(bits, prefix)| AgentId::from_bits(bits).to_string().replace("agent_", prefix))
            .prop_flat_map(|id| prop_oneof![Just(id.clone()), mutated_text(&id), any_text()]),
    ) {
        check_id_round_trip::<AgentId>(&text)?;
        check_id_round_trip::<ServiceId>(&text)?;
        check_id_round_trip::<RoleId>(&text)?;
        check_id_round_trip::<ApiKeyId>(&text)?;
        check_id_round_trip::<TokenId>(&text)?;
        check_id_round_trip::<SessionId>(&text)?;
    }

    #[test]
    fn accepted_names_are_unchanged_and_valid_in_headers(text in prop_oneof![any_text(), mutated_text("billing reader")]) {
        if let Ok(name) = RoleName::try_from(text.as_str()) {
            prop_assert!((1..=64).contains(&text.chars().count()) && name.as_str() == text);
            prop_assert!(is_printable(&text) && !text.contains(char::is_control));
            prop_assert!(!text.starts_with(char::is_whitespace) && !text.ends_with(char::is_whitespace));
            check_json_round_trip(&name)?;
        }
        let is_valid = (1..=128).contains(&text.len()) && text.chars().all(|character| ('!'..='~').contains(&character) && character != ',');
        match Permission::try_from(text.as_str()) {
            Ok(permission) => {
                prop_assert!(is_valid && permission.as_str() == text);
                check_json_round_trip(&permission)?;
            }
            Err(_) => prop_assert!(!is_valid, "{:?}", text),
        }
    }

    #[test]
    fn every_host_except_localhost_and_addresses_can_be_rebound(
        address: IpAddr, port: Option<u16>, mutated in mutated_text("localhost:9092"), text in any_text(),
    ) {
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        let address = if address.is_ipv4() { address.to_string() } else { format!("[{address}]") };
        for fixed in [address.as_str(), "localhost"] {
            let host = format!("{fixed}{port}");
            prop_assert!(!can_be_rebound(&host), "{}", host);
            for host in [format!("{fixed}.page.example{port}"), format!("page.{fixed}{port}")] {
                prop_assert!(can_be_rebound(&host), "{}", host);
            }
        }
        for host in [mutated, text] {
            let after_localhost = host.to_ascii_lowercase().strip_prefix("localhost").map(str::to_owned);
            let is_localhost = after_localhost.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'));
            let may_be_address = host.starts_with('[') || host.chars().all(|it| it.is_ascii_digit() || ".:".contains(it));
            prop_assert!(can_be_rebound(&host) || is_localhost || may_be_address, "{:?}", host);
        }
    }

    #[test]
    fn trust_scores_are_numbers_from_0_to_100(points in prop::num::f64::ANY, near_range in -1.0..101.0_f64, hundredths: i64, value in any_json()) {
        for points in [points, near_range] {
            let score = TrustScore::from_points(points);
            prop_assert_eq!(score.is_ok(), (0.0..=100.0).contains(&points));
            if let Ok(score) = score {
                prop_assert!((score.points() - points).abs() <= 0.005_000_1);
                check_json_round_trip(&score)?;
            }
        }
        let score = TrustScore::from_hundredths(hundredths);
        prop_assert_eq!(score.map(TrustScore::hundredths).ok(), Some(hundredths).filter(|hundredths| (0..=10_000).contains(hundredths)));
        let is_valid = value.as_f64().is_some_and(|points| (0.0..=100.0).contains(&points));
        prop_assert_eq!(serde_json::from_value::<TrustScore>(value).is_ok(), is_valid);
    }

    #[test]
    fn timestamp_arithmetic_saturates(micros: i64, other: i64, duration: Duration) {
        let time = Timestamp::from_micros(micros);
        prop_assert!(time.saturating_sub(duration) <= time && time <= time.saturating_add(duration));
        prop_assert!(time.truncated_to_second() <= time && time.duration_since(time.truncated_to_second()) < Duration::from_secs(1));
        prop_assert_eq!(Timestamp::from_seconds(time.seconds()).seconds(), time.seconds());
        let other = Timestamp::from_micros(other);
        prop_assert!(time.duration_since(other).is_zero() || other.duration_since(time).is_zero());
    }

    #[test]
    fn parsed_claims_round_trip_through_json(valid in claims(), field in any::<prop::sample::Index>(), value in any_json(), bytes in any_bytes()) {
        check_json_round_trip(&valid)?;
        let mut changed = json!(valid);
        let names: Vec<String> = changed.as_object().unwrap().keys().cloned().collect();
        changed[field.get(&names)] = value.clone();
        for json in [changed, value] {
            if let Ok(claims) = serde_json::from_value::<Claims>(json) {
                check_json_round_trip(&claims)?;
            }
        }
        let _does_not_panic = serde_json::from_slice::<Claims>(&bytes);
        let _does_not_panic = serde_json::from_slice::<Claims>(&insert_bytes(&valid, &bytes));
    }

    #[test]
    fn evaluate_accepts_only_valid_tokens_at_extreme_numbers(
        claims in claims(), changes in agent_changes(), revision: i64, floor: i64, now: i64, accepts_unbound: bool, revoked: bool,
    ) {
        let context = EvaluationContext {
            service: ServiceId::from_bits(1),
            issuer: "https://issuer.test",
            accepts_unbound,
            revision: Revision::new(revision),
            floor: Revision::new(floor),
            roles: &role_table(),
            agent_hash_key: &agent_hash_key(1),
            agent: Some(&changes),
            revoked,
        };
        let now = Timestamp::from_micros(now);
        if let Ok(identity) = VerifiedIdentity::evaluate(&claims, &context, now) {
            // No generated audience is the service, so only unbound tokens can be accepted: their audience is the issuer.
            prop_assert!(accepts_unbound && claims.aud.as_str() == claims.iss && !revoked);
            prop_assert!(now < Timestamp::from_seconds(claims.exp) && claims.rev >= context.floor);
            prop_assert_eq!(identity.agent, claims.sub);
            prop_assert!(now < identity.valid_until && identity.valid_until <= claims.expires_at());
        }
    }

    #[test]
    fn extracted_token_is_the_only_token_in_the_headers(
        values in vec(prop_oneof![
            4 => mutated_text("Bearer a.b-c_d=").prop_map(String::into_bytes),
            2 => mutated_text("a.b.c").prop_map(String::into_bytes),
            1 => mutated_bytes(b"bearer\t a.b.c"),
            1 => any_text().prop_map(String::into_bytes),
        ], 0..3)
    ) {
        let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
        if let Ok(Some(token)) = from_authorization(&values) {
            prop_assert!(is_only_token(token, &values, false), "{:?} in {:?}", token, values);
        }
        if let Ok(Some(token)) = from_token_header(&values) {
            prop_assert!(is_only_token(token, &values, true), "{:?} in {:?}", token, values);
        }
        prop_assert_eq!(from_token_header(&values) == Ok(None), values.is_empty());
    }
}

proptest! {
    // Computing keys is slow, so a quarter of the cases must suffice.
    #![proptest_config(cases_divided_by(4))]

    #[test]
    fn key_set_finds_keys_by_kid_and_refuses_invalid_points(
        seeds in vec(1_u8..20, 0..5), invalid in prop::option::of(any_bytes()), position in any::<prop::sample::Index>(),
    ) {
        let key = |seed: &u8| p256::SecretKey::from_slice(&[*seed; 32]).unwrap().public_key().to_sec1_bytes().to_vec();
        // Uncompressed points.
        let points: Vec<Vec<u8>> = seeds.iter().map(key).collect();
        let set = KeySet::from_points(&points).unwrap();
        prop_assert_eq!(set.public_keys().count(), seeds.iter().collect::<std::collections::BTreeSet<_>>().len());
        for point in &points {
            let json = json!(JsonWebKey::from_key(P256PublicKey::from_sec1(point).unwrap()));
            let coordinate = |name: &str| URL_SAFE_NO_PAD.decode(json[name].as_str().unwrap()).unwrap();
            prop_assert_eq!(&[vec![4], coordinate("x"), coordinate("y")].concat(), point);
            let jwk: jsonwebtoken::jwk::Jwk = serde_json::from_value(json.clone()).unwrap();
            prop_assert_eq!(&json!(jwk.common.key_id), &json["kid"]);
            prop_assert!(set.get(&Kid::new(json["kid"].as_str().unwrap())).is_some());
        }
        if let Some(invalid) = invalid {
            let mut points = points;
            points.insert(position.index(points.len() + 1), invalid);
            prop_assert!(KeySet::from_points(points).is_err());
        }
    }
}

/// The claims as JSON, with bytes inserted in the middle.
fn insert_bytes(claims: &Claims, bytes: &[u8]) -> Vec<u8> {
    let text = serde_json::to_vec(claims).unwrap();
    let (before, after) = text.split_at(text.len() / 2);
    [before, bytes, after].concat()
}
