//! The running servers: API, sync, admin, and the keeping of the house.

use super::{AppError, database};
use crate::{
    certificates::Certificate,
    config::Config,
    domain::signing_key::{KeyRing, KeyStatus},
    http::{
        AppState, router,
        tls::{ForProxies, TlsOnly},
    },
    metrics::Metrics,
    operations::{
        Context, delete_expired_events, publish_trust_changes, rotate_signing_keys_if_due, run_housekeeping,
        settle_storms, tell_ended_roles,
    },
    store::Store,
    sync::{Reader, SyncService, Terms},
    webhooks::{Courier, Sorter},
};
use axum::{Router, extract::ConnectInfo, middleware::AddExtension};
use axum_server::accept::Accept;
use countersign_identity::Timestamp;
use countersign_process::{Readiness, Shutdown, admin, shutdown::DRAIN_TIMEOUT};
use countersign_proto::v1::sync_server::SyncServer;
use hyper_util::rt::TokioTimer;
use secrecy::ExposeSecret;
use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;
use tonic::transport::{Identity, Server, ServerTlsConfig};

/// How often old changes and dead logins are forgotten.
const HOUSEKEEPING: Duration = Duration::from_mins(1);

/// How soon a write is tried again while the database takes none.
const PROBE: Duration = Duration::from_secs(5);

/// How often it is looked whether the database is still the same one.
const WATCH: Duration = Duration::from_secs(1);

/// How often somebody looks after the signing keys.
const KEYS: Duration = Duration::from_secs(5);

/// Between two announcements of changed trust, at the least.
const TRUST_PAUSE: Duration = Duration::from_millis(500);

/// How often roles that ended are looked for, and storms of failed logins that are over.
const TELL: Duration = Duration::from_secs(1);

/// How often it is counted what webhooks are not told yet.
const COUNT: Duration = Duration::from_secs(5);

/// How long a client may take to send the head of a request, or to show that it is still there.
const PATIENCE: Duration = Duration::from_secs(20);

/// The largest request head, in bytes: whatever is longer than a token may be is refused by name, not cut off.
const MAX_HEADERS: u32 = 64 * 1024;

/// Streams that one connection of a sidecar may have; it needs one for each service.
const MOST_STREAMS: u32 = 64;

/// What runs; any that ends before the stop ends the whole.
pub(super) type Servers = JoinSet<io::Result<()>>;

/// The API as one connection sees it.
type Connected = AddExtension<Router, ConnectInfo<SocketAddr>>;

pub(super) fn serve_admin(
    servers: &mut Servers,
    listener: TcpListener,
    readiness: Readiness,
    metrics: Metrics,
    shutdown: &Shutdown,
) {
    servers.spawn(admin::serve(listener, readiness, metrics.registry, shutdown.clone()));
}

pub(super) fn serve_sync(
    servers: &mut Servers,
    listener: TcpListener,
    certificate: &Certificate,
    config: &Config,
    state: &AppState,
    shutdown: &Shutdown,
) -> Result<(), AppError> {
    let AppState { context, metrics, .. } = state;
    let terms = Terms { issuer: context.config.issuer.clone(), max_staleness: config.max_staleness() };
    let reader = Reader::new(context.store.clone());
    let feed = reader.feed();
    let reading = reader.run(metrics.clone(), shutdown.clone());
    servers.spawn(async {
        reading.await;
        Ok(())
    });
    let service = SyncService::new(context.store.clone(), feed, terms, metrics.clone(), shutdown.clone());
    let identity = Identity::from_pem(&certificate.chain, certificate.key.expose_secret());
    let server = Server::builder()
        .tls_config(ServerTlsConfig::new().identity(identity).timeout(PATIENCE))?
        .http2_keepalive_interval(Some(PATIENCE))
        .max_concurrent_streams(MOST_STREAMS)
        .add_service(SyncServer::new(service))
        .serve_with_incoming_shutdown(
            tokio_stream::wrappers::TcpListenerStream::new(listener),
            shutdown.requested_owned(),
        );
    servers.spawn(async move { server.await.map_err(io::Error::other) });
    Ok(())
}

pub(super) fn serve_api(
    servers: &mut Servers,
    listener: std::net::TcpListener,
    certificate: &Certificate,
    state: AppState,
    shutdown: &Shutdown,
) -> Result<(), AppError> {
    if state.proxies.terminate_tls {
        return serve_http(servers, listener, ForProxies, state, shutdown);
    }
    let rng = state.context.rng.clone();
    let acceptor = TlsOnly::new(TlsAcceptor::from(certificate.server_config()?), rng);
    serve_http(servers, listener, acceptor, state, shutdown)
}

fn serve_http<A>(
    servers: &mut Servers,
    listener: std::net::TcpListener,
    acceptor: A,
    state: AppState,
    shutdown: &Shutdown,
) -> Result<(), AppError>
where
    A: Accept<TcpStream, Connected, Service = Connected> + Clone + Send + Sync + 'static,
    A::Stream: AsyncRead + AsyncWrite + Unpin + Send,
    A::Future: Send,
{
    let handle = axum_server::Handle::new();
    let (asked, drain) = (shutdown.requested_owned(), handle.clone());
    tokio::spawn(async move {
        asked.await;
        drain.graceful_shutdown(Some(DRAIN_TIMEOUT));
    });
    let mut server = axum_server::from_tcp(listener)?.acceptor(acceptor).handle(handle);
    server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    server.http_builder().http2().timer(TokioTimer::new()).keep_alive_interval(Some(PATIENCE));
    server.http_builder().http2().max_header_list_size(MAX_HEADERS);
    servers.spawn(server.serve(router(state).into_make_service_with_connect_info::<SocketAddr>()));
    Ok(())
}

/// Once in a while; and while the database takes no writes soon again, for what is written here anyway finds out when it does.
pub(super) fn keep_house(servers: &mut Servers, context: Arc<Context>, shutdown: &Shutdown) {
    until_stopped(servers, shutdown, async move {
        let mut rest = Duration::ZERO;
        loop {
            if rest.is_zero() || !context.store.is_writable() {
                rest = HOUSEKEEPING;
                if let Err(error) = run_housekeeping(&context).await {
                    tracing::warn!(%error, "housekeeping failed; trying again soon");
                }
                if let Err(error) = delete_expired_events(&context).await {
                    tracing::warn!(%error, "old events could not be forgotten; trying again soon");
                }
            }
            tokio::time::sleep(PROBE).await;
            rest = rest.saturating_sub(PROBE);
        }
    });
}

/// Ends the whole if another database is put into the place of the one that is served: what was revoked may be good in it.
pub(super) fn watch_place(servers: &mut Servers, store: Store, shutdown: &Shutdown) {
    let asked = shutdown.requested_owned();
    let watch = async move {
        loop {
            tokio::time::sleep(WATCH).await;
            // What cannot be read is somebody else's to tell.
            if let Err(AppError::Foreign(why)) = database::refuse_quarantined(&store).await {
                return why;
            }
        }
    };
    servers.spawn(async move {
        tokio::select! {
            () = asked => Ok(()),
            why = watch => Err(io::Error::other(why)),
        }
    });
}

/// Keys are made, rotated by age and removed, and the figures say which there are.
pub(super) fn keep_keys(servers: &mut Servers, state: &AppState, shutdown: &Shutdown) {
    let AppState { context, metrics, .. } = state;
    let (context, metrics) = (context.clone(), metrics.clone());
    for status in KEY_STATUSES {
        metrics.signing_keys.with_label_values(&[status.as_str()]);
    }
    until_stopped(servers, shutdown, async move {
        loop {
            match rotate_signing_keys_if_due(&context).await {
                Ok(ring) => show_keys(&metrics, &ring, context.now()),
                Err(error) => tracing::warn!(%error, "signing keys could not be looked after; trying again in seconds"),
            }
            tokio::time::sleep(KEYS).await;
        }
    });
}

/// Of the keys whose tokens are believed.
const KEY_STATUSES: [KeyStatus; 3] = [KeyStatus::Next, KeyStatus::Signing, KeyStatus::Retired];

fn show_keys(metrics: &Metrics, ring: &KeyRing, now: Timestamp) {
    for status in KEY_STATUSES {
        let count = ring.live().filter(|key| key.status(now) == status).count();
        metrics.signing_keys.with_label_values(&[status.as_str()]).set(i64::try_from(count).unwrap_or(i64::MAX));
    }
    let start = ring.signer(now).and_then(|key| key.signs_from);
    let since_epoch = |start: Timestamp| start.duration_since(Timestamp::from_micros(0)).as_secs_f64();
    metrics.signing_key_since.set(start.map_or(0.0, since_epoch));
}

/// Sidecars hear of trust at once if it was quiet, and after a pause if it is not.
pub(super) fn keep_trust_told(servers: &mut Servers, context: Arc<Context>, shutdown: &Shutdown) {
    until_stopped(servers, shutdown, async move {
        loop {
            if let Err(error) = publish_trust_changes(&context).await {
                tracing::warn!(%error, "changed trust could not be announced; trying again in a second");
            }
            tokio::time::sleep(TRUST_PAUSE).await;
            // Rung by this process; others, and one that was killed, are heard of by looking.
            let _looked_anyway = tokio::time::timeout(TRUST_PAUSE, context.trust_marked.notified()).await;
        }
    });
}

/// Events are delivered until the stop, and those under way a little longer.
pub(super) fn deliver(servers: &mut Servers, sorter: Sorter, courier: Courier, shutdown: &Shutdown) {
    let (sorting, delivering) = (sorter.run(shutdown.clone()), courier.run(shutdown.clone()));
    servers.spawn(async {
        sorting.await;
        Ok(())
    });
    servers.spawn(async {
        delivering.await;
        Ok(())
    });
}

/// Webhooks hear of what happens although nobody does it; and it is counted what they have not heard yet.
pub(super) fn keep_webhooks_told(servers: &mut Servers, state: &AppState, shutdown: &Shutdown) {
    let AppState { context, metrics, .. } = state;
    let (telling, counting, metrics) = (context.clone(), context.clone(), metrics.webhooks.clone());
    until_stopped(servers, shutdown, async move {
        loop {
            let told = async { tell_ended_roles(&telling).await.and(settle_storms(&telling).await) };
            if let Err(error) = told.await {
                tracing::warn!(%error, "webhooks could not be told of what ended; trying again in a second");
            }
            tokio::time::sleep(TELL).await;
        }
    });
    until_stopped(servers, shutdown, async move {
        loop {
            if let Err(error) = counting.pulse.look(&counting.store, &metrics).await {
                tracing::warn!(%error, "it could not be counted what webhooks wait for; trying again in seconds");
            }
            tokio::time::sleep(COUNT).await;
        }
    });
}

pub(super) fn until_stopped(
    servers: &mut Servers,
    shutdown: &Shutdown,
    work: impl Future<Output = Infallible> + Send + 'static,
) {
    let asked = shutdown.requested_owned();
    servers.spawn(async move {
        tokio::select! {
            () = asked => Ok(()),
            never = work => match never {},
        }
    });
}

/// Waits for the stop, then for the servers; one that ends before is a failure of the whole.
pub(super) async fn wait(mut servers: Servers, shutdown: &Shutdown) -> Result<(), AppError> {
    let first = tokio::select! {
        () = shutdown.requested() => Ok(()),
        Some(ended) = servers.join_next() => ended.map_err(io::Error::other).flatten(),
    };
    shutdown.trigger();
    let rest = async { while servers.join_next().await.is_some() {} };
    // What has not drained by then is cut when the runtime ends.
    let _cut = tokio::time::timeout(DRAIN_TIMEOUT, rest).await;
    Ok(first?)
}
