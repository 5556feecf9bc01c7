//! Keeps one stream going: connect, follow, and begin again where it ended.

use super::{
    decode::MessageError,
    session::{News, Session, Silent},
};
use crate::{
    metrics::Metrics,
    view::{Slot, Views},
};
use backon::{BackoffBuilder, ExponentialBuilder};
use countersign_identity::ServiceId;
use countersign_process::{Clock, ReadinessGuard, Shutdown};
use countersign_proto::v1::{FollowRequest, sync_client::SyncClient};
use std::{convert::Infallible, error::Error, sync::Arc, time::Duration};
use tokio::{
    sync::mpsc,
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Request, Status, Streaming,
    metadata::{Ascii, MetadataValue},
    transport::Endpoint,
};

/// The waits between attempts grow from the first to the second, and jitter doubles either at most.
const WAITS: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// The largest message that is read. Pages are far smaller.
const MAX_MESSAGE: usize = 16 * 1024 * 1024;

/// Requests on their way: a Hello and as many pings as may be unanswered fit.
const OUTBOX: usize = 8;

/// Whom to follow.
#[derive(Debug, Clone)]
pub struct Target {
    /// The control plane.
    pub endpoint: Endpoint,
    /// `Bearer` and the API key, marked as sensitive.
    pub authorization: MetadataValue<Ascii>,
}

/// Follows the stream of one API key.
pub struct Follower {
    /// Where its views are put.
    pub slot: Slot,
    /// Whom to follow.
    pub target: Target,
    /// Seconds between confirmations.
    pub ping_every: Duration,
    /// Stricter than what the control plane says, if it is.
    pub max_staleness: Option<Duration>,
    /// Where views are put.
    pub views: Arc<Views>,
    /// Counts what happens.
    pub metrics: Arc<Metrics>,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Dropped when the first view is confirmed.
    pub unready: Option<ReadinessGuard>,
    /// The service of the stream that is being followed, once it has brought something.
    pub following: Option<ServiceId>,
}

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("no connection: {0}")]
    Unreachable(String),
    #[error("{:?}: {}", .0.code(), .0.message())]
    Refused(#[from] Status),
    #[error("the message was refused: {0}")]
    Unreadable(#[from] MessageError),
    #[error("{0}")]
    Silent(#[from] Silent),
    #[error("no answer in time")]
    Slow,
    #[error("the control plane ended the stream")]
    Closed,
}

impl Follower {
    /// Follows until the process is asked to stop.
    pub async fn run(mut self, shutdown: Shutdown) {
        let mut waits = waits();
        let mut view = None;
        loop {
            let mut session = Session::resume(view, self.max_staleness);
            let ended = tokio::select! {
                () = shutdown.requested() => return,
                Err(ended) = self.follow(&mut session) => ended,
            };
            view = session.view();
            self.lost(&ended);
            if session.was_confirmed() {
                waits = self::waits();
            }
            tokio::select! {
                () = shutdown.requested() => return,
                () = sleep(waits.next().unwrap_or(WAITS.1)) => {}
            }
        }
    }

    fn lost(&mut self, ended: &Ended) {
        self.metrics.reconnecting();
        let service = self.following.take();
        if let Some(service) = service {
            self.metrics.stream_ended(service);
        }
        let service = service.map(|service| service.to_string());
        let key = self.slot.0;
        if matches!(ended, Ended::Refused(status) if status.code() == Code::Unauthenticated) {
            tracing::error!(key, service, "the control plane refuses the API key: is it revoked?");
        } else {
            tracing::warn!(key, service, error = %ended, "the stream ended");
        }
    }

    async fn follow(&mut self, session: &mut Session) -> Result<Infallible, Ended> {
        let (outbox, requests) = mpsc::channel(OUTBOX);
        outbox.try_send(session.hello()).map_err(|_| Ended::Closed)?;
        outbox.try_send(session.ping(self.clock.since_boot())?).map_err(|_| Ended::Closed)?;
        let opened = timeout(self.ping_every * 3, self.open(requests)).await;
        let mut stream = opened.map_err(|_| Ended::Slow)??;
        let mut ticks = interval(self.ping_every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        loop {
            tokio::select! {
                message = stream.message() => {
                    let news = session.take(message?.ok_or(Ended::Closed)?)?;
                    self.publish(news);
                }
                _ = ticks.tick() => {
                    outbox.try_send(session.ping(self.clock.since_boot())?).map_err(|_| Ended::Closed)?;
                }
            }
        }
    }

    /// A new connection each time, so that a name is looked up again and a dead peer is not held on to.
    async fn open(
        &self,
        requests: mpsc::Receiver<FollowRequest>,
    ) -> Result<Streaming<countersign_proto::v1::FollowResponse>, Ended> {
        let channel = self.target.endpoint.connect().await.map_err(|error| Ended::Unreachable(chain(&error)))?;
        let mut request = Request::new(ReceiverStream::new(requests));
        request.metadata_mut().insert("authorization", self.target.authorization.clone());
        let mut client = SyncClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        Ok(client.follow(request).await?.into_inner())
    }

    fn publish(&mut self, news: News) {
        let (view, asked_at) = match news {
            News::View(view) => (view, None),
            News::Confirmed(view, asked_at) => (view, Some(asked_at)),
            News::Nothing => return,
        };
        let service = view.service();
        self.metrics.service_known(service);
        self.views.publish(self.slot, &view);
        self.metrics.published(service, view.revision(), view.remembered_agents());
        if self.following.replace(service).is_none() {
            self.metrics.stream_begun(service);
        }
        if let Some(asked_at) = asked_at {
            let age = self.clock.since_boot().saturating_sub(asked_at);
            self.metrics.confirmed(service, self.clock.now().saturating_sub(age));
            if self.unready.take().is_some() {
                tracing::info!(key = self.slot.0, %service, revision = %view.revision(), "the first view is in");
            }
        }
    }
}

fn waits() -> impl Iterator<Item = Duration> {
    let (least, most) = WAITS;
    ExponentialBuilder::new().with_jitter().with_min_delay(least).with_max_delay(most).without_max_times().build()
}

/// The transport's errors say what happened in their sources only.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
