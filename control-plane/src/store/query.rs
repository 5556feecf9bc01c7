//! Runs a statement with its parameters, and converts the rows of its result.

use super::{Conn, StoreError, row};
use crate::domain::{
    credential::SecretHash,
    page::{ItemCount, ListPage, MAX_COUNTED_ROWS, Page},
    resource_uri::ResourceUri,
    service::KeyScope,
    sidecar::SidecarInstance,
    text::{Description, DisplayName, EmailAddress, ManagedBy},
    total::Total,
    webhook::{DisabledReason, delivery::AttemptFailure, event::EventKind, url::TargetUrl},
};
use countersign_identity::{
    AgentId, ApiKeyId, EventId, FeedbackId, Kid, Revision, RoleId, RoleName, Scope, ServiceId, SessionId, Timestamp,
    TokenId, TrustScore, WebhookId,
};
use sqlx::{
    Any,
    any::{AnyArguments, AnyRow},
    query::Query,
};
use std::{fmt::Display, time::Duration};

/// A statement with parameters.
pub(super) type AnyQuery = Query<'static, Any, AnyArguments>;

/// A value of a parameter. `None` is NULL.
#[derive(Debug, Clone)]
pub(super) enum Parameter {
    Text(Option<String>),
    Number(Option<i64>),
}

impl Parameter {
    fn text(text: impl Into<String>) -> Self {
        Self::Text(Some(text.into()))
    }

    /// An empty text or the number 0, to fill rows of parameters that a statement must ignore.
    pub const fn empty(&self) -> Self {
        match self {
            Self::Text(_) => Self::Text(Some(String::new())),
            Self::Number(_) => Self::Number(Some(0)),
        }
    }

    /// Binds the value to the next parameter of a statement.
    pub fn bind(self, query: AnyQuery) -> AnyQuery {
        match self {
            Self::Text(text) => query.bind(text),
            Self::Number(number) => query.bind(number),
        }
    }
}

/// A type whose values are stored in a column.
pub(super) trait ToParameter {
    /// NULL, with the type of the column.
    const NULL: Parameter;

    /// The value as a parameter.
    fn to_parameter(&self) -> Parameter;
}

macro_rules! stored_as_text {
    ($text:ident: $($type:ty),+) => {$(
        impl ToParameter for $type {
            const NULL: Parameter = Parameter::Text(None);

            fn to_parameter(&self) -> Parameter {
                Parameter::text(self.$text())
            }
        }
    )+};
}

macro_rules! stored_as_number {
    ($($type:ty: $number:expr),+ $(,)?) => {$(
        impl ToParameter for $type {
            const NULL: Parameter = Parameter::Number(None);

            fn to_parameter(&self) -> Parameter {
                let number: fn(Self) -> i64 = $number;
                Parameter::Number(Some(number(*self)))
            }
        }
    )+};
}

stored_as_text!(to_string: AgentId, ServiceId, RoleId, ApiKeyId, TokenId, SessionId, FeedbackId, WebhookId, EventId);
stored_as_text!(to_string: Scope, TargetUrl, SidecarInstance);
stored_as_text!(to_owned: str);
stored_as_text!(as_str: String, DisplayName, Description, EmailAddress, ManagedBy, RoleName, Kid, ResourceUri);
stored_as_text!(as_str: KeyScope, Total, EventKind, DisabledReason, AttemptFailure);
stored_as_text!(to_store: SecretHash);

stored_as_number! {
    i64: |number| number,
    u32: i64::from,
    u16: i64::from,
    bool: i64::from,
    Timestamp: Timestamp::micros,
    Revision: Revision::number,
    TrustScore: TrustScore::hundredths,
    Duration: |duration| i64::try_from(duration.as_micros()).unwrap_or(i64::MAX),
}

impl<T: ToParameter + ?Sized> ToParameter for &T {
    const NULL: Parameter = T::NULL;

    fn to_parameter(&self) -> Parameter {
        T::to_parameter(self)
    }
}

impl<T: ToParameter> ToParameter for Option<T> {
    const NULL: Parameter = T::NULL;

    fn to_parameter(&self) -> Parameter {
        self.as_ref().map_or(T::NULL, T::to_parameter)
    }
}

/// The values of the parameters of a statement, in their order.
macro_rules! params {
    ($($value:expr),* $(,)?) => {
        [$($crate::store::query::ToParameter::to_parameter(&$value)),*]
    };
}
pub(super) use params;

/// The values of the parameters of a statement.
pub(super) trait Parameters: IntoIterator<Item = Parameter> {}

impl<T: IntoIterator<Item = Parameter>> Parameters for T {}

/// The text of an id, or an empty text, which sorts before all ids.
pub(super) fn text_or_empty(value: Option<impl Display>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

fn query(sql: &'static str, parameters: impl Parameters) -> AnyQuery {
    parameters.into_iter().fold(sqlx::query(sql), |query, parameter| parameter.bind(query))
}

impl Conn {
    /// Runs a statement whose result does not matter.
    pub(super) async fn apply(&mut self, sql: &'static str, parameters: impl Parameters) -> Result<(), StoreError> {
        self.count_changes(sql, parameters).await.map(drop)
    }

    /// Runs a statement, and returns the number of rows that it has changed.
    pub(super) async fn count_changes(
        &mut self,
        sql: &'static str,
        parameters: impl Parameters,
    ) -> Result<u64, StoreError> {
        Ok(self.execute(query(sql, parameters)).await?.rows_affected())
    }

    /// Runs a statement, and returns whether it has changed a row.
    pub(super) async fn changes_row(
        &mut self,
        sql: &'static str,
        parameters: impl Parameters,
    ) -> Result<bool, StoreError> {
        Ok(self.count_changes(sql, parameters).await? > 0)
    }

    /// Runs a statement that must change exactly one row. `name` stands for the statement in the error.
    pub(super) async fn must_change_row(
        &mut self,
        sql: &'static str,
        name: &'static str,
        parameters: impl Parameters,
    ) -> Result<(), StoreError> {
        match self.count_changes(sql, parameters).await? {
            1 => Ok(()),
            _ => Err(StoreError::UnexpectedRowCount(name)),
        }
    }

    /// Whether a statement finds a row.
    pub(super) async fn has_row(&mut self, sql: &'static str, parameters: impl Parameters) -> Result<bool, StoreError> {
        Ok(self.fetch_optional(query(sql, parameters)).await?.is_some())
    }

    pub(super) async fn find_row<T>(
        &mut self,
        sql: &'static str,
        parameters: impl Parameters,
        from_row: impl FnOnce(&AnyRow) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        self.fetch_optional(query(sql, parameters)).await?.as_ref().map(from_row).transpose()
    }

    /// Runs a statement that must return a row, and reads the first row.
    pub(super) async fn read_row<T>(
        &mut self,
        sql: &'static str,
        parameters: impl Parameters,
        from_row: impl FnOnce(&AnyRow) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        from_row(&self.fetch_optional(query(sql, parameters)).await?.ok_or(sqlx::Error::RowNotFound)?)
    }

    pub(super) async fn rows(
        &mut self,
        sql: &'static str,
        parameters: impl Parameters,
    ) -> Result<Vec<AnyRow>, StoreError> {
        Ok(self.fetch_all(query(sql, parameters)).await?)
    }

    /// Lists what all rows contain.
    pub(super) async fn list_rows<T, L: FromIterator<T>>(
        &mut self,
        sql: &'static str,
        parameters: impl Parameters,
        from_row: impl FnMut(&AnyRow) -> Result<T, StoreError>,
    ) -> Result<L, StoreError> {
        self.rows(sql, parameters).await?.iter().map(from_row).collect()
    }

    /// Runs a statement that reads the earliest time in a column as `oldest`. The parameter `$1`, if any, is the time at which the
    /// search begins: this skips the entries of deleted rows, which PostgreSQL keeps in an index until the next vacuum.
    pub(super) async fn find_oldest(
        &mut self,
        sql: &'static str,
        parameters: impl Parameters,
    ) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.find_row(sql, parameters, |row| row::optional_timestamp(row, "oldest")).await?.flatten())
    }

    /// Counts the items of a list. The statement has the limit as its last parameter, and returns the number as `total`.
    pub(super) async fn count_items(
        &mut self,
        sql: &'static str,
        parameters: impl Parameters,
    ) -> Result<ItemCount, StoreError> {
        let parameters = parameters.into_iter().chain(params![MAX_COUNTED_ROWS + 1]);
        self.read_row(sql, parameters, row::total_count).await.map(ItemCount::of_counted)
    }

    /// Reads a page of a list that has `total` items. The last two parameters of the statement are the numbers of rows to read and
    /// skip. `position` returns the position of an item in the list.
    pub(super) async fn list_page<T, P>(
        &mut self,
        sql: &'static str,
        parameters: impl Parameters,
        page: &Page<P>,
        total: ItemCount,
        from_row: impl FnMut(&AnyRow) -> Result<T, StoreError>,
        position: impl Fn(&T) -> P,
    ) -> Result<ListPage<T, P>, StoreError> {
        // We read one row more than the page has, to know whether there is a next page. If the page begins after a position, the
        // statement begins there, so we skip no rows.
        let (read, skipped) = (page.limit.saturating_add(1), if page.after.is_some() { 0 } else { page.offset });
        let parameters = parameters.into_iter().chain(params![read, skipped]);
        let items = self.list_rows(sql, parameters, from_row).await?;
        Ok(ListPage::new(page, items, total, position, None))
    }
}
