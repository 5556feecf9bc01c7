//! `--verbose`: a line on standard error for each request.

use super::{messages, output::OutputFormat};
use countersign_client::api::{Exchange, Observer};
use serde_json::json;

/// The observer that writes a line in this format for each request.
pub fn observer(format: OutputFormat) -> Observer {
    match format {
        OutputFormat::Text => write_text,
        OutputFormat::Json => write_json,
    }
}

fn write_text(exchange: &Exchange) {
    let Exchange { method, url, status, request_id, elapsed } = exchange;
    let status = status.map_or_else(|| "no response".to_owned(), |status| status.to_string());
    let request_id = request_id.as_ref().map(|id| format!(", request id {id}")).unwrap_or_default();
    messages::write_line(&format!("{method} {url}: {status} in {} ms{request_id}", elapsed.as_millis()));
}

fn write_json(exchange: &Exchange) {
    let Exchange { method, url, status, request_id, elapsed } = exchange;
    let request = json!({
        "method": method.as_str(),
        "url": url,
        "status": status,
        "requestId": request_id,
        "durationMs": u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
    });
    messages::write_json(&json!({ "request": request }));
}
