//! Requests that an HTTP library would not send: wrong lengths, malformed chunks, repeated headers.

use super::fixture::{Failures, Fixture, malformed_error};
use countersign_tests::{HttpResponse, RawRequest};
use reqwest::Version;
use serde_json::json;

/// The expected result of a request.
#[derive(Debug, Clone, Copy)]
enum Outcome {
    Accepted,
    /// The server responds with this status and a well-formed error.
    Refused(u16),
    /// The HTTP library rejects the request: a 4xx, or a closed connection.
    Rejected,
    /// The client disconnects before the body is complete, and may or may not receive the 400.
    Disconnected,
}

use Outcome::{Accepted, Disconnected, Refused, Rejected};

fn outcome_mismatch(outcome: Outcome, response: Option<&HttpResponse>) -> Option<String> {
    let is_expected = match (outcome, response) {
        (Accepted, Some(response)) => response.status == 200,
        (Refused(status), Some(response)) => response.status == status && malformed_error(response).is_none(),
        (Rejected, Some(response)) => (400..500).contains(&response.status),
        (Disconnected, Some(response)) => response.status == 400,
        (Rejected | Disconnected, None) => true,
        (Accepted | Refused(_), None) => false,
    };
    (!is_expected).then(|| format!("expected {outcome:?}, got {response:?}"))
}

/// A name, the framing headers, the bytes of the body, and the expected result.
type Frame = (&'static str, Vec<String>, Vec<u8>, Outcome);

fn frames(body: &str) -> Vec<Frame> {
    let length = |difference: isize| format!("content-length: {}", body.len().checked_add_signed(difference).unwrap());
    let header = str::to_owned;
    let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let bytewise = body.chars().map(|c| format!("1\r\n{c}\r\n")).collect::<Vec<_>>().concat() + "0\r\n\r\n";
    let bytes = |text: &str| text.as_bytes().to_vec();
    let chunks = || header("transfer-encoding: chunked");
    vec![
        ("the correct length", vec![length(0)], bytes(body), Accepted),
        ("chunked", vec![chunks()], bytes(&chunked), Accepted),
        ("chunked, byte by byte", vec![chunks()], bytes(&bytewise), Accepted),
        ("a length too short", vec![length(-1)], bytes(body), Refused(400)),
        ("a length too long", vec![length(1)], bytes(body), Disconnected),
        ("a length far too long", vec![header("content-length: 9999999999")], bytes(body), Disconnected),
        ("no length", vec![], bytes(body), Refused(400)),
        ("a length of zero", vec![header("content-length: 0")], bytes(body), Refused(400)),
        ("a length twice, the same", vec![length(0), length(0)], bytes(body), Accepted),
        ("two lengths", vec![length(0), header("content-length: 5")], bytes(body), Rejected),
        ("two lengths in one", vec![header("content-length: 5, 6")], bytes(body), Rejected),
        ("a negative length", vec![header("content-length: -1")], bytes(body), Rejected),
        ("a length with a sign", vec![header("content-length: +5")], bytes(body), Rejected),
        ("a length in hex", vec![header("content-length: 0x10")], bytes(body), Rejected),
        ("a length that is not a number", vec![header("content-length: many")], bytes(body), Rejected),
        ("a length above u64", vec![header("content-length: 99999999999999999999")], bytes(body), Rejected),
        ("an unknown coding", vec![header("transfer-encoding: gzip")], bytes(body), Rejected),
        ("chunked and then gzip", vec![header("transfer-encoding: chunked, gzip")], bytes(&chunked), Rejected),
        (
            "a coding with a name similar to chunked",
            vec![header("transfer-encoding: xchunked")],
            bytes(&chunked),
            Rejected,
        ),
        ("chunks that do not end", vec![chunks()], bytes(&chunked[..chunked.len() - 5]), Disconnected),
        ("a truncated chunk", vec![chunks()], bytes(&chunked[..20]), Disconnected),
        (
            "a chunk size that is not a number",
            vec![chunks()],
            bytes(&format!("many\r\n{body}\r\n0\r\n\r\n")),
            Refused(400),
        ),
        ("a negative chunk size", vec![chunks()], bytes(&format!("-5\r\n{body}\r\n0\r\n\r\n")), Refused(400)),
        ("a chunk size above u64", vec![chunks()], bytes(&format!("fffffffffffffffff\r\n{body}\r\n")), Refused(400)),
        ("a chunk longer than its size", vec![chunks()], bytes(&format!("5\r\n{body}\r\n0\r\n\r\n")), Refused(400)),
        ("chunked coding and a body without chunks", vec![chunks()], bytes(body), Refused(400)),
    ]
}

#[tokio::test]
async fn bodies_with_inconsistent_framing_are_refused() {
    let fixture = Fixture::new().await;
    let body = json!({ "agentId": fixture.agent.id }).to_string();
    let mut failures = Failures::default();
    for (name, headers, bytes, outcome) in frames(&body) {
        let request = headers.into_iter().fold(RawRequest::new("POST", "/auth/challenge"), RawRequest::line);
        let response = match outcome {
            Disconnected => request.send_tls_and_close(&fixture.control, &bytes).await,
            Accepted | Refused(_) | Rejected => request.send_tls(&fixture.control, &bytes).await,
        };
        failures.add(name, outcome_mismatch(outcome, response.as_ref()));
    }
    failures.assert_none();
}

/// Attackers use conflicting framing headers to smuggle a second request. The server must never respond to the smuggled request.
#[tokio::test]
async fn smuggled_requests_get_no_response() {
    let fixture = Fixture::new().await;
    let smuggled_request = "GET /health HTTP/1.1\r\nhost: service\r\n\r\n";
    for frame in [
        vec!["content-length: 4", "transfer-encoding: chunked"],
        vec!["transfer-encoding: chunked", "content-length: 4"],
        vec!["content-length: 0"],
        vec![],
    ] {
        let request = frame.iter().fold(RawRequest::new("POST", "/auth/challenge"), RawRequest::line);
        let response = request.send_tls(&fixture.control, format!("0\r\n\r\n{smuggled_request}").as_bytes()).await;
        // The test sends `connection: close` with each request, so there is at most one response.
        assert_eq!(outcome_mismatch(Rejected, response.as_ref()), None, "{frame:?}");
        assert!(response.is_none_or(|response| response.header("connection") == "close"), "{frame:?}");
    }
}

/// Values of `Authorization` that are sent together, in which `{}` stands for a valid key, and the expected result.
fn authorizations(key: &str) -> Vec<(Vec<Vec<u8>>, Outcome)> {
    let value = |text: &str| text.replace("{}", key).into_bytes();
    let long = |length: usize| format!("Bearer {}", "a".repeat(length)).into_bytes();
    let accepted = ["Bearer {}", "bearer   {}", "BEARER {} "].map(|text| (vec![value(text)], Accepted));
    let refused = [
        "",
        "Bearer",
        "Bearer ",
        "{}",
        "Basic {}",
        "Bearer\t{}",
        "Bearer:{}",
        "\"Bearer {}\"",
        "Bearer \"{}\"",
        "Bearer {} {}",
        "Bearer {},",
        "Bearer {},{}",
        "Bearer {}, Bearer {}",
    ];
    let refused = refused.map(|text| (vec![value(text)], Refused(401)));
    let others = [
        (vec![value("Bearer {}"), value("Bearer {}")], Refused(401)),
        (vec![value("Bearer {}"), value("Basic YTpi")], Refused(401)),
        (vec![value("Bearer {}"), value("")], Refused(401)),
        (vec![value(""), value("Bearer {}")], Refused(401)),
        (vec![[&value("Bearer {}")[..], b"\xff"].concat()], Refused(401)),
        (vec![[&value("Bearer {}")[..], "é".as_bytes()].concat()], Refused(401)),
        (vec![b"\xff\xfe".to_vec()], Refused(401)),
        (vec![value("Bearer {}\0")], Rejected),
        (vec![value("Bearer {}\r")], Rejected),
        (vec![long(30 * 1024)], Refused(401)),
        (vec![long(60 * 1024)], Refused(401)),
        (vec![long(200 * 1024)], Rejected),
        (vec![long(1024 * 1024)], Rejected),
    ];
    accepted.into_iter().chain(refused).chain(others).collect()
}

#[tokio::test]
async fn exactly_one_bearer_credential_is_accepted() {
    let fixture = Fixture::new().await;
    let control = &fixture.control;
    let mut failures = Failures::default();
    let key = control.key();
    for path in [control.path("/roles"), control.path("/verify")] {
        for (values, outcome) in authorizations(key) {
            let request = RawRequest::new("GET", &path).with("x-agent-token", &fixture.token);
            let request = values.iter().fold(request, |request, value| request.with("authorization", value));
            let response = request.send_tls(control, b"").await;
            let shown: Vec<String> =
                values.iter().map(|value| String::from_utf8_lossy(value).replace(key, "{}")).collect();
            let shown = format!("{shown:.60?}");
            failures.add(format_args!("{path} {shown}"), outcome_mismatch(outcome, response.as_ref()));
        }
    }
    failures.assert_none();
}

#[tokio::test]
async fn malformed_http_requests_are_refused() {
    let fixture = Fixture::new().await;
    let get = || RawRequest::new("GET", "/health");
    let cases = [
        ("a valid request", get(), Accepted),
        ("an unknown method", RawRequest::new("BREW", "/health"), Refused(405)),
        ("a method in lower case", RawRequest::new("get", "/health"), Refused(405)),
        ("a path with ..", RawRequest::new("GET", "/../health"), Refused(404)),
        ("a path with NUL", RawRequest::new("GET", "/health%00"), Refused(404)),
        ("another host's URL", RawRequest::new("GET", "https://elsewhere.example/health"), Accepted),
        ("a query with unusual characters", RawRequest::new("GET", "/health?a=%00&a=%ff&;&&=&x[]=1"), Accepted),
        ("no path", RawRequest::new("GET", ""), Rejected),
        ("a path with a space", RawRequest::new("GET", "/hea lth"), Rejected),
        ("a path that is too long", RawRequest::new("GET", &format!("/{}", "a".repeat(100_000))), Rejected),
        ("a header without a colon", get().line("nonsense"), Rejected),
        ("a header without a name", get().line(": x"), Rejected),
        ("a space before the colon", get().line("a : x"), Rejected),
        ("a folded header line", get().line("a: b").line(" c"), Rejected),
        ("NUL in a header", get().with("a", "b\0c"), Rejected),
        ("a bare carriage return", get().line("a: b\rc: d"), Rejected),
        ("1,000 headers", (0..1_000).fold(get(), |request, n| request.with(format!("h{n}"), "x")), Rejected),
        ("1 MiB of headers", get().with("a", "b".repeat(1024 * 1024)), Rejected),
        ("a request id of 1 KiB", get().with("x-request-id", "a".repeat(1024)), Accepted),
        ("a request id that is not UTF-8", get().with("x-request-id", b"\xff\xfe"), Accepted),
        ("two request ids", get().with("x-request-id", "a").with("x-request-id", "b"), Accepted),
    ];
    let mut failures = Failures::default();
    for (name, request, outcome) in cases {
        let response = request.send_tls(&fixture.control, b"").await;
        failures.add(name, outcome_mismatch(outcome, response.as_ref()));
        let id = response.as_ref().map_or("", |response| response.header("x-request-id"));
        let valid_id = id.len() <= 128 && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        failures.check(valid_id, || format!("{name}: invalid request id {id:?}"));
    }
    failures.assert_none();
    fixture.control.api.get("/health").await.expect(200);
}

#[tokio::test]
async fn long_headers_are_refused_over_http2() {
    let fixture = Fixture::new().await;
    for (size, outcome) in
        [(30 * 1024, Refused(401)), (60 * 1024, Refused(401)), (100 * 1024, Rejected), (1024 * 1024, Rejected)]
    {
        let request = fixture.control.api.request("GET", &fixture.control.path("/roles")).version(Version::HTTP_2);
        let response = HttpResponse::try_send(request.bearer_auth("a".repeat(size))).await;
        assert_eq!(outcome_mismatch(outcome, response.as_ref()), None, "{size} bytes");
    }
    fixture.control.api.get("/health").await.expect(200);
}
