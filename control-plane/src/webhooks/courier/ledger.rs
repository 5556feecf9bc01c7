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
use countersign_identity::Timestamp;

/// What is to be taken for a target.
pub(super) struct Wanted {
    target: Target,
    which: Which,
    at_most: i64,
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
    pub(super) fn due(target: Target, count: usize) -> Self {
        Self { target, which: Which::Due, at_most: i64::try_from(count).unwrap_or(i64::MAX) }
    }

    pub(super) fn tests(target: Target, count: usize) -> Self {
        Self { which: Which::Tests, ..Self::due(target, count) }
    }
}

/// The targets that something is due for, and those that a test is due for.
pub(super) async fn look(store: &Store, now: Timestamp) -> Result<(Vec<Target>, Vec<Target>), StoreError> {
    let mut read = store.read().await?;
    let due = webhook_targets::due(read.conn(), now).await?;
    Ok((due, webhook_targets::due_tests(read.conn(), now).await?))
}

/// Keeps what came of tries, and takes what is wanted, until the lease ends.
pub(super) async fn turn(
    courier: &Courier,
    kept: &[Kept],
    wanted: &[Wanted],
    (now, until): (Timestamp, Timestamp),
) -> Result<Vec<Taken>, StoreError> {
    let work = async |mut tx: Write| {
        keep_all(&mut tx, kept).await?;
        let mut taken = Vec::new();
        for Wanted { target, which, at_most } in wanted {
            let Some(secrets) = open_secrets(&mut tx, courier, target, now).await? else { continue };
            let leased = deliveries::lease(tx.conn(), (target.id, *which), (now, until), *at_most).await?;
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
        let now = tx.now();
        for leased in unsent {
            deliveries::give_back(tx.conn(), leased, now).await?;
        }
        tx.commit(()).await
    };
    courier.store.write("give_back", work).await
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
