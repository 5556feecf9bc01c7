//! The open connections of a port, and which of them closes when there are too many.
//!
//! Invariant: a connection is never closed for another one while this server works on a request of it, except on a port whose
//! clients resume their streams, and there only if its block or site has more connections than that of the new one. A connection
//! that has not sent a request yet is closed first, then an idle one, then one whose client neither sends the rest of its
//! request nor reads the response. The site with the most connections in the block with the most loses one first.

mod full_port;
mod sites;
mod table;

pub use full_port::PortNames;

use super::{activity::Activity, metrics::ConnectionMetrics};
use full_port::FullPortLine;
use std::{
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};
use table::{ConnectionKey, Entry, Table};
use tokio::sync::Notify;

/// How many descriptors are released when the process lacks them.
const DESCRIPTORS_TO_RELEASE: usize = 64;

/// A lack of descriptors leaves a port at least this number of connections, because it may have another cause.
const MIN_CONNECTIONS: usize = 64;

/// How many evicted connections may be open until no further connection is accepted.
const MAX_CLOSING: usize = 32;

/// How many connections a port may have.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionCaps {
    /// All open connections.
    pub total: usize,
    /// Connections of one client: an IPv4 address or an IPv6 /64 network.
    pub per_client: usize,
    /// Connections that have not sent a request yet.
    pub pending: usize,
}

/// The open connections of a port.
pub struct Connections {
    table: Mutex<Table>,
    next_id: AtomicU64,
    /// Notified when an evicted connection is closed.
    closed: Notify,
    names: PortNames,
    metrics: ConnectionMetrics,
}

/// A connection in the table. Dropping it frees its place.
pub struct OpenConnection {
    connections: Arc<Connections>,
    key: ConnectionKey,
    /// What happens on the connection.
    pub activity: Arc<Activity>,
}

/// Why a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    /// The port has too many connections.
    Capacity,
    /// The client has too many connections.
    ClientCapacity,
    /// No request arrived in time.
    FirstRequestTimeout,
    /// No further request arrived in time.
    IdleTimeout,
    /// The client neither sent the rest of a request nor read a response in time.
    StallTimeout,
}

impl CloseReason {
    /// All values of the label `reason`.
    pub const ALL: [Self; 5] =
        [Self::Capacity, Self::ClientCapacity, Self::FirstRequestTimeout, Self::IdleTimeout, Self::StallTimeout];

    /// The value of the label `reason`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Capacity => "capacity",
            Self::ClientCapacity => "client_capacity",
            Self::FirstRequestTimeout => "first_request_timeout",
            Self::IdleTimeout => "idle_timeout",
            Self::StallTimeout => "stall_timeout",
        }
    }
}

impl Connections {
    /// An empty table. `streams_resume`: see [`super::PortSettings::streams_resume`].
    pub fn new(caps: ConnectionCaps, streams_resume: bool, names: PortNames, metrics: ConnectionMetrics) -> Self {
        metrics.set_max(caps.total);
        let table = Mutex::new(Table::new(caps, streams_resume));
        Self { table, next_id: AtomicU64::new(0), closed: Notify::new(), names, metrics }
    }

    /// Gives a new connection a place. If there is none, closes another connection for it. Returns `None` if no other
    /// connection may be closed for this one.
    pub fn admit(self: &Arc<Self>, address: Option<IpAddr>) -> Option<OpenConnection> {
        let mut table = self.table();
        let (mut has_place, mut line) = (true, None);
        if let Some(reason) = table.lacks_place_for(address) {
            self.metrics.closed(reason);
            line = FullPortLine::if_due(reason, self.names, &mut table);
            has_place = table.close_for(address, reason);
        }
        let admitted = has_place.then(|| self.insert(&mut table, address));
        drop(table);
        if let Some(line) = line {
            line.log();
        }
        admitted
    }

    fn insert(self: &Arc<Self>, table: &mut Table, address: Option<IpAddr>) -> OpenConnection {
        let key = ConnectionKey::new(self.next_id.fetch_add(1, Ordering::Relaxed), address);
        let activity = Arc::new(Activity::default());
        table.insert(key, Entry { address, activity: activity.clone() });
        self.metrics.set_open(table.len());
        OpenConnection { connections: self.clone(), key, activity }
    }

    /// Lowers the largest number of connections, because the process lacks file descriptors, and closes connections that wait
    /// for their clients. So descriptors remain for the database and the other ports. Returns the new number.
    pub fn reduce(&self) -> usize {
        let mut table = self.table();
        if table.closing > 0 {
            // Descriptors are about to be free.
            return table.max();
        }
        let open = table.len();
        let total = open.saturating_sub(DESCRIPTORS_TO_RELEASE).max(MIN_CONNECTIONS).min(table.max());
        self.set_max(&mut table, total);
        while table.len() > total && table.close_one() {
            self.metrics.closed(CloseReason::Capacity);
        }
        total
    }

    /// Doubles the largest number of connections, up to the configured number. Returns whether it is lower still.
    pub fn grow(&self) -> bool {
        let mut table = self.table();
        let configured = table.configured_max();
        let total = table.max().saturating_mul(2).min(configured);
        self.set_max(&mut table, total);
        total < configured
    }

    fn set_max(&self, table: &mut Table, total: usize) {
        table.set_max(total);
        self.metrics.set_max(total);
    }

    /// Waits until few evicted connections are still open, so that the process has not many more connections than allowed.
    pub async fn wait_for_evicted(&self) {
        loop {
            // Created before the check, so that no notification is missed.
            let closed = self.closed.notified();
            if self.table().closing < MAX_CLOSING {
                return;
            }
            closed.await;
        }
    }

    /// Counts a connection that ends because of its own behaviour.
    pub fn count_closed(&self, reason: CloseReason) {
        self.metrics.closed(reason);
    }

    /// Counts a failure to accept a connection.
    pub fn count_accept_error(&self) {
        self.metrics.accept_errors.inc();
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenConnection {
    /// Records the first request of the connection.
    pub fn establish(&self) {
        self.connections.table().establish(self.key);
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let mut table = self.connections.table();
        if table.remove(self.key).is_none() {
            table.closing = table.closing.saturating_sub(1);
            self.connections.closed.notify_waiters();
        }
        self.connections.metrics.set_open(table.len());
    }
}

#[cfg(test)]
mod tests;
