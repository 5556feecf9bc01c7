//! The three servers: the API server, the sync server for sidecars and the admin server (health checks and metrics).

use super::AppError;
use crate::{
    http::{AppState, router, tls::HttpsAcceptor},
    metrics::Metrics,
    sidecars::Journal,
    sync::{FeedReader, SyncParts, SyncService},
};
use countersign_process::{
    Readiness, Rng, Shutdown, admin,
    certificates::ServedCertificate,
    server::{self, PlainText, PortSettings, TlsOnly},
    shutdown::DRAIN_TIMEOUT,
};
use countersign_proto::encoded::service::SyncServer;
use futures_util::FutureExt as _;
use std::{convert::Infallible, io, sync::Arc};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_rustls::TlsAcceptor;
use tonic::service::Routes;

/// The protocols that the API port offers (ALPN).
const API_PROTOCOLS: &[&[u8]] = &[b"h2", b"http/1.1"];

/// The servers and background tasks. If one of the tasks ends before shutdown, all tasks are stopped.
pub(super) struct Tasks {
    running: JoinSet<io::Result<()>>,
    pub(super) shutdown: Shutdown,
}

impl Tasks {
    pub(super) fn new(shutdown: Shutdown) -> Self {
        Self { running: JoinSet::new(), shutdown }
    }

    /// Runs a task that ends by itself when shutdown is requested.
    pub(super) fn spawn(&mut self, task: impl Future<Output = io::Result<()>> + Send + 'static) {
        self.running.spawn(task);
    }

    /// Runs a task, and cancels it when shutdown is requested, at whatever point it is.
    pub(super) fn spawn_until_shutdown(&mut self, work: impl Future<Output = Infallible> + Send + 'static) {
        let shutdown = self.shutdown.requested_owned();
        self.running.spawn(async move {
            tokio::select! {
                () = shutdown => Ok(()),
                never = work => match never {},
            }
        });
    }

    /// Waits until shutdown is requested and all tasks have ended. If a task ends earlier, stops the others and returns its error.
    pub(super) async fn wait_until_stopped(mut self) -> Result<(), AppError> {
        let result = tokio::select! {
            () = self.shutdown.requested() => Ok(()),
            Some(result) = self.running.join_next() => result.map_err(io::Error::other).flatten(),
        };
        self.shutdown.trigger();
        let remaining = async { while self.running.join_next().await.is_some() {} };
        let _drained = tokio::time::timeout(DRAIN_TIMEOUT, remaining).await;
        // Aborts the tasks that do not end in time, and waits for their end, because the caller then stores what they leave in
        // memory.
        let _ended = self.shutdown.run_until_deadline(self.running.shutdown()).await;
        result.map_err(AppError::Server)
    }
}

pub(super) fn serve_admin(tasks: &mut Tasks, listener: TcpListener, readiness: Readiness, metrics: Metrics) {
    let (port_metrics, shutdown) = (metrics.ports.of_port("admin"), tasks.shutdown.clone());
    let routes = axum::Router::new();
    tasks.spawn(admin::serve(listener, routes, readiness, metrics.registry, port_metrics, shutdown));
}

/// Builds the gRPC service to which sidecars connect. Starts the tasks that read changes for all streams and record the streams.
pub(super) fn sync_service(tasks: &mut Tasks, reader: FeedReader, parts: SyncParts) -> SyncService {
    let journal = Journal::new(parts.sidecars.clone()).run(parts.shutdown.clone());
    let reader = reader.run(parts.metrics.clone(), parts.shutdown.clone());
    tasks.spawn(reader.map(Ok));
    tasks.spawn(journal.map(Ok));
    SyncService::new(parts)
}

/// Maximum size of a message from a sidecar. A `Hello` has less than 100 bytes.
const MAX_SYNC_MESSAGE_BYTES: usize = 4096;

/// Serves sidecars over TLS.
pub(super) fn serve_sync(
    tasks: &mut Tasks,
    listener: TcpListener,
    certificate: &Arc<ServedCertificate>,
    service: SyncService,
    port: PortSettings,
) {
    let handshake = TlsOnly::new(certificate.server_config(&[b"h2"]));
    let routes = Routes::new(SyncServer::new(service).max_decoding_message_size(MAX_SYNC_MESSAGE_BYTES))
        .prepare()
        .into_axum_router();
    tasks.spawn(server::serve(listener, handshake, routes, port, tasks.shutdown.clone()));
}

pub(super) fn serve_api(
    tasks: &mut Tasks,
    listener: TcpListener,
    certificate: &Arc<ServedCertificate>,
    rng: Arc<dyn Rng>,
    state: AppState,
    port: PortSettings,
) {
    let shutdown = tasks.shutdown.clone();
    if state.proxies.terminate_tls {
        tasks.spawn(server::serve(listener, PlainText, router(state), port, shutdown));
    } else {
        let acceptor = TlsAcceptor::from(certificate.server_config(API_PROTOCOLS));
        tasks.spawn(server::serve(listener, HttpsAcceptor { acceptor, rng }, router(state), port, shutdown));
    }
}
