//! What the courier asks the queue for, and what it tells it.

use super::Courier;
use crate::{
    domain::{
        audit::{Act, Author, Entry, Object},
        webhook::{
            DISABLED_AFTER, DisabledReason, FORGIVEN_AFTER, Place, Target,
            delivery::{Attempt, AttemptFailure, DeliveryState},
            secret::WebhookSecret,
            url::TargetUrl,
        },
    },
    store::{
        Store, StoreError, Write,
        deliveries::{self, Leased, Which},
        webhook_targets,
    },
};
use countersign_identity::{Timestamp, WebhookId};
use std::collections::BTreeSet;

/// What is to be taken for a target.
pub(super) struct Wanted {
    target: Target,
    what: What,
}

enum What {
    /// So many that were never tried, and so many that were; if there are too few of the one, more of the other.
    Due { new: i64, again: i64 },
    /// One test.
    Test,
}

/// What there is to do.
pub(super) struct Looked {
    /// Targets that something is due for.
    pub due: Vec<Target>,
    /// Targets that a test is due for.
    pub tests: Vec<Target>,
    /// Of the targets that were asked about, when they were changed last; nothing, if nothing is delivered to them now.
    pub waiting: Vec<(WebhookId, Option<Timestamp>)>,
}

/// What was taken for a target.
pub(super) struct Taken {
    pub target: Target,
    pub secrets: Vec<WebhookSecret>,
    pub leased: Vec<Leased>,
}

/// What came of a try, to be kept.
pub(super) struct Kept {
    pub leased: Leased,
    pub attempt: Attempt,
    pub state: DeliveryState,
    /// Where it was sent to.
    pub url: TargetUrl,
    /// Whether its target was failing when it was last heard of.
    pub was_failing: bool,
}

/// A target that was disabled.
struct Disabled {
    place: Place,
    target: WebhookId,
    reason: DisabledReason,
}

impl Wanted {
    /// Half of it was tried before, half was not: neither what always fails nor what fails at first holds the other up.
    pub(super) fn due(target: Target, count: usize, rather_new: bool) -> Self {
        let new = if rather_new { count.div_ceil(2) } else { count / 2 };
        Self { target, what: What::Due { new: number(new), again: number(count - new) } }
    }

    pub(super) fn test(target: Target) -> Self {
        Self { target, what: What::Test }
    }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Looks what is due, and whether something is still to be sent to these.
pub(super) async fn look(store: &Store, waiting: Vec<WebhookId>, now: Timestamp) -> Result<Looked, StoreError> {
    let mut read = store.read().await?;
    let due = webhook_targets::due(read.conn(), now).await?;
    let tests = webhook_targets::due_tests(read.conn(), now).await?;
    let mut active = Vec::new();
    for target in waiting {
        active.push((target, webhook_targets::active_as_of(read.conn(), target).await?));
    }
    Ok(Looked { due, tests, waiting: active })
}

/// Keeps what came of tries, and takes what is wanted, until the lease ends.
pub(super) async fn turn(
    courier: &Courier,
    (kept, unsent): (&[Kept], &[Leased]),
    wanted: &[Wanted],
    (now, until): (Timestamp, Timestamp),
) -> Result<Vec<Taken>, StoreError> {
    let work = async |mut tx: Write| {
        hold_all(&mut tx, kept, wanted).await?;
        let disabled = keep_all(&mut tx, kept).await?;
        give_back_all(&mut tx, unsent).await?;
        let mut taken = Vec::new();
        for Wanted { target, what } in wanted {
            let Some(secrets) = open_secrets(&mut tx, courier, target, now).await? else { continue };
            let leased = take(&mut tx, target.id, what, (now, until)).await?;
            taken.push(Taken { target: target.clone(), secrets, leased });
        }
        record_all(&mut tx, disabled).await?;
        tx.commit(taken).await
    };
    courier.store.write("deliver", work).await
}

/// Keeps what came of the last tries, and gives back what was not sent.
pub(super) async fn close(courier: &Courier, kept: &[Kept], unsent: &[Leased]) -> Result<(), StoreError> {
    let work = async |mut tx: Write| {
        hold_all(&mut tx, kept, &[]).await?;
        let disabled = keep_all(&mut tx, kept).await?;
        give_back_all(&mut tx, unsent).await?;
        record_all(&mut tx, disabled).await?;
        tx.commit(()).await
    };
    courier.store.write("give_back", work).await
}

/// Takes what is wanted for a target, in turn what was never tried and what was.
async fn take(
    tx: &mut Write,
    target: WebhookId,
    what: &What,
    times: (Timestamp, Timestamp),
) -> Result<Vec<Leased>, StoreError> {
    let (new, again) = match what {
        What::Test => return deliveries::lease(tx.conn(), (target, Which::Tests), times, 1).await,
        What::Due { new, again } => (*new, *again),
    };
    let mut before = deliveries::lease(tx.conn(), (target, Which::Again), times, again).await?;
    let left = new + again - number(before.len());
    let fresh = deliveries::lease(tx.conn(), (target, Which::New), times, left).await?;
    let left = left - number(fresh.len());
    // Of what was tried before there are more only if there were enough.
    if left > 0 && number(before.len()) == again {
        before.extend(deliveries::lease(tx.conn(), (target, Which::Again), times, left).await?);
    }
    let (mut before, mut fresh) = (before.into_iter(), fresh.into_iter());
    let pairs = std::iter::from_fn(|| {
        let pair = [before.next(), fresh.next()];
        pair.iter().any(Option::is_some).then_some(pair)
    });
    Ok(pairs.flatten().flatten().collect())
}

async fn give_back_all(tx: &mut Write, unsent: &[Leased]) -> Result<(), StoreError> {
    let now = tx.now();
    for leased in unsent {
        deliveries::give_back(tx.conn(), leased, now).await?;
    }
    Ok(())
}

/// Holds the targets of all that follows, in the order that everybody keeps.
async fn hold_all(tx: &mut Write, kept: &[Kept], wanted: &[Wanted]) -> Result<(), StoreError> {
    let kept = kept.iter().map(|kept| kept.leased.target);
    let all: BTreeSet<_> = kept.chain(wanted.iter().map(|wanted| wanted.target.id)).collect();
    for target in all {
        webhook_targets::hold(tx.conn(), target).await?;
    }
    Ok(())
}

/// Keeps what came of tries; gives the targets that are disabled for it.
async fn keep_all(tx: &mut Write, kept: &[Kept]) -> Result<Vec<Disabled>, StoreError> {
    let mut disabled = Vec::new();
    for one in kept {
        let Kept { leased, attempt, state, url: _, was_failing } = one;
        let counts = deliveries::record(tx.conn(), leased, attempt, *state).await?;
        match attempt.failure {
            _ if leased.is_test || !counts => {}
            None if *was_failing => webhook_targets::set_well(tx.conn(), leased.target).await?,
            None => {}
            Some(failure) => disabled.extend(note_failure(tx, one, failure).await?),
        }
    }
    Ok(disabled)
}

/// A target that wants no more, or has failed for too long, is disabled.
async fn note_failure(tx: &mut Write, kept: &Kept, failure: AttemptFailure) -> Result<Option<Disabled>, StoreError> {
    let (target, at) = ((kept.leased.target, &kept.url), kept.attempt.at);
    webhook_targets::set_failing(tx.conn(), target, (at, at.before(FORGIVEN_AFTER))).await?;
    let reason = if failure == AttemptFailure::Gone { DisabledReason::Gone } else { DisabledReason::Failing };
    let place = webhook_targets::disable(tx.conn(), target, reason, (at, at.before(DISABLED_AFTER))).await?;
    Ok(place.map(|place| Disabled { place, target: target.0, reason }))
}

/// The links of the audit come last, as everywhere.
async fn record_all(tx: &mut Write, disabled: Vec<Disabled>) -> Result<(), StoreError> {
    let mut disabled: Vec<_> = disabled.into_iter().map(|one| (one.place.chain().to_string(), one)).collect();
    disabled.sort_by(|(one, _), (other, _)| one.cmp(other));
    for (_, Disabled { place, target, reason }) in disabled {
        tracing::warn!(webhook = %target, reason = reason.as_str(), "a webhook is disabled");
        let act = Entry::of(place.chain(), Act::WebhookDisabled).with(Object::Webhook(target));
        tx.record(&Author::SYSTEM, &act.saying("reason", reason.as_str())).await?;
    }
    Ok(())
}

/// What signs for a target; nothing if it does not open, which holds up no other target.
async fn open_secrets(
    tx: &mut Write,
    courier: &Courier,
    target: &Target,
    now: Timestamp,
) -> Result<Option<Vec<WebhookSecret>>, StoreError> {
    let Some(sealed) = webhook_targets::secrets(tx.conn(), target.id, now).await? else { return Ok(None) };
    let sealed = [Some(sealed.current), sealed.previous].into_iter().flatten();
    let opened: Option<Vec<_>> = sealed.map(|sealed| courier.keyring.open_webhook_secret(target.id, &sealed)).collect();
    if opened.is_none() {
        tracing::error!(webhook = %target.id, "the secret of a webhook does not open under this master key");
    }
    Ok(opened)
}
