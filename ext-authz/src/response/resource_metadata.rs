//! The response to a request for the metadata of a protected resource (RFC 9728).

use super::header::overwriting_header;
use crate::view::Resource;
use countersign_proto::envoy::{
    service::auth::v3::{DeniedHttpResponse, check_response::HttpResponse},
    r#type::v3::HttpStatus,
};

/// How long clients may keep the document.
const CACHE_CONTROL: &str = "public, max-age=300";

/// Builds the response.
pub fn build(resource: &Resource) -> HttpResponse {
    // The document is public, so scripts in browsers may read it.
    let headers =
        [("content-type", "application/json"), ("cache-control", CACHE_CONTROL), ("access-control-allow-origin", "*")];
    HttpResponse::DeniedResponse(DeniedHttpResponse {
        status: Some(HttpStatus { code: 200 }),
        headers: headers.map(|(name, value)| overwriting_header(name, value.to_owned())).into(),
        body: resource.document().to_owned(),
    })
}
