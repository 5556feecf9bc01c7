//! Parses checksums of the data of the control plane.

use super::{Result, invalid, parse_revision};
use countersign_identity::{AgentHash, ChecksumScope, Revision, Timestamp, view_checksum::CHECKSUM_LEN};
use countersign_proto::v1;

/// A checksum of the data of the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedChecksum {
    /// The revision of the last message with data before.
    pub revision: Revision,
    /// What the checksum leaves out.
    pub scope: ChecksumScope,
    /// The checksum.
    pub checksum: [u8; CHECKSUM_LEN],
}

/// Parses a checksum.
pub fn parse_view_check(message: v1::ViewCheck) -> Result<ReceivedChecksum> {
    let v1::ViewCheck { revision, floor, time_micros, agents_without_roles, checksum } = message;
    let agent = |bytes: Vec<u8>| {
        let invalid_length = || invalid("agents_without_roles", &format!("{} bytes", bytes.len()), "is not a hash");
        AgentHash::from_bytes(&bytes).ok_or_else(invalid_length)
    };
    let invalid_checksum = |bytes: Vec<u8>| invalid("checksum", &format!("{} bytes", bytes.len()), "is not a checksum");
    Ok(ReceivedChecksum {
        revision: parse_revision("revision", revision)?,
        scope: ChecksumScope {
            floor: parse_revision("floor", floor)?,
            time: Timestamp::from_micros(time_micros),
            without_roles: agents_without_roles.into_iter().map(agent).collect::<Result<_>>()?,
        },
        checksum: checksum.try_into().map_err(invalid_checksum)?,
    })
}
