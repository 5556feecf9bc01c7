//! What a check costs: allocations, which a counting allocator counts, and instructions, which Valgrind counts. Both hardly depend
//! on the machine, so a check that becomes slower fails these tests.

use super::*;
use crate::rules::ReceivedMessage;
use allocation_counter::{AllocationInfo, measure};
use bytes::Bytes;
use std::{path::Path, process::Command};

/// The instructions of a repeated check, from the bytes of the request to the bytes of the response, in a build for tests.
///
/// If a change makes a check cheaper, replace the number by what the failed test prints. A higher number needs a reason. It was last
/// raised because each check builds its response, and prost encodes it.
const INSTRUCTIONS: u64 = 548_600;

/// The allocations of a response: the names and the values of its headers and of its metadata.
const RESPONSE_ALLOCATIONS: u64 = 50;

/// By how much the number of instructions may differ, in percent: compilers and C libraries differ, and so do the random keys of
/// hash maps.
const TOLERANCE_PERCENT: u64 = 5;

/// The environment variable with the number of checks that [`repeated_checks`] makes.
const CHECKS: &str = "COUNTERSIGN_TEST_CHECKS";

/// Checks a request twice. Returns the allocations of the second check, from the decoded request to the encoded response, and the
/// response.
fn repeated_check(authorizer: &Authorizer, request: &CheckRequest) -> (AllocationInfo, CheckResponse) {
    let (request, mut buffer) = (decoded(request), Vec::with_capacity(16 << 10));
    let mut check = || {
        buffer.clear();
        authorizer.check(&request).encode(&mut buffer).unwrap();
    };
    check();
    let allocations = measure(check);
    (allocations, CheckResponse::decode(&buffer[..]).unwrap())
}

/// A request as Envoy sends it, with this many further headers and with these context extensions.
fn envoy_request(token: &str, extra_headers: usize, extensions: &[(&str, &str)]) -> CheckRequest {
    let bearer = format!("Bearer {token}");
    let names: Vec<_> = (0..extra_headers).map(|number| format!("x-header-{number}")).collect();
    let mut headers = vec![(":method", "GET"), ("authorization", bearer.as_str()), ("user-agent", "agent/1.0")];
    headers.extend(names.iter().map(|name| (name.as_str(), "value")));
    request(&headers, extensions)
}

#[test]
fn repeated_check_of_a_valid_token_allocates_only_its_response() {
    let token = TestIssuer::new(1).sign(&claims());
    for (extra_headers, extensions) in
        [(0, &[][..]), (40, &[("require_roles", "reader"), ("require_permissions", "read"), ("min_trust_score", "10")])]
    {
        let request = envoy_request(&token, extra_headers, extensions);
        let (allocations, response) = repeated_check(&authorizer(FixedClock), &request);
        assert_eq!(expect_allowed(response).headers.len(), 7);
        assert!(allocations.count_total <= RESPONSE_ALLOCATIONS, "{extra_headers} {extensions:?}: {allocations:?}");
    }
}

#[test]
fn repeated_check_by_the_rules_file_allocates_only_its_response() {
    let rules = "[[rules]]\nname = \"invoices\"\npath_prefix = \"/\"\nrequire_roles = [\"reader\"]\n";
    let rules = RuleSet::parse(rules.as_bytes()).unwrap();
    let token = TestIssuer::new(1).sign(&claims());
    let mut request = envoy_request(&token, 0, &[]);
    let attributes = request.attributes.as_mut().unwrap();
    attributes.request.as_mut().unwrap().http.as_mut().unwrap().path = "/invoices/4711?expand=lines".into();
    let authorizer = authorizer(FixedClock);
    authorizer.rules.store(Arc::new(rules));
    let (allocations, response) = repeated_check(&authorizer, &request);
    let metadata = format!("{:?}", response.dynamic_metadata);
    assert!(metadata.contains("invoices"), "the rule decides: {metadata}");
    assert!(allocations.count_total <= RESPONSE_ALLOCATIONS, "{allocations:?}");
}

#[test]
fn body_is_not_parsed_for_a_rule_without_mcp() {
    let mut request = envoy_request(&TestIssuer::new(1).sign(&claims()), 0, &[]);
    let http = request.attributes.as_mut().unwrap().request.as_mut().unwrap().http.as_mut().unwrap();
    http.raw_body = br#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"get_weather"}}"#.to_vec();
    let authorizer = authorizer(FixedClock);
    authorizer.rules.store(Arc::new(RuleSet::parse(b"[[rules]]\nname = 'a'\n").unwrap()));
    let (allocations, response) = repeated_check(&authorizer, &request);
    assert_eq!(expect_allowed(response).headers.len(), 7);
    assert!(allocations.count_total <= RESPONSE_ALLOCATIONS, "{allocations:?}");
}

/// Anyone can send a body, because it is read before the token is checked.
#[test]
fn memory_for_a_message_is_proportional_to_its_size() {
    let repeated = |item: &str| {
        let items = vec![item; 200_000 / item.len()].join(",");
        format!(r#"{{"jsonrpc":"2.0","method":"ping","params":{{"list":[{items}]}}}}"#)
    };
    let keys: Vec<_> = (0..20_000).map(|number| format!("\"{number}\":0")).collect();
    let many_keys = format!(r#"{{"jsonrpc":"2.0","method":"ping","params":{{{}}}}}"#, keys.join(","));
    for body in [repeated(r#"{"":0}"#), repeated("[]"), repeated(r#""text""#), many_keys] {
        let allocations = measure(|| drop(ReceivedMessage::parse(body.as_bytes()).unwrap()));
        let limit = 16 * body.len() as u64;
        assert!(allocations.bytes_max <= limit, "{} bytes: {allocations:?}", body.len());
    }
}

/// Not a test of its own: Valgrind runs it.
#[test]
#[ignore = "runs under Valgrind in `instructions_of_a_repeated_check`"]
fn repeated_checks() {
    let checks: u64 = std::env::var(CHECKS).unwrap().parse().unwrap();
    let authorizer = authorizer(FixedClock);
    let extensions = [("require_roles", "reader"), ("min_trust_score", "10")];
    let request = envoy_request(&TestIssuer::new(1).sign(&claims()), 7, &extensions).encode_to_vec();
    let mut buffer = Vec::with_capacity(16 << 10);
    for _ in 0..=checks {
        buffer.clear();
        let request = super::super::CheckRequest::decode(Bytes::copy_from_slice(&request)).unwrap();
        authorizer.check(&request).encode(&mut buffer).unwrap();
    }
}

/// The instructions of a process that makes one first check and then `checks` repeated checks.
fn instructions(checks: u64) -> u64 {
    let valgrind = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/bin/valgrind");
    let mut command = Command::new(valgrind);
    command.args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]);
    command.arg(std::env::current_exe().unwrap()).args([
        "--ignored",
        "--exact",
        "check::tests::costs::repeated_checks",
    ]);
    let output = command.env(CHECKS, checks.to_string()).output().expect("`scripts/tools.sh tests` installs Valgrind");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let count = text.lines().find_map(|line| line.split_once("I refs:").or_else(|| line.split_once("I   refs:")));
    count.expect("Valgrind prints the count").1.trim().replace(',', "").parse().unwrap()
}

#[test]
fn instructions_of_a_repeated_check() {
    let checks = 2000;
    let each = (instructions(checks) - instructions(0)) / checks;
    let allowed = INSTRUCTIONS * (100 - TOLERANCE_PERCENT) / 100..=INSTRUCTIONS * (100 + TOLERANCE_PERCENT) / 100;
    assert!(allowed.contains(&each), "a repeated check has {each} instructions, and {INSTRUCTIONS} are expected");
}
