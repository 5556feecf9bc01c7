//! What a check costs. A counting allocator makes the costs exact, so that they do not depend on the machine.

use super::*;
use allocation_counter::{AllocationInfo, measure};

/// The allocations of a decided check, from the decoded request to the encoded response, after a check of the same request.
fn repeated_check(request: &CheckRequest) -> AllocationInfo {
    let authorizer = authorizer(FixedClock);
    let mut buffer = Vec::with_capacity(16 << 10);
    authorizer.check(request).encode(&mut buffer);
    buffer.clear();
    let allocations = measure(|| authorizer.check(request).encode(&mut buffer));
    assert!(!buffer.is_empty());
    allocations
}

/// A request as Envoy sends it, with further headers and with these context extensions.
fn envoy_request(token: &str, extra_headers: usize, rules: &[(&str, &str)]) -> CheckRequest {
    let bearer = format!("Bearer {token}");
    let names: Vec<_> = (0..extra_headers).map(|number| format!("x-header-{number}")).collect();
    let mut headers = vec![(":method", "GET"), ("authorization", bearer.as_str()), ("user-agent", "agent/1.0")];
    headers.extend(names.iter().map(|name| (name.as_str(), "value")));
    request(&headers, rules)
}

#[test]
fn repeated_check_of_a_valid_token_allocates_nothing() {
    let token = TestIssuer::new(1).sign(&claims());
    for (extra_headers, rules) in
        [(0, &[][..]), (40, &[("require_roles", "reader"), ("require_permissions", "read"), ("min_trust_score", "10")])]
    {
        let allocations = repeated_check(&envoy_request(&token, extra_headers, rules));
        assert_eq!(allocations.count_total, 0, "{extra_headers} {rules:?}: {allocations:?}");
    }
}

#[test]
fn repeated_check_by_the_rules_file_allocates_nothing() {
    let rules = "[[rules]]\nname = \"read\"\npath_prefix = \"/\"\nrequire_roles = [\"reader\"]\n";
    let rules = RuleSet::parse(rules.as_bytes()).unwrap();
    let token = TestIssuer::new(1).sign(&claims());
    let mut request = envoy_request(&token, 0, &[]);
    let attributes = request.attributes.as_mut().unwrap();
    attributes.request.as_mut().unwrap().http.as_mut().unwrap().path = "/invoices/4711?expand=lines".into();
    let authorizer = authorizer(FixedClock);
    authorizer.rules.store(Arc::new(rules));
    let mut buffer = Vec::with_capacity(16 << 10);
    authorizer.check(&request).encode(&mut buffer);
    buffer.clear();
    let allocations = measure(|| authorizer.check(&request).encode(&mut buffer));
    assert!(String::from_utf8_lossy(&buffer).contains("read"));
    assert_eq!(allocations.count_total, 0, "{allocations:?}");
}
