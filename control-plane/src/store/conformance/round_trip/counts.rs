//! Round trips of totals, and counts for quotas.

use super::{agent, owner, service, time};
use crate::{
    domain::total::Total,
    store::{conformance::StoreFixture, quotas, totals},
};

impl StoreFixture {
    /// Of the two agents, one is active and one was registered without a human user. Each of the two services has its own owner.
    pub async fn totals_and_quotas_return_what_was_written(&self) {
        let counted = async |total| totals::find(self.read().await.conn(), total).await.unwrap();
        assert_eq!(counted(Total::Services).await, 0);
        self.commit(async |tx| {
            totals::add(tx.conn(), Total::Services, 7).await?;
            totals::add(tx.conn(), Total::Services, -3).await?;
            totals::add(tx.conn(), Total::ActiveAgents, 5).await
        })
        .await;
        assert_eq!((counted(Total::Services).await, counted(Total::ActiveAgents).await), (4, 5));
        let found = totals::find_differences(self.read().await.conn()).await.unwrap();
        // Services that are created before the correction change the total, but not the difference that we must correct.
        self.commit(async |tx| totals::add(tx.conn(), Total::Services, 3).await).await;
        assert!(!found.is_empty());
        for is_first in [true, false] {
            let corrected = self.commit(async |tx| totals::correct(tx.conn(), &found).await).await;
            assert_eq!(corrected, is_first, "the differences are added once");
        }
        self.commit(async |tx| totals::add(tx.conn(), Total::Services, -3).await).await;
        assert!(totals::find_differences(self.read().await.conn()).await.unwrap().is_empty());
        let totals = [Total::ActiveAgents, Total::PublicAgents, Total::Services];
        for (total, expected) in totals.into_iter().zip([1, 1, 2]) {
            assert_eq!(counted(total).await, expected, "{total:?}");
        }

        self.commit(async |tx| {
            quotas::lock_owner(tx.conn(), &owner("service"), time(27)).await?;
            quotas::lock_owner(tx.conn(), &owner("service"), time(28)).await
        })
        .await;
        let mut read = self.read().await;
        let conn = read.conn();
        let (agent_owner, service_owner) = (agent().registration.owner.unwrap(), service().owner);
        for limit in [1, 2] {
            let reached = limit == 1; // each owner has one agent or one service
            assert_eq!(quotas::agent_quota_is_reached(conn, &agent_owner, limit, time(28)).await.unwrap(), reached);
            assert!(!quotas::agent_quota_is_reached(conn, &service_owner, limit, time(28)).await.unwrap());
            assert_eq!(quotas::service_quota_is_reached(conn, &service_owner, limit, time(28)).await.unwrap(), reached);
            assert!(!quotas::service_quota_is_reached(conn, &agent_owner, limit, time(28)).await.unwrap());
        }
        assert!(!quotas::key_quota_is_reached(conn, service().id, 1).await.unwrap());
    }
}
