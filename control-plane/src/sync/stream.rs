//! One follower: a snapshot or a resumption, then changes as they commit, and answers to pings behind
//! the changes that these cover.

use super::{
    content::{self, Content, Since},
    encode,
    service::{Shared, find_key, invalid_key, unavailable},
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
use tokio::sync::{broadcast, mpsc};
use tonic::{Status, Streaming};

/// How long a follower may leave its queue full.
const PATIENCE: Duration = Duration::from_secs(10);

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
        let Some(FollowRequest { message: Some(Asked::Hello(hello)) }) = requests.message().await? else {
            return Err(Status::invalid_argument("the stream must begin with Hello"));
        };
        self.greet(Revision::new(hello.revision)).await?;
        let shutdown = self.shared.shutdown.clone();
        loop {
            tokio::select! {
                () = shutdown.asked() => return Err(Status::unavailable("the server stops")),
                asked = requests.message() => match asked? {
                    Some(FollowRequest { message: Some(Asked::Ping(ping)) }) => self.note_ping(ping.number).await?,
                    Some(_) => return Err(Status::invalid_argument("only Ping may follow Hello")),
                    None => return Ok(()),
                },
                batch = batches.recv() => match batch {
                    Ok(batch) => self.forward(&batch).await?,
                    Err(broadcast::error::RecvError::Lagged(_)) => return Err(Status::unavailable("too slow: resume")),
                    Err(broadcast::error::RecvError::Closed) => return Err(Status::unavailable("the server stops")),
                },
            }
            self.answer_pings().await?;
        }
    }

    /// Brings the follower to the present: by what changed, if its revision is known, else by everything.
    async fn greet(&mut self, revision: Revision) -> Result<(), Status> {
        let (store, service) = (&self.shared.store, self.key.service);
        let info = self.info().await?;
        let known = content::read(store, Since::Known(revision, service)).await.map_err(|error| unavailable(&error))?;
        if let Some(content) = known {
            let changed = encode::delta(&content, service).unwrap_or_default();
            let delta = v1::Delta { revision: content.revision.number(), info: Some(info), ..changed };
            self.tell(Told::Delta(delta)).await?;
            self.covered = content.revision;
            return Ok(());
        }
        let all = content::read(store, Since::Floor(service)).await.map_err(|error| unavailable(&error))?;
        let all = all.ok_or_else(|| Status::internal("the floor is always known"))?;
        for page in encode::snapshot(&all, service, info) {
            self.tell(Told::Snapshot(page)).await?;
        }
        self.covered = all.revision;
        Ok(())
    }

    async fn forward(&mut self, batch: &Content) -> Result<(), Status> {
        if batch.revision <= self.covered {
            return Ok(());
        }
        if let Some(delta) = encode::delta(batch, self.key.service) {
            self.tell(Told::Delta(delta)).await?;
        }
        self.covered = batch.revision;
        Ok(())
    }

    /// Reads where the feed stands now; the answer waits until all that it covers was sent.
    async fn note_ping(&mut self, number: u64) -> Result<(), Status> {
        let (store, key) = (&self.shared.store, self.key.id);
        // A revoked key stops following at its next ping.
        find_key(store, key).await.map_err(|error| unavailable(&error))?.ok_or_else(invalid_key)?;
        let position = async { feed::position(store.read().await?.conn()).await };
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

    async fn info(&self) -> Result<v1::ServiceInfo, Status> {
        let service = async { services::find(self.shared.store.read().await?.conn(), self.key.service).await };
        let service = service.await.map_err(|error: StoreError| unavailable(&error))?.ok_or_else(invalid_key)?;
        let Terms { issuer, max_staleness } = &self.shared.terms;
        Ok(v1::ServiceInfo {
            service_id: service.id.to_string(),
            issuer: issuer.clone(),
            accepts_unbound_tokens: service.accepts_unbound,
            max_staleness_seconds: u32::try_from(max_staleness.as_secs()).unwrap_or(u32::MAX),
        })
    }

    async fn tell(&self, message: Told) -> Result<(), Status> {
        let message = FollowResponse { message: Some(message) };
        let sent = self.sender.send_timeout(Ok(message), PATIENCE).await;
        sent.map_err(|_| Status::unavailable("too slow: resume"))
    }
}
