//! Tests of `ResponseBuilder::build`: complete responses to decisions.

use super::*;
use crate::{
    decide::{Denial, EvaluatedIdentity, Qualification, UnmetRequirement, Validity},
    view::Resources,
};
use countersign_identity::{AgentId, Permission, Refusal, RoleName, Timestamp, TokenId, TrustScore, VerifiedIdentity};
use countersign_proto::envoy::config::core::v3::{HeaderValueOption, header_value_option::HeaderAppendAction};
use std::time::Duration;

const SERVICE_ID: ServiceId = ServiceId::from_bits(1);

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
        valid_until: Timestamp::from_seconds(60),
    }
}

fn verified() -> Decision {
    let remaining = Duration::from_mins(1);
    let identity = EvaluatedIdentity::unshared(verified_identity());
    Decision::Verified(Arc::new(identity), Validity { until: Timestamp::from_seconds(60), remaining })
}

fn build_allowed(decision: &Decision, names: &[&str], token_header: Option<&str>) -> OkHttpResponse {
    let response = builder().build(
        DecidedRoute { service: Some(SERVICE_ID), ..DecidedRoute::default() },
        decision,
        RequestHeaders { names: names.iter().map(|name| name.as_bytes()), token_headers: [token_header, None] },
    );
    assert_eq!(response.status.unwrap().code, 0);
    match response.http_response {
        Some(HttpResponse::OkResponse(ok)) => ok,
        other => panic!("{other:?}"),
    }
}

fn build_denied(refusal: Refusal) -> (i32, DeniedHttpResponse) {
    build_denied_with(&builder(), refusal.into())
}

fn build_denied_with(builder: &ResponseBuilder, denial: Denial) -> (i32, DeniedHttpResponse) {
    let response = builder.build(
        DecidedRoute { service: Some(SERVICE_ID), ..DecidedRoute::default() },
        &Decision::Denied(denial),
        RequestHeaders::default(),
    );
    match response.http_response {
        Some(HttpResponse::DeniedResponse(denied)) => (response.status.unwrap().code, denied),
        other => panic!("{other:?}"),
    }
}

fn names_and_values(headers: &[HeaderValueOption]) -> Vec<(&str, &str)> {
    headers
        .iter()
        .map(|option| option.header.as_ref().unwrap())
        .map(|header| (header.key.as_str(), header.value.as_str()))
        .collect()
}

#[test]
fn response_for_a_verified_agent_sets_seven_identity_headers() {
    let ok = build_allowed(&verified(), &[], None);
    let (agent, service, token) =
        (verified_identity().agent.to_string(), SERVICE_ID.to_string(), verified_identity().token.to_string());
    assert_eq!(
        names_and_values(&ok.headers),
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
        assert_eq!(append, Some(false));
        assert_eq!(option.append_action(), HeaderAppendAction::OverwriteIfExistsOrAdd);
        assert!(option.keep_empty_value);
    }
}

#[test]
fn removes_other_spellings_of_identity_headers_but_not_headers_that_it_sets() {
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
    let ok = build_allowed(&verified(), &sent, Some("authorization"));
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
    for (name, _) in names_and_values(&ok.headers) {
        assert!(!ok.headers_to_remove.iter().any(|removed| removed.eq_ignore_ascii_case(name)), "{name}");
    }
}

#[test]
fn response_for_an_anonymous_request_removes_identity_headers() {
    let ok = build_allowed(&Decision::Anonymous, &["x-agent-id", "x-agent_roles", "accept"], None);
    assert!(ok.headers.is_empty());
    assert_eq!(ok.headers_to_remove, ["x-agent-id", "x-agent_roles"]);
}

#[test]
fn denial_of_an_expired_token_has_401_and_the_expiry_in_its_body() {
    let (code, denied) = build_denied(Refusal::expired(Timestamp::from_seconds(1_700_000_000)));
    assert_eq!((code, denied.status.unwrap().code), (16, 401));
    let expected = concat!(
        r#"{"error":{"code":"AUTHENTICATION_FAILED","message":"The agent access token has expired","#,
        r#""details":{"reason":"token_expired","expiredAt":"2023-11-14T22:13:20Z"}}}"#
    );
    assert_eq!(denied.body, expected);
    let challenge = r#"Bearer error="invalid_token", error_description="The agent access token has expired""#;
    assert_eq!(
        names_and_values(&denied.headers),
        [("content-type", "application/json"), ("x-agent-reason", "token_expired"), ("www-authenticate", challenge)]
    );
}

#[test]
fn every_reason_has_a_nonzero_grpc_status_and_its_http_status() {
    for reason in Reason::ALL {
        let (code, denied) = build_denied((*reason).into());
        assert_ne!(code, 0);
        assert_eq!(denied.status.unwrap().code, i32::from(reason.code().status()));
        let has_retry_after = names_and_values(&denied.headers).contains(&("retry-after", "1"));
        assert_eq!(has_retry_after, reason.code().status() == 503);
        assert!(!reason.message().contains(['"', '\\']), "the message must fit into a quoted string");
    }
    let (_, token_missing) = build_denied(Reason::TokenMissing.into());
    assert!(names_and_values(&token_missing.headers).contains(&("www-authenticate", "Bearer")));
}

fn challenge(denial: Denial, resource: Option<&Resource>) -> Option<String> {
    let route = DecidedRoute { service: Some(SERVICE_ID), resource, ..DecidedRoute::default() };
    let response = builder().build(route, &Decision::Denied(denial), RequestHeaders::default());
    let Some(HttpResponse::DeniedResponse(denied)) = response.http_response else { panic!("not denied") };
    let headers = names_and_values(&denied.headers);
    headers.iter().find(|(name, _)| *name == "www-authenticate").map(|(_, value)| (*value).to_owned())
}

fn lacks_permissions(reason: Reason, required: &[&str]) -> Denial {
    let permissions = |names: &[&str]| {
        Qualification::Permissions(names.iter().map(|name| Permission::try_from(*name).unwrap()).collect())
    };
    let unmet_requirement = Some(UnmetRequirement { required: permissions(required), actual: permissions(&["read"]) });
    Denial { unmet_requirement, ..reason.into() }
}

#[test]
fn challenge_names_the_metadata_of_the_resource_and_the_required_scope() {
    let uris = ["https://api.example/mcp".to_owned()];
    let resources = Resources::parse(&uris, "https://issuer.example").unwrap();
    let resource = resources.of_request("api.example", "/mcp");
    let of_resource = |denial| challenge(denial, resource).unwrap();
    let metadata = r#"resource_metadata="https://api.example/.well-known/oauth-protected-resource/mcp""#;
    assert_eq!(of_resource(Reason::TokenMissing.into()), format!("Bearer {metadata}"));
    let expired = r#"error="invalid_token", error_description="The agent access token has expired""#;
    let expired_at = Refusal::expired(Timestamp::from_seconds(1_700_000_000));
    assert_eq!(of_resource(expired_at.into()), format!("Bearer {metadata}, {expired}"));
    let missing = |names: &[&str]| lacks_permissions(Reason::PermissionMissing, names);
    let excluded = |names: &[&str]| lacks_permissions(Reason::TokenScopeInsufficient, names);
    let text = Reason::TokenScopeInsufficient.message();
    let scope = r#"scope="read write""#;
    let insufficient = format!(r#"error="insufficient_scope", {scope}, error_description="{text}""#);
    assert_eq!(of_resource(excluded(&["read", "write"])), format!("Bearer {metadata}, {insufficient}"));
    assert_eq!(of_resource(missing(&["read", "write"])), format!("Bearer {metadata}, {scope}"));
    assert!(!of_resource(excluded(&["a\"b"])).contains(" scope="), "no scope can contain the permission");
    let without_resource = format!(r#"Bearer error="insufficient_scope", error_description="{text}""#);
    assert_eq!(challenge(excluded(&["write"]), None), Some(without_resource));
    assert_eq!(challenge(missing(&["write"]), None), None);
    for reason in [Reason::NoRole, Reason::RoleMissing, Reason::TrustTooLow, Reason::AgentSuspended, Reason::ViewStale]
    {
        assert_eq!(challenge(reason.into(), resource), None, "no other token helps: {reason:?}");
    }
}

#[test]
fn metadata_of_a_resource_is_a_response_with_status_200() {
    let uris = ["https://api.example".to_owned()];
    let resources = Resources::parse(&uris, "https://issuer.example").unwrap();
    let resource = resources.of_request("api.example", "/").unwrap();
    let response = resource_metadata(SERVICE_ID, resource);
    assert_ne!(response.status.unwrap().code, 0);
    let Some(HttpResponse::DeniedResponse(denied)) = response.http_response else { panic!("Envoy would pass it on") };
    assert_eq!(denied.status.unwrap().code, 200);
    assert!(names_and_values(&denied.headers).contains(&("content-type", "application/json")));
    let document = r#"{"authorization_servers":["https://issuer.example"],"bearer_methods_supported":["header"],"resource":"https://api.example"}"#;
    assert_eq!(denied.body, document);
}

#[test]
fn denial_body_contains_the_unmet_requirement_only_if_configured() {
    let denial = lacks_permissions(Reason::PermissionMissing, &["read", "write"]);
    let body_without_requirement = concat!(
        r#"{"error":{"code":"INSUFFICIENT_PERMISSIONS","message":"The agent lacks a required permission","#,
        r#""details":{"reason":"permission_missing"}}}"#
    );
    assert_eq!(build_denied_with(&builder(), denial.clone()).1.body, body_without_requirement);
    let explaining_builder = ResponseBuilder { explain_denials: true, ..builder() };
    let body_with_requirement = body_without_requirement.replace(
        r#""permission_missing"}"#,
        r#""permission_missing","required":{"permissions":["read","write"]},"actual":{"permissions":["read"]}}"#,
    );
    assert_eq!(build_denied_with(&explaining_builder, denial).1.body, body_with_requirement);
    let [required, actual] =
        [62.5, 50.0].map(|points| Qualification::TrustScore(TrustScore::from_points(points).unwrap()));
    let unmet_requirement = Some(UnmetRequirement { required, actual });
    let low_trust = Denial { unmet_requirement, ..Reason::TrustTooLow.into() };
    let body = build_denied_with(&explaining_builder, low_trust).1.body;
    assert!(body.contains(r#""required":{"trustScore":62.5},"actual":{"trustScore":50}"#), "{body}");
}

#[test]
fn denial_of_an_mcp_request_is_an_error_response_of_json_rpc() {
    let route = DecidedRoute { service: Some(SERVICE_ID), is_about_mcp: true, ..DecidedRoute::default() };
    let denial = lacks_permissions(Reason::PermissionMissing, &["write"]);
    let explaining = ResponseBuilder { explain_denials: true, ..builder() };
    let response = explaining.build(route, &Decision::Denied(denial), RequestHeaders::default());
    let Some(HttpResponse::DeniedResponse(denied)) = response.http_response else { panic!("not denied") };
    let body = concat!(
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":403,"message":"The agent lacks a required permission","#,
        r#""data":{"code":"INSUFFICIENT_PERMISSIONS","reason":"permission_missing","#,
        r#""required":{"permissions":["write"]},"actual":{"permissions":["read"]}}}}"#
    );
    assert_eq!((denied.status.unwrap().code, denied.body.as_str()), (403, body));
}
