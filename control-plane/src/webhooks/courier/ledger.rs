//! What the courier asks the queue for, and what it tells it.

use super::Courier;
use crate::{
    domain::{
        audit::{Act, Author, Entry, Object},
        webhook::{
            DISABLED_AFTER, DisabledReason, Target,
            delivery::{Attempt, AttemptFailure, DeliveryState},
            secret::WebhookSecret,
        },
    },
    store::{
        Store, StoreError, Write,
        deliveries::{self, Leased, Which},
        webhook_targets,
    },
};
use countersign_identity::{Timestamp, WebhookId};

/// What is to be taken for a target.
pub(super) struct Wanted {
    target: Target,
    what: What,
}

enum What {
    /// So many that were never tried, and so many that were; if there are too few of the one, more of the other.
    Due { new: i64, again: i64 },
    /// So many tests.
    Tests(i64),
}

/// What there is to do.
pub(super) struct Looked {
    /// Targets that something is due for.
    pub due: Vec<Target>,
    /// Targets that a test is due for.
    pub tests: Vec<Target>,
    /// Of the targets that were asked about, those that nothing is delivered to any more.
    pub inactive: Vec<WebhookId>,
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
    /// Whether the database says that its target fails.
    pub was_failing: bool,
}

impl Wanted {
    /// Half of it was tried before, half was not: neither what always fails nor what fails at first holds the other up.
    pub(super) fn due(target: Target, count: usize, rather_new: bool) -> Self {
        let new = if rather_new { count.div_ceil(2) } else { count / 2 };
        Self { target, what: What::Due { new: number(new), again: number(count - new) } }
    }

    pub(super) fn tests(target: Target, count: usize) -> Self {
        Self { target, what: What::Tests(number(count)) }
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
    let mut inactive = Vec::new();
    for target in waiting {
        if !due.iter().any(|due| due.id == target) && !webhook_targets::is_active(read.conn(), target).await? {
            inactive.push(target);
        }
    }
    Ok(Looked { due, tests, inactive })
}

/// Keeps what came of tries, and takes what is wanted, until the lease ends.
pub(super) async fn turn(
    courier: &Courier,
    (kept, unsent): (&[Kept], &[Leased]),
    wanted: &[Wanted],
    (now, until): (Timestamp, Timestamp),
) -> Result<Vec<Taken>, StoreError> {
    let work = async |mut tx: Write| {
        keep_all(&mut tx, kept).await?;
        give_back_all(&mut tx, unsent).await?;
        let mut taken = Vec::new();
        for Wanted { target, what } in wanted {
            let Some(secrets) = open_secrets(&mut tx, courier, target, now).await? else { continue };
            let leased = take(&mut tx, target.id, what, (now, until)).await?;
            taken.push(Taken { target: target.clone(), secrets, leased });
        }
        tx.commit(taken).await
    };
    courier.store.write("deliver", work).await
}

/// Keeps what came of the last tries, and gives back what was not sent.
pub(super) async fn close(courier: &Courier, kept: &[Kept], unsent: &[Leased]) -> Result<(), StoreError> {
    let work = async |mut tx: Write| {
        keep_all(&mut tx, kept).await?;
        give_back_all(&mut tx, unsent).await?;
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
        What::Tests(count) => return deliveries::lease(tx.conn(), (target, Which::Tests), times, *count).await,
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

async fn keep_all(tx: &mut Write, kept: &[Kept]) -> Result<(), StoreError> {
    for Kept { leased, attempt, state, was_failing } in kept {
        deliveries::record(tx.conn(), leased, attempt, *state).await?;
        match attempt.failure {
            _ if leased.is_test => {}
            None if *was_failing => webhook_targets::set_failing(tx.conn(), leased.target, None).await?,
            None => {}
            Some(failure) => note_failure(tx, leased, failure, (attempt.at, *was_failing)).await?,
        }
    }
    Ok(())
}

/// A target that wants no more, or has failed for too long, is disabled.
async fn note_failure(
    tx: &mut Write,
    leased: &Leased,
    failure: AttemptFailure,
    (at, was_failing): (Timestamp, bool),
) -> Result<(), StoreError> {
    if !was_failing {
        webhook_targets::set_failing(tx.conn(), leased.target, Some(at)).await?;
    }
    let reason = if failure == AttemptFailure::Gone { DisabledReason::Gone } else { DisabledReason::Failing };
    let horizon = at.before(DISABLED_AFTER);
    let Some(place) = webhook_targets::disable(tx.conn(), leased.target, reason, (at, horizon)).await? else {
        return Ok(());
    };
    tracing::warn!(webhook = %leased.target, reason = reason.as_str(), "a webhook is disabled");
    let act = Entry::of(place.chain(), Act::WebhookDisabled).with(Object::Webhook(leased.target));
    tx.record(&Author::SYSTEM, &act.saying("reason", reason.as_str())).await
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
