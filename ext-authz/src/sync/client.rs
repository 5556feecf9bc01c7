//! Receives the sync stream of one API key: connects, publishes the received views, and moves on to the next address when the stream
//! ends.

use super::{
    addresses::AddressPlan,
    connection::{StreamError, SyncConnection, SyncTarget, is_refusal},
    decode::MessageError,
    key_refusals::KeyRefusals,
    stream::{StreamState, ViewUpdate},
};
use crate::{
    metrics::{CopyRejection, Metrics},
    view::{ApiKeyIndex, View, Views},
};
use countersign_identity::ServiceId;
use countersign_process::{Readiness, ReadinessGuard, Shutdown};
use std::{future, pin::Pin, sync::Arc, time::Duration};
use tokio::time::sleep;
use tonic::Code;

/// Waits for the control plane, and then returns the view on disk. `None` if the control plane has sent a view by then, or if no
/// copy can be used.
pub type FutureView = Pin<Box<dyn Future<Output = Option<Arc<View>>> + Send>>;

pub struct StreamClient {
    key: ApiKeyIndex,
    target: SyncTarget,
    addresses: AddressPlan,
    /// The maximum staleness in the sidecar's settings. If the control plane has a smaller one, that one applies.
    max_staleness: Option<Duration>,
    views: Arc<Views>,
    metrics: Arc<Metrics>,
    readiness: Readiness,
    /// Keeps the sidecar from being ready until this API key has a confirmed view, or is refused while other services have one. `None`
    /// for an API key that is added while the sidecar runs: its other services must not wait for the new one.
    readiness_guard: Option<ReadinessGuard>,
    /// The address that last confirmed the view.
    view_address: Option<usize>,
    key_refusals: KeyRefusals,
    /// The service of the current stream; `None` until the stream has delivered a view.
    connected_service: Option<ServiceId>,
    /// How many streams this client has opened or tried to open.
    streams: i64,
}

impl StreamClient {
    /// A client that has opened no stream yet.
    pub fn new(
        key: ApiKeyIndex,
        target: SyncTarget,
        addresses: AddressPlan,
        max_staleness: Option<Duration>,
        views: Arc<Views>,
        metrics: Arc<Metrics>,
        readiness: Readiness,
    ) -> Self {
        Self {
            key,
            target,
            addresses,
            max_staleness,
            views,
            metrics,
            readiness,
            readiness_guard: None,
            view_address: None,
            key_refusals: KeyRefusals::default(),
            connected_service: None,
            streams: 0,
        }
    }

    /// Keeps the sidecar from being ready until this API key has a view.
    pub fn await_first_view(&mut self) {
        self.readiness_guard = Some(self.readiness.register(format!("the first view of sync.keys[{}]", self.key.0)));
    }

    /// Receives the stream, and reopens it when it ends, until shutdown is requested. The caller requests shutdown after the last
    /// check and the last copy. `copy` is `None` if the settings name no directory for copies.
    pub async fn run(mut self, copy: Option<FutureView>, shutdown: Shutdown) {
        self.follow_streams(copy, shutdown).await;
        if let Some(service) = self.connected_service {
            self.metrics.stream_closed(service);
        }
    }

    async fn follow_streams(&mut self, mut copy: Option<FutureView>, shutdown: Shutdown) {
        let mut stream_state = StreamState::resume(None, self.max_staleness);
        loop {
            let credentials = self.target.authorization.load_full();
            let error = tokio::select! {
                view = copied_view(&mut copy) => {
                    stream_state = self.start_from_copy(view);
                    continue;
                }
                result = self.follow(&mut stream_state, &shutdown) => match result {
                    Ok(()) => return,
                    Err(error) => error,
                },
            };
            let is_key_replaced = credentials != self.target.authorization.load_full();
            self.report(&error, stream_state.view().map(|view| view.service()), is_key_replaced);
            let wait = self.move_on(&error, &stream_state);
            let is_key_refused = error.code() == Some(Code::Unauthenticated) && !is_key_replaced;
            let is_key_unknown = if is_key_refused {
                self.key_refusals.refused(&credentials, stream_state.was_confirmed(), self.addresses.count())
            } else {
                self.key_refusals.reset();
                false
            };
            // The view, or a part of a snapshot, names agents by hashes under an old key. So the next stream must begin with a new
            // snapshot.
            let is_rehashed = matches!(error, StreamError::InvalidMessage(MessageError::AgentHashKeyChanged));
            let is_withdrawn = is_key_unknown && self.withdraw_copy();
            stream_state = if is_withdrawn || is_rehashed {
                StreamState::resume(None, self.max_staleness)
            } else {
                stream_state.into_next_stream()
            };
            tokio::select! {
                () = shutdown.requested() => return,
                view = copied_view(&mut copy) => stream_state = self.start_from_copy(view),
                () = sleep(wait) => {}
            }
        }
    }

    /// Publishes the view on disk. Returns the state of a stream that resumes at the revision of this view.
    fn start_from_copy(&mut self, view: Arc<View>) -> StreamState {
        let (service, revision) = (view.service(), view.revision());
        self.metrics.init_service(service);
        self.views.publish(self.key, &view);
        if let Some(copy) = &self.target.copy {
            copy.opened(revision);
        }
        self.metrics.view_published(service, revision, view.agent_count());
        if let Some(age) = view.age(self.target.clock.since_boot()) {
            self.metrics.view_confirmed(service, self.target.clock.now().saturating_sub(age));
        }
        self.record_use_of_copy(service);
        self.readiness_guard = None;
        let (key, limit_seconds) = (self.key.0, view.max_staleness().as_secs());
        tracing::warn!(key, %service, %revision, limit_seconds, "no contact with the control plane: the copy of the view is used");
        StreamState::resume(Some(view), self.max_staleness)
    }

    /// Stops using the view on disk, because no address of the control plane knows the API key. Returns whether it was in use.
    fn withdraw_copy(&mut self) -> bool {
        let Some(view) = self.views.mark_key_unknown(self.key) else { return false };
        let (key, service) = (self.key.0, view.service());
        tracing::error!(key, %service, "the copy of the view is not used any more: the control plane refuses the API key");
        self.metrics.copies.rejected(CopyRejection::KeyRefused);
        self.metrics.copies.in_use(service, false);
        self.await_first_view();
        true
    }

    /// Records whether the checks of a service are decided with a copy.
    fn record_use_of_copy(&self, service: ServiceId) {
        let view = self.views.resolve(Some(service));
        self.metrics.copies.in_use(service, view.is_ok_and(|view| view.is_restored()));
    }

    /// Counts and logs the loss of a stream, or the failure to open one. `last_service` is the service whose data was
    /// received last. `is_key_replaced`: the next attempt has another API key.
    fn report(&mut self, error: &StreamError, last_service: Option<ServiceId>, is_key_replaced: bool) {
        let disconnected = self.connected_service.take();
        match disconnected {
            Some(service) => self.metrics.stream_lost(service),
            None => self.metrics.connect_failed(last_service),
        }
        let service = last_service.map(|service| service.to_string());
        let (key, url, code) = (self.key.0, self.url(), error.code());
        if code == Some(Code::Unauthenticated) && is_key_replaced {
            tracing::info!(
                key,
                service,
                url,
                "the stream of the replaced API key has ended; reconnecting with the new key"
            );
            return;
        }
        if code.is_some_and(is_refusal) {
            self.views.mark_key_refused(self.key);
            // If one key is refused, a new sidecar becomes ready for its other services.
            if self.views.serves_any() && self.readiness_guard.take().is_some() {
                tracing::warn!(key, "ready without this API key, because the control plane refuses it");
            }
        }
        if code == Some(Code::Unauthenticated) {
            tracing::error!(
                key,
                service,
                url,
                "the control plane refuses the API key: the key is unknown or revoked, or its service is deleted"
            );
        } else if error.serves_unusable_data() || error.speaks_other_version() {
            tracing::error!(key, service, url, %error, "the stream at this address cannot be used");
        } else if disconnected.is_some() {
            tracing::warn!(key, service, url, %error, "lost the sync stream; reconnecting");
        } else {
            tracing::warn!(key, service, url, %error, "cannot open the sync stream; retrying");
        }
    }

    /// Moves on to the next address after the end of a stream. Returns the wait before the next attempt.
    fn move_on(&mut self, error: &StreamError, stream_state: &StreamState) -> Duration {
        let wait = self.addresses.lost(stream_state.was_confirmed());
        if self.addresses.has_alternatives() {
            self.metrics.addresses.failed_over(stream_state.view().map(|view| view.service()), error.reason());
            tracing::info!(key = self.key.0, url = self.url(), ?wait, "the next address of the control plane is tried");
        }
        wait
    }

    /// Receives a stream at the current address until shutdown is requested.
    async fn follow(&mut self, stream_state: &mut StreamState, shutdown: &Shutdown) -> Result<(), StreamError> {
        if self.must_keep_view(stream_state) {
            stream_state.keep_view_of_other_address();
        }
        self.streams += 1;
        let opened = SyncConnection::open(&self.target, self.addresses.current(), self.streams, stream_state);
        let Some(opened) = shutdown.run_until_requested(opened).await else { return Ok(()) };
        let mut connection = opened?;
        loop {
            tokio::select! {
                () = shutdown.requested() => {
                    connection.leave().await;
                    return Ok(());
                }
                update = connection.next(stream_state) => {
                    let update = update?;
                    let is_new_data = matches!(update, ViewUpdate::View(_));
                    self.publish(update);
                    if is_new_data {
                        connection.report_published(stream_state);
                    }
                }
            }
        }
    }

    /// Whether the stream at the current address must not replace the view by older data: another address confirmed the view, and
    /// the view still decides. Once the view is too old, any data is better. We do not know which address confirmed a view on disk,
    /// so each of several addresses counts as another one.
    fn must_keep_view(&self, stream_state: &StreamState) -> bool {
        let Some(view) = stream_state.view() else { return false };
        let is_other = match self.view_address {
            Some(address) => address != self.addresses.current(),
            None => view.is_restored() && self.addresses.has_alternatives(),
        };
        let now = self.target.clock.since_boot();
        is_other && view.confirmed_at().is_some_and(|at| now.saturating_sub(at) < view.max_staleness())
    }

    fn url(&self) -> String {
        let endpoints = self.target.endpoints.load();
        endpoints.get(self.addresses.current()).map(|endpoint| endpoint.uri().to_string()).unwrap_or_default()
    }

    fn publish(&mut self, update: ViewUpdate) {
        let (view, ping_sent_at) = match update {
            ViewUpdate::View(view) => (view, None),
            ViewUpdate::Confirmed(view, ping_sent_at) => (view, Some(ping_sent_at)),
            ViewUpdate::NoChange => return,
        };
        let service = view.service();
        self.metrics.init_service(service);
        let earlier = self.views.of_key(self.key);
        self.views.publish(self.key, &view);
        if let Some(copy) = &self.target.copy
            && earlier.is_some_and(|earlier| view.revision() < earlier.revision())
        {
            copy.older_data_published();
        }
        self.metrics.view_published(service, view.revision(), view.agent_count());
        if self.connected_service.replace(service).is_none() {
            self.metrics.stream_opened(service);
            self.metrics.addresses.in_use(service, self.addresses.current());
        }
        self.record_use_of_copy(service);
        if let Some(ping_sent_at) = ping_sent_at {
            self.view_address = Some(self.addresses.current());
            let (now, since_boot) = (self.target.clock.now(), self.target.clock.since_boot());
            self.metrics.view_confirmed(service, now.saturating_sub(since_boot.saturating_sub(ping_sent_at)));
            if let Some(server_clock) = view.server_clock() {
                self.metrics.clock_offset(service, now.micros() - server_clock.now(since_boot).micros());
            }
            if self.readiness_guard.take().is_some() {
                tracing::info!(key = self.key.0, %service, revision = %view.revision(), "the first view is confirmed");
            }
        }
    }
}

/// Waits for the view on disk; never returns if there is none.
async fn copied_view(copy: &mut Option<FutureView>) -> Arc<View> {
    if let Some(waiting) = copy {
        let view = waiting.await;
        *copy = None;
        if let Some(view) = view {
            return view;
        }
    }
    future::pending().await
}
