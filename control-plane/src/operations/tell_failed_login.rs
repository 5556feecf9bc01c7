//! Tell webhooks that a login was refused. Who tries keys in a storm must not make us write as often: the first are
//! written, the rest are counted, by this process at first and together in the database.

use super::{Context, Denied};
use crate::{
    domain::webhook::{
        event::{AuthenticationFailed, Concerns, Event, EventKind, Failure, News},
        suppressed_burst::{Storm, WINDOW},
    },
    store::{Write, outbox},
};
use countersign_identity::{AgentId, EventId, ServiceId, Timestamp};
use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// After a storm is over, every process has so much time to say what it counted.
const GRACE: Duration = Duration::from_secs(3);

/// Whose failures are counted together.
type Who = (AgentId, Option<ServiceId>);

/// What this process counts, of storms in which nothing more is told one by one.
#[derive(Default)]
pub struct Storms(Mutex<HashMap<Who, Counted>>);

/// What was counted since it was last said.
struct Counted {
    until: Timestamp,
    count: u64,
}

impl Storms {
    /// Counts a failure, if none are told one by one any more.
    fn count(&self, who: Who, now: Timestamp) -> bool {
        let mut storms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = storms.get_mut(&who).filter(|counted| now < counted.until);
        counted.map(|counted| counted.count += 1).is_some()
    }

    /// From now on failures are counted, until the storm is over.
    fn begin(&self, who: Who, until: Timestamp) {
        let mut storms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        storms.entry(who).or_insert(Counted { until, count: 0 }).until = until;
    }

    /// What was counted, in one order for everybody.
    fn counted(&self) -> Vec<(Who, u64)> {
        let storms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = storms.iter().filter(|(_, counted)| counted.count > 0);
        let mut counted: Vec<_> = counted.map(|(who, counted)| (*who, counted.count)).collect();
        counted.sort_unstable();
        counted
    }

    /// So many were said; what is over is forgotten.
    fn said(&self, said: &[(Who, u64)], now: Timestamp) {
        let mut storms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (who, count) in said {
            if let Some(counted) = storms.get_mut(who) {
                counted.count = counted.count.saturating_sub(*count);
            }
        }
        storms.retain(|_, counted| counted.count > 0 || now < counted.until);
    }
}

/// Why a login was refused, if that is for webhooks to know.
pub(super) const fn failure_of(denied: &Denied) -> Option<Failure> {
    match denied {
        Denied::Refused(refusal) => Some(Failure::Refused(refusal.reason)),
        Denied::InvalidSignature => Some(Failure::InvalidSignature),
        Denied::Missing(_)
        | Denied::Conflict(_)
        | Denied::KeyReused
        | Denied::Invalid { .. }
        | Denied::Store(_)
        | Denied::Keyring(_) => None,
    }
}

/// Tells of a refused login. The refusal stands, whatever comes of this.
pub(super) async fn tell_failed_login(context: &Context, who: Who, failure: Failure, from: Option<IpAddr>) {
    if let Err(error) = tell(context, who, failure, from).await {
        tracing::warn!(%error, "webhooks could not be told of a refused login");
    }
}

async fn tell(context: &Context, who: Who, failure: Failure, from: Option<IpAddr>) -> Result<(), Denied> {
    let (now, concerns) = (context.now(), Concerns::of(who.0, who.1));
    if context.storms.count(who, now) {
        return Ok(());
    }
    let mut read = context.store.read().await?;
    if !outbox::is_wanted(read.conn(), EventKind::AuthenticationFailed, concerns, now).await? {
        return Ok(());
    }
    drop(read);
    let id = context.fresh(EventId::from_bits);
    let work = async |mut tx: Write| {
        let mut storm = current(&mut tx, context, who).await?;
        if storm.hear() {
            let news = news(who, failure, from, None);
            let at = tx.now();
            tx.tell(Event { id, at, news });
        }
        outbox::put_storm(tx.conn(), who.0, who.1, &storm).await?;
        Ok::<_, Denied>(tx.commit(storm).await?)
    };
    let storm = context.store.write("tell_failed_login", work).await?;
    if storm.is_full() {
        context.storms.begin(who, storm.ends_at());
    }
    Ok(())
}

/// Says what this process has counted, and tells of the storms that are over.
pub async fn settle_storms(context: &Context) -> Result<(), Denied> {
    let counted = &context.storms.counted();
    if !counted.is_empty() {
        let work = async |mut tx: Write| {
            let now = tx.now();
            for (who, count) in counted {
                // Not a new one, if it is over: what was counted belongs to it.
                let mut storm = outbox::storm(tx.conn(), who.0, who.1, now).await?;
                storm.suppressed += count;
                outbox::put_storm(tx.conn(), who.0, who.1, &storm).await?;
            }
            Ok::<_, Denied>(tx.commit(()).await?)
        };
        context.store.write("count_failed_logins", work).await?;
    }
    context.storms.said(counted, context.now());
    let horizon = context.now().before(WINDOW + GRACE);
    if !outbox::any_storm_until(context.store.read().await?.conn(), horizon).await? {
        return Ok(());
    }
    let work = async |mut tx: Write| {
        for (agent, service, storm) in outbox::take_storms(tx.conn(), horizon).await? {
            sum_up(&mut tx, context, (agent, service), &storm);
        }
        Ok::<_, Denied>(tx.commit(()).await?)
    };
    context.store.write("settle_storms", work).await
}

/// The storm that a failure belongs to now; one that is over is told of and followed by another.
async fn current(tx: &mut Write, context: &Context, who: Who) -> Result<Storm, Denied> {
    let now = tx.now();
    let storm = outbox::storm(tx.conn(), who.0, who.1, now).await?;
    if !storm.is_over(now) {
        return Ok(storm);
    }
    sum_up(tx, context, who, &storm);
    Ok(Storm::new(now))
}

fn sum_up(tx: &mut Write, context: &Context, who: Who, storm: &Storm) {
    if storm.suppressed > 0 {
        let news = news(who, Failure::Suppressed, None, Some(storm.suppressed));
        tx.tell(Event { id: context.fresh(EventId::from_bits), at: storm.ends_at(), news });
    }
}

const fn news(
    (agent_id, service_id): Who,
    reason: Failure,
    ip_address: Option<IpAddr>,
    suppressed: Option<u64>,
) -> News {
    News::AuthenticationFailed(AuthenticationFailed { agent_id, service_id, reason, ip_address, suppressed })
}
