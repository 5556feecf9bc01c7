//! The memory for requests in progress, which all clients of the API share.

use countersign_process::server::{Memory, Network, ReservedMemory, UNIT, places_for};
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
pub struct RequestMemory {
    memory: Memory,
    /// Counts the requests that get no memory.
    refused: IntCounter,
}

impl RequestMemory {
    /// `refused` counts the requests that get no memory.
    pub fn new(refused: IntCounter) -> Self {
        Self { memory: Memory::new(CAPACITY / UNIT, PER_CLIENT / UNIT), refused }
    }

    /// Reserves memory for a request of a client, whose head has `head` bytes. `None` if there is none for the client.
    pub fn reserve(&self, address: IpAddr, head: usize) -> Option<ReservedMemory> {
        let client = Some(Network::of_client(address));
        self.counted(self.memory.try_enter_many(client, places_for(BASE_COST + head)).ok())
    }

    /// Reserves memory for `more` bytes of a body, of which `bytes` have arrived before. `None` if there is none for the client.
    pub fn grow(&self, reserved: &mut ReservedMemory, bytes: usize, more: usize) -> Option<()> {
        let places = places_for(bytes + more) - places_for(bytes);
        self.counted(reserved.grow(places).ok())
    }

    fn counted<T>(&self, reserved: Option<T>) -> Option<T> {
        if reserved.is_none() {
            self.refused.inc();
        }
        reserved
    }
}
