//! Measures checks that are sent to the sidecar without Envoy, beside the same checks sent to a server that allows everything.

use crate::{
    allow_all,
    replay::{Messages, Replay},
    rounds::{Comparison, alternate, spread_part},
    scale,
    servers::{ChildServer, SERVER_CORE, pin},
    signatures::Signed,
    tokens::TokenIssuer,
};
use countersign_proto::envoy::service::auth::v3::{CheckRequest, CheckResponse};
use countersign_tests::{
    Sidecar,
    sidecar::{CheckResult, check_request},
};
use prost::Message as _;
use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Duration};

/// How long a round measures each of the two servers that it compares.
const TIME: Duration = Duration::from_millis(700);

/// The exponent of the Zipf distribution by which a hundred thousand agents send requests.
const ZIPF_EXPONENT: f64 = 1.0;

/// The messages of a case, and how many of a hundred requests are allowed.
struct Case {
    name: &'static str,
    messages: Messages,
    allowed_percent: u64,
    /// Whether the sidecar gets each message once before the measurement, so that its token is in the cache.
    is_warm: bool,
}

/// Measures all cases.
pub async fn measure(rounds: usize) -> BTreeMap<String, Comparison> {
    let issuer = TokenIssuer::start(30).await;
    let sidecar = issuer.start_sidecar(&["cache.tokens=200000"]).await;
    pin(sidecar.id(), SERVER_CORE);
    let limit = ChildServer::start_allow_all(&allow_all::empty_response()).await;
    let (mut results, mut distinct_sent) = (BTreeMap::new(), 0);
    let distinct = distinct(&issuer, rounds);
    // Connect only after the tokens are signed: signing them takes longer than the sidecar keeps connections without requests.
    let mut ours = Replay::connect(&sidecar.socket()).await;
    let mut allow_all = Replay::connect(&limit.socket()).await;
    let distinct_case = |_: &_| Case {
        name: "check_distinct_vs_allow",
        messages: distinct.rewound(),
        allowed_percent: 100,
        is_warm: false,
    };
    let cases: [&dyn Fn(&TokenIssuer) -> Case; 7] =
        [&hot, &thousand, &zipf, &distinct_case, &half_forged, &many_headers, &many_roles];
    for case in cases {
        let Case { name, messages, allowed_percent, is_warm } = case(&issuer);
        if is_warm {
            ours.send_each_once(&messages).await;
        }
        // Each server gets messages of its own. Otherwise, the faster server would use up the tokens that do not repeat.
        let (messages_of_limit, messages) = (RefCell::new(messages.rewound()), RefCell::new(messages));
        let checks = async || {
            let counted = ours.run(&messages, scale::time(TIME)).await;
            // The numbers need not be equal, because the measurement may end in the middle of the list of messages.
            let expected = counted.answered * allowed_percent / 100;
            assert!(counted.allowed.abs_diff(expected) <= 100, "{name}: {counted:?}");
            counted.per_second
        };
        let limit = async || allow_all.run(&messages_of_limit, scale::time(TIME)).await.per_second;
        results.insert(name.to_owned(), alternate(rounds, checks, limit).await);
        if !is_warm {
            distinct_sent = messages.borrow().sent();
        }
        eprintln!("{name}: {:?}", results[name]);
    }
    results.insert("check_distinct".to_owned(), verifications(&mut ours, (distinct, distinct_sent), rounds).await);
    let same = same_response(&sidecar, &mut ours, &issuer, rounds).await;
    results.insert("check_hot_vs_same_response".to_owned(), same);
    results.insert("check_control".to_owned(), control(&mut ours, &issuer, rounds).await);
    results
}

/// Compares checks of tokens that do not repeat with verifications of signatures. An earlier case has sent the first `sent` tokens.
async fn verifications(ours: &mut Replay, (mut messages, sent): (Messages, usize), rounds: usize) -> Comparison {
    let tokens = messages.order.len();
    // Begin with the last tokens, which the earlier case has not sent.
    messages.order.reverse();
    let (messages, signed) = (RefCell::new(messages), Signed::new());
    let checks = async || ours.run(&messages, scale::time(TIME)).await.per_second;
    let comparison = alternate(rounds, checks, async || signed.verifications_per_second(scale::time(TIME))).await;
    assert!(messages.borrow().sent() + sent <= tokens, "the tokens that do not repeat are used up");
    comparison
}

/// Compares the sidecar with a server that answers every request with the same `CheckResponse` as the sidecar.
async fn same_response(sidecar: &Sidecar, ours: &mut Replay, issuer: &TokenIssuer, rounds: usize) -> Comparison {
    let limit = ChildServer::start_allow_all(&allowed_response(sidecar, issuer).await).await;
    let mut allow_all = Replay::connect(&limit.socket()).await;
    let messages = RefCell::new(hot(issuer).messages);
    let checks = async || ours.run(&messages, scale::time(TIME)).await.per_second;
    alternate(rounds, checks, async || allow_all.run(&messages, scale::time(TIME)).await.per_second).await
}

/// The `CheckResponse` with which the sidecar allows a request of an agent with one role.
pub async fn allowed_response(sidecar: &Sidecar, issuer: &TokenIssuer) -> CheckResponse {
    let response = sidecar.client().await.check(request(&issuer.token(1, 1), 0)).await;
    let response = response.expect("the sidecar decides").into_inner();
    assert_eq!(CheckResult::from_response(response.clone()).status, 200, "{response:?}");
    response
}

/// The sidecar compared with itself: the ratio must be 1.
async fn control(ours: &mut Replay, issuer: &TokenIssuer, rounds: usize) -> Comparison {
    let messages = RefCell::new(hot(issuer).messages);
    let ours = tokio::sync::Mutex::new(ours);
    let checks = async || ours.lock().await.run(&messages, scale::time(TIME)).await.per_second;
    alternate(rounds, checks, checks).await
}

/// A request as Envoy sends it for a browser, with a token and further headers.
pub fn request(token: &str, extra_headers: usize) -> CheckRequest {
    let bearer = format!("Bearer {token}");
    let names: Vec<_> = (0..extra_headers).map(|number| format!("x-header-{number}")).collect();
    let mut headers = vec![
        (":authority", "billing.example.org"),
        (":method", "GET"),
        (":path", "/invoices/4711?expand=lines"),
        (":scheme", "https"),
        ("accept", "application/json"),
        ("authorization", bearer.as_str()),
        ("user-agent", "invoice-agent/2.1"),
        ("x-forwarded-proto", "https"),
        ("x-request-id", "2a4e6b1c-7d3f-4a5b-8c9d-0e1f2a3b4c5d"),
    ];
    headers.extend(names.iter().map(|name| (name.as_str(), "a value of a usual length")));
    let mut request = check_request(&headers, &[("require_roles", "role-0")]);
    let http = request.attributes.as_mut().and_then(|it| it.request.as_mut()).and_then(|it| it.http.as_mut()).unwrap();
    http.host = "billing.example.org".into();
    http.path = "/invoices/4711?expand=lines".into();
    http.scheme = "https".into();
    http.protocol = "HTTP/1.1".into();
    http.id = "12345678901234567890".into();
    request
}

fn encoded(token: &str, extra_headers: usize) -> Vec<u8> {
    request(token, extra_headers).encode_to_vec()
}

/// Requests of this many agents, each in turn.
fn agents(issuer: &TokenIssuer, count: u32) -> Messages {
    let messages = (0..count).map(|agent| encoded(&issuer.token(agent, 1), 0)).collect();
    Messages::new(messages, (0..count).collect())
}

/// Requests of a thousand agents.
pub fn thousand_agents(issuer: &TokenIssuer) -> Messages {
    agents(issuer, 1000)
}

fn hot(issuer: &TokenIssuer) -> Case {
    Case { name: "check_hot", messages: agents(issuer, 1), allowed_percent: 100, is_warm: true }
}

fn thousand(issuer: &TokenIssuer) -> Case {
    Case { name: "check_1000", messages: thousand_agents(issuer), allowed_percent: 100, is_warm: true }
}

/// A hundred thousand agents, of which few send most requests.
fn zipf(issuer: &TokenIssuer) -> Case {
    let count = scale::count(100_000);
    let mut messages = agents(issuer, count);
    let mut sums = Vec::new();
    let mut sum = 0.0;
    for rank in 1..=count {
        sum += f64::from(rank).powf(-ZIPF_EXPONENT);
        sums.push(sum);
    }
    messages.order = (1..=500_000)
        .map(spread_part)
        .map(|part| sums.partition_point(|sum| *sum < part * sum_of(&sums)) as u32)
        .collect();
    Case { name: "check_zipf_100000", messages, allowed_percent: 100, is_warm: true }
}

fn sum_of(sums: &[f64]) -> f64 {
    sums[sums.len() - 1]
}

/// Requests that each have another token: enough for both cases in which no token repeats, even if the sidecar decided as fast as
/// this processor can verify.
fn distinct(issuer: &TokenIssuer, rounds: usize) -> Messages {
    let runs = 2 * (scale::warm_up_rounds() + rounds);
    // Measure for the full time even in a check: other work of the machine could slow down a short measurement, so that it gives
    // too few tokens.
    let tokens = (Signed::new().verifications_per_second(TIME) * TIME.as_secs_f64() * runs as f64) as u32;
    // No other case uses these agents, so none of their tokens is cached.
    let first = 1_000_000;
    let messages = (first..first + tokens).map(|agent| encoded(&issuer.token(agent, 1), 0)).collect();
    Messages::new(messages, (0..tokens).collect())
}

/// Every second token has the signature of another one.
fn half_forged(issuer: &TokenIssuer) -> Case {
    let mut messages = agents(issuer, 1000);
    let encoded_messages = Rc::get_mut(&mut messages.encoded).unwrap();
    let signature = |token: &str| token.rsplit_once('.').unwrap().1.to_owned();
    for agent in 0..500 {
        let token = issuer.token(2 * agent, 1);
        let (signed, _) = token.rsplit_once('.').unwrap();
        let forged = format!("{signed}.{}", signature(&issuer.token(2 * agent + 1, 1)));
        encoded_messages[2 * agent as usize] = encoded(&forged, 0);
    }
    Case { name: "check_half_forged", messages, allowed_percent: 50, is_warm: true }
}

fn many_headers(issuer: &TokenIssuer) -> Case {
    let messages = Messages::new(vec![encoded(&issuer.token(1, 1), 31)], vec![0]);
    Case { name: "check_40_headers", messages, allowed_percent: 100, is_warm: true }
}

fn many_roles(issuer: &TokenIssuer) -> Case {
    let messages = Messages::new(vec![encoded(&issuer.token(1, 30), 0)], vec![0]);
    Case { name: "check_30_roles", messages, allowed_percent: 100, is_warm: true }
}
