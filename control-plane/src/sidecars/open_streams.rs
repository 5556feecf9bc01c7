//! What `sync` does with an open stream: has it recorded, passes the reports of its sidecar on, and ends it.

use super::{
    NotRecorded, Sidecars,
    streams::{NewStream, NotSent, Phase, Recording, StreamStatus},
};
use crate::{domain::sidecar::SidecarIdentity, store::sidecars::EndedProcess};
use countersign_identity::Revision;
use std::sync::Arc;
use tokio::sync::oneshot;

/// An open stream. Dropping it states that the stream has ended.
pub struct OpenStream(StreamHandle);

/// Receives the reports of the sidecar of a stream.
#[derive(Clone)]
pub struct StreamHandle {
    sidecars: Sidecars,
    status: Arc<StreamStatus>,
}

impl Sidecars {
    /// A stream was opened.
    pub fn open(&self, new: NewStream) -> OpenStream {
        let status = Arc::new(StreamStatus::new(new, self.wall()));
        OpenStream(StreamHandle { sidecars: self.clone(), status })
    }
}

impl OpenStream {
    /// The state of the stream.
    pub fn status(&self) -> Arc<StreamStatus> {
        Arc::clone(&self.0.status)
    }

    /// Receives the reports of the sidecar.
    pub fn handle(&self) -> StreamHandle {
        self.0.clone()
    }

    /// Records the stream in the database. The sidecar must get no confirmation before.
    pub async fn record(&self) -> Result<(), NotRecorded> {
        let StreamHandle { sidecars, status } = &self.0;
        let (sender, recorded) = oneshot::channel();
        sidecars.request_record(status, sender);
        recorded.await.unwrap_or(Err(NotRecorded))
    }

    /// Whether the sidecar may get a confirmation.
    pub fn may_be_confirmed(&self) -> bool {
        self.0.status.may_be_confirmed()
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.end(Phase::Ended);
    }
}

impl StreamHandle {
    /// The sidecar reports that it decides with all changes up to a revision, and that nobody will decide with older data.
    pub fn report(&self, revision: Revision) -> Result<(), NotSent> {
        let Self { sidecars, status } = self;
        if let Some(instance) = status.report(revision, sidecars.wall())? {
            let SidecarIdentity { service, api_key, .. } = status.identity;
            sidecars.forget(EndedProcess { service, instance, api_key });
        }
        Ok(())
    }

    /// The sidecar decides no more.
    pub fn leave(&self) {
        self.end(Phase::Left);
    }

    fn end(&self, phase: Phase) {
        let Self { sidecars, status } = self;
        match status.end(phase) {
            // No confirmation was sent, so nothing depends on the stream.
            Some(Recording::Missing | Recording::Replaced) => sidecars.remove(status),
            Some(Recording::Running | Recording::Accepted | Recording::Done) => sidecars.request_end(status),
            None => {}
        }
    }
}
