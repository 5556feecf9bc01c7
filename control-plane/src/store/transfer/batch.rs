//! Batches of rows, inserted into the target with one statement each.

use super::tables::Table;
use sqlx::{AssertSqlSafe, ColumnIndex, Database, Decode, PgConnection, Row, Type, sqlite::SqliteRow};

/// Most rows in a batch.
const MAX_ROWS: usize = 1000;

/// Most bytes of text in a batch, unless a single row has more.
const MAX_BYTES: usize = 4 << 20;

/// The values of a column.
enum Values {
    Texts(Vec<Option<String>>),
    Numbers(Vec<Option<i64>>),
}

/// Rows of a table, stored by column.
pub struct Batch<'t> {
    table: &'t Table,
    columns: Vec<Values>,
    rows: usize,
    bytes: usize,
}

impl<'t> Batch<'t> {
    /// An empty batch.
    pub fn new(table: &'t Table) -> Self {
        let empty = |is_number: bool| {
            if is_number { Values::Numbers(Vec::new()) } else { Values::Texts(Vec::new()) }
        };
        let columns = table.columns.iter().map(|column| empty(column.is_number)).collect();
        Self { table, columns, rows: 0, bytes: 0 }
    }

    /// Adds a row and returns its fields.
    pub fn push(&mut self, row: &SqliteRow) -> Result<Vec<Option<String>>, sqlx::Error> {
        let fields = read(self.table, row)?;
        for (values, (position, field)) in self.columns.iter_mut().zip(fields.iter().enumerate()) {
            match values {
                Values::Texts(texts) => texts.push(field.clone()),
                Values::Numbers(numbers) => numbers.push(row.try_get(position)?),
            }
        }
        self.rows += 1;
        self.bytes += fields.iter().flatten().map(String::len).sum::<usize>();
        Ok(fields)
    }

    /// Whether the batch should be sent.
    pub const fn is_full(&self) -> bool {
        self.rows >= MAX_ROWS || self.bytes >= MAX_BYTES
    }

    /// Inserts the rows into the target and empties the batch.
    pub async fn send(&mut self, to: &mut PgConnection) -> Result<(), sqlx::Error> {
        let Self { table, columns, rows: _, bytes: _ } = std::mem::replace(self, Self::new(self.table));
        let mut query = sqlx::query(AssertSqlSafe(table.insert_statement()));
        for values in columns {
            query = match values {
                Values::Texts(texts) => query.bind(texts),
                Values::Numbers(numbers) => query.bind(numbers),
            };
        }
        query.execute(to).await?;
        Ok(())
    }
}

/// The fields of a row, as text.
pub fn read<R: Row>(table: &Table, row: &R) -> Result<Vec<Option<String>>, sqlx::Error>
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
