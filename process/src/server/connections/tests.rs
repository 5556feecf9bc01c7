//! Tests of the table of connections.

use super::*;
use crate::server::PortMetrics;
use prometheus::Registry;

fn connections(total: usize, per_client: usize, pending: usize) -> Arc<Connections> {
    let metrics = PortMetrics::register(&Registry::new(), "test").unwrap().of_port("api");
    Arc::new(Connections::new(ConnectionCaps { total, per_client, pending }, metrics))
}

fn admit(port: &Arc<Connections>, address: &str) -> Option<OpenConnection> {
    port.admit(Some(address.parse().unwrap()))
}

impl Connections {
    fn is_open(&self, connection: &OpenConnection) -> bool {
        let table = self.table();
        table.pending.contains_key(&connection.id) || table.established.contains_key(&connection.id)
    }

    fn open_and_request(self: &Arc<Self>, from: &str) -> OpenConnection {
        let connection = admit(self, from).unwrap();
        assert!(connection.activity.begin_request(false));
        connection.establish();
        connection
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
fn trusted_proxies_are_counted_only_in_total() {
    let port = connections(3, 1, 3);
    let open: Vec<_> = (0..3).map(|_| port.admit(None).unwrap()).collect();
    assert!(open.iter().all(|connection| port.is_open(connection)));
    let fourth = port.admit(None).unwrap();
    assert!(!port.is_open(&open[0]) && port.is_open(&fourth));
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
    assert!(table.len() == 0 && table.by_client.is_empty() && table.by_site.is_empty());
    assert_eq!(port.metrics.open.get(), 0);
}
