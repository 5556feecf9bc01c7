//! The transactions of the dispatcher: they find targets with due deliveries, store the results of attempts, and lease deliveries.

use crate::{
    domain::{
        audit::{AuditAction, AuditedObject, Initiator, NewAuditEntry},
        service::ServiceOrDeployment,
        webhook::{
            DISABLED_AFTER, DisabledReason, DueTarget, FAILING_PERIOD_RESET,
            delivery::{Attempt, AttemptFailure, DeliveryState},
            secret::WebhookSecret,
            url::TargetUrl,
        },
    },
    keyring::Keyring,
    store::{
        Store, StoreError, WriteTransaction,
        deliveries::{self, DueDeliveryKind, LeasedDelivery},
        due_targets::{self, TargetPage},
        webhook_targets,
    },
};
use countersign_identity::{Timestamp, WebhookId};
use std::{collections::BTreeSet, sync::Arc};

/// Maximum number of targets with pending deliveries that one transaction reads.
pub(super) const TARGETS_PER_PAGE: i64 = 1000;

pub(super) struct DeliveryQueue {
    pub store: Store,
    pub keyring: Arc<Keyring>,
}

/// How many deliveries to lease for one target.
pub(super) struct LeaseRequest {
    due: DueTarget,
    quota: LeaseQuota,
}

enum LeaseQuota {
    /// Maximum numbers of first attempts and retries. If fewer of one kind are due, more of the other are leased.
    Deliveries { first_attempts: i64, retries: i64 },
    /// The test delivery that is due.
    Test,
}

/// What the dispatcher may lease now.
pub(super) struct DueWork {
    /// The active targets with due deliveries, from one page of the list of targets with pending deliveries.
    pub targets: Vec<DueTarget>,
    /// The target after which the next page begins; `None` after the last page.
    pub next: Option<WebhookId>,
    /// Targets with a due test delivery.
    pub tests: Vec<DueTarget>,
    /// For each target whose deliveries wait in memory, the time of its last change; `None` if the target is not active.
    pub waiting_targets: Vec<(WebhookId, Option<Timestamp>)>,
}

/// Deliveries that were leased for one target.
pub(super) struct LeasedBatch {
    pub due: DueTarget,
    pub secrets: Vec<WebhookSecret>,
    pub deliveries: Vec<LeasedDelivery>,
}

/// The result of an attempt, in the form in which it is stored.
pub(super) struct AttemptRecord {
    pub delivery: LeasedDelivery,
    pub attempt: Attempt,
    pub state: DeliveryState,
    pub url: TargetUrl,
    /// Whether the target may be marked as failing in the database, so that a success must remove the mark.
    pub was_failing: bool,
}

/// A target that the running transaction disables.
struct DisabledTarget {
    scope: ServiceOrDeployment,
    id: WebhookId,
    reason: DisabledReason,
}

impl LeaseRequest {
    /// The target and the maximum number of deliveries to lease for it.
    #[cfg(test)]
    pub(super) const fn target_and_count(&self) -> (WebhookId, i64) {
        let count = match self.quota {
            LeaseQuota::Deliveries { first_attempts, retries } => first_attempts + retries,
            LeaseQuota::Test => 1,
        };
        (self.due.id, count)
    }

    /// Requests first attempts and retries in equal numbers, so that neither delays the other.
    pub(super) fn for_deliveries(due: DueTarget, count: usize, prefer_first_attempts: bool) -> Self {
        let first_attempts = if prefer_first_attempts { count.div_ceil(2) } else { count / 2 };
        let retries = to_sql_limit(count - first_attempts);
        Self { due, quota: LeaseQuota::Deliveries { first_attempts: to_sql_limit(first_attempts), retries } }
    }

    pub(super) const fn for_test(due: DueTarget) -> Self {
        Self { due, quota: LeaseQuota::Test }
    }
}

fn to_sql_limit(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl DeliveryQueue {
    /// Finds due work in the page of targets after `after`, and the times at which the targets `with_unsent` were last changed.
    pub(super) async fn find_due(
        &self,
        after: Option<WebhookId>,
        with_unsent: Vec<WebhookId>,
        now: Timestamp,
    ) -> Result<DueWork, StoreError> {
        let mut read = self.store.read().await?;
        let page = due_targets::list_with_due_deliveries(read.conn(), after, now, TARGETS_PER_PAGE).await?;
        let TargetPage { content: targets, next } = page;
        let tests = due_targets::list_with_due_tests(read.conn(), now, TARGETS_PER_PAGE).await?;
        let mut waiting_targets = Vec::new();
        for target in with_unsent {
            waiting_targets.push((target, webhook_targets::updated_at_if_active(read.conn(), target).await?));
        }
        Ok(DueWork { targets, next, tests, waiting_targets })
    }

    /// Stores the results of attempts, releases leased deliveries, and leases due deliveries from `now` until `until`.
    pub(super) async fn store_outcomes_and_lease(
        &self,
        completed: &[AttemptRecord],
        released: &[LeasedDelivery],
        requests: &[LeaseRequest],
        now: Timestamp,
        until: Timestamp,
    ) -> Result<Vec<LeasedBatch>, StoreError> {
        let work = async |mut tx: WriteTransaction| {
            lock_targets(&mut tx, completed, requests).await?;
            let disabled = record_attempts(&mut tx, completed).await?;
            let released_at = tx.now();
            for delivery in released {
                deliveries::release_lease(tx.conn(), delivery, released_at).await?;
            }
            let mut batches = Vec::new();
            for LeaseRequest { due, quota } in requests {
                let Some(secrets) = self.open_secrets(&mut tx, due.id, now).await? else { continue };
                let deliveries = lease_deliveries(&mut tx, due.id, quota, now, until).await?;
                batches.push(LeasedBatch { due: due.clone(), secrets, deliveries });
            }
            audit_disabled(&mut tx, disabled).await?;
            tx.commit(batches).await
        };
        self.store.write_alone("record_and_lease_deliveries", work).await
    }

    /// The secrets with which requests to a target are signed. `None` if the target is deleted. If a secret cannot be decrypted, we
    /// only log this and return `None`, so that other targets still get deliveries.
    async fn open_secrets(
        &self,
        tx: &mut WriteTransaction,
        target: WebhookId,
        now: Timestamp,
    ) -> Result<Option<Vec<WebhookSecret>>, StoreError> {
        let Some(sealed) = webhook_targets::find_secrets(tx.conn(), target, now).await? else { return Ok(None) };
        let sealed = [Some(sealed.current), sealed.previous].into_iter().flatten();
        let secrets: Option<Vec<_>> = sealed.map(|sealed| self.keyring.open_webhook_secret(target, &sealed)).collect();
        if secrets.is_none() {
            tracing::error!(webhook = %target, "cannot decrypt the secret of a webhook with this master key");
        }
        Ok(secrets)
    }
}

/// Leases deliveries of a target. In the result, retries and first attempts alternate.
async fn lease_deliveries(
    tx: &mut WriteTransaction,
    target: WebhookId,
    quota: &LeaseQuota,
    now: Timestamp,
    until: Timestamp,
) -> Result<Vec<LeasedDelivery>, StoreError> {
    let (first_attempts, retries) = match quota {
        LeaseQuota::Test => return deliveries::lease(tx.conn(), target, DueDeliveryKind::Test, now, until, 1).await,
        LeaseQuota::Deliveries { first_attempts, retries } => (*first_attempts, *retries),
    };
    let mut due_retries = deliveries::lease(tx.conn(), target, DueDeliveryKind::Retry, now, until, retries).await?;
    let remaining = first_attempts + retries - to_sql_limit(due_retries.len());
    let due_first = deliveries::lease(tx.conn(), target, DueDeliveryKind::FirstAttempt, now, until, remaining).await?;
    let remaining = remaining - to_sql_limit(due_first.len());
    // If the first lease of retries did not reach its limit, no further retries are due.
    if remaining > 0 && to_sql_limit(due_retries.len()) == retries {
        due_retries.extend(deliveries::lease(tx.conn(), target, DueDeliveryKind::Retry, now, until, remaining).await?);
    }
    let (mut due_retries, mut due_first) = (due_retries.into_iter(), due_first.into_iter());
    let pairs = std::iter::from_fn(|| {
        let pair = [due_retries.next(), due_first.next()];
        pair.iter().any(Option::is_some).then_some(pair)
    });
    Ok(pairs.flatten().flatten().collect())
}

/// Locks the rows of all targets of the transaction. All transactions lock targets in the same order, which prevents deadlocks.
async fn lock_targets(
    tx: &mut WriteTransaction,
    completed: &[AttemptRecord],
    requests: &[LeaseRequest],
) -> Result<(), StoreError> {
    let completed = completed.iter().map(|record| record.delivery.target);
    let targets: BTreeSet<_> = completed.chain(requests.iter().map(|request| request.due.id)).collect();
    for target in targets {
        webhook_targets::lock_any_scope(tx.conn(), target).await?;
    }
    Ok(())
}

/// Stores the results of attempts. Returns the targets that were disabled because of the results.
async fn record_attempts(
    tx: &mut WriteTransaction,
    completed: &[AttemptRecord],
) -> Result<Vec<DisabledTarget>, StoreError> {
    let mut disabled = Vec::new();
    for record in completed {
        let AttemptRecord { delivery, attempt, state, url: _, was_failing } = record;
        let recorded = deliveries::record_attempt(tx.conn(), delivery, attempt, *state).await?;
        // Neither tests nor results that were not stored because their lease had ended change whether a target is failing.
        if delivery.is_test || !recorded {
            continue;
        }
        match attempt.failure {
            None if *was_failing => webhook_targets::mark_healthy(tx.conn(), delivery.target).await?,
            None => {}
            Some(failure) => disabled.extend(record_failure(tx, record, failure).await?),
        }
    }
    Ok(disabled)
}

/// Marks the target as failing. Disables the target after a response 410, or after failures for [`DISABLED_AFTER`].
async fn record_failure(
    tx: &mut WriteTransaction,
    record: &AttemptRecord,
    failure: AttemptFailure,
) -> Result<Option<DisabledTarget>, StoreError> {
    let (id, at) = (record.delivery.target, record.attempt.at);
    webhook_targets::mark_failing(tx.conn(), id, &record.url, at, at.saturating_sub(FAILING_PERIOD_RESET)).await?;
    let reason = if failure == AttemptFailure::Gone { DisabledReason::Gone } else { DisabledReason::Failing };
    let scope =
        webhook_targets::disable(tx.conn(), id, &record.url, reason, at, at.saturating_sub(DISABLED_AFTER)).await?;
    Ok(scope.map(|scope| DisabledTarget { scope, id, reason }))
}

/// Writes audit entries about the disabled targets. Every transaction locks audit chains last, in the order of names, which
/// prevents deadlocks.
async fn audit_disabled(tx: &mut WriteTransaction, mut disabled: Vec<DisabledTarget>) -> Result<(), StoreError> {
    disabled.sort_by_cached_key(|target| target.scope.audit_chain());
    for DisabledTarget { scope, id, reason } in disabled {
        tracing::warn!(webhook = %id, reason = reason.as_str(), "webhook disabled");
        let entry = NewAuditEntry::new(scope, AuditAction::WebhookDisabled).object(AuditedObject::Webhook(id));
        tx.audit(&Initiator::SYSTEM, &entry.with_detail("reason", reason.as_str())).await?;
    }
    Ok(())
}
