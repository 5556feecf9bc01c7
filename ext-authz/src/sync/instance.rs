//! How the sidecar names its process in Hello, so that the control plane recognizes its streams.

use crate::view::ApiKeyIndex;
use countersign_identity::Revision;
use countersign_process::Rng;
use countersign_proto::{PROTOCOL_VERSION, v1};
use std::fmt;

pub const INSTANCE_LEN: usize = 16;

/// Identifies a process of the sidecar and one of its API keys: random bytes, which the process draws once, and the key's number
/// ([`ApiKeyIndex`]). A key that replaces another one takes its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instance([u8; INSTANCE_LEN]);

impl Instance {
    /// The instance of the first API key of a new process.
    pub fn draw(rng: &dyn Rng) -> Self {
        let mut bytes = [0; INSTANCE_LEN];
        rng.fill(&mut bytes);
        Self(bytes).of_key(ApiKeyIndex(0))
    }

    /// The instance of another API key of the process.
    #[must_use]
    pub fn of_key(mut self, ApiKeyIndex(index): ApiKeyIndex) -> Self {
        let [.., a, b, c, d] = &mut self.0;
        [*a, *b, *c, *d] = u32::try_from(index).unwrap_or(u32::MAX).to_be_bytes();
        self
    }

    pub const fn from_bytes(bytes: [u8; INSTANCE_LEN]) -> Self {
        Self(bytes)
    }

    pub const fn to_bytes(self) -> [u8; INSTANCE_LEN] {
        self.0
    }
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The process that opens a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessIdentity {
    pub instance: Instance,
    /// The earlier process whose copy on disk this process owns now. It has certainly ended.
    pub previous: Option<Instance>,
}

impl ProcessIdentity {
    /// The first message of a stream. `number` counts the streams of this instance. `revision` is 0 if there is no view.
    pub fn hello(self, number: i64, revision: Revision, partial_snapshot: Option<v1::SnapshotProgress>) -> v1::Hello {
        let Self { instance, previous } = self;
        v1::Hello {
            protocol_version: PROTOCOL_VERSION,
            instance: instance.to_bytes().to_vec(),
            release: env!("CARGO_PKG_VERSION").to_owned(),
            stream_number: number,
            revision: revision.number(),
            partial_snapshot,
            previous_instance: previous.map_or_else(Vec::new, |it| it.to_bytes().to_vec()),
        }
    }
}
