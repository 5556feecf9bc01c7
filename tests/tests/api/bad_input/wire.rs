//! Requests that a library would not send: lengths that lie, chunks that are none, headers said twice.

use super::fixture::{Fixture, assert_none, misshapen};
use countersign_tests::{HttpResponse, RawRequest};
use reqwest::Version;
use serde_json::json;

/// What must come of a request.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Good,
    /// This status, in the shape of an error of the specification.
    Told(u16),
    /// It is no HTTP, so it gets no further than the HTTP library: a 4xx, or nothing at all.
    Cut,
    /// The sender leaves before all has come, and may or may not hear the 400.
    Left,
}

use Fate::{Cut, Good, Left, Told};

fn fault(fate: Fate, answer: Option<&HttpResponse>) -> Option<String> {
    let right = match (fate, answer) {
        (Good, Some(answer)) => answer.status == 200,
        (Told(status), Some(answer)) => answer.status == status && misshapen(answer).is_none(),
        (Cut, Some(answer)) => (400..500).contains(&answer.status),
        (Left, Some(answer)) => answer.status == 400,
        (Cut | Left, None) => true,
        (Good | Told(_), None) => false,
    };
    (!right).then(|| format!("expected {fate:?}, came {answer:?}"))
}

/// A name, the headers that frame a body, the bytes that follow, and what must come of it.
type Frame = (&'static str, Vec<String>, Vec<u8>, Fate);

fn frames(body: &str) -> Vec<Frame> {
    let length = |by: isize| format!("content-length: {}", body.len().checked_add_signed(by).unwrap());
    let header = str::to_owned;
    let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let bytewise = body.chars().map(|c| format!("1\r\n{c}\r\n")).collect::<Vec<_>>().concat() + "0\r\n\r\n";
    let c = |text: &str| text.as_bytes().to_vec();
    let chunks = || header("transfer-encoding: chunked");
    vec![
        ("the true length", vec![length(0)], c(body), Good),
        ("chunked", vec![chunks()], c(&chunked), Good),
        ("chunked, byte by byte", vec![chunks()], c(&bytewise), Good),
        ("a length too short", vec![length(-1)], c(body), Told(400)),
        ("a length too long", vec![length(1)], c(body), Left),
        ("a length far too long", vec![header("content-length: 9999999999")], c(body), Left),
        ("no length at all", vec![], c(body), Told(400)),
        ("a length of zero", vec![header("content-length: 0")], c(body), Told(400)),
        ("a length twice, the same", vec![length(0), length(0)], c(body), Good),
        ("two lengths", vec![length(0), header("content-length: 5")], c(body), Cut),
        ("two lengths in one", vec![header("content-length: 5, 6")], c(body), Cut),
        ("a negative length", vec![header("content-length: -1")], c(body), Cut),
        ("a length with a sign", vec![header("content-length: +5")], c(body), Cut),
        ("a length in hex", vec![header("content-length: 0x10")], c(body), Cut),
        ("a length of words", vec![header("content-length: many")], c(body), Cut),
        ("a length above all", vec![header("content-length: 99999999999999999999")], c(body), Cut),
        ("an unknown coding", vec![header("transfer-encoding: gzip")], c(body), Cut),
        ("chunked and then gzip", vec![header("transfer-encoding: chunked, gzip")], c(&chunked), Cut),
        ("a coding like chunked", vec![header("transfer-encoding: xchunked")], c(&chunked), Cut),
        ("chunks that do not end", vec![chunks()], c(&chunked[..chunked.len() - 5]), Left),
        ("a chunk that is cut", vec![chunks()], c(&chunked[..20]), Left),
        ("a chunk's size of words", vec![chunks()], c(&format!("many\r\n{body}\r\n0\r\n\r\n")), Told(400)),
        ("a chunk's size negative", vec![chunks()], c(&format!("-5\r\n{body}\r\n0\r\n\r\n")), Told(400)),
        ("a chunk's size above all", vec![chunks()], c(&format!("fffffffffffffffff\r\n{body}\r\n")), Told(400)),
        ("a chunk longer than said", vec![chunks()], c(&format!("5\r\n{body}\r\n0\r\n\r\n")), Told(400)),
        ("chunked and a bare body", vec![chunks()], c(body), Told(400)),
    ]
}

#[tokio::test]
async fn bodies_with_inconsistent_framing_are_refused() {
    let fixture = Fixture::new().await;
    let body = json!({ "agentId": fixture.agent.id }).to_string();
    let mut faults = Vec::new();
    for (name, headers, bytes, fate) in frames(&body) {
        let request = headers.into_iter().fold(RawRequest::new("POST", "/auth/challenge"), RawRequest::line);
        let answer = match fate {
            Left => request.send_tls_and_close(&fixture.control, &bytes).await,
            Good | Told(_) | Cut => request.send_tls(&fixture.control, &bytes).await,
        };
        faults.extend(fault(fate, answer.as_ref()).map(|fault| format!("{name}: {fault}")));
    }
    assert_none(&faults);
}

/// Two frames are how one request is smuggled in another: whatever is made of them, no second answer comes.
#[tokio::test]
async fn smuggled_requests_are_not_answered() {
    let fixture = Fixture::new().await;
    let hidden = "GET /health HTTP/1.1\r\nhost: service\r\n\r\n";
    for frame in [
        vec!["content-length: 4", "transfer-encoding: chunked"],
        vec!["transfer-encoding: chunked", "content-length: 4"],
        vec!["content-length: 0"],
        vec![],
    ] {
        let request = frame.iter().fold(RawRequest::new("POST", "/auth/challenge"), RawRequest::line);
        let answer = request.send_tls(&fixture.control, format!("0\r\n\r\n{hidden}").as_bytes()).await;
        // Each request says `connection: close`, so an answer is the only one.
        assert_eq!(fault(Cut, answer.as_ref()), None, "{frame:?}");
        assert!(answer.is_none_or(|answer| answer.header("connection") == "close"), "{frame:?}");
    }
}

/// Values of `Authorization`, in which `{}` stands for a good key; what is made of all of them together.
fn authorizations(key: &str) -> Vec<(Vec<Vec<u8>>, Fate)> {
    let v = |text: &str| text.replace("{}", key).into_bytes();
    let long = |length: usize| format!("Bearer {}", "a".repeat(length)).into_bytes();
    vec![
        (vec![v("Bearer {}")], Good),
        (vec![v("bearer   {}")], Good),
        (vec![v("BEARER {} ")], Good),
        (vec![v("Bearer {}"), v("Bearer {}")], Told(401)),
        (vec![v("Bearer {}"), v("Basic YTpi")], Told(401)),
        (vec![v("Bearer {}"), v("")], Told(401)),
        (vec![v(""), v("Bearer {}")], Told(401)),
        (vec![v("Bearer {}, Bearer {}")], Told(401)),
        (vec![v("Bearer {},{}")], Told(401)),
        (vec![v("Bearer {},")], Told(401)),
        (vec![v("Bearer {} {}")], Told(401)),
        (vec![v("")], Told(401)),
        (vec![v("Bearer")], Told(401)),
        (vec![v("Bearer ")], Told(401)),
        (vec![v("{}")], Told(401)),
        (vec![v("Basic {}")], Told(401)),
        (vec![v("Bearer\t{}")], Told(401)),
        (vec![v("Bearer:{}")], Told(401)),
        (vec![v("\"Bearer {}\"")], Told(401)),
        (vec![v("Bearer \"{}\"")], Told(401)),
        (vec![[&v("Bearer {}")[..], b"\xff"].concat()], Told(401)),
        (vec![[&v("Bearer {}")[..], "é".as_bytes()].concat()], Told(401)),
        (vec![b"\xff\xfe".to_vec()], Told(401)),
        (vec![v("Bearer {}\0")], Cut),
        (vec![v("Bearer {}\r")], Cut),
        (vec![long(30 * 1024)], Told(401)),
        (vec![long(200 * 1024)], Told(401)),
        (vec![long(1024 * 1024)], Cut),
    ]
}

#[tokio::test]
async fn exactly_one_bearer_credential_is_accepted() {
    let fixture = Fixture::new().await;
    let control = &fixture.control;
    let mut faults = Vec::new();
    for (path, good) in [(control.path("/roles"), control.key()), (control.path("/verify"), control.key())] {
        for (values, fate) in authorizations(good) {
            let request = RawRequest::new("GET", &path).with("x-agent-token", &fixture.token);
            let request = values.iter().fold(request, |request, value| request.with("authorization", value));
            let answer = request.send_tls(control, b"").await;
            let shown: Vec<String> =
                values.iter().map(|value| String::from_utf8_lossy(value).replace(good, "{}")).collect();
            let shown = format!("{shown:.60?}");
            faults.extend(fault(fate, answer.as_ref()).map(|fault| format!("{path} {shown}: {fault}")));
        }
    }
    assert_none(&faults);
}

#[tokio::test]
async fn malformed_http_requests_are_refused() {
    let fixture = Fixture::new().await;
    let get = || RawRequest::new("GET", "/health");
    let cases = [
        ("a good one", get(), Good),
        ("an unknown method", RawRequest::new("BREW", "/health"), Told(405)),
        ("a method in lower case", RawRequest::new("get", "/health"), Told(405)),
        ("a path that climbs", RawRequest::new("GET", "/../health"), Told(404)),
        ("a path with NUL", RawRequest::new("GET", "/health%00"), Told(404)),
        ("another host's URL", RawRequest::new("GET", "https://elsewhere.example/health"), Good),
        ("a query of everything", RawRequest::new("GET", "/health?a=%00&a=%ff&;&&=&x[]=1"), Good),
        ("no path", RawRequest::new("GET", ""), Cut),
        ("a path with a space", RawRequest::new("GET", "/hea lth"), Cut),
        ("a path that is too long", RawRequest::new("GET", &format!("/{}", "a".repeat(100_000))), Cut),
        ("a header without colon", get().line("nonsense"), Cut),
        ("a header without name", get().line(": x"), Cut),
        ("a space before the colon", get().line("a : x"), Cut),
        ("a folded line", get().line("a: b").line(" c"), Cut),
        ("NUL in a header", get().with("a", "b\0c"), Cut),
        ("a bare carriage return", get().line("a: b\rc: d"), Cut),
        ("1,000 headers", (0..1_000).fold(get(), |request, n| request.with(format!("h{n}"), "x")), Cut),
        ("1 MiB of headers", get().with("a", "b".repeat(1024 * 1024)), Cut),
        ("a request id of 1 KiB", get().with("x-request-id", "a".repeat(1024)), Good),
        ("a request id of bytes", get().with("x-request-id", b"\xff\xfe"), Good),
        ("two request ids", get().with("x-request-id", "a").with("x-request-id", "b"), Good),
    ];
    let mut faults = Vec::new();
    for (name, request, fate) in cases {
        let answer = request.send_tls(&fixture.control, b"").await;
        faults.extend(fault(fate, answer.as_ref()).map(|fault| format!("{name}: {fault}")));
        let id = answer.as_ref().map_or("", |answer| answer.header("x-request-id"));
        let decent = id.len() <= 128 && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        faults.extend((!decent).then(|| format!("{name}: the request id {id:?}")));
    }
    assert_none(&faults);
    fixture.control.api.get("/health").await.expect(200);
}

#[tokio::test]
async fn long_headers_are_refused_over_http2() {
    let fixture = Fixture::new().await;
    for (size, fate) in [(30 * 1024, Told(401)), (60 * 1024, Told(401)), (100 * 1024, Cut), (1024 * 1024, Cut)] {
        let request = fixture.control.api.request("GET", &fixture.control.path("/roles")).version(Version::HTTP_2);
        let answer = HttpResponse::try_send(request.bearer_auth("a".repeat(size))).await;
        assert_eq!(fault(fate, answer.as_ref()), None, "{size} bytes");
    }
    fixture.control.api.get("/health").await.expect(200);
}
