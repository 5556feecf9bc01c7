//! Tests that malformed check requests from Envoy are denied or get a gRPC error, and are never allowed.

use super::fixture::{Failures, Fixture};
use countersign_proto::envoy::{
    config::core::v3::{HeaderMap, HeaderValue},
    service::auth::v3::{
        AttributeContext, CheckRequest, CheckResponse,
        attribute_context::{HttpRequest, Request},
    },
};
use countersign_tests::{
    Environment, Envoy, RawRequest, Sidecar,
    envoy::replaced,
    process::free_port,
    sidecar::{CheckResult, check_request},
};
use prost::Message;
use reqwest::{Client, RequestBuilder, Response};

const MIB: usize = 1024 * 1024;

/// The gRPC path that Envoy calls.
const CHECK: &str = "envoy.service.auth.v3.Authorization/Check";

/// The length in bytes of what precedes a gRPC message.
const FRAME_HEAD: usize = 5;

/// Names and raw values of headers, in order.
type Headers = Vec<(&'static str, Vec<u8>)>;

/// A fixture with a sidecar for its first service.
async fn start_with_sidecar() -> (Fixture, Sidecar) {
    let fixture = Fixture::new().await;
    let sidecar = Sidecar::start(&fixture.control).await;
    (fixture, sidecar)
}

async fn send_check(sidecar: &Sidecar, check: CheckRequest) -> (u16, String) {
    let result = CheckResult::from_response(sidecar.client().await.check(check).await.unwrap().into_inner());
    (result.status, result.reason)
}

/// A check request with headers in the form that Envoy's option `encode_raw_headers` selects.
fn check_with_raw_headers(headers: &[(&str, &[u8])], extensions: &[(&str, &str)]) -> CheckRequest {
    let header = |(key, value): &(&str, &[u8])| HeaderValue {
        key: (*key).to_owned(),
        raw_value: value.to_vec(),
        ..HeaderValue::default()
    };
    let mut check = check_request(&[], extensions);
    http_mut(&mut check).header_map = Some(HeaderMap { headers: headers.iter().map(header).collect() });
    check
}

fn http_mut(check: &mut CheckRequest) -> &mut HttpRequest {
    check.attributes.as_mut().unwrap().request.as_mut().unwrap().http.as_mut().unwrap()
}

#[tokio::test]
async fn incomplete_check_requests_are_denied() {
    let (_fixture, sidecar) = start_with_sidecar().await;
    let empty = AttributeContext::default;
    let check_with =
        |request: Option<Request>| CheckRequest { attributes: Some(AttributeContext { request, ..empty() }) };
    let anonymous = [("allow_anonymous".to_owned(), "true".to_owned())].into();
    let anonymous_allowed = AttributeContext { context_extensions: anonymous, ..empty() };
    for (name, check, expected) in [
        ("empty", CheckRequest::default(), (503, "request_invalid")),
        ("without request", check_with(None), (503, "request_invalid")),
        ("without http", check_with(Some(Request::default())), (503, "request_invalid")),
        (
            "without request, anonymous allowed",
            CheckRequest { attributes: Some(anonymous_allowed) },
            (503, "request_invalid"),
        ),
        (
            "without headers",
            check_with(Some(Request { http: Some(HttpRequest::default()), ..Request::default() })),
            (401, "token_missing"),
        ),
        ("an empty list of headers", check_with_raw_headers(&[], &[]), (401, "token_missing")),
        ("a header without name", check_with_raw_headers(&[("", b"Bearer x")], &[]), (401, "token_missing")),
    ] {
        assert_eq!(send_check(&sidecar, check).await, (expected.0, expected.1.to_owned()), "{name}");
    }
}

#[tokio::test]
async fn invalid_rules_deny_every_request() {
    let (fixture, sidecar) = start_with_sidecar().await;
    let unknown = fixture.control.service().replacen("svc_0", "svc_1", 1);
    let (other, _) = fixture.control.create_service(serde_json::json!({ "name": "other" })).await;
    let long = "a".repeat(MIB);
    let rules: [(&str, &str); 15] = [
        ("service_id", &unknown),
        ("service_id", &other),
        ("service_id", ""),
        ("service_id", &long),
        ("", ""),
        ("", "true"),
        ("allow_anonymous ", "true"),
        ("ALLOW_ANONYMOUS", "true"),
        ("allow-anonymous", "true"),
        ("allow_anonymous", "true\0"),
        ("allow_anonymous", ""),
        ("require_roles", ","),
        ("require_permissions", "read,,write"),
        ("min_trust_score", "1e999"),
        (&long, "x"),
    ];
    let bearer = format!("Bearer {}", fixture.token);
    let mut failures = Failures::default();
    for (name, value) in rules {
        for headers in [&[][..], &[("authorization", bearer.as_str())]] {
            let (status, reason) = send_check(&sidecar, check_request(headers, &[(name, value)])).await;
            let is_expected = status == 503 && ["rule_invalid", "service_unknown"].contains(&reason.as_str());
            failures.check(is_expected, || format!("{name:.20}={value:.20}: {status} {reason}"));
        }
    }
    let contradiction = check_request(&[], &[("allow_anonymous", "true"), ("min_trust_score", "1")]);
    assert_eq!(send_check(&sidecar, contradiction).await, (503, "rule_invalid".to_owned()));
    failures.assert_none();
    assert_eq!(
        send_check(&sidecar, check_request(&[("authorization", &bearer)], &[])).await.0,
        200,
        "the token is valid"
    );
}

#[tokio::test]
async fn exactly_one_token_is_accepted_in_either_header_form() {
    let (fixture, sidecar) = start_with_sidecar().await;
    let value = |text: &str| text.replace("{}", &fixture.token).into_bytes();
    let authorization = |values: &[&str]| values.iter().map(|text| ("authorization", value(text))).collect::<Vec<_>>();
    let mut cases: Vec<(Headers, (u16, &str))> = vec![
        (authorization(&["Bearer {}"]), (200, "")),
        (authorization(&["Basic YTpi"]), (401, "token_missing")),
        (authorization(&["{}"]), (401, "token_missing")),
        (authorization(&["Basic YTpi", "Bearer {}"]), (401, "token_repeated")),
        (authorization(&["Bearer {}, Basic YTpi"]), (401, "token_repeated")),
        (vec![("authorization", format!("Bearer {}", "a".repeat(MIB)).into())], (401, "token_malformed")),
        (vec![("Authorization", value("Bearer {}")), ("authorization", value("Bearer {}"))], (401, "token_repeated")),
        (vec![("x-agent-token", value("")), ("authorization", value("Bearer {}"))], (401, "token_malformed")),
        (vec![("x-agent-token", value("nonsense")), ("authorization", value("Bearer {}"))], (401, "token_malformed")),
        (vec![("x-agent-token", value("{}")), ("authorization", value("Bearer nonsense"))], (200, "")),
    ];
    let many = (0..1_000).map(|_| ("authorization", value("Bearer {}"))).collect();
    cases.push((many, (401, "token_repeated")));
    let mut failures = Failures::default();
    for (headers, expected) in cases {
        let pairs: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_slice())).collect();
        let result = send_check(&sidecar, check_with_raw_headers(&pairs, &[])).await;
        let is_expected = (result.0, result.1.as_str()) == expected;
        failures.check(is_expected, || format!("{} headers, expected {expected:?}: {result:?}", headers.len()));
    }
    failures.assert_none();
    let mut repeated = check_with_raw_headers(&[("authorization", &value("Bearer {}"))], &[]);
    http_mut(&mut repeated).headers.insert("authorization".into(), format!("Bearer {}", fixture.token));
    assert_eq!(
        send_check(&sidecar, repeated).await,
        (401, "token_repeated".into()),
        "the token in both forms of the header"
    );
}

#[tokio::test]
async fn forged_headers_are_removed_from_requests_with_many_headers() {
    let (fixture, sidecar) = start_with_sidecar().await;
    let bearer = format!("Bearer {}", fixture.token);
    let value = "x".repeat(MIB);
    for (token, status) in [(bearer.as_str(), 200), ("Bearer nonsense", 401)] {
        let names: Vec<String> = (0..20_000).map(|n| format!("x-header-{n}")).collect();
        let mut headers: Vec<(&str, &[u8])> =
            names.iter().map(|name| (name.as_str(), &value.as_bytes()[..40])).collect();
        headers.push(("authorization", token.as_bytes()));
        assert_eq!(send_check(&sidecar, check_with_raw_headers(&headers, &[])).await.0, status, "20,000 headers");
        let long_header = [("x-long", value.as_bytes()), ("authorization", token.as_bytes())];
        assert_eq!(
            send_check(&sidecar, check_with_raw_headers(&long_header, &[])).await.0,
            status,
            "one header of 1 MiB"
        );
    }
    let forged: Vec<(&str, &[u8])> =
        (0..20_000).map(|n| (["x_agent-id", "x.agent_roles", "X~AGENT~PERMISSIONS"][n % 3], &b"forged"[..])).collect();
    let sent = [&forged[..], &[("authorization", bearer.as_bytes())]].concat();
    let result = CheckResult::from_response(
        sidecar.client().await.check(check_with_raw_headers(&sent, &[])).await.unwrap().into_inner(),
    );
    assert_eq!(result.status, 200);
    for (name, _) in &forged[..3] {
        assert!(result.removed.iter().any(|removed| removed.eq_ignore_ascii_case(name)), "{name}");
    }
}

/// Encodes a length-delimited protobuf field.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let (mut length, mut bytes) = (content.len(), vec![number << 3 | 2]);
    while length > 0x7f {
        bytes.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
        length >>= 7;
    }
    bytes.push(u8::try_from(length).unwrap());
    [&bytes, content].concat()
}

/// Encodes a header of an HTTP request.
fn header_entry(name: &[u8], value: &[u8]) -> Vec<u8> {
    field(3, &[field(1, name), field(2, value)].concat())
}

/// Encodes a check request with one header.
fn check_message(name: &[u8], value: &[u8]) -> Vec<u8> {
    field(1, &field(4, &field(2, &header_entry(name, value))))
}

fn grpc_frame(compressed: u8, length: usize, message: &[u8]) -> Vec<u8> {
    [&[compressed], &u32::try_from(length).unwrap().to_be_bytes()[..], message].concat()
}

fn uncompressed_frame(message: &[u8]) -> Vec<u8> {
    grpc_frame(0, message.len(), message)
}

/// The gRPC status in the headers of a trailers-only response; `None` for a response with a message.
fn grpc_status(response: &Response) -> Option<&str> {
    response.headers().get("grpc-status")?.to_str().ok()
}

/// A client that sends bytes of its choice to the gRPC port of a sidecar.
struct GrpcClient {
    client: Client,
    address: String,
}

impl GrpcClient {
    fn post(&self, path: &str, body: Vec<u8>) -> RequestBuilder {
        let request = self.client.post(format!("http://{}/{path}", self.address)).header("te", "trailers");
        request.header("content-type", "application/grpc").body(body)
    }

    /// The status and the reason of the response to an encoded check request.
    async fn check(&self, message: &[u8]) -> (u16, String) {
        let response = self.post(CHECK, uncompressed_frame(message)).send().await.unwrap();
        assert_eq!((response.status().as_u16(), grpc_status(&response)), (200, None));
        let frame = response.bytes().await.unwrap();
        let message = frame.get(FRAME_HEAD..).expect("the response has a message");
        let result = CheckResult::from_response(CheckResponse::decode(message).unwrap());
        (result.status, result.reason)
    }
}

async fn start_with_grpc_client(fixture: &Fixture) -> (Sidecar, GrpcClient) {
    let address = format!("127.0.0.1:{}", free_port());
    let settings = [&*format!("listen.grpc={address}")];
    let sidecar = Sidecar::start_with(&fixture.control, &[fixture.control.key()], &settings);
    sidecar.wait_until_ready().await;
    (sidecar, GrpcClient { client: Client::builder().http2_prior_knowledge().build().unwrap(), address })
}

/// Envoy sends text that is not UTF-8 in `raw_value` only, so such a message is not from Envoy. A denial is better than a gRPC
/// error, because Envoy can be configured to allow requests after an error.
#[tokio::test]
async fn texts_that_are_not_utf8_are_denied() {
    let fixture = Fixture::new().await;
    let (_sidecar, client) = start_with_grpc_client(&fixture).await;
    let bearer = format!("Bearer {}", fixture.token).into_bytes();
    let token = header_entry(b"authorization", &bearer);
    let with_extension = |name: &[u8], value: &[u8]| {
        [check_message(b"authorization", &bearer), field(1, &field(10, &[field(1, name), field(2, value)].concat()))]
            .concat()
    };
    let with_http = |more: Vec<u8>| field(1, &field(4, &field(2, &[token.clone(), more].concat())));
    for (name, message, expected) in [
        ("a token", check_message(b"authorization", &[&bearer[..], b"\xff"].concat()), (401, "token_malformed")),
        ("a value that is not read", with_http(header_entry(b"x-other", b"\xff")), (200, "")),
        ("the name of a header", with_http(header_entry(b"x-\xff", b"")), (503, "request_invalid")),
        ("the name of an extension", with_extension(b"\xff", b"true"), (503, "rule_invalid")),
        ("the value of an extension", with_extension(b"allow_anonymous", b"\xff"), (503, "rule_invalid")),
    ] {
        assert_eq!(client.check(&message).await, (expected.0, expected.1.to_owned()), "{name}");
    }
}

#[tokio::test]
async fn invalid_grpc_requests_return_an_error() {
    let fixture = Fixture::new().await;
    let (sidecar, client) = start_with_grpc_client(&fixture).await;
    let valid = check_message(b"authorization", format!("Bearer {}", fixture.token).as_bytes());
    assert_eq!(client.check(&valid).await, (200, String::new()), "the unmodified message is accepted");
    let cases = [
        ("truncated", CHECK, uncompressed_frame(&valid[..valid.len() - 1])),
        ("a length above that of the message", CHECK, grpc_frame(0, valid.len() + 1, &valid)),
        ("garbage", CHECK, uncompressed_frame(&[0xff; 64])),
        ("JSON", CHECK, uncompressed_frame(b"{\"attributes\":{}}")),
        ("without a frame", CHECK, valid.clone()),
        ("flagged as compressed", CHECK, grpc_frame(1, valid.len(), &valid)),
        ("an unknown flag", CHECK, grpc_frame(7, valid.len(), &valid)),
        ("an empty body", CHECK, vec![]),
        ("a message larger than Envoy sends", CHECK, uncompressed_frame(&check_message(b"a", &vec![b'x'; 17 * MIB]))),
        ("with a length of 4 GiB", CHECK, grpc_frame(0, u32::MAX as usize, &valid)),
        ("another method", "envoy.service.auth.v3.Authorization/Allow", uncompressed_frame(&valid)),
        ("another version", "envoy.service.auth.v2.Authorization/Check", uncompressed_frame(&valid)),
    ];
    let mut failures = Failures::default();
    for (name, path, body) in cases {
        // A sidecar that closes the connection before it has read the request does not allow the request either.
        let Ok(response) = client.post(path, body).send().await else { continue };
        let error = grpc_status(&response).is_some_and(|status| status != "0");
        failures.check(error, || format!("{name}: {response:?}"));
    }
    failures.assert_none();
    assert_eq!(sidecar.check_token(&fixture.token).await.status, 200, "the sidecar keeps serving");
}

/// Envoy is configured with the largest possible request head, and allows requests if the check fails. A request must
/// not pass because it is too large for the sidecar to read.
#[tokio::test]
async fn large_requests_do_not_bypass_the_sidecar() {
    let environment = Environment::start().await;
    let (agent, _) = environment.agent("reader", &["read"]).await;
    let token = agent.token().await;
    let fail_open = |text: String| {
        let text = replaced(&text, "failure_mode_allow: false", "failure_mode_allow: true");
        let text = replaced(&text, "timeout: 0.25s", "timeout: 10s");
        replaced(&text, "stat_prefix: agents\n", "stat_prefix: agents\n                max_request_headers_kb: 8192\n")
    };
    let fail_open_envoy =
        Envoy::start_edited_example(&environment.sidecar.socket(), environment.upstream.port, fail_open).await;
    for (name, size) in
        [("x-long", 5 * MIB), ("x-long", 8 * MIB - 4096), ("x-agent-token", 5 * MIB), ("authorization", 5 * MIB)]
    {
        for path in ["/", "/admin"] {
            let value = format!("Bearer {}", "a".repeat(size));
            let response = RawRequest::get(path).with(name, value).send(&fail_open_envoy.listener).await;
            let reason = if name == "x-long" { "token_missing" } else { "token_malformed" };
            assert_eq!(response.error(), (401, "AUTHENTICATION_FAILED", reason), "{size} bytes of {name} on {path}");
        }
    }
    for (name, size, status) in [("authorization", 50 * 1024, 401), ("x-agent-token", 50 * 1024, 401), ("a", MIB, 431)]
    {
        let response = RawRequest::get("/")
            .with(name, "a".repeat(size))
            .bearer(&token)
            .send_until_checked(&environment.envoy.listener)
            .await;
        assert_eq!(response.status, status, "{size} bytes of {name} through Envoy with the example configuration");
    }
    assert_eq!(environment.upstream.received(), 0);
    environment.call("/", &token).await.expect(200);
}
