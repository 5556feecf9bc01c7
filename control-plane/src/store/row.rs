//! Converts columns of rows to domain types. A value that does not parse causes the error [`StoreError::Corrupt`].

use super::StoreError;
use crate::domain::{
    page::{ItemCount, MAX_COUNTED_ROWS},
    text::Metadata,
};
use countersign_identity::Timestamp;
use sqlx::{Any, Decode, Row, Type, any::AnyRow};
use std::str::FromStr;

/// Reads the column `total`, which is the result of a counting statement.
pub fn total_count(row: &AnyRow) -> Result<i64, StoreError> {
    get(row, "total")
}

/// How many rows a statement counts for a list: one more than [`MAX_COUNTED_ROWS`], to know whether there are more.
pub const ROWS_TO_COUNT: i64 = MAX_COUNTED_ROWS + 1;

/// Reads the column `total` of a statement that counts up to [`ROWS_TO_COUNT`] items of a list.
pub fn item_count(row: &AnyRow) -> Result<ItemCount, StoreError> {
    total_count(row).map(ItemCount::of_counted)
}

/// Reads a column without conversion.
pub fn get<'r, T: Decode<'r, Any> + Type<Any>>(row: &'r AnyRow, column: &'static str) -> Result<T, StoreError> {
    row.try_get(column).map_err(StoreError::from)
}

/// Reads a text column and parses it.
pub fn parse<T: FromStr>(row: &AnyRow, column: &'static str) -> Result<T, StoreError> {
    get::<String>(row, column)?.parse().map_err(|_| StoreError::Corrupt(column))
}

/// Reads a nullable text column and parses it.
pub fn parse_optional<T: FromStr>(row: &AnyRow, column: &'static str) -> Result<Option<T>, StoreError> {
    let text: Option<String> = get(row, column)?;
    text.map(|text| text.parse().map_err(|_| StoreError::Corrupt(column))).transpose()
}

/// Reads a text column and converts it by `TryFrom`.
pub fn convert<T: TryFrom<String>>(row: &AnyRow, column: &'static str) -> Result<T, StoreError> {
    T::try_from(get::<String>(row, column)?).map_err(|_| StoreError::Corrupt(column))
}

/// Reads a nullable text column and converts it by `TryFrom`.
pub fn convert_optional<T: TryFrom<String>>(row: &AnyRow, column: &'static str) -> Result<Option<T>, StoreError> {
    let value: Option<String> = get(row, column)?;
    value.map(T::try_from).transpose().map_err(|_| StoreError::Corrupt(column))
}

/// Reads a number column and converts it to a narrower type.
pub fn number<T: TryFrom<i64>>(row: &AnyRow, column: &'static str) -> Result<T, StoreError> {
    T::try_from(get::<i64>(row, column)?).map_err(|_| StoreError::Corrupt(column))
}

/// Reads a timestamp column.
pub fn timestamp(row: &AnyRow, column: &'static str) -> Result<Timestamp, StoreError> {
    get(row, column).map(Timestamp::from_micros)
}

/// Reads a nullable timestamp column.
pub fn optional_timestamp(row: &AnyRow, column: &'static str) -> Result<Option<Timestamp>, StoreError> {
    Ok(get::<Option<i64>>(row, column)?.map(Timestamp::from_micros))
}

/// Reads the column `metadata`.
pub fn metadata(row: &AnyRow) -> Result<Metadata, StoreError> {
    let map: serde_json::Map<_, _> =
        serde_json::from_str(&get::<String>(row, "metadata")?).map_err(|_| StoreError::Corrupt("metadata"))?;
    Metadata::try_from(map).map_err(|_| StoreError::Corrupt("metadata"))
}
