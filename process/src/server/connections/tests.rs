//! Tests of the table of connections.

use super::*;
use crate::server::{PortMetrics, network::Network};
use prometheus::Registry;

fn port_with(caps: ConnectionCaps, streams_resume: bool) -> Arc<Connections> {
    let metrics = PortMetrics::register(&Registry::new(), "test").unwrap().of_port("api");
    Arc::new(Connections::new(caps, streams_resume, PortNames { port: "api", setting: None }, metrics))
}

fn connections(total: usize, per_client: usize, pending: usize) -> Arc<Connections> {
    port_with(ConnectionCaps { total, per_client, pending }, false)
}

/// A port whose clients resume their streams.
fn resuming(total: usize) -> Arc<Connections> {
    port_with(ConnectionCaps { total, per_client: total, pending: total }, true)
}

fn admit(port: &Arc<Connections>, address: &str) -> Option<OpenConnection> {
    port.admit(Some(address.parse().unwrap()))
}

impl Connections {
    fn is_open(&self, connection: &OpenConnection) -> bool {
        let table = self.table();
        table.pending.contains_key(&connection.key) || table.established.contains_key(&connection.key)
    }

    fn open_and_request(self: &Arc<Self>, from: &str) -> OpenConnection {
        let connection = admit(self, from).unwrap();
        assert!(connection.activity.begin_request(false));
        connection.establish();
        connection
    }

    /// Opens a connection with a stream that waits for data of the server.
    fn open_stream(self: &Arc<Self>, from: &str) -> Option<OpenConnection> {
        let connection = admit(self, from)?;
        connection.activity.begin_request(false);
        connection.establish();
        connection.activity.begin_response();
        connection.activity.set_awaiting_data(true);
        Some(connection)
    }

    /// Opens streams until one is refused.
    fn open_streams(self: &Arc<Self>, from: &str) -> Vec<OpenConnection> {
        std::iter::from_fn(|| self.open_stream(from)).collect()
    }

    fn count_open(&self, connections: &[OpenConnection]) -> usize {
        connections.iter().filter(|connection| self.is_open(connection)).count()
    }
}

#[test]
fn silent_connections_of_a_client_close_for_its_new_ones() {
    let port = connections(100, 2, 100);
    let silent = admit(&port, "192.0.2.1").unwrap();
    let busy = port.open_and_request("192.0.2.1");
    let third = admit(&port, "192.0.2.1").unwrap();
    assert!(!port.is_open(&silent), "the connection without a request closes first");
    assert!(port.is_open(&busy) && port.is_open(&third));
    third.activity.begin_request(false);
    third.establish();
    assert!(admit(&port, "192.0.2.1").is_none(), "no connection with a request in progress closes");
    busy.activity.begin_response();
    busy.activity.end_response();
    let fourth = admit(&port, "192.0.2.1").unwrap();
    assert!(!port.is_open(&busy), "an idle connection closes");
    assert!(port.is_open(&fourth) && port.is_open(&third));
    assert!(admit(&port, "192.0.2.2").is_some(), "other clients have their own limit");
}

#[test]
fn full_port_closes_a_connection_of_the_greediest_site() {
    let port = connections(5, 5, 5);
    let honest = admit(&port, "2001:db8:1::1").unwrap();
    let greedy: Vec<_> = (0..4).map(|network| admit(&port, &format!("2001:db8:2:{network}::1")).unwrap()).collect();
    let newcomer = admit(&port, "2001:db8:3::1").unwrap();
    assert!(port.is_open(&honest) && port.is_open(&newcomer));
    assert!(!port.is_open(&greedy[0]), "the oldest connection of the site closes");
    assert_eq!(greedy.iter().filter(|connection| port.is_open(connection)).count(), 3);
}

#[test]
fn pending_connections_have_their_own_limit() {
    let port = connections(100, 100, 2);
    let _established: Vec<_> = (0..10).map(|_| port.open_and_request("192.0.2.9")).collect();
    let first = admit(&port, "192.0.2.1").unwrap();
    let second = admit(&port, "198.51.100.1").unwrap();
    let third = admit(&port, "192.0.2.2").unwrap();
    let fourth = admit(&port, "192.0.2.3").unwrap();
    let open = [&first, &second, &third, &fourth].map(|connection| port.is_open(connection));
    assert_eq!(open.iter().filter(|open| **open).count(), 2);
    assert!(open[3], "the newest connection is open");
    assert_eq!(port.table().established.len(), 10);
}

#[test]
fn only_clients_that_keep_the_server_waiting_lose_a_request() {
    let port = connections(2, 2, 2);
    let uploading = port.open_and_request("192.0.2.1");
    uploading.activity.begin_body();
    let handled = port.open_and_request("198.51.100.1");
    let third = port.open_and_request("203.0.113.1");
    assert!(!port.is_open(&uploading), "the client does not send the rest of its request");
    assert!(port.is_open(&handled) && port.is_open(&third));
    handled.activity.begin_response();
    handled.activity.set_awaiting_data(true);
    assert!(admit(&port, "203.0.113.2").is_none(), "a stream without data is in progress");
}

#[test]
fn stream_of_the_greediest_site_yields_where_clients_resume() {
    let port = resuming(6);
    let greedy = port.open_streams("192.0.2.1");
    assert_eq!(greedy.len(), 6, "a client may have all places that nobody else needs, and displaces none of its own");
    let other = port.open_streams("198.51.100.1");
    assert_eq!((port.count_open(&greedy), port.count_open(&other)), (3, 3), "equal shares");
    assert!(greedy[..3].iter().all(|older| port.is_open(older)), "the newest close");
    assert!(greedy[3..].iter().all(|evicted| evicted.activity.is_yielding()));
    assert!(port.open_stream("192.0.2.1").is_none(), "the site is among the greediest");
    let neighbours = port.open_streams("198.51.101.1");
    assert_eq!((port.count_open(&other), port.count_open(&neighbours)), (2, 1), "the sites of a block share its part");
    let third = port.open_streams("203.0.113.1");
    assert_eq!(third.len(), 2);
    third[0].activity.set_awaiting_data(false);
    assert!(port.open_stream("192.0.2.1").is_some(), "a client keeps the server waiting");
    assert!(!port.is_open(&third[0]) && !third[0].activity.is_yielding());
}

#[test]
fn greediest_client_of_a_site_yields() {
    let port = resuming(4);
    let honest = port.open_stream("192.0.2.1").unwrap();
    let greedy: Vec<_> = (0..3).map(|_| port.open_stream("192.0.2.2").unwrap()).collect();
    let newest = port.open_stream("198.51.100.1").unwrap();
    assert!(port.is_open(&honest) && port.is_open(&newest) && !port.is_open(&greedy[2]));
}

#[test]
fn sites_of_a_block_count_together() {
    let port = resuming(5);
    let honest = port.open_stream("2001:db8:1::1").unwrap();
    let flood: Vec<_> = (0..4).map(|site| port.open_stream(&format!("2001:bad:{site}::1")).unwrap()).collect();
    assert!(port.open_stream("2001:bad:9::1").is_none(), "the block has the most");
    let newcomer = port.open_stream("2001:db8:1::2").unwrap();
    assert!(port.is_open(&honest) && port.is_open(&newcomer));
    assert_eq!(port.count_open(&flood), 3);
    for _ in 0..20 {
        let port = connections(100, 100, 10);
        let honest: Vec<_> = (0..2).map(|_| admit(&port, "2001:db8:1::1").unwrap()).collect();
        let flood: Vec<_> = (0..100).map(|site| admit(&port, &format!("2001:bad:{site:x}::1")).unwrap()).collect();
        assert_eq!((port.count_open(&honest), port.count_open(&flood)), (2, 8), "pending connections");
    }
}

#[test]
fn clients_behind_proxies_count_as_one_site_and_never_yield() {
    let port = resuming(4);
    let open_proxied = || {
        let connection = port.admit(None)?;
        connection.activity.begin_request(false);
        connection.establish();
        Some(connection)
    };
    let proxied = [open_proxied().unwrap(), open_proxied().unwrap()];
    let direct = port.open_streams("192.0.2.1");
    assert_eq!(direct.len(), 2);
    assert!(open_proxied().is_none() && port.open_stream("198.51.100.1").is_some());
    assert_eq!((port.count_open(&proxied), port.count_open(&direct)), (2, 1));
}

#[test]
fn trusted_proxies_are_counted_only_in_total() {
    let port = connections(3, 1, 3);
    let open: Vec<_> = (0..3).map(|_| port.admit(None).unwrap()).collect();
    assert!(open.iter().all(|connection| port.is_open(connection)));
    let fourth = port.admit(None).unwrap();
    assert!(!port.is_open(&open[0]) && port.is_open(&fourth));
}

#[test]
fn line_of_a_full_port_names_whoever_has_the_most_connections() {
    let port = connections(6, 6, 6);
    let _proxied = [port.admit(None), port.admit(None)];
    let _direct = admit(&port, "192.0.2.1");
    assert_eq!(full_port::greediest(&port.table()), Some((None, 2)));
    let _neighbour = admit(&port, "192.0.2.2");
    let site = Network::of_site("192.0.2.9".parse().unwrap());
    assert_eq!(full_port::greediest(&port.table()), Some((Some(site), 2)));
}

#[test]
fn lack_of_descriptors_reduces_the_connections() {
    let port = connections(1000, 1000, 1000);
    let open: Vec<_> = (0..200).map(|_| admit(&port, "192.0.2.1").unwrap()).collect();
    assert_eq!(port.reduce(), 136);
    assert_eq!(open.iter().filter(|connection| port.is_open(connection)).count(), 136);
    assert!(port.is_open(&open[199]), "the oldest connections close");
    let newest = admit(&port, "192.0.2.1").unwrap();
    assert!(port.is_open(&newest));
    assert_eq!(port.table().len(), 136, "the reduced number holds from now on");
    assert_eq!(port.reduce(), 136, "descriptors are about to be free");
    drop((open, newest));
    assert_eq!(port.reduce(), 64, "a quiet port keeps some connections");
    assert!(port.grow() && port.grow() && port.grow() && !port.grow(), "64, 128, 256, 512, 1000");
    let open: Vec<_> = (0..1000).map(|_| admit(&port, "192.0.2.1").unwrap()).collect();
    assert!(open.iter().all(|connection| port.is_open(connection)));
    assert_eq!(connections(10, 10, 10).reduce(), 10, "never more than configured");
}

#[test]
fn closed_connections_leave_nothing_behind() {
    let port = connections(10, 10, 10);
    let mut open: Vec<_> = (0..30).filter_map(|host| admit(&port, &format!("192.0.{host}.1"))).collect();
    open.truncate(20);
    drop(open);
    let table = port.table();
    assert!(table.len() == 0 && table.by_client.is_empty());
    assert!(table.by_site.is_empty() && table.pending_by_site.is_empty());
    assert_eq!(port.metrics.open.get(), 0);
}
