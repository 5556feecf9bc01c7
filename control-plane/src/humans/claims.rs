//! What a verified token says: for whom it is, whether it is good now, who the person is and what they may.

use super::issuer::{AdminClaim, IssuerRules};
use crate::domain::{agent::Owner, caller::Human};
use countersign_identity::{Reason, Refusal, Timestamp, evaluation::LEEWAY};
use serde_json::{Map, Value};

/// The longest `sub`, in characters, as OpenID Connect Core has it.
const LONGEST_SUBJECT: usize = 255;

/// Members of tokens that are signed by the same keys and are not for us: events (logout tokens among them), and
/// tokens that are good only together with a key that nobody showed us.
const FOR_SOMETHING_ELSE: [&str; 2] = ["events", "cnf"];

/// Reads the claims of a token whose signature was verified with a key of this issuer.
pub fn judge(claims: &Map<String, Value>, rules: &IssuerRules, now: Timestamp) -> Result<Human, Refusal> {
    let text = |name| claims.get(name).and_then(Value::as_str);
    let subject = text("sub").filter(|subject| is_subject(subject)).ok_or(Reason::HumanTokenInvalid)?;
    let meant = text("iss") == Some(&rules.issuer) && is_for(claims.get("aud"), &rules.audience);
    if !meant || FOR_SOMETHING_ELSE.iter().any(|name| claims.contains_key(*name)) {
        return Err(Reason::HumanTokenInvalid.into());
    }
    let expires = instant(claims.get("exp"))?.ok_or(Reason::HumanTokenInvalid)?;
    for name in ["nbf", "iat"] {
        if instant(claims.get(name))?.is_some_and(|at| at > now.saturating_add(LEEWAY)) {
            return Err(Reason::HumanTokenInvalid.into());
        }
    }
    if now >= expires {
        return Err(Refusal { reason: Reason::HumanTokenExpired, expired_at: Some(expires) });
    }
    let admin = rules.admin.as_ref().is_some_and(|admin| is_admin(claims, admin));
    Ok(Human { owner: Owner { issuer: rules.issuer.clone(), subject: subject.to_owned() }, admin })
}

fn is_subject(text: &str) -> bool {
    !text.is_empty() && text.chars().count() <= LONGEST_SUBJECT && !text.chars().any(char::is_control)
}

fn is_for(aud: Option<&Value>, audience: &str) -> bool {
    match aud {
        Some(Value::String(one)) => one == audience,
        Some(Value::Array(several)) => several.iter().any(|one| one.as_str() == Some(audience)),
        _ => false,
    }
}

/// A `NumericDate` (RFC 7519), which may have a fraction; what is there and is none is an error.
fn instant(value: Option<&Value>) -> Result<Option<Timestamp>, Refusal> {
    let Some(value) = value else { return Ok(None) };
    if let Some(seconds) = value.as_i64() {
        return Ok(Some(Timestamp::from_seconds(seconds)));
    }
    let seconds = value.as_f64().ok_or(Reason::HumanTokenInvalid)?;
    #[expect(clippy::cast_possible_truncation, reason = "a float becomes the nearest integer, at the ends of time too")]
    Ok(Some(Timestamp::from_micros((seconds * 1e6) as i64)))
}

fn is_admin(claims: &Map<String, Value>, admin: &AdminClaim) -> bool {
    let AdminClaim { name, value: wanted } = admin;
    let Some(found) = find(claims, name) else { return false };
    match (found, wanted.as_str()) {
        (Value::Bool(truth), "" | "true") => *truth,
        (_, "") => false,
        // A list in a string, by its definition (RFC 8693, section 4.2).
        (Value::String(text), wanted) if name == "scope" => text.split(' ').any(|word| word == wanted),
        (Value::String(text), wanted) => text == wanted,
        (Value::Array(items), wanted) => items.iter().any(|item| item.as_str() == Some(wanted)),
        _ => false,
    }
}

/// The claim of this name; or, if there is none, the one to which the dots in the name lead. The names of claims
/// may have dots themselves (`https://example.org/roles`), at each level.
fn find<'a>(claims: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    if let Some(value) = claims.get(name) {
        return Some(value);
    }
    let mut dots = name.match_indices('.');
    dots.find_map(|(dot, _)| find(claims.get(&name[..dot])?.as_object()?, &name[dot + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: i64 = 1_800_000_000;

    fn rules(name: &str, value: &str) -> IssuerRules {
        let admin = AdminClaim { name: name.to_owned(), value: value.to_owned() };
        let (issuer, audience) = ("https://i.example".to_owned(), "us".to_owned());
        IssuerRules { issuer, audience, algorithms: Vec::new(), admin: Some(admin).filter(|_| !name.is_empty()) }
    }

    fn judged(more: &Value, rules: &IssuerRules) -> Result<Human, Refusal> {
        let mut claims = json!({ "iss": "https://i.example", "aud": "us", "sub": "ann", "exp": NOW + 60 });
        for (name, value) in more.as_object().unwrap() {
            claims[name] = value.clone();
        }
        judge(claims.as_object().unwrap(), rules, Timestamp::from_seconds(NOW))
    }

    #[test]
    fn a_person_is_who_issuer_and_subject_say() {
        let human = judged(&json!({}), &rules("", "")).unwrap();
        assert_eq!(human.owner, Owner { issuer: "https://i.example".into(), subject: "ann".into() });
        assert!(!human.admin);
        for good in [json!({ "sub": "x".repeat(255) }), json!({ "sub": "é|ü" }), json!({ "aud": ["other", "us"] })] {
            assert!(judged(&good, &rules("", "")).is_ok(), "{good}");
        }
        for bad in [
            json!({ "sub": "" }),
            json!({ "sub": 7 }),
            json!({ "sub": null }),
            json!({ "sub": "x".repeat(256) }),
            json!({ "sub": "a\u{0}b" }),
            json!({ "iss": "https://i.example/" }),
            json!({ "aud": "them" }),
            json!({ "aud": ["US"] }),
            json!({ "aud": [] }),
            json!({ "aud": null }),
            json!({ "aud": { "us": "us" } }),
            json!({ "exp": "soon" }),
            json!({ "exp": null }),
            json!({ "nbf": true }),
            json!({ "cnf": { "jkt": "x" } }),
            json!({ "events": {} }),
        ] {
            assert_eq!(judged(&bad, &rules("", "")), Err(Reason::HumanTokenInvalid.into()), "{bad}");
        }
    }

    #[test]
    fn expiry_is_exact_and_the_past_has_a_leeway() {
        let at = |claims: Value| judged(&claims, &rules("", "")).map_err(|refusal| refusal.reason);
        assert!(at(json!({ "exp": NOW + 1 })).is_ok() && at(json!({ "exp": 4.2e18 })).is_ok());
        assert_eq!(at(json!({ "exp": NOW })), Err(Reason::HumanTokenExpired));
        assert_eq!(at(json!({ "exp": -1e300 })), Err(Reason::HumanTokenExpired));
        for name in ["nbf", "iat"] {
            assert!(at(json!({ name: NOW + 30 })).is_ok(), "{name}");
            assert_eq!(at(json!({ name: NOW + 31 })), Err(Reason::HumanTokenInvalid), "{name}");
        }
        let refusal = judged(&json!({ "exp": NOW - 5 }), &rules("", "")).unwrap_err();
        assert_eq!(refusal.expired_at, Some(Timestamp::from_seconds(NOW - 5)));
    }

    #[test]
    fn an_administrator_is_who_the_claim_says() {
        let admin = |claims: Value, name: &str, value: &str| judged(&claims, &rules(name, value)).unwrap().admin;
        for (claims, name, value) in [
            (json!({ "admin": true }), "admin", ""),
            (json!({ "admin": true }), "admin", "true"),
            (json!({ "role": "boss" }), "role", "boss"),
            (json!({ "roles": ["user", "boss"] }), "roles", "boss"),
            (json!({ "realm_access": { "roles": ["boss"] } }), "realm_access.roles", "boss"),
            (json!({ "resource_access": { "a.b": { "roles": ["boss"] } } }), "resource_access.a.b.roles", "boss"),
            (json!({ "https://example.org/roles": ["boss"] }), "https://example.org/roles", "boss"),
            (json!({ "scope": "openid boss" }), "scope", "boss"),
        ] {
            assert!(admin(claims.clone(), name, value), "{claims} {name} {value}");
        }
        for (claims, name, value) in [
            (json!({ "admin": true }), "", ""),
            (json!({ "admin": false }), "admin", ""),
            (json!({ "admin": "true" }), "admin", ""),
            (json!({ "admin": 1 }), "admin", ""),
            (json!({ "admin": true }), "admin", "boss"),
            (json!({ "role": "bossy" }), "role", "boss"),
            (json!({ "role": "not boss" }), "role", "boss"),
            (json!({ "roles": ["Boss", ["boss"], { "boss": 1 }] }), "roles", "boss"),
            (json!({ "roles": { "boss": true } }), "roles", "boss"),
            (json!({ "a.b": [], "a": { "b": ["boss"] } }), "a.b", "boss"),
            (json!({ "realm_access": ["boss"] }), "realm_access.roles", "boss"),
            (json!({}), "roles", "boss"),
        ] {
            assert!(!admin(claims.clone(), name, value), "{claims} {name} {value}");
        }
    }
}
