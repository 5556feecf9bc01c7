//! Which other control planes run, and which were killed.

use crate::store::sidecars::Peer;
use std::{collections::HashMap, time::Duration};

/// If the row of another control plane has not changed for this time, by our clock, we conclude that it was killed.
const CONTROL_PLANE_TIMEOUT: Duration = Duration::from_secs(30);

/// The other control planes, by name.
#[derive(Default)]
pub(super) struct Peers(HashMap<String, ReadPeer>);

/// A row of another control plane.
struct ReadPeer {
    peer: Peer,
    /// The time since boot at which we first read the row with its present values.
    unchanged_since: Duration,
}

impl Peers {
    /// Replaces the known rows of other control planes by those that were read at `now`.
    pub(super) fn read(&mut self, peers: Vec<Peer>, now: Duration) {
        let mut earlier = std::mem::take(&mut self.0);
        for peer in peers {
            let unchanged = earlier.remove(&peer.id).filter(|before| before.peer == peer);
            let unchanged_since = unchanged.map_or(now, |before| before.unchanged_since);
            self.0.insert(peer.id.clone(), ReadPeer { peer, unchanged_since });
        }
    }

    /// Control planes whose row has not changed for [`CONTROL_PLANE_TIMEOUT`].
    pub(super) fn killed(&self, now: Duration) -> impl Iterator<Item = &Peer> {
        let is_killed = move |read: &&ReadPeer| now.saturating_sub(read.unchanged_since) >= CONTROL_PLANE_TIMEOUT;
        self.0.values().filter(is_killed).map(|read| &read.peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_identity::Timestamp;

    #[test]
    fn only_a_row_that_does_not_change_shows_that_its_process_was_killed() {
        let peer = |id: &str, written| Peer { id: id.to_owned(), seen_at: Timestamp::from_micros(written) };
        let (mut peers, seconds) = (Peers::default(), Duration::from_secs);
        let killed = |peers: &Peers, now| {
            let mut killed: Vec<_> = peers.killed(seconds(now)).map(|peer| peer.id.clone()).collect();
            killed.sort();
            killed.join(" ")
        };
        peers.read(vec![peer("a", 5), peer("b", 5)], seconds(100));
        assert_eq!(killed(&peers, 129), "");
        peers.read(vec![peer("a", 5), peer("b", 6)], seconds(129));
        assert_eq!(killed(&peers, 130), "a");
        peers.read(vec![peer("a", 4), peer("b", 6)], seconds(130));
        assert_eq!(killed(&peers, 158), "", "another time is a sign of life, whatever clock it is by");
        assert_eq!(killed(&peers, 159), "b");
        peers.read(vec![], seconds(159));
        assert_eq!(killed(&peers, 999), "");
    }
}
