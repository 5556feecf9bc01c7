//! Limits the memory that the clients of a port share. The module counts bytes, in places of a kilobyte, and allocates nothing.

use super::network::Network;
use crate::{Place, Places};
use axum::http::{HeaderMap, Uri};
use prometheus::IntCounter;
use std::net::IpAddr;

/// The size of a place in bytes.
const PLACE_SIZE: usize = 1024;

/// About how many bytes a field of a request head needs besides its text.
const FIELD_COST: usize = 32;

/// The memory that a request head needs, in bytes.
pub fn head_size(uri: &Uri, headers: &HeaderMap) -> usize {
    let fields = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD_COST);
    let target = uri.path_and_query().map_or(0, |target| target.as_str().len());
    fields.sum::<usize>() + target
}

/// Memory that clients share. All clients of a Unix socket count as one.
pub struct SharedMemory {
    places: Places<Option<Network>>,
    /// Counts how often a request got no memory.
    refused: IntCounter,
}

/// Memory that one request may use. Dropping this frees it.
pub struct ReservedMemory {
    place: Place<Option<Network>>,
    bytes: usize,
    refused: IntCounter,
}

impl SharedMemory {
    /// `capacity` bytes, of which each client may have `per_client`. `refused` counts how often a request gets no memory.
    pub fn new(capacity: usize, per_client: usize, refused: IntCounter) -> Self {
        Self { places: Places::new(capacity / PLACE_SIZE, per_client / PLACE_SIZE), refused }
    }

    /// Reserves memory for a request. `None` if there is not enough, or if its client would have too much.
    pub fn reserve(&self, client: Option<IpAddr>, bytes: usize) -> Option<ReservedMemory> {
        let Ok(place) = self.places.try_enter_many(client.map(Network::of_client), places_for(bytes)) else {
            self.refused.inc();
            return None;
        };
        Some(ReservedMemory { place, bytes, refused: self.refused.clone() })
    }
}

impl ReservedMemory {
    /// The reserved bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reserves more bytes for the request. Returns false, and reserves nothing, if there is not enough for it or for its client.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        let grown = self.bytes + bytes;
        let has_room = self.place.grow(places_for(grown) - places_for(self.bytes)).is_ok();
        if has_room {
            self.bytes = grown;
        } else {
            self.refused.inc();
        }
        has_room
    }
}

fn places_for(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(PLACE_SIZE)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_has_a_part_of_the_memory_and_small_pieces_cost_no_more_than_large_ones() {
        let refused = IntCounter::new("refused", "refused").unwrap();
        let memory = SharedMemory::new(4 * PLACE_SIZE, 2 * PLACE_SIZE, refused.clone());
        let client = |last: u8| Some(IpAddr::from([192, 0, 2, last]));
        let mut first = memory.reserve(client(1), 1).unwrap();
        for _ in 1..2 * PLACE_SIZE {
            assert!(first.grow(1));
        }
        assert!(!first.grow(1) && memory.reserve(client(1), 1).is_none());
        assert_eq!((first.bytes(), refused.get()), (2 * PLACE_SIZE, 2));
        let second = memory.reserve(client(2), 2 * PLACE_SIZE).unwrap();
        assert!(memory.reserve(None, 1).is_none());
        drop((first, second));
        assert!(memory.reserve(None, 2 * PLACE_SIZE).is_some());
    }
}
