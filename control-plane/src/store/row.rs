//! From columns to types. What does not parse was not written by us: the row is reported, not used.

use super::StoreError;
use crate::domain::text::Metadata;
use countersign_identity::Timestamp;
use sqlx::{Any, Decode, Row, Type, any::AnyRow};
use std::str::FromStr;

/// Reads a count, named `total`.
pub fn total(row: &AnyRow) -> Result<i64, StoreError> {
    get(row, "total")
}

/// Reads a column.
pub fn get<'r, T: Decode<'r, Any> + Type<Any>>(row: &'r AnyRow, column: &'static str) -> Result<T, StoreError> {
    row.try_get(column).map_err(StoreError::from)
}

/// Reads a column of text and parses it.
pub fn parse<T: FromStr>(row: &AnyRow, column: &'static str) -> Result<T, StoreError> {
    get::<String>(row, column)?.parse().map_err(|_| StoreError::Corrupt(column))
}

/// Reads a column of text that may be absent and parses it.
pub fn parse_optional<T: FromStr>(row: &AnyRow, column: &'static str) -> Result<Option<T>, StoreError> {
    let text: Option<String> = get(row, column)?;
    text.map(|text| text.parse().map_err(|_| StoreError::Corrupt(column))).transpose()
}

/// Reads a column of text and converts it.
pub fn convert<T: TryFrom<String>>(row: &AnyRow, column: &'static str) -> Result<T, StoreError> {
    T::try_from(get::<String>(row, column)?).map_err(|_| StoreError::Corrupt(column))
}

/// Reads a number that is kept as a larger one.
pub fn number<T: TryFrom<i64>>(row: &AnyRow, column: &'static str) -> Result<T, StoreError> {
    T::try_from(get::<i64>(row, column)?).map_err(|_| StoreError::Corrupt(column))
}

/// Reads an instant.
pub fn instant(row: &AnyRow, column: &'static str) -> Result<Timestamp, StoreError> {
    get(row, column).map(Timestamp::from_micros)
}

/// Reads an instant that may be absent.
pub fn optional_instant(row: &AnyRow, column: &'static str) -> Result<Option<Timestamp>, StoreError> {
    Ok(get::<Option<i64>>(row, column)?.map(Timestamp::from_micros))
}

/// Reads what somebody attached.
pub fn metadata(row: &AnyRow) -> Result<Metadata, StoreError> {
    let map: serde_json::Map<_, _> =
        serde_json::from_str(&get::<String>(row, "metadata")?).map_err(|_| StoreError::Corrupt("metadata"))?;
    Metadata::try_from(map).map_err(|_| StoreError::Corrupt("metadata"))
}
