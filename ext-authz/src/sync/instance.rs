//! What a Hello says of the process of the sidecar, so that the control plane recognizes its streams.

use countersign_identity::Revision;
use countersign_process::Rng;
use countersign_proto::{PROTOCOL_VERSION, v1};
use std::fmt;

/// The length of an instance in bytes.
pub const INSTANCE_LEN: usize = 16;

/// Identifies a process of the sidecar: random bytes, which the process draws once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instance([u8; INSTANCE_LEN]);

impl Instance {
    /// The instance of a new process.
    pub fn draw(rng: &dyn Rng) -> Self {
        let mut bytes = [0; INSTANCE_LEN];
        rng.fill(&mut bytes);
        Self(bytes)
    }

    /// The instance with these bytes.
    pub const fn from_bytes(bytes: [u8; INSTANCE_LEN]) -> Self {
        Self(bytes)
    }

    /// The bytes of the instance.
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
    /// The process.
    pub instance: Instance,
    /// An earlier process that has certainly ended, and whose copy on disk this process owns.
    pub previous: Option<Instance>,
}

/// Which stream of the process this is, and with which data the process decides when it opens it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamNumber {
    /// The place of the API key in the settings.
    pub key_index: u32,
    /// The number of the stream in this process for this place.
    pub number: i64,
    /// The client, and a process that starts from its copy, decide with all changes up to this revision.
    pub applied: Revision,
}

impl ProcessIdentity {
    /// The first message of a stream.
    pub fn hello(
        self,
        StreamNumber { key_index, number, applied }: StreamNumber,
        revision: Revision,
        partial_snapshot: Option<v1::SnapshotProgress>,
    ) -> v1::Hello {
        let Self { instance, previous } = self;
        v1::Hello {
            protocol_version: PROTOCOL_VERSION,
            instance: instance.to_bytes().to_vec(),
            release: env!("CARGO_PKG_VERSION").to_owned(),
            key_index,
            stream_number: number,
            revision: revision.number(),
            applied_revision: applied.min(revision).number(),
            partial_snapshot,
            previous_instance: previous.map_or_else(Vec::new, |it| it.to_bytes().to_vec()),
        }
    }
}
