//! Property tests of checks: no request causes a panic, and a request is allowed only with a valid token in the right
//! header on a route whose context extensions are valid.
//!
//! [`expected_verdict`] is a simple reference implementation that computes the verdict from the request.

use super::*;
use crate::fixtures::{AGENT_ID, TOKEN_ID};
use countersign_identity::Claims;
use countersign_mangle::{any_bytes, any_text, cases_divided_by, mutated_bytes, mutated_text};
use countersign_proto::envoy::config::core::v3::{HeaderValueOption, header_value_option::HeaderAppendAction};
use proptest::{collection::vec, prelude::*, sample::select};
use std::{collections::BTreeMap, sync::LazyLock};

static VALID_TOKEN: LazyLock<String> = LazyLock::new(|| TestIssuer::new(1).sign(&claims()));

/// Three invalid tokens: expired, issued for another service, and signed with an unknown key.
static INVALID_TOKENS: LazyLock<[String; 3]> = LazyLock::new(|| {
    let other_service = ServiceId::from_bits(9).to_string();
    [
        TestIssuer::new(1).sign(&Claims { exp: ISSUED_AT, ..claims() }),
        TestIssuer::new(1).sign(&Claims { aud: other_service.into(), ..claims() }),
        TestIssuer::new(2).sign(&claims()),
    ]
});

static AUTHORIZER: LazyLock<Authorizer> = LazyLock::new(|| authorizer(FixedClock));

const IDENTITY_HEADERS: [&str; 7] = [
    "x-agent-id",
    "x-agent-name",
    "x-agent-trust-score",
    "x-agent-roles",
    "x-agent-permissions",
    "x-agent-service",
    "x-agent-token-id",
];

#[derive(Debug, PartialEq, Eq)]
enum ExpectedVerdict {
    Verified,
    Anonymous,
    Denied,
}

type Header = (String, Vec<u8>);

/// Returns all headers of a request; `None` if it is not an HTTP request.
fn request_headers(request: &CheckRequest) -> Option<Vec<Header>> {
    let http = request.attributes.as_ref()?.request.as_ref()?.http.as_ref()?;
    let mut all: Vec<Header> = http.headers.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
    for header in http.header_map.iter().flat_map(|map| &map.headers) {
        let has_raw_value = !header.raw_value.is_empty();
        all.push((
            header.key.clone(),
            if has_raw_value { header.raw_value.clone() } else { header.value.clone().into() },
        ));
    }
    Some(all)
}

fn expected_verdict(request: &CheckRequest) -> ExpectedVerdict {
    let Some(headers) = request_headers(request) else { return ExpectedVerdict::Denied };
    let extensions = &request.attributes.as_ref().unwrap().context_extensions;
    if !extensions.iter().all(|(name, value)| is_valid_and_met(name, value)) {
        return ExpectedVerdict::Denied;
    }
    let allows_anonymous = extensions.get("allow_anonymous").is_some_and(|value| value == "true");
    if allows_anonymous && extensions.keys().any(|name| name.starts_with("require_") || name == "min_trust_score") {
        return ExpectedVerdict::Denied;
    }
    let values = |header: &str| -> Vec<&[u8]> {
        headers.iter().filter(|(name, _)| name.to_ascii_lowercase() == header).map(|(_, value)| &value[..]).collect()
    };
    let (token_header, authorization) = (values("x-agent-token"), values("authorization"));
    match (token_header.as_slice(), authorization.as_slice()) {
        ([value], _) if split_words(value) == [VALID_TOKEN.as_str()] || is_bearer_with_valid_token(value) => {
            ExpectedVerdict::Verified
        }
        ([], [value]) if is_bearer_with_valid_token(value) => ExpectedVerdict::Verified,
        ([], []) if allows_anonymous => ExpectedVerdict::Anonymous,
        ([], [value]) if allows_anonymous && has_no_bearer_token(value) => ExpectedVerdict::Anonymous,
        _ => ExpectedVerdict::Denied,
    }
}

fn split_words(value: &[u8]) -> Vec<&str> {
    let text = std::str::from_utf8(value).unwrap_or_default();
    text.split([' ', '\t']).filter(|word| !word.is_empty()).collect()
}

fn is_bearer_with_valid_token(value: &[u8]) -> bool {
    matches!(split_words(value)[..], [scheme, token] if scheme.eq_ignore_ascii_case("bearer") && token == *VALID_TOKEN)
}

/// True if no part of the value is a bearer token.
fn has_no_bearer_token(value: &[u8]) -> bool {
    let is_allowed = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ' || *byte == b'\t';
    let starts_with_bearer =
        |part: &[u8]| split_words(part).first().is_some_and(|word| word.eq_ignore_ascii_case("bearer"));
    value.iter().all(is_allowed) && !value.split(|byte| *byte == b',').any(starts_with_bearer)
}

/// True if the context extension is valid and the agent of [`VALID_TOKEN`] meets it: the agent has the role `reader`, the
/// permission `read` and a trust score of 50.
fn is_valid_and_met(name: &str, value: &str) -> bool {
    let all_items_in = |items: &[&str]| value.split(',').all(|item| items.contains(&item.trim()));
    match name {
        "service_id" => value == SERVICE_ID.to_string(),
        "require_roles" => all_items_in(&["reader", "%72eader"]),
        "require_permissions" => all_items_in(&["read", "%72ead"]),
        "min_trust_score" => value.parse().is_ok_and(|points: f64| {
            let has_at_most_two_decimals = format!("{points:.2}").parse() == Ok(points);
            has_at_most_two_decimals && points.is_sign_positive() && points <= 50.0
        }),
        "allow_unassigned" | "allow_anonymous" | "forward_token" => ["true", "false"].contains(&value),
        _ => false,
    }
}

fn fold_header_name(name: &str) -> Vec<u8> {
    name.bytes().map(|byte| if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() } else { b'-' }).collect()
}

fn check_verdict(request: &CheckRequest) -> Result<(), TestCaseError> {
    let response = check(&AUTHORIZER, request.clone());
    let code = response.status.as_ref().map(|status| status.code);
    let verdict = match response.http_response {
        Some(HttpResponse::OkResponse(ok)) => {
            prop_assert_eq!(code, Some(0));
            let verdict = if ok.headers.is_empty() { ExpectedVerdict::Anonymous } else { ExpectedVerdict::Verified };
            check_identity_headers(&ok.headers)?;
            check_no_forged_header(request, &ok)?;
            verdict
        }
        Some(HttpResponse::DeniedResponse(denied)) => {
            prop_assert!(code.is_some_and(|code| code != 0), "{:?}", code);
            prop_assert!([401, 403, 503].contains(&denied.status.unwrap().code));
            let body: serde_json::Value = serde_json::from_str(&denied.body).unwrap();
            prop_assert!(body["error"]["details"]["reason"].as_str().is_some_and(|reason| reason != "internal"));
            ExpectedVerdict::Denied
        }
        other => return Err(TestCaseError::fail(format!("{other:?}"))),
    };
    prop_assert_eq!(verdict, expected_verdict(request));
    Ok(())
}

/// Checks that a response sets all seven identity headers, or none for anonymous requests, and that each overwrites the client's header.
fn check_identity_headers(headers: &[HeaderValueOption]) -> Result<(), TestCaseError> {
    for option in headers {
        #[expect(deprecated, reason = "both fields must be set")]
        let append = option.append;
        prop_assert_eq!((append, option.append_action()), (Some(false), HeaderAppendAction::OverwriteIfExistsOrAdd));
        prop_assert!(option.keep_empty_value);
    }
    let actual = headers.iter().map(|option| option.header.as_ref().unwrap());
    let actual: BTreeMap<&str, &str> = actual.map(|header| (header.key.as_str(), header.value.as_str())).collect();
    let (agent, service, token) = (AGENT_ID.to_string(), SERVICE_ID.to_string(), TOKEN_ID.to_string());
    let expected_headers =
        IDENTITY_HEADERS.into_iter().zip([&agent, "Reader", "50", "reader", "read", &service, &token]);
    prop_assert!(headers.is_empty() || (headers.len() == 7 && actual == expected_headers.collect()), "{:?}", actual);
    Ok(())
}

fn check_no_forged_header(request: &CheckRequest, ok: &OkHttpResponse) -> Result<(), TestCaseError> {
    let overwritten_names: Vec<&str> =
        ok.headers.iter().map(|option| option.header.as_ref().unwrap().key.as_str()).collect();
    let is_removed =
        |name: &str| ok.headers_to_remove.iter().any(|removed_name| removed_name.eq_ignore_ascii_case(name));
    prop_assert!(!overwritten_names.iter().any(|name| is_removed(name)), "a header that is set is also removed");
    let extensions = &request.attributes.as_ref().unwrap().context_extensions;
    let forwards_token = extensions.get("forward_token").is_some_and(|value| value == "true");
    let protected_names = IDENTITY_HEADERS.into_iter().chain(["x-agent-reason", "x-agent-token"]).map(str::as_bytes);
    for (name, value) in request_headers(request).unwrap() {
        let is_overwritten =
            overwritten_names.iter().any(|overwritten_name| name.eq_ignore_ascii_case(overwritten_name));
        if is_removed(&name) || is_overwritten {
            continue;
        }
        let is_forwarded_token = name.eq_ignore_ascii_case("x-agent-token") && forwards_token;
        prop_assert!(
            is_forwarded_token || !protected_names.clone().any(|protected| fold_header_name(&name) == protected),
            "the forged header {:?} is forwarded",
            name
        );
        let has_valid_token = name.eq_ignore_ascii_case("authorization") && is_bearer_with_valid_token(&value);
        let contains_verified_token = has_valid_token
            && !request_headers(request).unwrap().iter().any(|(name, _)| name.eq_ignore_ascii_case("x-agent-token"));
        prop_assert!(!contains_verified_token || forwards_token, "the token is forwarded");
    }
    Ok(())
}

fn header_name() -> BoxedStrategy<String> {
    let names = select(&["authorization", "x-agent-token", "x-agent-reason", "accept"][..]);
    let names = prop_oneof![names, select(&IDENTITY_HEADERS[..])];
    prop_oneof![
        4 => names.clone().prop_map(str::to_owned),
        1 => names.clone().prop_map(str::to_ascii_uppercase),
        2 => (names.clone(), select(&["_", ".", "~", " ", "é", "--", ""][..])).prop_map(|(name, dash)| name.replacen('-', dash, 1)),
        1 => names.clone().prop_map(|name| name.replace('-', "_")),
        1 => names.prop_flat_map(mutated_text),
        1 => any_text(),
    ]
    .boxed()
}

fn header_value() -> BoxedStrategy<Vec<u8>> {
    let token = || VALID_TOKEN.as_str();
    let text = prop_oneof![
        4 => Just(format!("Bearer {}", token())),
        2 => Just(token().to_owned()),
        1 => Just(format!("\t bEARER \t{} ", token())),
        1 => Just(format!("Bearer {0},Bearer {0}", token())),
        1 => Just(format!("Basic dXNlcg==, Bearer {}", token())),
        1 => Just(format!("Bearer Bearer {}", token())),
        2 => Just("Basic dXNlcg==".to_owned()),
        1 => select(&INVALID_TOKENS[..]).prop_map(|token| format!("Bearer {token}")),
        2 => mutated_text(&format!("Bearer {}", token())),
        1 => mutated_text(token()),
        1 => any_text(),
    ];
    prop_oneof![9 => text.prop_map(String::into_bytes), 1 => any_bytes()].boxed()
}

fn context_extension() -> BoxedStrategy<(String, String)> {
    let service = SERVICE_ID.to_string();
    let valid = prop_oneof![
        Just(("service_id".to_owned(), service.clone())),
        Just(("require_roles".to_owned(), "reader".to_owned())),
        Just(("require_permissions".to_owned(), "read, %72ead".to_owned())),
        select(&["0", "50", "49.99", "5e1", "50.004", "50.01", "NaN", "inf", "-0", "-1"][..])
            .prop_map(|points| ("min_trust_score".to_owned(), points.to_owned())),
        (select(&["allow_unassigned", "allow_anonymous", "forward_token"][..]), any::<bool>())
            .prop_map(|(name, value)| (name.to_owned(), value.to_string())),
    ];
    let invalid_text = prop_oneof![
        any_text(),
        select(&["true", "True", "1", "", "admin", "reader,", "%zz"][..]).prop_map(str::to_owned)
    ];
    prop_oneof![
        8 => valid.clone(),
        1 => (valid.clone(), invalid_text.clone()).prop_map(|((name, _), value)| (name, value)),
        1 => valid.clone().prop_flat_map(|(name, value)| (mutated_text(&name), mutated_text(&value))),
        1 => (invalid_text, valid).prop_map(|(name, (_, value))| (name, value)),
    ]
    .boxed()
}

/// Adds a header in one of Envoy's representations: in the map, or in the list as text or as raw value.
fn add_header(http: &mut HttpRequest, representation: u8, (name, value): Header) {
    let text = String::from_utf8_lossy(&value).into_owned();
    let header = match representation {
        0 => return drop(http.headers.insert(name, text)),
        1 => HeaderValue { key: name, value: text, raw_value: vec![] },
        _ => HeaderValue { key: name, value: String::new(), raw_value: value },
    };
    http.header_map.get_or_insert_with(HeaderMap::default).headers.push(header);
}

fn requests() -> BoxedStrategy<CheckRequest> {
    let valid = Just(("authorization".to_owned(), format!("Bearer {}", *VALID_TOKEN).into_bytes()));
    let token_header = || (select(&["x-agent-token", "X-Agent-Token"][..]).prop_map(str::to_owned), header_value());
    let tokens = prop_oneof![
        6 => vec(valid.clone(), 1),
        1 => (valid.clone(), token_header()).prop_map(|(valid, other)| vec![valid, other]),
        1 => (valid, token_header(), token_header()).prop_map(|(valid, first, second)| vec![valid, first, second]),
        2 => Just(vec![]),
    ];
    let headers =
        (tokens, vec((header_name(), header_value()), 0..4)).prop_map(|(tokens, others)| [tokens, others].concat());
    let extensions = prop_oneof![2 => Just(vec![]), 3 => vec(context_extension(), 1..4)];
    (headers, any::<[u8; 8]>(), extensions, [any_text(), any_text()])
        .prop_map(|(headers, representations, extensions, [method, path])| {
            let mut http = HttpRequest { method, path, ..HttpRequest::default() };
            for (position, header) in headers.into_iter().enumerate() {
                add_header(&mut http, representations[position] % 3, header);
            }
            check_request(http, extensions.into_iter().collect())
        })
        .boxed()
}

fn valid_request() -> CheckRequest {
    let bearer = format!("Bearer {}", *VALID_TOKEN);
    request(&[("authorization", &bearer), ("x_agent_id", "root")], &[("require_roles", "reader")])
}

/// The sidecar decodes a request like Envoy's definition, with one exception: for entries of a map, prost accepts any wire type, and the
/// sidecar refuses a wrong one.
pub(super) fn check_decoded(
    authorizer: &Authorizer,
    encoded: &[u8],
    request: CheckRequest,
) -> Result<(), TestCaseError> {
    match super::super::CheckRequest::decode(encoded) {
        Ok(read) => prop_assert_eq!(authorizer.check(&read), check(authorizer, request)),
        Err(error) => prop_assert!(error.to_string().contains("invalid wire type"), "{error}"),
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases_divided_by(1))]

    #[test]
    fn only_requests_with_one_valid_token_are_allowed(request in requests()) {
        check_verdict(&request)?;
    }

    #[test]
    fn arbitrary_requests_are_denied_without_a_panic(bytes in any_bytes()) {
        if let Ok(request) = CheckRequest::decode(&bytes[..]) {
            prop_assert_eq!(expected_verdict(&request), ExpectedVerdict::Denied);
            check_verdict(&request)?;
        }
    }

    /// If Envoy's definition can decode some bytes, they get the same response as the canonical encoding of the decoded request.
    #[test]
    fn mutated_requests_are_decoded_as_by_the_definition_of_envoy(bytes in mutated_bytes(&valid_request().encode_to_vec())) {
        if let Ok(request) = CheckRequest::decode(&bytes[..]) {
            check_verdict(&request)?;
            check_decoded(&AUTHORIZER, &bytes, request)?;
        }
    }

    #[test]
    fn arbitrary_requests_are_decoded_as_by_the_definition_of_envoy(
        requests in vec(requests(), 1..3), bytes in any_bytes(),
    ) {
        // Decoders merge encodings that follow each other, so entries of maps occur several times.
        let encoded: Vec<u8> = requests.iter().flat_map(Message::encode_to_vec).chain(bytes).collect();
        for end in [encoded.len(), encoded.len() / 2] {
            if let Ok(request) = CheckRequest::decode(&encoded[..end]) {
                check_decoded(&AUTHORIZER, &encoded[..end], request)?;
            }
        }
    }

}

proptest! {
    #![proptest_config(cases_divided_by(2))]

    #[test]
    fn mutated_tokens_are_denied_in_every_header_representation(
        token in mutated_text(&VALID_TOKEN), name in select(&["authorization", "X-Agent-Token"][..]), representation in 0..3_u8,
    ) {
        let mut http = HttpRequest::default();
        add_header(&mut http, representation, (name.to_owned(), format!("Bearer {token}").into_bytes()));
        check_verdict(&check_request(http, [].into()))?;
    }
}
