//! Reads what challenges and logins depend on. Those that wait for each other share one statement, so that a flood of challenges, which
//! anybody may ask for, occupies one connection of the database.

use crate::{
    operations::{
        Context, OperationError,
        request_batches::{self, Attempt, BatchError, BatchedRequest, RequestQueues, RequestResult},
    },
    store::{
        Conn,
        logins::{self, LoginBasis, LoginQuery},
    },
};
use countersign_identity::AgentId;
use std::sync::Arc;
use tracing::Span;

/// Reads what a challenge or a login depends on. The read begins after the call.
pub(super) async fn read_basis(context: &Arc<Context>, query: LoginQuery) -> Result<LoginBasis, OperationError> {
    request_batches::fulfill(context, (), query).await
}

impl BatchedRequest for LoginQuery {
    type Key = ();
    type Output = LoginBasis;

    fn queues(context: &Context) -> &RequestQueues<Self> {
        &context.login_queries
    }

    fn span((): ()) -> Span {
        tracing::info_span!(parent: None, "login queries")
    }

    /// Reads do not depend on each other.
    fn exclusive_agent(&self) -> Option<AgentId> {
        None
    }

    async fn fulfill(
        context: &Context,
        (): (),
        queries: &[Self],
        _attempt: Attempt,
    ) -> Result<Vec<Option<RequestResult<Self>>>, BatchError> {
        let read = async |conn: &mut Conn| logins::read_for_logins(conn, queries).await;
        Ok(context.store.read_one(read).await?.into_iter().map(|basis| Some(Ok(basis))).collect())
    }
}
