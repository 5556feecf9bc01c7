//! Batches of rows, inserted into PostgreSQL with one statement each.

use super::tables::Table;
use sqlx::{AssertSqlSafe, ColumnIndex, Database, Decode, PgConnection, Row, Type, sqlite::SqliteRow};

/// Maximum number of rows in a batch.
const MAX_ROWS: usize = 1000;

/// Maximum size of the text in a batch, in bytes. A single row may be larger than the maximum size of a batch.
const MAX_BYTES: usize = 4 << 20;

enum ColumnValues {
    Texts(Vec<Option<String>>),
    Numbers(Vec<Option<i64>>),
}

/// Rows of a table, stored by column.
pub struct Batch<'t> {
    table: &'t Table,
    columns: Vec<ColumnValues>,
    rows: usize,
    bytes: usize,
}

impl<'t> Batch<'t> {
    pub fn new(table: &'t Table) -> Self {
        let empty = |is_number: bool| {
            if is_number { ColumnValues::Numbers(Vec::new()) } else { ColumnValues::Texts(Vec::new()) }
        };
        let columns = table.columns.iter().map(|column| empty(column.is_number)).collect();
        Self { table, columns, rows: 0, bytes: 0 }
    }

    /// Adds a row and returns its fields as text.
    pub fn push(&mut self, row: &SqliteRow) -> Result<Vec<Option<String>>, sqlx::Error> {
        let fields = fields_from_row(self.table, row)?;
        for (values, (position, field)) in self.columns.iter_mut().zip(fields.iter().enumerate()) {
            match values {
                ColumnValues::Texts(texts) => texts.push(field.clone()),
                ColumnValues::Numbers(numbers) => numbers.push(row.try_get(position)?),
            }
        }
        self.rows += 1;
        self.bytes += fields.iter().flatten().map(String::len).sum::<usize>();
        Ok(fields)
    }

    /// Whether the batch has reached its maximum number of rows or maximum size.
    pub const fn is_full(&self) -> bool {
        self.rows >= MAX_ROWS || self.bytes >= MAX_BYTES
    }

    /// Inserts the rows into PostgreSQL and empties the batch.
    pub async fn send(&mut self, to: &mut PgConnection) -> Result<(), sqlx::Error> {
        let Self { table, columns, rows: _, bytes: _ } = std::mem::replace(self, Self::new(self.table));
        let mut query = sqlx::query(AssertSqlSafe(table.insert_statement()));
        for values in columns {
            query = match values {
                ColumnValues::Texts(texts) => query.bind(texts),
                ColumnValues::Numbers(numbers) => query.bind(numbers),
            };
        }
        query.execute(to).await?;
        Ok(())
    }
}

/// Converts the fields of a row to text.
pub fn fields_from_row<R: Row>(table: &Table, row: &R) -> Result<Vec<Option<String>>, sqlx::Error>
where
    usize: ColumnIndex<R>,
    for<'r> String: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
    R::Database: Database,
{
    let field = |(position, column): (usize, &super::tables::Column)| {
        if column.is_number {
            Ok(row.try_get::<Option<i64>, _>(position)?.map(|number| number.to_string()))
        } else {
            row.try_get::<Option<String>, _>(position)
        }
    };
    table.columns.iter().enumerate().map(field).collect()
}
