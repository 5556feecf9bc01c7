//! Tests of the claim `grants`: what a service finds in it, and what nobody else does.

use super::*;
use crate::{ServiceId, TokenId, claims::tests::claims as token};
use serde_json::json;
use std::collections::BTreeSet;

fn key(service: u128) -> AgentHashKey {
    AgentHashKey::derive(&[7; 32], ServiceId::from_bits(service))
}

fn held(service: u128, role: u128, until: Option<i64>) -> KeyedGrant {
    KeyedGrant { key: key(service), grant: grant(role, until) }
}

fn grant(role: u128, until: Option<i64>) -> RoleGrant {
    RoleGrant { role: RoleId::from_bits(role), until: until.map(Timestamp::from_seconds) }
}

/// An unbound token with these roles.
fn unbound(roles: impl IntoIterator<Item = KeyedGrant>) -> Claims {
    Claims { aud: token().iss.into(), roles: vec![], permissions: vec![], ..token() }.with_grants(roles, &key(0))
}

fn text(claims: &Claims) -> String {
    claims.grants.clone().into()
}

#[test]
fn service_finds_its_roles_and_no_others() {
    let claims = unbound([held(1, 3, None), held(1, 4, Some(token().iat + 5)), held(2, 5, None)]);
    let find = |service, role| claims.find_grant(&key(service), RoleId::from_bits(role));
    assert_eq!(find(1, 3), Some(grant(3, None)));
    assert_eq!(find(1, 4), Some(grant(4, Some(token().iat + 5))));
    assert_eq!(find(2, 5), Some(grant(5, None)));
    for (service, role) in [(1, 5), (2, 3), (1, 6), (3, 3)] {
        assert_eq!(find(service, role), None, "role {role} at service {service}");
    }
    assert_eq!(token().find_grant(&key(1), RoleId::from_bits(3)), None, "a token for a service has no grants");
}

#[test]
fn ends_after_the_expiry_of_the_token_are_left_out() {
    for (until, expected) in [
        (token().exp - 1, Some(token().exp - 1)),
        (token().exp, None),
        (i64::MAX, None),
        // The control plane lists no role that has ended.
        (token().iat - 1, Some(token().iat)),
    ] {
        let claims = unbound([held(1, 3, Some(until))]);
        assert_eq!(claims.find_grant(&key(1), RoleId::from_bits(3)), Some(grant(3, expected)), "{until}");
    }
}

#[test]
fn number_of_entries_is_padded() {
    for (roles, entries) in [(0, 8), (1, 8), (8, 8), (9, 16), (16, 16), (121, 128), (128, 128)] {
        let claims = unbound((1..=roles).map(|role| held(role % 20 + 1, role, Some(token().iat + 60))));
        assert_eq!(claims.grants.0.len(), entries, "{roles} roles");
        assert_eq!(Grants::try_from(text(&claims)), Ok(claims.grants.clone()));
    }
}

/// Padding, roles with and without an end, and the order of the roles look alike.
#[test]
fn tokens_of_one_agent_have_no_entry_in_common() {
    let roles = || [held(1, 3, None), held(2, 4, Some(token().iat + 60))];
    let reversed = roles().into_iter().rev();
    assert_eq!(text(&unbound(reversed)), text(&unbound(roles())), "the order of the roles does not show");
    let other = Claims { jti: TokenId::from_bits(9), ..token() }.with_grants(roles(), &key(0));
    let parts = |claims: &Claims| -> BTreeSet<Vec<u8>> {
        claims.grants.0.iter().flat_map(|entry| entry.windows(4).map(<[u8]>::to_vec)).collect()
    };
    assert!(parts(&other).is_disjoint(&parts(&unbound(roles()))));
    let role = RoleId::from_bits(3);
    let moved = Claims { jti: TokenId::from_bits(9), ..unbound(roles()) };
    assert_eq!(moved.find_grant(&key(1), role), None, "the entries of one token mean nothing in another one");
}

/// Computed with Python: `hmac.digest(key, b"role" + token + role, "sha256")[:13]`, where token and role are 16 bytes in big-endian
/// order, and the key is that of service 1 in the tests of `agent_hash`.
#[test]
fn entry_matches_an_independent_implementation() {
    let mac: Entry = key(1).mac_of_role(TokenId::from_bits(8), RoleId::from_bits(3));
    assert_eq!(hex::encode(mac), "ac9cd014571db9f7d5de9b803c");
    let entry = hex::decode("ac9cd014571db9f7d521647fc3").unwrap();
    let claims = unbound([held(1, 3, None)]);
    assert!(claims.grants.0.iter().any(|written| written[..] == entry[..]), "the seconds are FFFFFFFF under the mask");
}

#[test]
fn claim_is_parsed_only_in_its_canonical_form() {
    let claims = unbound((1..=9).map(|role| held(1, role, None)));
    let bytes = claims.grants.0.as_flattened();
    let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let parse = |text: String| serde_json::from_value::<Grants>(json!(text)).is_ok();
    assert_eq!((json!(claims.grants), parse(text(&claims))), (json!(encode(bytes)), true));
    let mut swapped = claims.grants.0.clone();
    swapped.swap(0, 1);
    let repeated = [&bytes[..ENTRY_LEN], &bytes[..bytes.len() - ENTRY_LEN]].concat();
    let same_tag = {
        let mut other_end = repeated.clone();
        other_end[ENTRY_LEN - 1] ^= 1;
        other_end
    };
    for (case, invalid) in [
        ("empty", String::new()),
        ("not base64url", format!("{}=", text(&claims))),
        ("one entry too few", encode(&bytes[ENTRY_LEN..])),
        ("one byte too many", encode(&[bytes, &[0]].concat())),
        ("another order", encode(swapped.as_flattened())),
        ("an entry twice", encode(&repeated)),
        ("a tag twice", encode(&same_tag)),
    ] {
        assert!(!parse(invalid), "{case}");
    }
    let too_many = unbound((1..=129).map(|role| held(1, role, None)));
    assert!(!parse(text(&too_many)), "more than 128 entries");
    for invalid in [json!([]), json!([text(&claims)]), json!(1), json!(null)] {
        assert!(serde_json::from_value::<Grants>(invalid).is_err());
    }
}
