//! Facts 5 and 7, headers: how repeated headers and bytes that are not UTF-8 arrive, in both forms of the check
//! request.

use super::{ConfigAdditions, Fixture};
use countersign_proto::envoy::service::auth::v3::attribute_context::HttpRequest;
use countersign_tests::{Environment, Envoy, RawRequest, envoy::replaced};
use serde_json::json;

const RAW: &str = "encode_raw_headers: true";

#[tokio::test]
async fn repeated_headers_are_joined_by_a_comma() {
    let fixture = Fixture::start(ConfigAdditions::default()).await;
    let request = RawRequest::get("/").with("Authorization", "Bearer a").with("authorization", "Bearer b");
    fixture.send_allowed(request).await.expect(200);
    assert_eq!(fixture.authorizer.last_request().headers["authorization"], "Bearer a,Bearer b");
}

#[tokio::test]
async fn invalid_utf8_bytes_become_exclamation_marks() {
    let fixture = Fixture::start(ConfigAdditions::default()).await;
    for (case, sent, expected) in [
        ("Latin-1", b"caf\xe9".as_slice(), "caf!"),
        ("a continuation byte alone", b"a\x80b", "a!b"),
        ("UTF-8", "café".as_bytes(), "café"),
    ] {
        fixture.send_allowed(RawRequest::get("/").with("x-note", sent)).await.expect(200);
        assert_eq!(fixture.authorizer.last_request().headers["x-note"], expected, "{case}");
    }
}

#[tokio::test]
async fn encode_raw_headers_sends_bytes_in_the_header_map_only() {
    let fixture = Fixture::start(ConfigAdditions { filter: RAW, ..ConfigAdditions::default() }).await;
    let request = RawRequest::get("/").with("x-note", b"caf\xe9").with("x-twice", "a").with("x-twice", "b");
    fixture.send_allowed(request).await.expect(200);
    let checked_request = fixture.authorizer.last_request();
    assert!(checked_request.headers.is_empty(), "{:?}", checked_request.headers);
    assert_eq!(raw_values(&checked_request, "x-note"), [b"caf\xe9"]);
    assert_eq!(raw_values(&checked_request, "x-twice"), [b"a", b"b"], "each value is an entry of its own");
    assert!(checked_request.header_map.unwrap().headers.iter().all(|header| header.value.is_empty()));
}

#[tokio::test]
async fn sidecar_decides_equally_for_plain_and_raw_headers() {
    let environment = Environment::start().await;
    let (agent, _) = environment.agent("reader", &["read"]).await;
    let token = agent.token().await;
    let filter = "failure_mode_allow: false";
    let spaces = " ".repeat(22);
    let with_raw_headers = |text: String| replaced(&text, filter, &format!("{filter}\n{spaces}{RAW}"));
    let raw_envoy =
        Envoy::start_edited_example(&environment.sidecar.socket(), environment.upstream.port, with_raw_headers).await;
    let without_removal = |text: String| replaced(&text, "(?i)x[^a-z0-9]agent", "nothing");
    let (socket, port) = (environment.sidecar.socket(), environment.upstream.port);
    let raw_envoy_without_removal =
        Envoy::start_edited_example(&socket, port, |text| without_removal(with_raw_headers(text))).await;
    let mut invalid_utf8 = b"Bearer ".to_vec();
    invalid_utf8.extend([&token.as_bytes()[..9], b"\xe9"].concat());

    let get = RawRequest::get;
    for (form, listener) in [
        ("plain", &environment.envoy.listener),
        ("raw", &raw_envoy.listener),
        ("raw, removed by the sidecar alone", &raw_envoy_without_removal.listener),
    ] {
        for (case, request, expected) in [
            ("no token", get("/"), (401, "token_missing")),
            ("invalid UTF-8", get("/").with("authorization", &invalid_utf8), (401, "token_malformed")),
            ("two tokens", get("/").bearer(&token).bearer(&token), (401, "token_repeated")),
            (
                "a token and other credentials",
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
            let response = request.send_until_checked(listener).await;
            assert_eq!((response.status, response.text("/error/details/reason")), expected, "{case}, {form}");
        }

        let forged = ["x-agent-id", "x_agent_id", "x-agent.roles", "x-agent_reason"];
        let request = |path| forged.iter().fold(get(path), |request, name| request.with(name, b"root\xe9"));
        let received_headers = request("/").bearer(&token).send_until_checked(listener).await.expect(200);
        assert_eq!(received_headers["x-agent-id"], json!([agent.id]), "{form}");
        assert_eq!(received_headers["x-agent-roles"], json!(["reader"]), "{form}");
        assert_eq!(received_headers.get("authorization"), None, "{form}");
        let anonymous = request("/open").send_until_checked(listener).await.expect(200);
        for name in forged {
            assert!(name == "x-agent-id" || received_headers.get(name).is_none(), "{name}, {form}");
            assert_eq!(anonymous.get(name), None, "{name}, {form}, anonymous");
        }
    }
}

fn raw_values(request: &HttpRequest, name: &str) -> Vec<Vec<u8>> {
    let headers = &request.header_map.as_ref().unwrap().headers;
    headers.iter().filter(|header| header.key == name).map(|header| header.raw_value.clone()).collect()
}
