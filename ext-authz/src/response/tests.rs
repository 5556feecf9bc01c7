//! Tests of complete responses.

use super::*;
use crate::decide::UnmetRequirement;
use countersign_identity::{AgentId, Refusal, Timestamp, TokenId, TrustScore};
use envoy_types::ext_authz::v3::pb::{DeniedHttpResponse, HeaderAppendAction};

const SERVICE: ServiceId = ServiceId::from_bits(1);

fn builder() -> ResponseBuilder {
    ResponseBuilder { names: HeaderNames::new("x-agent-"), explain_denials: false }
}

fn verified_identity() -> VerifiedIdentity {
    VerifiedIdentity {
        agent: AgentId::from_bits(2),
        name: "Größe, 100%".into(),
        roles: ["billing, eu", "reader"].map(|role| RoleName::try_from(role).unwrap()).to_vec(),
        permissions: ["a:read", "b:write"].map(|name| Permission::try_from(name).unwrap()).to_vec(),
        trust_score: TrustScore::from_points(62.5).unwrap(),
        token: TokenId::from_bits(3),
    }
}

fn allowed(decision: &Decision, names: &[&str], token_header: Option<&str>) -> OkHttpResponse {
    let response = builder().build(Some(SERVICE), decision, RequestHeaders { names, token_header });
    assert_eq!(response.status.unwrap().code, 0);
    match response.http_response {
        Some(HttpResponse::OkResponse(ok)) => ok,
        other => panic!("{other:?}"),
    }
}

fn denied(refusal: Refusal) -> (i32, DeniedHttpResponse) {
    denied_by(&builder(), refusal.into())
}

fn denied_by(builder: &ResponseBuilder, denial: Denial) -> (i32, DeniedHttpResponse) {
    let response = builder.build(Some(SERVICE), &Decision::Denied(denial), RequestHeaders::default());
    match response.http_response {
        Some(HttpResponse::DeniedResponse(denied)) => (response.status.unwrap().code, denied),
        other => panic!("{other:?}"),
    }
}

fn pairs(headers: &[HeaderValueOption]) -> Vec<(&str, &str)> {
    headers.iter().map(|option| option.header.as_ref().unwrap()).map(|h| (h.key.as_str(), h.value.as_str())).collect()
}

#[test]
fn verified_agent_sets_seven_identity_headers() {
    let ok = allowed(&Decision::Verified(verified_identity()), &[], None);
    let (agent, service, token) =
        (verified_identity().agent.to_string(), SERVICE.to_string(), verified_identity().token.to_string());
    assert_eq!(
        pairs(&ok.headers),
        [
            ("x-agent-id", agent.as_str()),
            ("x-agent-name", "Gr%C3%B6%C3%9Fe%2C 100%25"),
            ("x-agent-trust-score", "62.5"),
            ("x-agent-roles", "billing%2C eu,reader"),
            ("x-agent-permissions", "a:read,b:write"),
            ("x-agent-service", service.as_str()),
            ("x-agent-token-id", token.as_str()),
        ]
    );
    for option in &ok.headers {
        #[expect(deprecated, reason = "both fields must be set")]
        let append = option.append;
        assert_eq!(append.map(|append| append.value), Some(false));
        assert_eq!(option.append_action(), HeaderAppendAction::OverwriteIfExistsOrAdd);
        assert!(option.keep_empty_value);
    }
}

#[test]
fn removes_every_spelling_of_identity_headers_but_no_header_that_is_set() {
    let sent = [
        "x-agent-id",
        "X-Agent-Roles",
        "x_agent_id",
        "x-agent.id",
        "x-agent_trust~score",
        "X.AGENT.REASON",
        "x-agent-reason",
        "x_agent_token",
        "x-agent-token",
        "x-agent-identity",
        "x-agent",
        "authorization",
    ];
    let ok = allowed(&Decision::Verified(verified_identity()), &sent, Some("authorization"));
    let removed = [
        "X.AGENT.REASON",
        "authorization",
        "x-agent-reason",
        "x-agent.id",
        "x-agent_trust~score",
        "x_agent_id",
        "x_agent_token",
    ];
    assert_eq!(ok.headers_to_remove, removed);
    for (name, _) in pairs(&ok.headers) {
        assert!(!ok.headers_to_remove.iter().any(|removed| removed.eq_ignore_ascii_case(name)), "{name}");
    }
}

#[test]
fn anonymous_request_has_all_identity_headers_removed() {
    let ok = allowed(&Decision::Anonymous, &["x-agent-id", "x-agent_roles", "accept"], None);
    assert!(ok.headers.is_empty());
    assert_eq!(ok.headers_to_remove, ["x-agent-id", "x-agent_roles"]);
}

#[test]
fn expired_token_is_denied_with_the_body_of_the_specification() {
    let (code, denied) = denied(Refusal::expired(Timestamp::from_seconds(1_700_000_000)));
    assert_eq!((code, denied.status.unwrap().code), (16, 401));
    let expected = concat!(
        r#"{"error":{"code":"AUTHENTICATION_FAILED","message":"The agent access token has expired","#,
        r#""details":{"reason":"token_expired","expiredAt":"2023-11-14T22:13:20Z"}}}"#
    );
    assert_eq!(denied.body, expected);
    let challenge = r#"Bearer error="invalid_token", error_description="The agent access token has expired""#;
    assert_eq!(
        pairs(&denied.headers),
        [("content-type", "application/json"), ("x-agent-reason", "token_expired"), ("www-authenticate", challenge)]
    );
}

#[test]
fn every_reason_is_a_denial_in_envoy() {
    for reason in Reason::ALL {
        let (code, denied) = denied((*reason).into());
        assert_ne!(code, 0);
        assert_eq!(denied.status.unwrap().code, i32::from(reason.code().status()));
        let retry = pairs(&denied.headers).contains(&("retry-after", "1"));
        assert_eq!(retry, reason.code().status() == 503);
        assert!(!reason.message().contains(['"', '\\']), "it is part of a quoted string");
    }
    let (_, missing) = denied(Reason::TokenMissing.into());
    assert!(pairs(&missing.headers).contains(&("www-authenticate", "Bearer")));
    let (_, role) = denied(Reason::NoRole.into());
    let scope = r#"Bearer error="insufficient_scope", error_description="The agent holds no role at this service""#;
    assert!(pairs(&role.headers).contains(&("www-authenticate", scope)));
}

#[test]
fn denial_body_states_the_unmet_requirement_only_if_configured() {
    let permissions = |names: &[&str]| names.iter().map(|name| Permission::try_from(*name).unwrap()).collect();
    let unmet =
        UnmetRequirement::Permissions { required: permissions(&["read", "write"]), actual: permissions(&["read"]) };
    let denial = Denial { refusal: Reason::PermissionMissing.into(), agent: None, unmet: Some(unmet) };
    let without = concat!(
        r#"{"error":{"code":"INSUFFICIENT_PERMISSIONS","message":"The agent lacks a required permission","#,
        r#""details":{"reason":"permission_missing"}}}"#
    );
    assert_eq!(denied_by(&builder(), denial.clone()).1.body, without);
    let explaining = ResponseBuilder { explain_denials: true, ..builder() };
    let with = without.replace(
        r#""permission_missing"}"#,
        r#""permission_missing","required":{"permissions":["read","write"]},"actual":{"permissions":["read"]}}"#,
    );
    assert_eq!(denied_by(&explaining, denial).1.body, with);
    let (required, actual) = (TrustScore::from_points(62.5).unwrap(), TrustScore::INITIAL);
    let unmet = Some(UnmetRequirement::TrustScore { required, actual });
    let body = denied_by(&explaining, Denial { refusal: Reason::TrustTooLow.into(), agent: None, unmet }).1.body;
    assert!(body.contains(r#""required":{"trustScore":62.5},"actual":{"trustScore":50}"#), "{body}");
}
