//! What a request counts as, beside an HTTP request.

use crate::metrics::Operations;
use prometheus::IntCounterVec;

/// The counter of what a route does, if it has one.
pub fn counter<'a>(operations: &'a Operations, method: &str, route: &str) -> Option<&'a IntCounterVec> {
    match (method, route) {
        ("POST", "/auth/register") => Some(&operations.registrations),
        ("POST", "/auth/challenge") => Some(&operations.challenges),
        ("POST", "/auth/authenticate") => Some(&operations.authentications),
        ("POST", "/auth/refresh") => Some(&operations.refreshes),
        ("POST", "/auth/revoke") => Some(&operations.revocations),
        ("GET", "/services/{service}/verify") => Some(&operations.verifications),
        ("POST", "/services/{service}/roles" | "/services/{service}/agents/{agent}/roles")
        | ("PATCH" | "DELETE", "/services/{service}/roles/{role}")
        | ("DELETE", "/services/{service}/agents/{agent}/roles/{role}") => Some(&operations.role_changes),
        ("POST", "/trust/feedback") => Some(&operations.feedback),
        _ => None,
    }
}
