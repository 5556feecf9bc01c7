//! Maps routes to the metric of the operation that they run.

use crate::{
    http::{api_description, code::ErrorCode},
    metrics::OperationMetrics,
};
use prometheus::IntCounterVec;
use serde_json::Value;

/// The token endpoint marks the response to a refresh with this extension, because [`operation_counter`] would count a login.
#[derive(Debug, Clone, Copy)]
pub struct RefreshOperation;

/// The counter of the operation that a route runs; `None` for routes that only have the HTTP metrics.
pub fn operation_counter<'a>(operations: &'a OperationMetrics, method: &str, route: &str) -> Option<&'a IntCounterVec> {
    match (method, route) {
        ("POST", "/auth/register") => Some(&operations.registrations),
        ("POST", "/auth/challenge") => Some(&operations.challenges),
        ("POST", "/auth/authenticate" | "/oauth/token") => Some(&operations.authentications),
        ("POST", "/auth/refresh") => Some(&operations.refreshes),
        ("POST", "/auth/revoke" | "/oauth/revoke") => Some(&operations.revocations),
        ("GET", "/services/{service}/verify") | ("POST", "/oauth/introspect") => Some(&operations.verifications),
        ("POST", "/services/{service}/roles" | "/services/{service}/agents/{agent}/roles")
        | ("PATCH" | "DELETE", "/services/{service}/roles/{role}")
        | ("DELETE", "/services/{service}/agents/{agent}/roles/{role}") => Some(&operations.role_changes),
        ("POST", "/trust/feedback") => Some(&operations.feedback),
        _ => None,
    }
}

/// The errors that a request to any route can get before its handler runs.
const COMMON_CODES: [ErrorCode; 6] = [
    ErrorCode::HttpsRequired,
    ErrorCode::ValidationError,
    ErrorCode::PayloadTooLarge,
    ErrorCode::RateLimitExceeded,
    ErrorCode::ServiceUnavailable,
    ErrorCode::Internal,
];

/// Creates the series of every documented error at 0, for each counted route. The series of an undocumented error begins with the
/// first such error.
pub fn initialize_operation_metrics(operations: &OperationMetrics) {
    let description: Value = serde_json::from_str(api_description()).unwrap_or_default();
    let paths = description["paths"].as_object().into_iter().flatten();
    for (route, methods) in paths {
        for (method, operation) in methods.as_object().into_iter().flatten() {
            let Some(counter) = operation_counter(operations, &method.to_uppercase(), route) else { continue };
            for code in error_codes(operation).chain(COMMON_CODES.map(ErrorCode::as_str)) {
                counter.with_label_values(&[code]);
            }
        }
    }
}

/// The error codes in the examples of an operation's responses. OAuth endpoints have none, because their errors have another
/// format, but each OAuth endpoint shares its counter with an endpoint that has error codes.
fn error_codes(operation: &Value) -> impl Iterator<Item = &str> {
    let responses = operation["responses"].as_object().into_iter().flat_map(|responses| responses.values());
    let examples = responses.filter_map(|response| response["content"]["application/json"]["examples"].as_object());
    examples.flat_map(|examples| examples.values()).filter_map(|example| example["value"]["error"]["code"].as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{LabelValues, Metrics};
    use prometheus::core::Collector;

    fn result_labels(counter: &IntCounterVec) -> Vec<String> {
        let series = counter.collect().iter().flat_map(|family| family.get_metric().to_vec()).collect::<Vec<_>>();
        series.iter().map(|metric| metric.get_label()[0].value().to_owned()).collect()
    }

    #[test]
    fn series_exist_for_possible_results_only() {
        let operations = Metrics::new(&LabelValues::default()).unwrap().operations;
        initialize_operation_metrics(&operations);
        let feedback = result_labels(&operations.feedback);
        for possible in ["ok", "VALIDATION_ERROR", "AGENT_NOT_FOUND", "RATE_LIMIT_EXCEEDED", "SERVICE_UNAVAILABLE"] {
            assert!(feedback.iter().any(|result| result == possible), "{possible}: {feedback:?}");
        }
        for impossible in ["ROLE_NOT_FOUND", "INVALID_SIGNATURE", "METHOD_NOT_ALLOWED"] {
            assert!(!feedback.iter().any(|result| result == impossible), "{impossible}: {feedback:?}");
        }
        assert!(result_labels(&operations.authentications).iter().any(|result| result == "INVALID_SIGNATURE"));
        assert!(result_labels(&operations.role_changes).iter().any(|result| result == "CONFLICT"));
    }
}
