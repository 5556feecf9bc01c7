//! Checks the claims of a token after its signature: issuer, audience, validity, subject and administrator claim.

use crate::domain::{agent::Owner, caller::Human};
use countersign_identity::{Reason, Refusal, Timestamp, evaluation::LEEWAY};
use serde_json::{Map, Value};

/// Maximum length of `sub` in characters (OpenID Connect Core, section 2).
const MAX_SUBJECT_LENGTH: usize = 255;

/// A token with one of these claims is for another purpose, although issuers sign it with the same keys: a security event (such as
/// a logout token), or a token that requires proof of possession of a key.
const FORBIDDEN_CLAIMS: [&str; 2] = ["events", "cnf"];

/// The rules for the tokens of one issuer.
#[derive(Debug, Clone)]
pub struct IssuerRules {
    /// The exact `iss` of the tokens.
    pub issuer: String,
    /// The value that the `aud` of the tokens must be or contain.
    pub audience: String,
    /// The claim that identifies administrators. `None` if the issuer has no administrators.
    pub admin: Option<AdminClaim>,
}

/// The claim that identifies administrators.
#[derive(Debug, Clone)]
pub struct AdminClaim {
    /// The name of the administrator claim, or a path with dots to a nested claim.
    pub name: String,
    /// The value that the claim must have or contain. Empty: the claim must be `true`.
    pub value: String,
}

/// Checks the claims of a token that a key of the issuer signed.
pub fn verify_claims(claims: &Map<String, Value>, rules: &IssuerRules, now: Timestamp) -> Result<Human, Refusal> {
    let IssuerRules { issuer, audience, admin } = rules;
    let string_claim = |name| claims.get(name).and_then(Value::as_str);
    // Tell the operator who configured the issuer what is wrong. Only holders of a token of this issuer can cause the log line.
    let invalid = |problem: &str| {
        tracing::info!(%issuer, "a token of a human user is refused: {problem}");
        Refusal::from(Reason::HumanTokenInvalid)
    };
    let time = |name| numeric_date(claims.get(name)).map_err(|()| invalid(&format!("its `{name}` is not a number")));
    let subject = string_claim("sub").filter(|subject| is_valid_subject(subject));
    let subject =
        subject.ok_or_else(|| invalid("its `sub` must be 1 to 255 characters, without control characters"))?;
    if string_claim("iss") != Some(issuer) {
        return Err(invalid("its `iss` is not the issuer"));
    }
    if !contains_audience(claims.get("aud"), audience) {
        return Err(invalid(&format!("its `aud` does not contain `{audience}`, the configured audience")));
    }
    if let Some(name) = FORBIDDEN_CLAIMS.iter().find(|name| claims.contains_key(**name)) {
        return Err(invalid(&format!("it has the claim `{name}`, so it is for another purpose")));
    }
    let expires_at = time("exp")?.ok_or_else(|| invalid("it has no `exp`"))?;
    for name in ["nbf", "iat"] {
        if time(name)?.is_some_and(|at| at > now.saturating_add(LEEWAY)) {
            return Err(invalid(&format!("its `{name}` is in the future")));
        }
    }
    if now >= expires_at {
        return Err(Refusal { reason: Reason::HumanTokenExpired, expired_at: Some(expires_at) });
    }
    let is_admin = admin.as_ref().is_some_and(|admin| is_admin(claims, admin));
    Ok(Human { identity: Owner { issuer: issuer.clone(), subject: subject.to_owned() }, is_admin })
}

fn is_valid_subject(text: &str) -> bool {
    !text.is_empty() && text.chars().count() <= MAX_SUBJECT_LENGTH && !text.chars().any(char::is_control)
}

fn contains_audience(aud: Option<&Value>, audience: &str) -> bool {
    match aud {
        Some(Value::String(value)) => value == audience,
        Some(Value::Array(values)) => values.iter().any(|value| value.as_str() == Some(audience)),
        _ => false,
    }
}

/// Parses an optional `NumericDate` (RFC 7519, section 2), which may have a fraction. Fails if the value is not a number.
fn numeric_date(value: Option<&Value>) -> Result<Option<Timestamp>, ()> {
    let Some(value) = value else { return Ok(None) };
    if let Some(seconds) = value.as_i64() {
        return Ok(Some(Timestamp::from_seconds(seconds)));
    }
    let seconds = value.as_f64().ok_or(())?;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the cast saturates, and fractions of a microsecond are irrelevant"
    )]
    Ok(Some(Timestamp::from_micros((seconds * 1e6) as i64)))
}

fn is_admin(claims: &Map<String, Value>, admin: &AdminClaim) -> bool {
    let AdminClaim { name, value: required } = admin;
    let Some(actual) = find_claim(claims, name) else { return false };
    match (actual, required.as_str()) {
        (Value::Bool(is_admin), "" | "true") => *is_admin,
        (_, "") => false,
        // The claim `scope` is a space-separated list (RFC 8693, section 4.2).
        (Value::String(scope), required) if name == "scope" => scope.split(' ').any(|item| item == required),
        (Value::String(text), required) => text == required,
        (Value::Array(items), required) => items.iter().any(|item| item.as_str() == Some(required)),
        _ => false,
    }
}

/// Finds the claim `name`, or else the nested claim at the path `name`. Names may contain dots themselves, such as
/// `https://example.org/roles`, so we try each dot as a separator and as a part of a name.
fn find_claim<'a>(claims: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    if let Some(value) = claims.get(name) {
        return Some(value);
    }
    let mut dots = name.match_indices('.');
    dots.find_map(|(dot, _)| find_claim(claims.get(&name[..dot])?.as_object()?, &name[dot + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: i64 = 1_800_000_000;

    fn rules(name: &str, value: &str) -> IssuerRules {
        let admin = AdminClaim { name: name.to_owned(), value: value.to_owned() };
        let (issuer, audience) = ("https://i.example".to_owned(), "us".to_owned());
        IssuerRules { issuer, audience, admin: Some(admin).filter(|_| !name.is_empty()) }
    }

    fn verify(claims_to_set: &Value, rules: &IssuerRules) -> Result<Human, Refusal> {
        let mut claims = json!({ "iss": "https://i.example", "aud": "us", "sub": "ann", "exp": NOW + 60 });
        for (name, value) in claims_to_set.as_object().unwrap() {
            claims[name] = value.clone();
        }
        verify_claims(claims.as_object().unwrap(), rules, Timestamp::from_seconds(NOW))
    }

    #[test]
    fn human_user_is_identified_by_issuer_and_subject() {
        let human = verify(&json!({}), &rules("", "")).unwrap();
        assert_eq!(human.identity, Owner { issuer: "https://i.example".into(), subject: "ann".into() });
        assert!(!human.is_admin);
        for valid in [json!({ "sub": "x".repeat(255) }), json!({ "sub": "é|ü" }), json!({ "aud": ["other", "us"] })] {
            assert!(verify(&valid, &rules("", "")).is_ok(), "{valid}");
        }
        for invalid in [
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
            assert_eq!(verify(&invalid, &rules("", "")), Err(Reason::HumanTokenInvalid.into()), "{invalid}");
        }
    }

    #[test]
    fn expiry_is_exact_and_not_before_has_a_leeway() {
        let result = |claims: Value| verify(&claims, &rules("", "")).map_err(|refusal| refusal.reason);
        assert!(result(json!({ "exp": NOW + 1 })).is_ok() && result(json!({ "exp": 4.2e18 })).is_ok());
        assert_eq!(result(json!({ "exp": NOW })), Err(Reason::HumanTokenExpired));
        assert_eq!(result(json!({ "exp": -1e300 })), Err(Reason::HumanTokenExpired));
        for name in ["nbf", "iat"] {
            assert!(result(json!({ name: NOW + 30 })).is_ok(), "{name}");
            assert_eq!(result(json!({ name: NOW + 31 })), Err(Reason::HumanTokenInvalid), "{name}");
        }
        let refusal = verify(&json!({ "exp": NOW - 5 }), &rules("", "")).unwrap_err();
        assert_eq!(refusal.expired_at, Some(Timestamp::from_seconds(NOW - 5)));
    }

    #[test]
    fn administrator_is_identified_by_the_configured_claim() {
        let is_admin = |claims: Value, name: &str, value: &str| verify(&claims, &rules(name, value)).unwrap().is_admin;
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
            assert!(is_admin(claims.clone(), name, value), "{claims} {name} {value}");
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
            assert!(!is_admin(claims.clone(), name, value), "{claims} {name} {value}");
        }
    }
}
