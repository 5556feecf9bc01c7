//! Which other control planes run, and which were killed.

use crate::store::sidecars::Peer;
use std::{collections::HashMap, time::Duration};

/// A control plane that has not written its row for this time, by the clock of the one that reads it, is taken for killed.
const CONTROL_PLANE_TIMEOUT: Duration = Duration::from_secs(30);

/// The other control planes, and since when their rows are as they are, by the clock of this process.
#[derive(Default)]
pub(super) struct Peers(HashMap<String, (Peer, Duration)>);

impl Peers {
    /// The rows were read.
    pub(super) fn read(&mut self, peers: Vec<Peer>, now: Duration) {
        let mut earlier = std::mem::take(&mut self.0);
        for peer in peers {
            let unchanged_since =
                earlier.remove(&peer.id).filter(|(before, _)| *before == peer).map(|(_, since)| since);
            self.0.insert(peer.id.clone(), (peer, unchanged_since.unwrap_or(now)));
        }
    }

    /// Those that were killed: they have written nothing for too long, or are marked as killed.
    pub(super) fn killed(&self, now: Duration) -> impl Iterator<Item = Peer> {
        let is_silent = move |since: Duration| now.saturating_sub(since) >= CONTROL_PLANE_TIMEOUT;
        let killed = self.0.values().filter(move |(peer, since)| peer.is_killed || is_silent(*since));
        killed.map(|(peer, _)| peer.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_identity::Timestamp;

    #[test]
    fn only_a_row_that_does_not_change_shows_that_its_process_was_killed() {
        let peer = |id: &str, written, is_killed| Peer {
            id: id.to_owned(),
            seen_at: Timestamp::from_micros(written),
            is_killed,
        };
        let (mut peers, seconds) = (Peers::default(), Duration::from_secs);
        let killed = |peers: &Peers, now| {
            let mut killed: Vec<_> = peers.killed(seconds(now)).map(|peer| peer.id).collect();
            killed.sort();
            killed.join(" ")
        };
        peers.read(vec![peer("a", 5, false), peer("b", 5, false), peer("c", 5, true)], seconds(100));
        assert_eq!(killed(&peers, 129), "c", "it is marked");
        peers.read(vec![peer("a", 5, false), peer("b", 6, false)], seconds(129));
        assert_eq!(killed(&peers, 130), "a");
        peers.read(vec![peer("a", 4, false), peer("b", 6, false)], seconds(130));
        assert_eq!(killed(&peers, 158), "", "another time is a sign of life, whatever clock it is by");
        assert_eq!(killed(&peers, 159), "b");
        peers.read(vec![], seconds(159));
        assert_eq!(killed(&peers, 999), "");
    }
}
