//! Takes events out of the queue, sends them, and keeps what came of it: one loop, in which nobody waits for a receiver.
//!
//! A turn of the loop is one transaction: it keeps what came of the tries that ended, and takes what is due. What is
//! taken is leased: whoever is killed meanwhile has lost nothing, for the lease ends and another takes it.

mod ledger;
mod shares;

use super::{
    Pulse,
    lane::Lane,
    post::{Letter, Post, Posted},
};
use crate::{
    domain::webhook::{
        delivery::{Attempt, AttemptFailure, DeliveryState, DeliveryStatus, Schedule},
        secret::WebhookSecret,
        url::TargetUrl,
    },
    keyring::Keyring,
    metrics::WebhookMetrics,
    store::{Store, StoreError, deliveries::Leased},
};
use countersign_identity::{Timestamp, WebhookId};
use countersign_process::{Clock, Rng, Shutdown};
use ledger::{Kept, Taken};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};
use tokio::task::JoinSet;

/// How often the queue is looked at although nobody in this process put anything into it.
const POLL: Duration = Duration::from_secs(1);

/// Between two turns at the least, so that what ends together is kept together.
const PAUSE: Duration = Duration::from_millis(5);

/// After a failure of the database.
const RECOVERY: Duration = Duration::from_secs(1);

/// Beyond the time of a try, a lease lasts so much longer.
const MARGIN: Duration = Duration::from_secs(20);

/// Before the lease ends, this is left for keeping what came of a try.
const KEEPING: Duration = Duration::from_secs(5);

/// For each try that a target may have under way, so many are taken, so that a fast one is not kept waiting.
pub(super) const AHEAD: usize = 2;

/// When a stop is asked for, what is under way has so much time.
const LAST_TRIES: Duration = Duration::from_secs(3);

/// What the operator decided.
#[derive(Debug, Clone)]
pub struct CourierRules {
    /// When a delivery is tried again.
    pub schedule: Schedule,
    /// How long a try may take.
    pub patience: Duration,
    /// Tries at a time, all together.
    pub widest: usize,
    /// Tries at a time, for one target.
    pub widest_lane: usize,
}

/// What the courier works with.
pub struct Courier {
    /// The queue.
    pub store: Store,
    /// Opens the secrets of targets.
    pub keyring: Arc<Keyring>,
    /// Sends.
    pub post: Arc<Post>,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// The dice.
    pub rng: Arc<dyn Rng>,
    /// What the operator decided.
    pub rules: CourierRules,
    /// Where it shows that it lives.
    pub pulse: Arc<Pulse>,
    /// Where it counts.
    pub metrics: WebhookMetrics,
}

/// Where a target is and what signs for it, as it was when something was taken for it.
struct Addressee {
    url: TargetUrl,
    secrets: Vec<WebhookSecret>,
}

/// A try that ended.
struct Tried {
    leased: Leased,
    addressee: Arc<Addressee>,
    /// On the boot-time clock.
    began: Duration,
    at: Timestamp,
    posted: Posted,
}

/// The courier on its way.
struct Round {
    courier: Courier,
    lanes: HashMap<WebhookId, Lane>,
    addressees: HashMap<WebhookId, Arc<Addressee>>,
    tests: VecDeque<Leased>,
    /// Targets that a test was taken for.
    tested: HashSet<WebhookId>,
    under_way: JoinSet<Tried>,
    /// What came of tries, and is not in the database yet.
    unkept: Vec<Kept>,
    /// What was taken and is not sent now after all.
    unsent: Vec<Leased>,
}

impl Courier {
    /// Delivers until the process is asked to stop.
    pub async fn run(self, shutdown: Shutdown) {
        let pulse = self.pulse.clone();
        let mut round = Round {
            courier: self,
            lanes: HashMap::new(),
            addressees: HashMap::new(),
            tests: VecDeque::new(),
            tested: HashSet::new(),
            under_way: JoinSet::new(),
            unkept: Vec::new(),
            unsent: Vec::new(),
        };
        loop {
            let mut wait = round.until_next();
            if let Err(error) = round.turn().await {
                tracing::warn!(%error, "events could not be taken out of the queue; trying again in a second");
                wait = RECOVERY;
            }
            tokio::select! {
                () = shutdown.requested() => break,
                () = pulse.rung() => {}
                Some(ended) = round.under_way.join_next() => round.ended(ended),
                () = tokio::time::sleep(wait) => {}
            }
            tokio::time::sleep(PAUSE).await;
            round.all_ended();
        }
        round.stop().await;
    }
}

impl Round {
    /// Keeps what came of the last tries, takes what is due, and sends it.
    async fn turn(&mut self) -> Result<(), StoreError> {
        let wanted = self.wanted().await?;
        if !wanted.is_empty() || !self.unkept.is_empty() || !self.unsent.is_empty() {
            let now = self.courier.clock.now();
            let until = now.saturating_add(self.courier.rules.patience + MARGIN);
            let taken = ledger::turn(&self.courier, (&self.unkept, &self.unsent), &wanted, (now, until)).await?;
            self.unkept.clear();
            self.unsent.clear();
            for taken in taken {
                self.take_in(taken);
            }
        }
        self.courier.pulse.beat();
        self.send_all();
        Ok(())
    }

    /// Sends a target nothing more of what was taken for it, for now.
    fn leave(&mut self, target: WebhookId) {
        if let Some(lane) = self.lanes.get_mut(&target) {
            self.unsent.extend(lane.give_back());
        }
    }

    fn take_in(&mut self, taken: Taken) {
        let Taken { target, secrets, leased } = taken;
        let (tests, due): (Vec<_>, Vec<_>) = leased.into_iter().partition(|leased| leased.is_test);
        self.addressees.insert(target.id, Arc::new(Addressee { url: target.url, secrets }));
        self.tested.extend(tests.iter().map(|test| test.target));
        self.tests.extend(tests);
        if !due.is_empty() {
            self.lanes.entry(target.id).or_insert_with(Lane::new).take_in(due);
        }
    }

    fn has_room(&self) -> bool {
        self.under_way.len() < self.courier.rules.widest
    }

    fn send(&mut self, leased: Leased) {
        let (clock, now) = (self.courier.clock.clone(), self.courier.clock.now());
        let addressee = self.addressees.get(&leased.target).cloned();
        let in_time = now.saturating_add(self.courier.rules.patience + KEEPING) <= leased.until;
        let Some(addressee) = addressee.filter(|_| in_time) else {
            // Taken too long ago: another may have it by the time it is sent.
            return self.forgo(&leased);
        };
        let post = self.courier.post.clone();
        let seconds = self.courier.metrics.seconds.clone();
        self.under_way.spawn(async move {
            let began = clock.since_boot();
            let Addressee { url, secrets } = addressee.as_ref();
            let letter = Letter { event: leased.event, now, body: &leased.body, secrets };
            let posted = post.send(url, letter).await;
            seconds.observe(clock.since_boot().saturating_sub(began).as_secs_f64());
            Tried { leased, addressee, began, at: clock.now(), posted }
        });
    }

    fn forgo(&mut self, leased: &Leased) {
        if leased.is_test {
            self.tested.remove(&leased.target);
        } else if let Some(lane) = self.lanes.get_mut(&leased.target) {
            lane.let_go();
        }
    }

    fn all_ended(&mut self) {
        while let Some(ended) = self.under_way.try_join_next() {
            self.ended(ended);
        }
    }

    /// Decides what becomes of a delivery after a try.
    fn ended(&mut self, ended: Result<Tried, tokio::task::JoinError>) {
        let Tried { leased, addressee, began, at, posted } = match ended {
            Ok(tried) => tried,
            Err(error) => return tracing::error!(%error, "a try ended without an outcome"),
        };
        let Posted { answer, failure, retry_after } = posted;
        let (boot, dice) = (self.courier.clock.since_boot(), self.dice());
        let again = || self.courier.rules.schedule.next(leased.attempts + 1, at, retry_after, dice);
        let state = match failure {
            None => DeliveryState::Delivered,
            Some(AttemptFailure::Gone) => DeliveryState::Dead,
            Some(_) if leased.is_test => DeliveryState::Dead,
            Some(_) => again().map_or(DeliveryState::Dead, DeliveryState::Pending),
        };
        let ended = state.status() != DeliveryStatus::Pending;
        self.courier.metrics.record_attempt(failure.map(AttemptFailure::as_str), ended);
        let mut was_failing = false;
        if leased.is_test {
            self.tested.remove(&leased.target);
        } else if let Some(lane) = self.lanes.get_mut(&leased.target) {
            was_failing = std::mem::replace(&mut lane.noted_as_failing, failure.is_some());
            match failure {
                None => lane.succeeded(self.courier.rules.widest_lane),
                Some(_) => lane.failed((began, boot), retry_after, dice),
            }
            if failure == Some(AttemptFailure::Gone) || lane.rests_until(boot).is_some() {
                self.unsent.extend(lane.give_back());
            }
        }
        let (attempt, url) = (Attempt { at, answer, failure }, addressee.url.clone());
        self.unkept.push(Kept { leased, attempt, state, url, was_failing });
    }

    fn dice(&self) -> u32 {
        let mut bytes = [0; 4];
        self.courier.rng.fill(&mut bytes);
        u32::from_ne_bytes(bytes)
    }

    /// Until something can be sent again that nobody tells of.
    fn until_next(&self) -> Duration {
        let boot = self.courier.clock.since_boot();
        let rests = self.lanes.values().filter_map(|lane| lane.rests_until(boot));
        rests.min().map_or(POLL, |until| until.saturating_sub(boot).min(POLL))
    }

    /// Lets what is under way end, if that does not take long, and gives the rest back.
    async fn stop(mut self) {
        let last = async {
            while let Some(ended) = self.under_way.join_next().await {
                self.ended(ended);
            }
        };
        let _in_time = tokio::time::timeout(LAST_TRIES, last).await;
        self.unsent.extend(self.lanes.values_mut().flat_map(Lane::give_back).chain(self.tests.drain(..)));
        if let Err(error) = ledger::close(&self.courier, &self.unkept, &self.unsent).await {
            tracing::warn!(%error, "what came of the last deliveries could not be kept: they are made once more");
        }
    }
}
