//! Starts two PostgreSQL servers with synchronous replication, which Patroni fails over, behind a proxy to the primary.

use crate::{
    envoy,
    http::{HttpClient, HttpResponse},
    postgres::{child_processes, chown_to_server_user, command_as_server_user},
    process::{Process, eventually, free_port, signal},
    tools,
};
use sqlx::{AnyConnection, Connection};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// A Patroni cluster. Raft decides by majority, so the cluster has a third member, which has no PostgreSQL.
pub struct PatroniCluster {
    nodes: [Node; 2],
    _raft: Process,
    _proxy: Process,
    proxy_port: u16,
    folder: TempDir,
}

/// A PostgreSQL server with its Patroni.
struct Node {
    patroni: Process,
    configuration: PathBuf,
    data: PathBuf,
    rest_port: u16,
}

/// The ports of a node.
struct Ports {
    rest: u16,
    raft: u16,
    postgres: u16,
}

impl PatroniCluster {
    /// Starts the servers, and waits until a primary and a synchronous standby exist.
    pub async fn start() -> Self {
        let folder =
            tempfile::Builder::new().prefix("countersign-patroni-").tempdir().expect("a folder can be created");
        let ports = [(); 2].map(|()| Ports { rest: free_port(), raft: free_port(), postgres: free_port() });
        let (raft_port, proxy_port) = (free_port(), free_port());
        let raft = |own: u16, name: &str| {
            let members = [ports[0].raft, ports[1].raft, raft_port];
            let partners = members.iter().filter(|port| **port != own).map(|port| format!("\"127.0.0.1:{port}\""));
            let (data, partners) =
                (folder.path().join(name).display().to_string(), partners.collect::<Vec<_>>().join(", "));
            format!("raft: {{data_dir: {data}, self_addr: \"127.0.0.1:{own}\", partner_addrs: [{partners}]}}\n")
        };
        let write = |name: &str, text: String| {
            fs::write(folder.path().join(name), text).expect("the file can be written");
        };
        write("raft.yml", raft(raft_port, "raft"));
        write("proxy.yml", proxy_configuration(proxy_port, &ports));
        for (number, node) in ports.iter().enumerate() {
            let text = raft(node.raft, &format!("raft{number}")) + &node_configuration(folder.path(), number, node);
            write(&format!("node{number}.yml"), text);
        }
        chown_to_server_user(folder.path());
        let mut controller = command_as_server_user(&tools::program("patroni_raft_controller"));
        controller.arg(folder.path().join("raft.yml"));
        let raft = Process::start(controller, &folder.path().join("raft.log"));
        let proxy = envoy::launch(&folder.path().join("proxy.yml"));
        let nodes = [0, 1].map(|number: usize| {
            let configuration = folder.path().join(format!("node{number}.yml"));
            let data = folder.path().join(format!("data{number}"));
            Node { patroni: launch(&configuration), configuration, data, rest_port: ports[number].rest }
        });
        let cluster = Self { nodes, _raft: raft, _proxy: proxy, proxy_port, folder };
        cluster.wait_until("sync").await;
        sqlx::any::install_default_drivers();
        let connect = async || AnyConnection::connect(&cluster.url()).await.ok();
        eventually("the proxy reaches the primary", connect, String::new).await;
        cluster
    }

    /// The database URL through the proxy.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.proxy_port)
    }

    /// Kills the primary and its Patroni, as if its machine had failed. Returns its number.
    pub async fn kill_primary(&mut self) -> usize {
        let number = self.wait_until("primary").await;
        let node = &mut self.nodes[number];
        // Stop the processes first, so that none of them can start another while this function kills them.
        node.patroni.signal("STOP");
        let server = node.postmaster().expect("the primary runs");
        signal(server, "STOP");
        for backend in child_processes(server) {
            signal(backend, "KILL");
        }
        signal(server, "KILL");
        node.patroni.kill();
        number
    }

    /// Starts a node again after [`Self::kill_primary`], and waits until it is a synchronous standby.
    pub async fn restart(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        node.patroni = launch(&node.configuration);
        self.wait_until("sync").await;
    }

    /// Waits until Patroni reports that a node is `primary` or `sync` (a synchronous standby), and returns the number of the node.
    async fn wait_until(&self, role: &str) -> usize {
        loop {
            for (number, node) in self.nodes.iter().enumerate() {
                let rest = HttpClient::plain(format!("http://127.0.0.1:{}", node.rest_port));
                let response = HttpResponse::try_send(rest.request("GET", &format!("/{role}"))).await;
                if response.is_some_and(|response| response.status == 200) {
                    return number;
                }
            }
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    }
}

impl Drop for PatroniCluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            // Kill Patroni first, so that it does not start PostgreSQL again.
            node.patroni.kill();
            if let Some(server) = node.postmaster() {
                signal(server, "QUIT");
            }
        }
        if std::thread::panicking() {
            eprintln!("the logs of Patroni were in {}", self.folder.path().display());
        }
    }
}

impl Node {
    /// The id of the main process of the PostgreSQL server. It is not a child of Patroni.
    fn postmaster(&self) -> Option<u32> {
        let text = fs::read_to_string(self.data.join("postmaster.pid")).ok()?;
        text.lines().next()?.trim().parse().ok()
    }
}

fn launch(configuration: &Path) -> Process {
    let mut command = command_as_server_user(&tools::program("patroni"));
    command.arg(configuration);
    Process::start(command, &configuration.with_extension("log"))
}

fn node_configuration(folder: &Path, number: usize, ports: &Ports) -> String {
    let Ports { rest, raft: _, postgres } = ports;
    let programs = tools::postgres("postgres").canonicalize().expect("the path exists");
    let programs = programs.parent().expect("a program is in a folder").display();
    let folder = folder.display();
    format!(
        r#"scope: countersign
name: node{number}
restapi: {{listen: "127.0.0.1:{rest}", connect_address: "127.0.0.1:{rest}"}}
bootstrap:
  dcs:
    ttl: 20
    loop_wait: 1
    retry_timeout: 3
    synchronous_mode: true
    postgresql:
      use_pg_rewind: true
      parameters: {{max_connections: 200, shared_buffers: 32MB, wal_log_hints: "on", dynamic_shared_memory_type: mmap}}
  initdb: [{{encoding: UTF8}}, {{auth: trust}}]
  pg_hba: ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust", "local all all trust"]
postgresql:
  listen: "127.0.0.1:{postgres}"
  connect_address: "127.0.0.1:{postgres}"
  data_dir: {folder}/data{number}
  pgpass: {folder}/pgpass{number}
  bin_dir: {programs}
  parameters: {{unix_socket_directories: "{folder}"}}
  authentication: {{superuser: {{username: postgres}}, replication: {{username: postgres}}, rewind: {{username: postgres}}}}
"#
    )
}

/// A TCP proxy to the node that answers `/primary`. Connections to a node that is no longer the primary are closed.
fn proxy_configuration(port: u16, nodes: &[Ports; 2]) -> String {
    let endpoint = |node: &Ports| {
        let Ports { rest, raft: _, postgres } = node;
        format!(
            "{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {postgres}}}}}, health_check_config: \
             {{port_value: {rest}}}}}}}"
        )
    };
    let (first, second) = (endpoint(&nodes[0]), endpoint(&nodes[1]));
    format!(
        r#"static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: tcp
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: postgresql
          cluster: primary
  clusters:
  - name: primary
    connect_timeout: 1s
    common_lb_config: {{healthy_panic_threshold: {{value: 0}}}}
    close_connections_on_host_health_failure: true
    health_checks:
    - {{timeout: 1s, interval: 0.5s, no_traffic_interval: 0.5s, unhealthy_threshold: 2, healthy_threshold: 1, http_health_check: {{path: /primary}}}}
    load_assignment:
      cluster_name: primary
      endpoints: [{{lb_endpoints: [{first}, {second}]}}]
"#
    )
}
