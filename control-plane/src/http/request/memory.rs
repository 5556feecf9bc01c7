//! The memory for requests in progress, which all clients of the API share.

use countersign_process::server::{ReservedMemory, SharedMemory};
use prometheus::IntCounter;
use std::net::IpAddr;

/// The memory for all requests in bytes.
const CAPACITY: usize = 64 << 20;

/// The memory for the requests of one client in bytes.
const PER_CLIENT: usize = CAPACITY / 4;

/// What a request needs besides its head and its body, in bytes: about the memory of its task and of its parsed fields. With the
/// capacity, this bounds the number of requests in progress.
const BASE_COST: usize = 16 << 10;

/// The memory for requests in progress.
pub struct RequestMemory(SharedMemory);

impl RequestMemory {
    /// `refused` counts the requests that get no memory.
    pub fn new(refused: IntCounter) -> Self {
        Self(SharedMemory::new(CAPACITY, PER_CLIENT, refused))
    }

    /// Reserves memory for a request of a client, whose head has `head` bytes. `None` if there is none for the client.
    pub fn reserve(&self, address: IpAddr, head: usize) -> Option<ReservedMemory> {
        self.0.reserve(Some(address), BASE_COST + head)
    }
}
