//! The three servers: the API server, the sync server for sidecars and the admin server (health checks and metrics).

use super::AppError;
use crate::{
    certificates::Certificate,
    http::{
        AppState, router,
        tls::{HttpsAcceptor, PlainHttpAcceptor},
    },
    metrics::Metrics,
    store::Store,
    sync::{AgentHashSecret, FeedReader, SidecarSettings, SyncLimits, SyncService},
};
use axum::{Router, extract::ConnectInfo, middleware::AddExtension};
use axum_server::accept::Accept;
use countersign_process::{Clock, Readiness, Rng, Shutdown, admin, shutdown::DRAIN_TIMEOUT};
use countersign_proto::encoded::service::SyncServer;
use hyper_util::rt::TokioTimer;
use secrecy::ExposeSecret;
use std::{io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;
use tonic::transport::{Identity, Server, ServerTlsConfig};

/// How long a client may take to send the head of a request or to answer a keep-alive ping.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum size of a request head in bytes. The maximum exceeds the length of the longest allowed token, so that a token that
/// is too long still reaches the API, which reports the error.
const MAX_HEADER_SIZE: u32 = 64 * 1024;

/// Maximum number of streams per connection of a sidecar. A sidecar opens one stream per service.
const MAX_SYNC_STREAMS: u32 = 64;

/// The servers and background tasks. If one of the tasks ends before shutdown, all tasks are stopped.
pub(super) type Tasks = JoinSet<io::Result<()>>;

/// The router for one connection, extended with the address of the peer.
type ConnectionService = AddExtension<Router, ConnectInfo<SocketAddr>>;

pub(super) fn serve_admin(
    tasks: &mut Tasks,
    listener: TcpListener,
    readiness: Readiness,
    metrics: Metrics,
    shutdown: &Shutdown,
) {
    tasks.spawn(admin::serve(listener, readiness, metrics.registry, shutdown.clone()));
}

/// Builds the gRPC service to which sidecars connect, and starts the task that reads the change feed for the sidecars.
pub(super) async fn sync_service(
    tasks: &mut Tasks,
    store: &Store,
    (settings, agent_hash_secret, poll_interval): (SidecarSettings, AgentHashSecret, Duration),
    (limits, clock): (SyncLimits, Arc<dyn Clock>),
    metrics: &Metrics,
    shutdown: &Shutdown,
) -> Result<SyncService, AppError> {
    let reader = FeedReader::open(store.clone(), poll_interval).await?;
    let feed = reader.feed();
    let run = reader.run(metrics.clone(), shutdown.clone());
    tasks.spawn(async {
        run.await;
        Ok(())
    });
    let secrets = (settings, agent_hash_secret);
    Ok(SyncService::new(store.clone(), feed, secrets, (limits, clock), metrics.clone(), shutdown.clone()))
}

/// Serves sidecars over TLS.
pub(super) fn serve_sync(
    tasks: &mut Tasks,
    listener: TcpListener,
    certificate: &Certificate,
    service: SyncService,
    shutdown: &Shutdown,
) -> Result<(), AppError> {
    let identity = Identity::from_pem(&certificate.chain, certificate.key.expose_secret());
    let server = Server::builder()
        .tls_config(ServerTlsConfig::new().identity(identity).timeout(CLIENT_TIMEOUT))
        .map_err(|error| AppError::setting("tls.certificate, tls.private_key", error))?
        .http2_keepalive_interval(Some(CLIENT_TIMEOUT))
        .max_concurrent_streams(MAX_SYNC_STREAMS)
        .add_service(SyncServer::new(service))
        .serve_with_incoming_shutdown(
            tokio_stream::wrappers::TcpListenerStream::new(listener),
            shutdown.requested_owned(),
        );
    tasks.spawn(async move { server.await.map_err(io::Error::other) });
    Ok(())
}

pub(super) fn serve_api(
    tasks: &mut Tasks,
    listener: std::net::TcpListener,
    (certificate, rng): (&Certificate, Arc<dyn Rng>),
    state: AppState,
    shutdown: &Shutdown,
) -> Result<(), AppError> {
    if state.proxies.terminate_tls {
        return serve_http(tasks, listener, PlainHttpAcceptor, state, shutdown);
    }
    let acceptor = HttpsAcceptor::new(TlsAcceptor::from(certificate.server_config()?), rng);
    serve_http(tasks, listener, acceptor, state, shutdown)
}

fn serve_http<A>(
    tasks: &mut Tasks,
    listener: std::net::TcpListener,
    acceptor: A,
    state: AppState,
    shutdown: &Shutdown,
) -> Result<(), AppError>
where
    A: Accept<TcpStream, ConnectionService, Service = ConnectionService> + Clone + Send + Sync + 'static,
    A::Stream: AsyncRead + AsyncWrite + Unpin + Send,
    A::Future: Send,
{
    let handle = axum_server::Handle::new();
    let (shutdown, drain) = (shutdown.requested_owned(), handle.clone());
    tokio::spawn(async move {
        shutdown.await;
        drain.graceful_shutdown(Some(DRAIN_TIMEOUT));
    });
    let mut server = axum_server::from_tcp(listener)?.acceptor(acceptor).handle(handle);
    server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(CLIENT_TIMEOUT);
    server.http_builder().http2().timer(TokioTimer::new()).keep_alive_interval(Some(CLIENT_TIMEOUT));
    server.http_builder().http2().max_header_list_size(MAX_HEADER_SIZE);
    tasks.spawn(server.serve(router(state).into_make_service_with_connect_info::<SocketAddr>()));
    Ok(())
}

/// Waits until shutdown is requested and all tasks have ended. A task that ends before shutdown stops the other tasks, and its
/// error is returned.
pub(super) async fn wait_until_stopped(mut tasks: Tasks, shutdown: &Shutdown) -> Result<(), AppError> {
    let result = tokio::select! {
        () = shutdown.requested() => Ok(()),
        Some(result) = tasks.join_next() => result.map_err(io::Error::other).flatten(),
    };
    shutdown.trigger();
    let remaining = async { while tasks.join_next().await.is_some() {} };
    // Tasks that take longer than `DRAIN_TIMEOUT` are aborted when the runtime ends.
    let _aborted = tokio::time::timeout(DRAIN_TIMEOUT, remaining).await;
    Ok(result?)
}
