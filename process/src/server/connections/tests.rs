//! Tests of the table of connections.

use super::*;
use crate::{
    server::{PortMetrics, tests::settings},
    telemetry::MetricFactory,
};
use futures_util::FutureExt as _;
use prometheus::Registry;

fn port(total: usize, per_client: usize, pending: usize) -> Arc<Connections> {
    let metrics =
        PortMetrics::new(&MetricFactory { registry: &Registry::new(), prefix: "test" }).unwrap().of_port("api");
    let caps = ConnectionCaps { total, per_client, pending };
    Arc::new(Connections::new(&settings(caps, metrics)))
}

fn admit(port: &Arc<Connections>, address: &str) -> Option<OpenConnection> {
    port.admit(Some(address.parse().unwrap()))
}

impl Connections {
    /// Opens a connection with a request on which the server works.
    fn admit_working(self: &Arc<Self>, from: &str) -> OpenConnection {
        let connection = admit(self, from).unwrap();
        connection.receive_request();
        connection.begin_work();
        connection
    }
}

impl OpenConnection {
    fn is_open(&self) -> bool {
        let table = self.connections.table();
        table.pending.contains_key(&self.number) || table.established.contains_key(&self.number)
    }
}

#[test]
fn silent_connections_of_a_client_close_for_its_new_ones() {
    let port = port(100, 2, 100);
    let silent = admit(&port, "192.0.2.1").unwrap();
    let working = port.admit_working("192.0.2.1");
    let third = port.admit_working("192.0.2.1");
    assert!(!silent.is_open() && silent.evicted().now_or_never().is_some());
    assert!(working.is_open() && third.is_open());
    assert!(admit(&port, "192.0.2.1").is_none(), "the server works for both");
    working.end_request(true);
    assert!(admit(&port, "192.0.2.1").is_some());
    assert!(!working.is_open() && third.is_open(), "an idle connection closes");
    assert!(admit(&port, "192.0.2.2").is_some(), "other clients have their own limit");
}

#[test]
fn full_port_closes_silent_connections_and_then_the_longest_idle_one() {
    let port = port(3, 3, 3);
    let [first, second] = ["192.0.2.1", "192.0.2.2"].map(|address| port.admit_working(address));
    let silent = admit(&port, "192.0.2.3").unwrap();
    let third = port.admit_working("192.0.2.4");
    assert!(!silent.is_open() && first.is_open() && second.is_open());
    assert!(port.admit(None).is_none(), "the server works for all");
    let now = u64::try_from(SystemClock.since_boot().as_millis()).unwrap();
    for (connection, used_at) in [(&first, now), (&second, now - 1)] {
        connection.end_request(true);
        connection.connection.used_at.store(used_at, Relaxed);
    }
    let fourth = port.admit(None).unwrap();
    assert!(first.is_open() && !second.is_open() && third.is_open());
    port.close_one();
    assert!(!fourth.is_open(), "it has not sent a request");
}

#[test]
fn silent_connections_of_one_client_do_not_close_those_of_another() {
    let port = port(100, 100, 3);
    let honest = admit(&port, "192.0.2.1").unwrap();
    let flood: Vec<_> = (0..10).map(|_| admit(&port, "198.51.100.1").unwrap()).collect();
    assert!(honest.is_open());
    assert_eq!(flood.iter().filter(|connection| connection.is_open()).count(), 2);
    let other = admit(&port, "192.0.2.2").unwrap();
    assert!(other.is_open(), "the oldest of all closes for a client without others");
}

#[test]
fn pending_connections_have_their_own_limit() {
    let port = port(100, 100, 2);
    let working: Vec<_> = (0..10).map(|_| port.admit_working("192.0.2.9")).collect();
    let pending = ["192.0.2.1", "198.51.100.1", "192.0.2.2"].map(|address| admit(&port, address).unwrap());
    assert_eq!(pending.each_ref().map(OpenConnection::is_open), [false, true, true]);
    assert!(working.iter().all(OpenConnection::is_open));
}

#[test]
fn closed_connections_leave_nothing_behind() {
    let port = port(2, 2, 2);
    let connections: Vec<_> = (0..5).map(|number| admit(&port, &format!("192.0.2.{number}")).unwrap()).collect();
    assert_eq!(port.table().len(), 2);
    drop(connections);
    let table = port.table();
    assert!(table.len() == 0 && table.by_client.is_empty());
    assert_eq!(port.metrics.open.get(), 0);
}

#[test]
fn connection_is_idle_while_it_has_no_request() {
    let port = port(1, 1, 1);
    let connection = admit(&port, "192.0.2.1").unwrap();
    assert!(!connection.has_requested() && connection.idle_for().is_some());
    connection.receive_request();
    assert!(connection.has_requested() && connection.idle_for().is_none(), "the rest of the request may arrive");
    connection.begin_work();
    assert_eq!(connection.idle_for(), None);
    connection.end_request(true);
    assert!(connection.idle_for().is_some());
}
