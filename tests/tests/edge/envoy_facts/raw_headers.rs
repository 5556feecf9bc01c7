//! Facts 5 and 7, headers: how repeated headers and bytes that are not UTF-8 arrive, in both forms of the check
//! request.

use super::{Fixture, Said};
use countersign_tests::{Environment, Envoy, RawRequest, envoy::replaced};
use envoy_types::pb::envoy::service::auth::v3::attribute_context::HttpRequest;
use serde_json::json;

const RAW: &str = "encode_raw_headers: true";

#[tokio::test]
async fn repeated_headers_are_joined_by_a_comma() {
    let fixture = Fixture::start(Said::default()).await;
    let request = RawRequest::get("/").with("Authorization", "Bearer a").with("authorization", "Bearer b");
    fixture.allowed(request).await.expect(200);
    assert_eq!(fixture.authorizer.asked().headers["authorization"], "Bearer a,Bearer b");
}

#[tokio::test]
async fn invalid_utf8_bytes_become_exclamation_marks() {
    let fixture = Fixture::start(Said::default()).await;
    for (case, sent, arrives) in [
        ("Latin-1", b"caf\xe9".as_slice(), "caf!"),
        ("an end without a beginning", b"a\x80b", "a!b"),
        ("UTF-8", "café".as_bytes(), "café"),
    ] {
        fixture.allowed(RawRequest::get("/").with("x-note", sent)).await.expect(200);
        assert_eq!(fixture.authorizer.asked().headers["x-note"], arrives, "{case}");
    }
}

#[tokio::test]
async fn encode_raw_headers_sends_bytes_in_the_header_map_only() {
    let fixture = Fixture::start(Said { filter: RAW, ..Said::default() }).await;
    let request = RawRequest::get("/").with("x-note", b"caf\xe9").with("x-twice", "a").with("x-twice", "b");
    fixture.allowed(request).await.expect(200);
    let asked = fixture.authorizer.asked();
    assert!(asked.headers.is_empty(), "{:?}", asked.headers);
    assert_eq!(raw(&asked, "x-note"), [b"caf\xe9"]);
    assert_eq!(raw(&asked, "x-twice"), [b"a", b"b"], "one by one");
    assert!(asked.header_map.unwrap().headers.iter().all(|header| header.value.is_empty()));
}

#[tokio::test]
async fn sidecar_has_the_same_outcome_in_both_forms() {
    let environment = Environment::start().await;
    let (agent, _) = environment.agent("reader", &["read"]).await;
    let token = agent.token().await;
    let filter = "failure_mode_allow: false";
    let spaces = " ".repeat(22);
    let encoded = |text: String| replaced(&text, filter, &format!("{filter}\n{spaces}{RAW}"));
    let raw = Envoy::edited(&environment.sidecar.socket(), environment.upstream.port, encoded).await;
    let unstripped = |text: String| replaced(&text, "(?i)x[^a-z0-9]agent", "nothing");
    let (socket, port) = (environment.sidecar.socket(), environment.upstream.port);
    let raw_unstripped = Envoy::edited(&socket, port, |text| unstripped(encoded(text))).await;
    let mut not_text = b"Bearer ".to_vec();
    not_text.extend([&token.as_bytes()[..9], b"\xe9"].concat());

    let get = RawRequest::get;
    for (form, site) in [
        ("plain", &environment.envoy.site),
        ("raw", &raw.site),
        ("raw, stripped by the sidecar alone", &raw_unstripped.site),
    ] {
        for (case, request, expected) in [
            ("no token", get("/"), (401, "token_missing")),
            ("not text", get("/").with("authorization", &not_text), (401, "token_malformed")),
            ("two tokens", get("/").bearer(&token).bearer(&token), (401, "token_repeated")),
            (
                "a token beside another",
                get("/").with("authorization", "Basic YTpi").bearer(&token),
                (401, "token_repeated"),
            ),
            (
                "two token headers",
                get("/").with("x-agent-token", &token).with("X-Agent-Token", &token),
                (401, "token_repeated"),
            ),
            ("no permission", get("/admin").bearer(&token), (403, "permission_missing")),
        ] {
            let answer = request.send_until_checked(site).await;
            assert_eq!((answer.status, answer.text("/error/details/reason")), expected, "{case}, {form}");
        }

        let forged = ["x-agent-id", "x_agent_id", "x-agent.roles", "x-agent_reason"];
        let request = |path| forged.iter().fold(get(path), |request, name| request.with(name, b"root\xe9"));
        let seen = request("/").bearer(&token).send_until_checked(site).await.expect(200);
        assert_eq!(seen["x-agent-id"], json!([agent.id]), "{form}");
        assert_eq!(seen["x-agent-roles"], json!(["reader"]), "{form}");
        assert_eq!(seen.get("authorization"), None, "{form}");
        let anonymous = request("/open").send_until_checked(site).await.expect(200);
        for name in forged {
            assert!(name == "x-agent-id" || seen.get(name).is_none(), "{name}, {form}");
            assert_eq!(anonymous.get(name), None, "{name}, {form}, anonymous");
        }
    }
}

fn raw(asked: &HttpRequest, name: &str) -> Vec<Vec<u8>> {
    let headers = &asked.header_map.as_ref().unwrap().headers;
    headers.iter().filter(|header| header.key == name).map(|header| header.raw_value.clone()).collect()
}
