//! Whatever Envoy asks: no panic, and an allow only for the one good token, in its one place, on a route
//! whose rules are known.
//!
//! What is expected is worked out here once more, from the request alone and as simply as can be.

use super::*;
use crate::fixtures::{AGENT, TOKEN};
use countersign_identity::Claims;
use countersign_mangle::{any_bytes, any_text, cases_divided_by, mutated_bytes, mutated_text};
use envoy_types::ext_authz::v3::pb::{HeaderAppendAction, HeaderValueOption};
use proptest::{collection::vec, prelude::*, sample::select};
use prost::Message;
use std::{collections::BTreeMap, sync::LazyLock};

static GOOD: LazyLock<String> = LazyLock::new(|| Signer::new(1).sign(&claims()));

/// Tokens that are none: expired, of another service, signed by nobody we know.
static BAD: LazyLock<[String; 3]> = LazyLock::new(|| {
    let elsewhere = ServiceId::from_bits(9).to_string();
    [
        Signer::new(1).sign(&Claims { exp: ISSUED, ..claims() }),
        Signer::new(1).sign(&Claims { aud: elsewhere, ..claims() }),
        Signer::new(2).sign(&claims()),
    ]
});

static AUTHORIZER: LazyLock<Authorizer> = LazyLock::new(|| authorizer(Still));

const IDENTITY: [&str; 7] = [
    "x-agent-id",
    "x-agent-name",
    "x-agent-trust-score",
    "x-agent-roles",
    "x-agent-permissions",
    "x-agent-service",
    "x-agent-token-id",
];

#[derive(Debug, PartialEq, Eq)]
enum Expected {
    Verified,
    Anonymous,
    Denied,
}

type Sent = (String, Vec<u8>);

/// All headers of a request, or nothing if it is not about HTTP.
fn sent(question: &CheckRequest) -> Option<Vec<Sent>> {
    let http = question.attributes.as_ref()?.request.as_ref()?.http.as_ref()?;
    let mut all: Vec<Sent> = http.headers.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
    for header in http.header_map.iter().flat_map(|map| &map.headers) {
        let raw = !header.raw_value.is_empty();
        all.push((header.key.clone(), if raw { header.raw_value.clone() } else { header.value.clone().into() }));
    }
    Some(all)
}

fn expected(question: &CheckRequest) -> Expected {
    let Some(headers) = sent(question) else { return Expected::Denied };
    let rules = &question.attributes.as_ref().unwrap().context_extensions;
    if !rules.iter().all(|(name, value)| is_a_rule_that_is_met(name, value)) {
        return Expected::Denied;
    }
    let anonymous = rules.get("allow_anonymous").is_some_and(|value| value == "true");
    if anonymous && rules.keys().any(|name| name.starts_with("require_") || name == "min_trust_score") {
        return Expected::Denied;
    }
    let values = |wanted: &str| -> Vec<&[u8]> {
        headers.iter().filter(|(name, _)| name.to_ascii_lowercase() == wanted).map(|(_, value)| &value[..]).collect()
    };
    let (own, authorization) = (values("x-agent-token"), values("authorization"));
    match (own.as_slice(), authorization.as_slice()) {
        ([value], _) if words(value) == [GOOD.as_str()] || is_bearer_of_good(value) => Expected::Verified,
        ([], [value]) if is_bearer_of_good(value) => Expected::Verified,
        ([], []) if anonymous => Expected::Anonymous,
        ([], [value]) if anonymous && is_of_another_kind(value) => Expected::Anonymous,
        _ => Expected::Denied,
    }
}

fn words(value: &[u8]) -> Vec<&str> {
    let text = std::str::from_utf8(value).unwrap_or_default();
    text.split([' ', '\t']).filter(|word| !word.is_empty()).collect()
}

fn is_bearer_of_good(value: &[u8]) -> bool {
    matches!(words(value)[..], [scheme, token] if scheme.eq_ignore_ascii_case("bearer") && token == *GOOD)
}

/// A header's value, no part of which is a bearer token.
fn is_of_another_kind(value: &[u8]) -> bool {
    let allowed = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ' || *byte == b'\t';
    let bearer = |part: &[u8]| words(part).first().is_some_and(|word| word.eq_ignore_ascii_case("bearer"));
    value.iter().all(allowed) && !value.split(|byte| *byte == b',').any(bearer)
}

/// Of the agent of the good token, who holds one role with one permission and stands at 50 points.
fn is_a_rule_that_is_met(name: &str, value: &str) -> bool {
    let all = |items: &[&str]| value.split(',').all(|item| items.contains(&item.trim()));
    match name {
        "service_id" => value == SERVICE.to_string(),
        "require_roles" => all(&["reader", "%72eader"]),
        "require_permissions" => all(&["read", "%72ead"]),
        "min_trust_score" => value.parse().is_ok_and(|points: f64| {
            let two_decimals = format!("{points:.2}").parse() == Ok(points);
            two_decimals && points.is_sign_positive() && points <= 50.0
        }),
        "allow_unassigned" | "allow_anonymous" | "forward_token" => ["true", "false"].contains(&value),
        _ => false,
    }
}

fn fold(name: &str) -> Vec<u8> {
    name.bytes().map(|byte| if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() } else { b'-' }).collect()
}

fn answered(question: &CheckRequest) -> Result<(), TestCaseError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let response = runtime.block_on(ask(&AUTHORIZER, question.clone()));
    let code = response.status.as_ref().map(|status| status.code);
    let verdict = match response.http_response {
        Some(HttpResponse::OkResponse(ok)) => {
            prop_assert_eq!(code, Some(0));
            let verdict = if ok.headers.is_empty() { Expected::Anonymous } else { Expected::Verified };
            says_the_truth(&ok.headers)?;
            lets_no_forgery_through(question, &ok)?;
            verdict
        }
        Some(HttpResponse::DeniedResponse(denied)) => {
            prop_assert!(code.is_some_and(|code| code != 0), "{:?}", code);
            prop_assert!([401, 403, 503].contains(&denied.status.unwrap().code));
            let body: serde_json::Value = serde_json::from_str(&denied.body).unwrap();
            prop_assert!(body["error"]["details"]["reason"].as_str().is_some_and(|reason| reason != "internal"));
            Expected::Denied
        }
        other => return Err(TestCaseError::fail(format!("{other:?}"))),
    };
    prop_assert_eq!(verdict, expected(question));
    Ok(())
}

/// All seven or, for the anonymous, none; each set over what was sent.
fn says_the_truth(headers: &[HeaderValueOption]) -> Result<(), TestCaseError> {
    for option in headers {
        #[expect(deprecated, reason = "both fields are asked for")]
        let append = option.append.map(|append| append.value);
        prop_assert_eq!((append, option.append_action()), (Some(false), HeaderAppendAction::OverwriteIfExistsOrAdd));
        prop_assert!(option.keep_empty_value);
    }
    let said = headers.iter().map(|option| option.header.as_ref().unwrap());
    let said: BTreeMap<&str, &str> = said.map(|header| (header.key.as_str(), header.value.as_str())).collect();
    let (agent, service, token) = (AGENT.to_string(), SERVICE.to_string(), TOKEN.to_string());
    let truth = IDENTITY.into_iter().zip([&agent, "Reader", "50", "reader", "read", &service, &token]);
    prop_assert!(headers.is_empty() || (headers.len() == 7 && said == truth.collect()), "{:?}", said);
    Ok(())
}

fn lets_no_forgery_through(question: &CheckRequest, ok: &OkHttpResponse) -> Result<(), TestCaseError> {
    let set: Vec<&str> = ok.headers.iter().map(|option| option.header.as_ref().unwrap().key.as_str()).collect();
    let removed = |name: &str| ok.headers_to_remove.iter().any(|removed| removed.eq_ignore_ascii_case(name));
    prop_assert!(!set.iter().any(|name| removed(name)), "what is set and removed is lost");
    let rules = &question.attributes.as_ref().unwrap().context_extensions;
    let keeps_token = rules.get("forward_token").is_some_and(|value| value == "true");
    let ours = IDENTITY.into_iter().chain(["x-agent-reason", "x-agent-token"]).map(str::as_bytes);
    for (name, value) in sent(question).unwrap() {
        let overwritten = set.iter().any(|set| name.eq_ignore_ascii_case(set));
        if removed(&name) || overwritten {
            continue;
        }
        let token = name.eq_ignore_ascii_case("x-agent-token") && keeps_token;
        prop_assert!(token || !ours.clone().any(|ours| fold(&name) == ours), "{:?} survives", name);
        let credential = name.eq_ignore_ascii_case("authorization") && is_bearer_of_good(&value);
        let spent =
            credential && !sent(question).unwrap().iter().any(|(name, _)| name.eq_ignore_ascii_case("x-agent-token"));
        prop_assert!(!spent || keeps_token, "the token survives");
    }
    Ok(())
}

fn name() -> BoxedStrategy<String> {
    let known = select(&["authorization", "x-agent-token", "x-agent-reason", "accept"][..]);
    let known = prop_oneof![known, select(&IDENTITY[..])];
    prop_oneof![
        4 => known.clone().prop_map(str::to_owned),
        1 => known.clone().prop_map(str::to_ascii_uppercase),
        2 => (known.clone(), select(&["_", ".", "~", " ", "é", "--", ""][..])).prop_map(|(name, dash)| name.replacen('-', dash, 1)),
        1 => known.clone().prop_map(|name| name.replace('-', "_")),
        1 => known.prop_flat_map(mutated_text),
        1 => any_text(),
    ]
    .boxed()
}

fn value() -> BoxedStrategy<Vec<u8>> {
    let good = || GOOD.as_str();
    let text = prop_oneof![
        4 => Just(format!("Bearer {}", good())),
        2 => Just(good().to_owned()),
        1 => Just(format!("\t bEARER \t{} ", good())),
        1 => Just(format!("Bearer {0},Bearer {0}", good())),
        1 => Just(format!("Basic dXNlcg==, Bearer {}", good())),
        1 => Just(format!("Bearer Bearer {}", good())),
        2 => Just("Basic dXNlcg==".to_owned()),
        1 => select(&BAD[..]).prop_map(|token| format!("Bearer {token}")),
        2 => mutated_text(&format!("Bearer {}", good())),
        1 => mutated_text(good()),
        1 => any_text(),
    ];
    prop_oneof![9 => text.prop_map(String::into_bytes), 1 => any_bytes()].boxed()
}

fn rule() -> BoxedStrategy<(String, String)> {
    let service = SERVICE.to_string();
    let good = prop_oneof![
        Just(("service_id".to_owned(), service.clone())),
        Just(("require_roles".to_owned(), "reader".to_owned())),
        Just(("require_permissions".to_owned(), "read, %72ead".to_owned())),
        select(&["0", "50", "49.99", "5e1", "50.004", "50.01", "NaN", "inf", "-0", "-1"][..])
            .prop_map(|points| ("min_trust_score".to_owned(), points.to_owned())),
        (select(&["allow_unassigned", "allow_anonymous", "forward_token"][..]), any::<bool>())
            .prop_map(|(name, value)| (name.to_owned(), value.to_string())),
    ];
    let other = prop_oneof![
        any_text(),
        select(&["true", "True", "1", "", "admin", "reader,", "%zz"][..]).prop_map(str::to_owned)
    ];
    prop_oneof![
        8 => good.clone(),
        1 => (good.clone(), other.clone()).prop_map(|((name, _), value)| (name, value)),
        1 => good.clone().prop_flat_map(|(name, value)| (mutated_text(&name), mutated_text(&value))),
        1 => (other, good).prop_map(|(name, (_, value))| (name, value)),
    ]
    .boxed()
}

/// Where Envoy puts a header: into the map, or into the list, as text or raw.
fn put(http: &mut HttpRequest, place: u8, (name, value): Sent) {
    let text = String::from_utf8_lossy(&value).into_owned();
    let header = match place {
        0 => return drop(http.headers.insert(name, text)),
        1 => HeaderValue { key: name, value: text, raw_value: vec![] },
        _ => HeaderValue { key: name, value: String::new(), raw_value: value },
    };
    http.header_map.get_or_insert_with(HeaderMap::default).headers.push(header);
}

fn questions() -> BoxedStrategy<CheckRequest> {
    let good = Just(("authorization".to_owned(), format!("Bearer {}", *GOOD).into_bytes()));
    let own = || (select(&["x-agent-token", "X-Agent-Token"][..]).prop_map(str::to_owned), value());
    let carrier = prop_oneof![
        6 => vec(good.clone(), 1),
        1 => (good.clone(), own()).prop_map(|(good, own)| vec![good, own]),
        1 => (good, own(), own()).prop_map(|(good, one, other)| vec![good, one, other]),
        2 => Just(vec![]),
    ];
    let headers = (carrier, vec((name(), value()), 0..4)).prop_map(|(carrier, others)| [carrier, others].concat());
    let rules = prop_oneof![2 => Just(vec![]), 3 => vec(rule(), 1..4)];
    (headers, any::<[u8; 8]>(), rules, [any_text(), any_text()])
        .prop_map(|(headers, places, rules, [method, path])| {
            let mut http = HttpRequest { method, path, ..HttpRequest::default() };
            for (position, header) in headers.into_iter().enumerate() {
                put(&mut http, places[position] % 3, header);
            }
            question(http, rules.into_iter().collect())
        })
        .boxed()
}

fn good_question() -> CheckRequest {
    let bearer = format!("Bearer {}", *GOOD);
    request(&[("authorization", &bearer), ("x_agent_id", "root")], &[("require_roles", "reader")])
}

proptest! {
    #![proptest_config(cases_divided_by(1))]

    #[test]
    fn only_the_one_good_token_in_its_place_is_let_in(question in questions()) {
        answered(&question)?;
    }

    #[test]
    fn bytes_that_happen_to_be_a_question_are_answered(bytes in any_bytes()) {
        if let Ok(question) = CheckRequest::decode(&bytes[..]) {
            prop_assert_eq!(expected(&question), Expected::Denied);
            answered(&question)?;
        }
    }

    #[test]
    fn a_question_with_other_bytes_in_it_is_answered(bytes in mutated_bytes(&good_question().encode_to_vec())) {
        if let Ok(question) = CheckRequest::decode(&bytes[..]) {
            answered(&question)?;
        }
    }
}

proptest! {
    #![proptest_config(cases_divided_by(2))]

    #[test]
    fn a_token_that_was_changed_is_refused_wherever_it_stands(
        token in mutated_text(&GOOD), name in select(&["authorization", "X-Agent-Token"][..]), place in 0..3_u8,
    ) {
        let mut http = HttpRequest::default();
        put(&mut http, place, (name.to_owned(), format!("Bearer {token}").into_bytes()));
        answered(&question(http, [].into()))?;
    }
}
