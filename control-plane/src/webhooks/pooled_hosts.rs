//! The receivers whose connections stay open between attempts.
//!
//! The connection pool of the HTTP client limits idle connections for each host only, and an owner can have any number of hosts.
//! So only connections to the hosts in this list stay open.

use crate::domain::webhook::TargetOwner;
use countersign_process::{Place, Places};
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// Maximum number of hosts with idle connections.
const MAX_HOSTS: usize = 64;

/// Maximum number of hosts with idle connections of one owner.
const HOSTS_PER_OWNER: usize = 16;

/// Maximum number of idle connections of one host.
pub(super) const MAX_IDLE_PER_HOST: usize = 16;

/// Maximum number of idle connections to all receivers.
pub const MAX_IDLE_CONNECTIONS: usize = MAX_HOSTS * MAX_IDLE_PER_HOST;

/// How long an idle connection stays open.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(15);

/// A host may have idle connections for this time after its last attempt: the pool closes connections that were idle for
/// [`IDLE_TIMEOUT`], but looks for them only at the same interval. One second is a margin.
const HOST_TIMEOUT: Duration = Duration::from_secs(2 * IDLE_TIMEOUT.as_secs() + 1);

pub(super) struct PooledHosts {
    places: Places<TargetOwner>,
    hosts: Mutex<HashMap<String, PooledHost>>,
}

struct PooledHost {
    _place: Place<TargetOwner>,
    /// By this time, all connections to the host are closed.
    until: Duration,
}

impl PooledHosts {
    pub(super) fn new() -> Self {
        Self { places: Places::new(MAX_HOSTS, HOSTS_PER_OWNER), hosts: Mutex::default() }
    }

    /// Returns whether the connection of an attempt may stay open after the attempt, which ends before `end`. `origin` is scheme,
    /// host and port, by which the pool distinguishes connections.
    pub(super) fn may_stay_open(&self, origin: String, owner: &TargetOwner, now: Duration, end: Duration) -> bool {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        let until = end + HOST_TIMEOUT;
        if let Some(host) = hosts.get_mut(&origin) {
            host.until = host.until.max(until);
            return true;
        }
        hosts.retain(|_, host| host.until > now);
        let Ok(place) = self.places.try_enter(owner.clone()) else { return false };
        hosts.insert(origin, PooledHost { _place: place, until });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_one_owner_have_a_share_of_the_places_until_their_connections_are_closed() {
        let (hosts, owner) = (PooledHosts::new(), TargetOwner::Deployment);
        let seconds = Duration::from_secs;
        let admitted = |now: Duration| {
            let origins = (0..1000).map(|number| format!("https://{number}.example"));
            origins.filter(|origin| hosts.may_stay_open(origin.clone(), &owner, now, now + seconds(1))).count()
        };
        let first = admitted(seconds(0));
        assert_eq!(first, HOSTS_PER_OWNER);
        assert_eq!(admitted(seconds(1)), first, "the same hosts keep their places");
        let other = |now| hosts.may_stay_open("https://other.example".to_owned(), &owner, now, now);
        assert!(!other(seconds(1)));
        assert!(other(seconds(2) + HOST_TIMEOUT), "the connections of the first hosts are closed");
    }
}
