//! The open connections of a port, and which of them closes when there are too many.
//!
//! If the port is full, the first of these that exists closes. If only one client has too many, only its connections may close.
//!
//! 1. the oldest connection of the same client without a request yet, so that a client that floods the port loses its own
//!    connections;
//! 2. the oldest connection of any client that has not sent a request yet;
//! 3. the connection that has waited for its client for the longest time;
//! 4. the new connection itself.
//!
//! Invariant: while this server works on a request, its connection is not closed for another one.

use super::{PortSettings, metrics::ConnectionMetrics, network::Network, rare_line::RareLine};
use crate::{Clock, SystemClock};
use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::Duration,
};
use tokio_util::sync::CancellationToken;

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

crate::label_values! {
    /// Why a connection is closed.
    pub enum CloseReason {
        /// The port has too many connections.
        Capacity = "capacity",
        /// The client has too many connections.
        ClientCapacity = "client_capacity",
        /// No request arrived in time.
        FirstRequestTimeout = "first_request_timeout",
        /// No further request arrived in time.
        IdleTimeout = "idle_timeout",
        /// The client did not take what the server wrote in time.
        StallTimeout = "stall_timeout",
    }
}

/// The open connections of a port.
pub struct Connections {
    port: &'static str,
    /// See [`PortSettings::connections_setting`].
    setting: Option<&'static str>,
    caps: ConnectionCaps,
    metrics: ConnectionMetrics,
    table: Mutex<Table>,
}

/// The connections by their number. Older connections have smaller numbers.
#[derive(Default)]
struct Table {
    next_number: u64,
    /// The connections that have not sent a request yet.
    pending: BTreeMap<u64, Arc<Connection>>,
    established: BTreeMap<u64, Arc<Connection>>,
    by_client: HashMap<Network, usize>,
    full_line: RareLine,
}

#[derive(Default)]
struct Connection {
    /// `None` for a trusted proxy and for a Unix socket, whose connections are counted only in total.
    client: Option<Network>,
    has_requested: AtomicBool,
    /// How many requests have begun and are not answered.
    requests: AtomicUsize,
    /// How many of these requests this server works on. The other requests have not arrived completely.
    under_way: AtomicUsize,
    /// When the last request began or ended, in milliseconds since boot.
    used_at: AtomicU64,
    evicted: CancellationToken,
}

/// A connection in the table. Dropping it frees its place.
pub struct OpenConnection {
    connections: Arc<Connections>,
    number: u64,
    connection: Arc<Connection>,
}

impl Connections {
    pub fn new(settings: &PortSettings) -> Self {
        let PortSettings { name, connections_setting, caps, metrics, .. } = settings;
        metrics.set_max(caps.total);
        let (metrics, table) = (metrics.clone(), Mutex::default());
        Self { port: name, setting: *connections_setting, caps: *caps, metrics, table }
    }

    /// Adds a new connection, and closes another one for it if there are too many. `None` if none of the others may be closed: then the
    /// caller must close the new one.
    pub fn admit(self: &Arc<Self>, address: Option<IpAddr>) -> Option<OpenConnection> {
        let client = address.map(Network::of_client);
        let mut table = self.table();
        let of_client = client.and_then(|client| table.by_client.get(&client)).copied().unwrap_or_default();
        if of_client >= self.caps.per_client {
            self.metrics.closed(CloseReason::ClientCapacity);
            table.close_one_of(client)?;
        } else if table.pending.len() >= self.caps.pending || table.len() >= self.caps.total {
            self.metrics.closed(CloseReason::Capacity);
            self.log_full_port(&mut table);
            table.close_one_for(client)?;
        }
        let connection = Arc::new(Connection { client, ..Connection::default() });
        let number = table.insert(Arc::clone(&connection));
        self.metrics.set_open(table.len());
        drop(table);
        Some(OpenConnection { connections: Arc::clone(self), number, connection })
    }

    /// Closes a connection, because the process lacks file descriptors.
    pub fn close_one(&self) {
        if self.table().close_one_for(None).is_some() {
            self.metrics.closed(CloseReason::Capacity);
        }
    }

    fn log_full_port(&self, table: &mut Table) {
        if !table.full_line.is_due() {
            return;
        }
        let (port, setting) = (self.port, self.setting);
        let (limit, without_request) = (self.caps.total, table.pending.len());
        tracing::warn!(
            port,
            limit,
            setting,
            without_request,
            "the port is full: connections that wait for their clients close for new ones, or new ones are refused"
        );
    }

    /// Counts a connection that the server closed.
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

impl Table {
    fn len(&self) -> usize {
        self.pending.len() + self.established.len()
    }

    fn insert(&mut self, connection: Arc<Connection>) -> u64 {
        if let Some(client) = connection.client {
            *self.by_client.entry(client).or_default() += 1;
        }
        let number = self.next_number;
        self.next_number += 1;
        self.pending.insert(number, connection);
        number
    }

    fn remove(&mut self, number: u64) -> Option<Arc<Connection>> {
        let connection = self.pending.remove(&number).or_else(|| self.established.remove(&number))?;
        if let Some(client) = connection.client
            && let Some(count) = self.by_client.get_mut(&client)
        {
            *count -= 1;
            if *count == 0 {
                self.by_client.remove(&client);
            }
        }
        Some(connection)
    }

    /// Closes a connection of a client. `None` if this server works on requests of all its connections.
    fn close_one_of(&mut self, client: Option<Network>) -> Option<()> {
        let number = self.oldest_pending(client).or_else(|| self.longest_idle(|other| other == client))?;
        self.close(number)
    }

    /// Closes a connection for a new one of a client. `None` if this server works on requests of all connections.
    fn close_one_for(&mut self, client: Option<Network>) -> Option<()> {
        let oldest = || self.pending.first_key_value().map(|(number, _)| *number);
        let number = self.oldest_pending(client).or_else(oldest).or_else(|| self.longest_idle(|_| true))?;
        self.close(number)
    }

    fn oldest_pending(&self, client: Option<Network>) -> Option<u64> {
        let mut pending = self.pending.iter().filter(|(_, connection)| client.is_some() && connection.client == client);
        pending.next().map(|(number, _)| *number)
    }

    fn longest_idle(&self, is_of: impl Fn(Option<Network>) -> bool) -> Option<u64> {
        let idle =
            self.established.iter().filter(|(_, connection)| is_of(connection.client) && connection.waits_for_client());
        idle.min_by_key(|(_, connection)| connection.used_at.load(Relaxed)).map(|(number, _)| *number)
    }

    fn close(&mut self, number: u64) -> Option<()> {
        self.remove(number)?.evicted.cancel();
        Some(())
    }
}

impl Connection {
    /// Whether this server works on no request of the connection.
    fn waits_for_client(&self) -> bool {
        self.under_way.load(Acquire) == 0
    }
}

impl OpenConnection {
    /// Records that a request head has arrived.
    pub fn receive_request(&self) {
        self.touch();
        self.connection.requests.fetch_add(1, Relaxed);
        if self.has_requested() || self.connection.has_requested.swap(true, Relaxed) {
            return;
        }
        let mut table = self.connections.table();
        if let Some(connection) = table.pending.remove(&self.number) {
            table.established.insert(self.number, connection);
        }
    }

    /// Records that a request has arrived completely, so this server begins to work on it.
    pub fn begin_work(&self) {
        self.connection.under_way.fetch_add(1, Relaxed);
    }

    /// Records the end of a request. `has_arrived`: whether [`Self::begin_work`] was called for this request.
    pub fn end_request(&self, has_arrived: bool) {
        self.touch();
        self.connection.under_way.fetch_sub(usize::from(has_arrived), Release);
        self.connection.requests.fetch_sub(1, Release);
    }

    /// Whether a request head has arrived.
    pub fn has_requested(&self) -> bool {
        self.connection.has_requested.load(Relaxed)
    }

    /// How long the connection has had no request; `None` while it has one.
    pub fn idle_for(&self) -> Option<Duration> {
        let waited = || {
            let used_at = Duration::from_millis(self.connection.used_at.load(Relaxed));
            SystemClock.since_boot().saturating_sub(used_at)
        };
        // Acquire: `used_at`, which is read after this, is not older than the end of the last request.
        (self.connection.requests.load(Acquire) == 0).then(waited)
    }

    /// Waits until the connection is closed for another one.
    pub async fn evicted(&self) {
        self.connection.evicted.cancelled().await;
    }

    fn touch(&self) {
        let now = u64::try_from(SystemClock.since_boot().as_millis()).unwrap_or(u64::MAX);
        self.connection.used_at.store(now, Relaxed);
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let mut table = self.connections.table();
        table.remove(self.number);
        self.connections.metrics.set_open(table.len());
    }
}

#[cfg(test)]
mod tests;
