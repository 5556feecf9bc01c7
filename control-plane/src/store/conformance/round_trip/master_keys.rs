//! Round trips of master keys, checkpoints of audit chains, and encrypted secrets.

use super::{deletions::DELETED, service, time};
use crate::store::{
    audit::{self, ChainCheckpoint},
    conformance::StoreFixture,
    master_keys::{self, MasterKeysInUse},
    sealed_secrets::{self, SecretOwner, StoredSecret},
};

impl StoreFixture {
    pub async fn sealed_secrets_return_what_was_written(&self) {
        let list = async || {
            let mut read = self.read().await;
            let mut stored = sealed_secrets::list_signing_keys(read.conn()).await.unwrap();
            let mut after = None;
            loop {
                let page = sealed_secrets::list_webhook_secrets(read.conn(), after, 1).await.unwrap();
                let Some((webhook, secrets)) = page.into_iter().next() else { return stored };
                after = Some(webhook);
                stored.extend(secrets);
            }
        };
        let before = list().await;
        for expected in ["signing key", "secret of webhook", "previous secret of webhook"] {
            let found = before.iter().any(|stored| stored.owner.to_string().starts_with(expected));
            assert!(found, "no {expected}: {before:?}");
        }
        let sealed = |owner: &SecretOwner| format!("sealed {owner}");
        for stored in &before {
            self.commit(async |tx| {
                assert!(sealed_secrets::replace(tx.conn(), stored, &sealed(&stored.owner)).await?);
                assert!(!sealed_secrets::replace(tx.conn(), stored, "replaced twice").await?);
                Ok(())
            })
            .await;
        }
        let expected: Vec<_> = before
            .iter()
            .map(|stored| StoredSecret { owner: stored.owner.clone(), sealed: sealed(&stored.owner) })
            .collect();
        assert_eq!(list().await, expected);
        for stored in &before {
            let replaced = StoredSecret { owner: stored.owner.clone(), sealed: sealed(&stored.owner) };
            self.commit(async |tx| sealed_secrets::replace(tx.conn(), &replaced, &stored.sealed).await).await;
        }
    }

    pub async fn checkpoints_return_what_was_written(&self) {
        let (keys, chain) = (self.first.audit_keys(), service().id.to_string());
        let chains = audit::list_chains_with_head(self.read().await.conn(), "", 9).await.unwrap();
        assert_eq!(chains, ["deployment".to_owned(), chain.clone(), DELETED.to_string()]);
        let next = audit::list_chains_with_head(self.read().await.conn(), "deployment", 9).await.unwrap();
        assert_eq!(next, [chain.clone(), DELETED.to_string()]);
        let begun = audit::begin_checkpoint(self.read().await.conn(), keys, &chain).await.unwrap();
        let ChainCheckpoint::Missing(mut verifier) = begun else { panic!("the chain has a checkpoint") };
        let batch = audit::verify_batch(self.read().await.conn(), &mut verifier).await.unwrap();
        assert_eq!(batch, Ok(2));
        for verifier in [verifier.clone(), verifier] {
            let written = self.commit(async |tx| audit::write_checkpoint(tx.conn(), verifier.clone()).await).await;
            assert_eq!(written, Ok(()));
        }
        let mut read = self.read().await;
        let begun = audit::begin_checkpoint(read.conn(), keys, &chain).await.unwrap();
        assert!(matches!(begun, ChainCheckpoint::Current));
        let whole = audit::verify_chain(read.conn(), keys, &chain, |_| ()).await.unwrap();
        assert_eq!(whole.unwrap().length, 2);
        drop(read);
        self.first.wait_for_audit_appends().await.unwrap();
    }

    /// Must run after [`Self::checkpoints_return_what_was_written`]: the chain has two entries.
    pub async fn floors_return_what_was_written(&self) {
        let (keys, chain) = (self.first.audit_keys(), service().id.to_string());
        let mut entries = Vec::new();
        let mut read = self.read().await;
        let verified = audit::verify_chain(read.conn(), keys, &chain, |entry| entries.push(entry.clone()));
        verified.await.unwrap().unwrap();
        drop(read);
        let hash = entries[0].hash.as_str();
        self.commit(async |tx| {
            assert_eq!(audit::find_floor(tx.conn(), &chain).await?, None);
            audit::set_floor(tx.conn(), keys.find("ours").unwrap(), &chain, 1, hash).await?;
            let found = audit::find_floor(tx.conn(), &chain).await?.unwrap();
            assert_eq!((found.length, found.hash.as_str()), (1, hash));
            assert_eq!(audit::list_chains_to_shorten(tx.conn(), "", 9).await?, [(chain.clone(), 1)]);
            assert_eq!(audit::list_chains_to_shorten(tx.conn(), &chain, 9).await?, []);
            for deleted in [1, 0] {
                let head = audit::verify_chain(tx.conn(), keys, &chain, |_| ()).await?;
                assert_eq!(head.unwrap().length, 2);
                assert_eq!(audit::delete_archived(tx.conn(), &chain, 1, 9).await?, deleted);
            }
            assert_eq!(audit::list_chains_to_shorten(tx.conn(), "", 9).await?, []);
            Ok(())
        })
        .await;
    }

    /// Leaves a previous master key, with which no audit entry can be appended.
    pub async fn master_keys_return_what_was_written(&self) {
        let in_use = |current: &str, previous: &[&str]| MasterKeysInUse {
            current: current.to_owned(),
            previous: previous.iter().map(ToString::to_string).collect(),
        };
        let find = async || master_keys::find(self.read().await.conn()).await.unwrap();
        let replace = async |fingerprint: &str| {
            self.commit(async |tx| master_keys::replace_current(tx.conn(), fingerprint, time(80)).await).await;
        };
        assert_eq!(find().await, in_use("ours", &[]));
        assert_eq!(master_keys::find_first(self.read().await.conn()).await.unwrap(), "ours");
        replace("second").await;
        assert_eq!(find().await, in_use("second", &["ours"]));
        replace("third").await;
        assert_eq!(find().await, in_use("third", &["ours", "second"]));
        self.commit(async |tx| master_keys::remove_previous(tx.conn(), "ours").await).await;
        replace("ours").await;
        assert_eq!(find().await, in_use("ours", &["second", "third"]));
        self.commit(async |tx| master_keys::remove_previous(tx.conn(), "third").await).await;
        assert_eq!(find().await, in_use("ours", &["second"]));
        assert_eq!(master_keys::find_first(self.read().await.conn()).await.unwrap(), "ours");
    }
}
