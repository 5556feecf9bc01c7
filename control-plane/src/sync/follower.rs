//! One follower: a snapshot or a resumption, then changes as they commit, and answers to pings behind
//! the changes that these cover.

use super::{
    change_batch::{self, Content, Since},
    encode,
    service::{Shared, invalid_key, unavailable},
};
use crate::{
    domain::service::ServiceKey,
    store::{StoreError, feed, services},
};
use countersign_identity::Revision;
use countersign_proto::v1::{
    self, FollowRequest, FollowResponse, follow_request::Message as Asked, follow_response::Message as Told,
};
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::{
    sync::{broadcast, mpsc},
    time::{interval, timeout},
};
use tonic::{Status, Streaming};

/// How long a follower may take to say Hello, and may leave its queue full.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often the key of a follower that does not ping is looked at.
const RECHECK: Duration = Duration::from_secs(5);

/// Pings that may wait for their changes; a follower that asks for more is cut.
const MOST_PINGS: usize = 64;

/// What followers are told once.
#[derive(Debug, Clone)]
pub struct Terms {
    /// The `iss` of the tokens to believe.
    pub issuer: String,
    /// After this without a confirmed read a follower must refuse.
    pub max_staleness: Duration,
}

/// The task behind one stream.
pub(super) struct Follower {
    shared: Arc<Shared>,
    key: ServiceKey,
    sender: mpsc::Sender<Result<FollowResponse, Status>>,
    /// Everything up to here was sent.
    covered: Revision,
    pings: VecDeque<v1::Pong>,
}

impl Follower {
    pub(super) fn new(
        shared: Arc<Shared>,
        key: ServiceKey,
        sender: mpsc::Sender<Result<FollowResponse, Status>>,
    ) -> Self {
        Self { shared, key, sender, covered: Revision::default(), pings: VecDeque::new() }
    }

    /// Serves the stream to its end.
    pub(super) async fn run(mut self, requests: Streaming<FollowRequest>) {
        let streams = self.shared.metrics.sync_streams.clone();
        streams.inc();
        if let Err(status) = self.serve(requests).await {
            tracing::info!(service = %self.key.service, code = ?status.code(), message = status.message(), "follower cut");
            // The follower may be gone already.
            let _gone = self.sender.send_timeout(Err(status), PATIENCE).await;
        }
        streams.dec();
    }

    async fn serve(&mut self, mut requests: Streaming<FollowRequest>) -> Result<(), Status> {
        // Subscribed before anything is read, so that no change falls between the two.
        let mut batches = self.shared.feed.subscribe();
        let shutdown = self.shared.shutdown.clone();
        let revision = tokio::select! {
            () = shutdown.requested() => return Err(stopping()),
            hello = timeout(PATIENCE, hello(&mut requests)) => hello.map_err(|_| Status::deadline_exceeded("no Hello came"))??,
        };
        self.greet(revision).await?;
        let mut recheck = interval(RECHECK);
        loop {
            tokio::select! {
                () = shutdown.requested() => return Err(stopping()),
                asked = requests.message() => match asked? {
                    Some(FollowRequest { message: Some(Asked::Ping(ping)) }) => self.note_ping(ping.number).await?,
                    Some(_) => return Err(Status::invalid_argument("only Ping may follow Hello")),
                    None => return Ok(()),
                },
                batch = batches.recv() => match batch {
                    Ok(batch) => self.forward(&batch).await?,
                    Err(broadcast::error::RecvError::Lagged(_)) => return Err(too_slow()),
                    Err(broadcast::error::RecvError::Closed) => return Err(stopping()),
                },
                _ = recheck.tick() => self.check_key().await?,
            }
            self.answer_pings().await?;
        }
    }

    /// Brings the follower to the present: by what changed, if its revision is known, else by everything.
    async fn greet(&mut self, revision: Revision) -> Result<(), Status> {
        let service = self.key.service;
        let terms = &self.shared.terms;
        if let Some(content) = self.read(Since::Known(revision, service)).await? {
            for delta in encode::delta(&content, service, terms) {
                self.tell(Told::Delta(delta)).await?;
            }
            self.covered = content.revision;
            return Ok(());
        }
        let all =
            self.read(Since::Floor(service)).await?.ok_or_else(|| Status::internal("the floor is always known"))?;
        for page in encode::snapshot(&all, service, terms) {
            self.tell(Told::Snapshot(page)).await?;
        }
        self.covered = all.revision;
        Ok(())
    }

    /// Reads content for this follower alone. Few at a time: many that come back at once must not take all
    /// connections to the database from those who are being served.
    async fn read(&self, since: Since) -> Result<Option<Content>, Status> {
        let _turn = self.shared.greetings.acquire().await.map_err(|_| stopping())?;
        if self.sender.is_closed() {
            return Err(Status::cancelled("the follower has gone"));
        }
        change_batch::read(&self.shared.store, since).await.map_err(|error| unavailable(&error))
    }

    async fn forward(&mut self, batch: &Content) -> Result<(), Status> {
        if batch.revision <= self.covered {
            return Ok(());
        }
        if batch.since > self.covered {
            return Err(Status::unavailable("changes were missed: resume"));
        }
        for delta in encode::delta(batch, self.key.service, &self.shared.terms) {
            let revision = delta.revision.max(self.covered.number());
            self.tell(Told::Delta(v1::Delta { revision, ..delta })).await?;
        }
        self.covered = batch.revision;
        // A revision is an instant, or just above one.
        let age = self.shared.store.now().micros().saturating_sub(batch.revision.number());
        self.shared.metrics.propagation.observe(Duration::from_micros(u64::try_from(age).unwrap_or(0)).as_secs_f64());
        Ok(())
    }

    /// A revoked key follows no longer.
    async fn check_key(&self) -> Result<(), Status> {
        let found = async { services::find_key(self.shared.store.read().await?.conn(), self.key.id).await };
        found.await.map_err(|error: StoreError| unavailable(&error))?.map(drop).ok_or_else(invalid_key)
    }

    /// Reads where the feed stands now; the answer waits until all that it covers was sent.
    async fn note_ping(&mut self, number: u64) -> Result<(), Status> {
        self.check_key().await?;
        let position = async { feed::position(self.shared.store.read().await?.conn()).await };
        let position = position.await.map_err(|error: StoreError| unavailable(&error))?;
        self.pings.push_back(v1::Pong { number, revision: position.revision.number(), floor: position.floor.number() });
        if self.pings.len() > MOST_PINGS { Err(Status::resource_exhausted("too many pings")) } else { Ok(()) }
    }

    async fn answer_pings(&mut self) -> Result<(), Status> {
        while let Some(pong) = self.pings.pop_front_if(|pong| pong.revision <= self.covered.number()) {
            self.tell(Told::Pong(pong)).await?;
        }
        Ok(())
    }

    async fn tell(&self, message: Told) -> Result<(), Status> {
        let message = FollowResponse { message: Some(message) };
        let sent = self.sender.send_timeout(Ok(message), PATIENCE).await;
        sent.map_err(|_| too_slow())
    }
}

async fn hello(requests: &mut Streaming<FollowRequest>) -> Result<Revision, Status> {
    match requests.message().await? {
        Some(FollowRequest { message: Some(Asked::Hello(v1::Hello { revision })) }) => Ok(Revision::new(revision)),
        _ => Err(Status::invalid_argument("the stream must begin with Hello")),
    }
}

fn stopping() -> Status {
    Status::unavailable("the server stops")
}

fn too_slow() -> Status {
    Status::unavailable("too slow: resume")
}
