//! Asks the control plane to which service an API key belongs, before the key is used.
//!
//! The inquiry opens a sync stream, reads the service from its first message, and leaves: a receipt never waits for it.

use super::{
    connection::{LEAVE_TIMEOUT, StreamError, connect},
    decode::{MessageError, PageHeader, parse_page},
    instance::{Instance, ProcessIdentity},
    requests::Requests,
};
use countersign_identity::{Revision, ServiceId};
use countersign_proto::v1::{FollowRequest, FollowResponse, follow_request, follow_response};
use std::time::Duration;
use tokio::time::timeout;
use tonic::{
    Code, Streaming,
    metadata::{Ascii, MetadataValue},
    transport::Endpoint,
};

/// How long an address of the control plane may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Why the service of an API key is not known.
#[derive(Debug, thiserror::Error)]
pub enum KeyInquiryError {
    #[error("the control plane refuses this API key: it is unknown or revoked, or its service is deleted")]
    Refused,
    #[error("the control plane cannot be asked about this API key, so the change waits: {0}")]
    Unanswered(StreamError),
}

/// Asks the addresses of the control plane in turn, until one knows the API key. `instance` is drawn for this inquiry.
pub async fn service_of_key(
    endpoints: &[Endpoint],
    authorization: &MetadataValue<Ascii>,
    instance: Instance,
) -> Result<ServiceId, KeyInquiryError> {
    let mut problem = KeyInquiryError::Unanswered(StreamError::OpenTimeout);
    for endpoint in endpoints {
        let asked = timeout(TIMEOUT, ask(endpoint, authorization, instance)).await;
        problem = match asked.unwrap_or(Err(StreamError::OpenTimeout)) {
            Ok(service) => return Ok(service),
            // An address that does not answer does not hide that another one refuses the key.
            Err(_) if matches!(problem, KeyInquiryError::Refused) => problem,
            Err(error) if error.code() == Some(Code::Unauthenticated) => KeyInquiryError::Refused,
            Err(error) => KeyInquiryError::Unanswered(error),
        };
    }
    Err(problem)
}

async fn ask(
    endpoint: &Endpoint,
    authorization: &MetadataValue<Ascii>,
    instance: Instance,
) -> Result<ServiceId, StreamError> {
    let (requests, request_stream) = Requests::new(None);
    let hello = ProcessIdentity { instance, previous: None }.hello(1, Revision::default(), None);
    requests.send_now(FollowRequest { message: Some(follow_request::Message::Hello(hello)) })?;
    let mut responses = connect(endpoint.clone(), authorization.clone(), request_stream).await?;
    let service = first_service(&mut responses).await;
    let leave = async {
        requests.leave().await;
        // The control plane ends the responses when it has received all requests.
        while let Ok(Some(_)) = responses.message().await {}
    };
    let _elapsed = timeout(LEAVE_TIMEOUT, leave).await;
    service
}

async fn first_service(responses: &mut Streaming<FollowResponse>) -> Result<ServiceId, StreamError> {
    let FollowResponse { message } = responses.message().await?.ok_or(StreamError::Closed)?;
    let Some(follow_response::Message::Snapshot(page)) = message else {
        return Err(MessageError::OutOfOrder("the first message is no page of a snapshot").into());
    };
    match parse_page(page)?.header {
        Some(PageHeader::New(header)) => Ok(header.settings.service),
        Some(PageHeader::Continued(_)) | None => Err(MessageError::Missing("info of a snapshot").into()),
    }
}
