//! What Envoy is told, in full.

use super::*;
use countersign_identity::{AgentId, Refusal, Timestamp, TokenId, TrustScore};
use envoy_types::ext_authz::v3::pb::{DeniedHttpResponse, HeaderAppendAction};

const SERVICE: ServiceId = ServiceId::from_bits(1);

fn names() -> Names {
    Names::new("x-agent-")
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

fn allowed(decision: &Decision, headers: &[&str], spent: Option<&str>) -> OkHttpResponse {
    let response = answer(&names(), Some(SERVICE), decision, Sent { headers, spent });
    assert_eq!(response.status.unwrap().code, 0);
    match response.http_response {
        Some(HttpResponse::OkResponse(ok)) => ok,
        other => panic!("{other:?}"),
    }
}

fn denied(refusal: Refusal) -> (i32, DeniedHttpResponse) {
    let decision = Decision::Refused(refusal.into());
    let response = answer(&names(), Some(SERVICE), &decision, Sent { headers: &[], spent: None });
    match response.http_response {
        Some(HttpResponse::DeniedResponse(denied)) => (response.status.unwrap().code, denied),
        other => panic!("{other:?}"),
    }
}

fn pairs(headers: &[HeaderValueOption]) -> Vec<(&str, &str)> {
    headers.iter().map(|option| option.header.as_ref().unwrap()).map(|h| (h.key.as_str(), h.value.as_str())).collect()
}

#[test]
fn a_verified_agent_is_named_in_seven_plain_headers() {
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
        #[expect(deprecated, reason = "both fields are asked for")]
        let append = option.append;
        assert_eq!(append.map(|append| append.value), Some(false));
        assert_eq!(option.append_action(), HeaderAppendAction::OverwriteIfExistsOrAdd);
        assert!(option.keep_empty_value);
    }
}

#[test]
fn every_spelling_of_our_names_is_removed_and_no_name_is_set_and_removed() {
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
fn the_anonymous_bring_no_identity_not_even_under_the_exact_names() {
    let ok = allowed(&Decision::Anonymous, &["x-agent-id", "x-agent_roles", "accept"], None);
    assert!(ok.headers.is_empty());
    assert_eq!(ok.headers_to_remove, ["x-agent-id", "x-agent_roles"]);
}

#[test]
fn an_expired_token_is_refused_with_the_body_of_the_specification() {
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
fn every_reason_is_a_denial_for_envoy_too() {
    for reason in Reason::ALL {
        let (code, denied) = denied((*reason).into());
        assert_ne!(code, 0);
        assert_eq!(denied.status.unwrap().code, i32::from(reason.code().status()));
        let retry = pairs(&denied.headers).contains(&("retry-after", "1"));
        assert_eq!(retry, reason.code().status() == 503);
        assert!(!reason.message().contains(['"', '\\']), "it stands in a quoted string");
    }
    let (_, missing) = denied(Reason::TokenMissing.into());
    assert!(pairs(&missing.headers).contains(&("www-authenticate", "Bearer")));
    let (_, role) = denied(Reason::NoRole.into());
    let scope = r#"Bearer error="insufficient_scope", error_description="The agent holds no role at this service""#;
    assert!(pairs(&role.headers).contains(&("www-authenticate", scope)));
}

#[test]
fn metadata_says_who_where_and_why() {
    let decision = Decision::Refused(Refused { refusal: Reason::NoRole.into(), agent: Some(AgentId::from_bits(2)) });
    let Some(Kind::StructValue(inner)) = metadata(Some(SERVICE), &decision).fields["countersign"].kind.clone() else {
        panic!("a structure")
    };
    assert_eq!(inner.fields["agent_id"], text(AgentId::from_bits(2).to_string()));
    assert_eq!(inner.fields["decision"], text("deny"));
    assert_eq!(inner.fields["reason"], text("no_role"));
    assert_eq!(inner.fields["service"], text(SERVICE.to_string()));
}
