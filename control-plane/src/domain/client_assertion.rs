//! Client assertions (RFC 7523, section 2.2): JWTs with which an agent proves that it holds its key.
//!
//! Invariant: a [`ClientAssertion`] has passed every check that needs only its text. The caller must still verify the signature
//! with the key of the agent, and find out from the database whether the assertion was used before.

use aws_lc_rs::digest::{SHA256, digest};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use countersign_identity::{AgentId, Reason, Timestamp, evaluation::LEEWAY};
use serde::Deserialize;
use serde_json::{Number, Value};
use std::{borrow::Cow, time::Duration};

/// The value of `client_assertion_type` (RFC 7523, section 2.2).
pub const ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// The longest time from now until `exp`. Common clients add exactly this time to their own clock, so we also allow [`LEEWAY`].
pub const MAX_LIFETIME: Duration = Duration::from_mins(5);

/// The maximum length of an assertion, in bytes.
const MAX_BYTES: usize = 8 * 1024;

/// The maximum length of the claim `jti`, in bytes.
const MAX_ID_BYTES: usize = 255;

/// Why an assertion is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidAssertion {
    /// [`Reason::AssertionExpired`] or [`Reason::AssertionInvalid`].
    pub reason: Reason,
    /// What is wrong, for `error_description`.
    pub message: Cow<'static, str>,
}

impl InvalidAssertion {
    /// The error for an assertion that is malformed, has a wrong claim, or names an unknown agent.
    pub const fn new(message: &'static str) -> Self {
        Self { reason: Reason::AssertionInvalid, message: Cow::Borrowed(message) }
    }

    /// The error for a claim that is missing or wrong.
    fn of_claim(name: &str, problem: &str) -> Self {
        Self { reason: Reason::AssertionInvalid, message: format!("the claim `{name}` {problem}").into() }
    }
}

/// An assertion whose signature has not been verified.
#[derive(Debug, Clone)]
pub struct ClientAssertion {
    /// The agent that the assertion names. If the signature is valid, this agent has signed it.
    pub agent: AgentId,
    /// The time from which the assertion is invalid.
    pub expires_at: Timestamp,
    /// The earliest time at which the assertion can have been made.
    pub made_after: Timestamp,
    /// The claim `jti`.
    id: String,
    /// The signed text.
    signed: String,
    signature: Vec<u8>,
}

/// The members of the header that we check. RFC 7515, section 4 requires that we ignore the others.
#[derive(Deserialize)]
struct Header {
    alg: String,
    typ: Option<String>,
    crit: Option<serde::de::IgnoredAny>,
    b64: Option<serde::de::IgnoredAny>,
}

/// The claims before we check their types. A claim that occurs twice is an error.
#[derive(Deserialize)]
struct UntypedClaims {
    iss: Option<Value>,
    sub: Option<Value>,
    aud: Option<Value>,
    exp: Option<Value>,
    nbf: Option<Value>,
    iat: Option<Value>,
    jti: Option<Value>,
}

struct Claims {
    iss: String,
    sub: String,
    aud: Vec<String>,
    exp: Number,
    nbf: Option<Number>,
    iat: Option<Number>,
    jti: String,
}

impl Claims {
    fn parse(json: &[u8]) -> Result<Self, InvalidAssertion> {
        let claims: UntypedClaims = serde_json::from_slice(json).map_err(|_| {
            InvalidAssertion::new("the claims of client_assertion must be a JSON object, with each claim once")
        })?;
        let UntypedClaims { iss, sub, aud, exp, nbf, iat, jti } = claims;
        let aud = match required("aud", aud)? {
            Value::Array(items) => items.into_iter().map(|item| text("aud", item)).collect::<Result<_, _>>()?,
            one => vec![text("aud", one)?],
        };
        Ok(Self {
            iss: text("iss", required("iss", iss)?)?,
            sub: text("sub", required("sub", sub)?)?,
            aud,
            exp: number("exp", required("exp", exp)?)?,
            nbf: nbf.map(|nbf| number("nbf", nbf)).transpose()?,
            iat: iat.map(|iat| number("iat", iat)).transpose()?,
            jti: text("jti", required("jti", jti)?)?,
        })
    }
}

fn required(name: &str, claim: Option<Value>) -> Result<Value, InvalidAssertion> {
    claim.ok_or_else(|| InvalidAssertion::of_claim(name, "is missing"))
}

fn text(name: &str, claim: Value) -> Result<String, InvalidAssertion> {
    let Value::String(text) = claim else { return Err(InvalidAssertion::of_claim(name, "must be a text")) };
    Ok(text)
}

fn number(name: &str, claim: Value) -> Result<Number, InvalidAssertion> {
    let Value::Number(number) = claim else { return Err(InvalidAssertion::of_claim(name, "must be a number")) };
    Ok(number)
}

impl ClientAssertion {
    /// Parses an assertion and checks its claims. Every value of `aud` must be in `audiences`, where the issuer comes first.
    pub fn parse(text: &str, audiences: &[String; 3], now: Timestamp) -> Result<Self, InvalidAssertion> {
        const FORMAT: InvalidAssertion = InvalidAssertion::new("client_assertion must be a JWT");
        if text.len() > MAX_BYTES {
            return Err(InvalidAssertion::new("client_assertion must not be longer than 8 KiB"));
        }
        let (signed, signature) = text.rsplit_once('.').ok_or(FORMAT)?;
        let (header, claims) = signed.split_once('.').ok_or(FORMAT)?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| FORMAT);
        let (header, claims, signature) = (decode(header)?, decode(claims)?, decode(signature)?);
        check_header(&serde_json::from_slice(&header).map_err(|_| FORMAT)?)?;
        let claims = Claims::parse(&claims)?;
        let agent = check_names(&claims, audiences)?;
        let (expires_at, made_after) = check_times(&claims, now)?;
        Ok(Self { agent, expires_at, made_after, id: claims.jti, signed: signed.to_owned(), signature })
    }

    /// The text that the agent has signed.
    pub fn signed_text(&self) -> &[u8] {
        self.signed.as_bytes()
    }

    /// The signature in the format of JWS: 64 bytes r‖s.
    pub fn signature(&self) -> &[u8] {
        &self.signature
    }

    /// Identifies the assertion among the assertions of all agents. A session stores it in place of a challenge id. The ids of
    /// challenges are shorter, so the two are never equal.
    pub fn single_use_id(&self) -> String {
        // The id of an agent contains no line break, so other agents or `jti` never give the same text.
        hex::encode(digest(&SHA256, format!("{}\n{}", self.agent, self.id).as_bytes()))
    }
}

/// The agent that an assertion names. We verify nothing here, so use the result only to count requests.
pub fn claimed_agent(assertion: &str) -> Option<AgentId> {
    #[derive(Deserialize)]
    struct Subject {
        sub: String,
    }
    let claims = assertion.get(..MAX_BYTES).unwrap_or(assertion).split('.').nth(1)?;
    let Subject { sub } = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
    sub.parse().ok()
}

fn check_header(header: &Header) -> Result<(), InvalidAssertion> {
    let Header { alg, typ, crit, b64 } = header;
    if alg != "ES256" {
        return Err(InvalidAssertion::new("the header of client_assertion must have `alg` ES256"));
    }
    if crit.is_some() || b64.is_some() {
        return Err(InvalidAssertion::new("the header of client_assertion must not have `crit` or `b64`"));
    }
    // This refuses access tokens, and proofs for other purposes. `application/` is optional in `typ` (RFC 7515, section 4.1.9).
    let typ = typ.as_deref().unwrap_or("JWT").to_ascii_lowercase();
    if ["jwt", "client-authentication+jwt"].contains(&typ.strip_prefix("application/").unwrap_or(&typ)) {
        return Ok(());
    }
    Err(InvalidAssertion::new(
        "the header of client_assertion must have `typ` JWT or client-authentication+jwt, or none",
    ))
}

fn check_names(claims: &Claims, audiences: &[String; 3]) -> Result<AgentId, InvalidAssertion> {
    let agent = claims.sub.parse().map_err(|_| InvalidAssertion::new("`sub` must be the id of an agent"))?;
    if claims.iss != claims.sub {
        return Err(InvalidAssertion::new("`iss` must be the id of the agent, as `sub` is"));
    }
    let ([issuer, ..], named) = (audiences, &claims.aud);
    if named.is_empty() || !named.iter().all(|audience| audiences.contains(audience)) {
        let message = format!("`aud` must be {issuer}, and nothing else").into();
        return Err(InvalidAssertion { reason: Reason::AssertionInvalid, message });
    }
    if claims.jti.is_empty() || claims.jti.len() > MAX_ID_BYTES {
        return Err(InvalidAssertion::new("`jti` must have 1 to 255 bytes"));
    }
    Ok(agent)
}

/// Checks the times. Returns `expires_at` and `made_after` of the [`ClientAssertion`].
fn check_times(claims: &Claims, now: Timestamp) -> Result<(Timestamp, Timestamp), InvalidAssertion> {
    let latest_start = now.saturating_add(LEEWAY);
    let expires_at = seconds(&claims.exp)?;
    let started_at = claims.iat.as_ref().map(seconds).transpose()?;
    let valid_from = claims.nbf.as_ref().map(seconds).transpose()?;
    if expires_at <= now {
        let message = "`exp` has passed: make a new assertion, and check the clock";
        return Err(InvalidAssertion { reason: Reason::AssertionExpired, message: message.into() });
    }
    if expires_at > latest_start.saturating_add(MAX_LIFETIME) {
        return Err(InvalidAssertion::new("`exp` must be at most 5 minutes away"));
    }
    if started_at.into_iter().chain(valid_from).any(|start| start > latest_start) {
        return Err(InvalidAssertion::new("`iat` and `nbf` must not be in the future: check the clock"));
    }
    let earliest_start = expires_at.saturating_sub(MAX_LIFETIME);
    let start = started_at.map_or(earliest_start, |at| at.max(earliest_start));
    // The agent's clock may be ahead of ours by `LEEWAY`.
    Ok((expires_at, start.saturating_sub(LEEWAY)))
}

/// A `NumericDate` (RFC 7519), without its fraction.
fn seconds(date: &Number) -> Result<Timestamp, InvalidAssertion> {
    let whole = date.as_i64().or_else(|| {
        let date = date.as_f64().filter(|date| (0.0..1e12).contains(date))?;
        #[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
        Some(date as i64)
    });
    whole.map(Timestamp::from_seconds).ok_or(InvalidAssertion::new("`exp`, `nbf` and `iat` must be times in seconds"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: i64 = 1_800_000_000;
    const AGENT: &str = "agent_01jyd3rqawfd15ypgw5mz4yjkb";

    fn audiences() -> [String; 3] {
        ["", "/", "/oauth/token"].map(|path| format!("https://issuer.example{path}"))
    }

    fn parse_parts(header: &Value, claims: &str) -> Result<ClientAssertion, InvalidAssertion> {
        let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let text = format!("{}.{}.c2lnbmF0dXJl", encode(&header.to_string()), encode(claims));
        ClientAssertion::parse(&text, &audiences(), Timestamp::from_seconds(NOW))
    }

    fn claims() -> Value {
        json!({ "iss": AGENT, "sub": AGENT, "aud": "https://issuer.example", "exp": NOW + 300, "iat": NOW, "jti": "1" })
    }

    fn with(name: &str, value: Value) -> Result<ClientAssertion, InvalidAssertion> {
        let mut claims = claims();
        claims[name] = value;
        parse_parts(&json!({ "alg": "ES256" }), &claims.to_string())
    }

    #[test]
    fn assertions_of_common_clients_are_accepted() {
        for header in [
            json!({ "alg": "ES256" }),
            json!({ "alg": "ES256", "typ": "JWT", "kid": "any" }),
            json!({ "alg": "ES256", "typ": "client-authentication+jwt" }),
            json!({ "alg": "ES256", "typ": "application/JWT" }),
        ] {
            assert!(parse_parts(&header, &claims().to_string()).is_ok(), "{header}");
        }
        for (name, value) in [
            ("aud", json!(["https://issuer.example", "https://issuer.example/oauth/token"])),
            ("exp", json!(NOW + 330)),
            ("exp", json!(1_800_000_001.5)),
            ("nbf", json!(NOW + 30)),
            ("iat", Value::Null),
            ("jti", json!("x".repeat(255))),
        ] {
            assert!(with(name, value.clone()).is_ok(), "{name}: {value}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for header in [
            json!({ "alg": "none" }),
            json!({ "alg": "HS256" }),
            json!({ "alg": "es256" }),
            json!({ "typ": "JWT" }),
            json!({ "alg": "ES256", "typ": "at+jwt" }),
            json!({ "alg": "ES256", "typ": "application/" }),
            json!({ "alg": "ES256", "crit": ["exp"] }),
            json!({ "alg": "ES256", "b64": false }),
        ] {
            assert!(parse_parts(&header, &claims().to_string()).is_err(), "{header}");
        }
        for (name, value) in [
            ("iss", json!("https://issuer.example")),
            ("sub", json!("agent_01jyd3rqawfd15ypgw5mz4yjkc")),
            ("sub", json!("nobody")),
            ("aud", json!("https://issuer.example/other")),
            ("aud", json!(["https://issuer.example", "https://other.example"])),
            ("aud", json!([])),
            ("exp", json!(NOW)),
            ("exp", json!(NOW + 331)),
            ("exp", json!("1800000300")),
            ("exp", json!(1e300)),
            ("exp", Value::Null),
            ("nbf", json!(NOW + 31)),
            ("iat", json!(NOW + 31)),
            ("jti", json!("")),
            ("jti", json!("x".repeat(256))),
            ("jti", json!(1)),
        ] {
            assert!(with(name, value.clone()).is_err(), "{name}: {value}");
        }
        assert_eq!(with("exp", json!(NOW)).unwrap_err().reason, Reason::AssertionExpired);
        for (name, value, problem) in [
            ("jti", json!(5), "the claim `jti` must be a text"),
            ("exp", json!("1"), "the claim `exp` must be a number"),
            ("aud", json!([5]), "the claim `aud` must be a text"),
            ("iss", Value::Null, "the claim `iss` is missing"),
        ] {
            assert_eq!(with(name, value).unwrap_err().to_string(), problem);
        }
        let aud = with("aud", json!("other")).unwrap_err();
        assert_eq!(aud.to_string(), "`aud` must be https://issuer.example, and nothing else");
        let twice = claims().to_string().replacen('{', "{\"jti\":\"2\",", 1);
        assert!(parse_parts(&json!({ "alg": "ES256" }), &twice).is_err(), "a claim occurs twice");
        for text in ["", "a", "a.b", "a.b.c", "..", "é.é.é"] {
            assert!(ClientAssertion::parse(text, &audiences(), Timestamp::from_seconds(NOW)).is_err(), "{text}");
        }
    }

    #[test]
    fn time_of_creation_is_never_later_than_it_can_have_been() {
        let made_after = |name, value| with(name, value).unwrap().made_after;
        assert_eq!(made_after("iat", json!(NOW + 20)), Timestamp::from_seconds(NOW - 10));
        // Without `iat`, or with one that is too early, `made_after` follows from `exp`: earlier, no server would have accepted it.
        assert_eq!(made_after("iat", json!(NOW - 10)), Timestamp::from_seconds(NOW - 30));
        assert_eq!(made_after("iat", Value::Null), Timestamp::from_seconds(NOW - 30));
        assert_eq!(made_after("iat", json!(0)), Timestamp::from_seconds(NOW - 30));
    }

    #[test]
    fn ids_of_different_agents_are_different() {
        let id = |agent: &str| {
            let mut claims = claims();
            (claims["iss"], claims["sub"]) = (json!(agent), json!(agent));
            parse_parts(&json!({ "alg": "ES256" }), &claims.to_string()).unwrap().single_use_id()
        };
        assert_ne!(id(AGENT), id("agent_01jyd3rqawfd15ypgw5mz4yjkc"));
        assert_eq!(id(AGENT), id(AGENT));
    }
}
