//! Runs the sync client and the writer of the copy of each API key. Starts and stops them when the file of the API keys changes.

use super::{
    AuthorizerError,
    copies::{Copies, CopyOfKey},
};
use crate::{
    copy::CopyWriter,
    metrics::Metrics,
    sync::{AddressPlan, Authorization, FutureView, Instance, ProcessIdentity, StreamClient, SyncTarget},
    view::{ApiKeyIndex, Views},
};
use arc_swap::ArcSwap;
use countersign_process::{Clock, Readiness, Rng, Shutdown};
use std::{collections::HashMap, sync::Arc, time::Duration};
use tokio::{sync::mpsc, task::JoinSet};
use tonic::transport::Endpoint;

/// Creates the task of an API key.
pub struct KeyTaskFactory {
    pub endpoints: Arc<ArcSwap<Vec<Endpoint>>>,
    pub copies: Copies,
    pub instance: Instance,
    pub ping_interval: Duration,
    /// The maximum staleness in the settings.
    pub staleness_limit: Option<Duration>,
    pub views: Arc<Views>,
    pub metrics: Arc<Metrics>,
    pub readiness: Readiness,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
}

/// The sync client of an API key, and the writer of its copy.
pub struct KeyTask {
    client: StreamClient,
    /// Opens the copy from which the client may start; `None` if the sidecar uses no copies.
    copy: Option<FutureView>,
    writer: Option<CopyWriter>,
}

impl KeyTaskFactory {
    /// The task of an API key that the settings contain at the start. The sidecar is not ready before the key has a view.
    pub fn create_at_start(&self, key: ApiKeyIndex, authorization: &Authorization) -> KeyTask {
        let mut task = self.create(key, authorization);
        task.client.await_first_view();
        task
    }

    /// The task of an API key that is added while the sidecar runs. The control plane knows this key, so no copy is needed. The sidecar is
    /// not ready before the key has a view if it has no other view: then it was not ready before.
    pub fn create_later(&self, key: ApiKeyIndex, authorization: &Authorization) -> KeyTask {
        let mut task = self.create(key, authorization);
        if !self.views.serves_any() {
            task.client.await_first_view();
        }
        KeyTask { copy: None, ..task }
    }

    fn create(&self, key: ApiKeyIndex, authorization: &Authorization) -> KeyTask {
        let CopyOfKey { at_start, writer, progress, previous } = self.copies.of_key(key, authorization);
        let target = SyncTarget {
            endpoints: Arc::clone(&self.endpoints),
            authorization: Arc::clone(authorization),
            identity: ProcessIdentity { instance: self.instance.of_key(key), previous },
            copy: progress,
            ping_interval: self.ping_interval,
            clock: Arc::clone(&self.clock),
        };
        let addresses = AddressPlan::new(self.endpoints.load().len(), Arc::clone(&self.rng));
        let (views, metrics) = (Arc::clone(&self.views), Arc::clone(&self.metrics));
        let readiness = self.readiness.clone();
        let client = StreamClient::new(key, target, addresses, self.staleness_limit, views, metrics, readiness);
        KeyTask { client, copy: at_start, writer }
    }
}

impl KeyTask {
    /// Runs until `stop`, and then writes the last copy. At the end, a client without a copy tells the control plane that it no longer
    /// decides. No copy may be made after that, so the writer stops first.
    async fn run(self, stop: Shutdown) {
        let Self { client, copy, writer } = self;
        let stop_client = Shutdown::default();
        let write = async {
            match writer {
                Some(writer) => writer.run(stop.clone()).await,
                None => stop.requested().await,
            }
            stop_client.trigger();
        };
        tokio::join!(client.run(copy, stop_client.clone()), write);
    }
}

/// A change of the API keys in use.
pub enum KeyChange {
    Start(ApiKeyIndex, Box<KeyTask>),
    /// The key was removed.
    Stop(ApiKeyIndex),
}

/// The tasks of all API keys.
pub struct KeyTasks {
    at_start: Vec<(ApiKeyIndex, KeyTask)>,
    changes: mpsc::UnboundedReceiver<KeyChange>,
    views: Arc<Views>,
    metrics: Arc<Metrics>,
}

impl KeyTasks {
    /// The tasks of the API keys in the settings. Also returns the sender of changes.
    pub fn new(factory: &KeyTaskFactory, authorizations: &[Authorization]) -> (Self, mpsc::UnboundedSender<KeyChange>) {
        let (sender, changes) = mpsc::unbounded_channel();
        let keys = (0..).map(ApiKeyIndex).zip(authorizations);
        let at_start = keys.map(|(key, authorization)| (key, factory.create_at_start(key, authorization))).collect();
        let (views, metrics) = (Arc::clone(&factory.views), Arc::clone(&factory.metrics));
        (Self { at_start, changes, views, metrics }, sender)
    }

    /// Runs until `stop`. The caller triggers it after the last check, because the last checks need current data, too. Fails if a task
    /// panics: its view would become stale.
    pub async fn run(self, stop: Shutdown) -> Result<(), AuthorizerError> {
        let Self { at_start, mut changes, views, metrics } = self;
        let mut running = RunningKeys::default();
        for (key, task) in at_start {
            running.start(key, task);
        }
        loop {
            tokio::select! {
                () = stop.requested() => break,
                Some(change) = changes.recv() => match change {
                    KeyChange::Start(key, task) => running.start(key, *task),
                    KeyChange::Stop(key) => running.stop(key),
                },
                Some(ended) = running.tasks.join_next() => {
                    ended.map_err(std::io::Error::other)?;
                    // Only now, because the task of a removed key sets the gauges of its service until its end.
                    views.removed_services().into_iter().for_each(|service| metrics.forget_service(service));
                }
            }
        }
        running.stop_all();
        while let Some(ended) = running.tasks.join_next().await {
            ended.map_err(std::io::Error::other)?;
        }
        Ok(())
    }
}

#[derive(Default)]
struct RunningKeys {
    tasks: JoinSet<()>,
    stops: HashMap<ApiKeyIndex, Shutdown>,
}

impl RunningKeys {
    fn start(&mut self, key: ApiKeyIndex, task: KeyTask) {
        let stop = Shutdown::default();
        self.stops.insert(key, stop.clone());
        self.tasks.spawn(task.run(stop));
    }

    fn stop(&mut self, key: ApiKeyIndex) {
        self.stops.remove(&key).into_iter().for_each(|stop| stop.trigger());
    }

    fn stop_all(&mut self) {
        self.stops.drain().for_each(|(_, stop)| stop.trigger());
    }
}
