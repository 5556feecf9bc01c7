//! The tables and columns of the source and the target database, from their catalogs, and the statements that copy a table.

use super::TransferError;
use crate::store::{schema::MIGRATIONS_TABLE, sqlite_file::SqliteFileError, statements::statements};
use sqlx::{PgConnection, Row, SqliteConnection, postgres::PgRow, sqlite::SqliteRow};
use std::collections::BTreeSet;

statements! { SQLITE_STATEMENTS:
    LIST_SOURCE_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND substr(name, 1, 7) <> 'sqlite_' AND name <> $1 \
         ORDER BY name";
    LIST_SOURCE_COLUMNS = "SELECT name, upper(type) AS type, pk FROM pragma_table_info($1) ORDER BY name";
    LIST_SOURCE_REFERENCES = "SELECT DISTINCT \"table\" FROM pragma_foreign_key_list($1)";
}

statements! { POSTGRES_STATEMENTS:
    LIST_TARGET_TABLES = "SELECT CAST(table_name AS TEXT) FROM information_schema.tables \
         WHERE table_schema = current_schema() ORDER BY 1";
    LIST_TARGET_COLUMNS = "SELECT CAST(column_name AS TEXT) AS name, CAST(data_type AS TEXT) AS type \
         FROM information_schema.columns WHERE table_schema = current_schema() AND table_name = $1";
}

/// A table of the schema.
#[derive(Debug, PartialEq, Eq)]
pub struct Table {
    pub name: String,
    /// All columns, ordered by name.
    pub columns: Vec<Column>,
    /// Names of the tables that foreign keys of the table reference.
    references: BTreeSet<String>,
}

/// A column of a table. The schema uses two column types.
#[derive(Debug, PartialEq, Eq)]
pub struct Column {
    pub name: String,
    /// Whether the type is `BIGINT`; otherwise it is `TEXT`.
    pub is_number: bool,
    /// Whether the column is part of the primary key.
    is_key: bool,
}

impl Table {
    fn quoted_name(&self) -> String {
        quote(&self.name)
    }

    /// The statement that reads all rows.
    pub fn select_statement(&self) -> String {
        format!("SELECT {} FROM {}", self.column_names(), self.quoted_name())
    }

    /// The statement that reads one row, if there is any.
    pub fn any_row_statement(&self) -> String {
        format!("SELECT 1 FROM {} LIMIT 1", self.quoted_name())
    }

    /// The statement that inserts rows, with one array per column as parameter.
    pub fn insert_statement(&self) -> String {
        let list = |(position, column): (usize, &Column)| {
            format!("${}::{}[]", position + 1, if column.is_number { "bigint" } else { "text" })
        };
        let lists: Vec<_> = self.columns.iter().enumerate().map(list).collect();
        format!(
            "INSERT INTO {} ({}) SELECT * FROM UNNEST({})",
            self.quoted_name(),
            self.column_names(),
            lists.join(", ")
        )
    }

    /// Refuses a row with the character NUL, which PostgreSQL cannot store in a text.
    pub fn refuse_nul(&self, fields: &[Option<String>]) -> Result<(), TransferError> {
        let has_nul = |field: &Option<String>| field.as_deref().is_some_and(|text| text.contains('\0'));
        let Some((column, _)) = self.columns.iter().zip(fields).find(|(_, field)| has_nul(field)) else {
            return Ok(());
        };
        let keys = self.columns.iter().zip(fields).filter(|(column, _)| column.is_key);
        let row = keys.map(|(key, field)| format!("{} = {:?}", key.name, field.as_deref().unwrap_or_default()));
        let row = row.collect::<Vec<_>>().join(" and ");
        Err(TransferError::Nul { table: self.name.clone(), column: column.name.clone(), row })
    }

    fn column_names(&self) -> String {
        self.columns.iter().map(|column| quote(&column.name)).collect::<Vec<_>>().join(", ")
    }
}

fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The statement that locks all tables against other writers.
pub fn lock_statement(tables: &[Table]) -> String {
    let names: Vec<_> = tables.iter().map(Table::quoted_name).collect();
    format!("LOCK TABLE {} IN EXCLUSIVE MODE", names.join(", "))
}

/// Reads the definitions of all tables of the source, and orders each after the tables that it references.
pub async fn read_source_tables(from: &mut SqliteConnection) -> Result<Vec<Table>, TransferError> {
    let rows = sqlx::query(LIST_SOURCE_TABLES)
        .bind(MIGRATIONS_TABLE)
        .fetch_all(&mut *from)
        .await
        .map_err(SqliteFileError::from)?;
    let mut tables = Vec::new();
    for row in &rows {
        let name: String = row.try_get("name").map_err(SqliteFileError::from)?;
        tables.push(read_table(from, name).await?);
    }
    order_by_reference(tables)
}

async fn read_table(from: &mut SqliteConnection, name: String) -> Result<Table, SqliteFileError> {
    let columns = sqlx::query(LIST_SOURCE_COLUMNS).bind(&name).fetch_all(&mut *from).await?;
    let column = |row: &SqliteRow| {
        let is_number = row.try_get::<String, _>("type")? == "BIGINT";
        Ok(Column { name: row.try_get("name")?, is_number, is_key: row.try_get::<i64, _>("pk")? > 0 })
    };
    let columns = columns.iter().map(column).collect::<Result<_, sqlx::Error>>()?;
    let references =
        sqlx::query_scalar(LIST_SOURCE_REFERENCES).bind(&name).fetch_all(from).await?.into_iter().collect();
    Ok(Table { name, columns, references })
}

/// Orders tables so that each comes after the tables that it references.
fn order_by_reference(mut remaining: Vec<Table>) -> Result<Vec<Table>, TransferError> {
    let mut ordered: Vec<Table> = Vec::new();
    while !remaining.is_empty() {
        let names: BTreeSet<String> = remaining.iter().map(|table| table.name.clone()).collect();
        let ready = |table: &Table| table.references.iter().all(|other| *other == table.name || !names.contains(other));
        let (next, rest): (Vec<_>, Vec<_>) = remaining.into_iter().partition(ready);
        if next.is_empty() {
            return Err(TransferError::Unsuitable(format!("cannot be filled: {names:?} reference each other")));
        }
        ordered.extend(next);
        remaining = rest;
    }
    Ok(ordered)
}

/// Refuses a target with tables of another application.
pub async fn refuse_foreign_tables(to: &mut PgConnection, tables: &[Table]) -> Result<(), TransferError> {
    let names: Vec<String> = sqlx::query_scalar(LIST_TARGET_TABLES).fetch_all(to).await?;
    let is_expected = |name: &String| name == MIGRATIONS_TABLE || tables.iter().any(|table| table.name == *name);
    match names.iter().find(|name| !is_expected(name)) {
        Some(other) => Err(TransferError::Unsuitable(format!(
            "is not empty: it has the table `{other}` of another application. Name an empty database"
        ))),
        None => Ok(()),
    }
}

/// Refuses a target in which a table has other columns than in the source.
pub async fn compare_columns(to: &mut PgConnection, table: &Table) -> Result<(), TransferError> {
    let rows = sqlx::query(LIST_TARGET_COLUMNS).bind(&table.name).fetch_all(to).await?;
    let column = |row: &PgRow| Ok((row.try_get("name")?, row.try_get::<String, _>("type")? == "bigint"));
    let target = rows.iter().map(column).collect::<Result<BTreeSet<(String, bool)>, sqlx::Error>>()?;
    let source = table.columns.iter().map(|column| (column.name.clone(), column.is_number)).collect();
    if target == source {
        return Ok(());
    }
    Err(TransferError::Unsuitable(format!(
        "has other columns in `{}` than the embedded database: name an empty database",
        table.name
    )))
}

/// The statements that read and write a table with these columns, for the conformance tests.
#[cfg(test)]
pub(in crate::store) fn statements_of_table(name: &str, columns: &[(String, bool)]) -> [String; 4] {
    let column =
        |(name, is_number): &(String, bool)| Column { name: name.clone(), is_number: *is_number, is_key: false };
    let columns = columns.iter().map(column).collect();
    let table = Table { name: name.to_owned(), columns, references: BTreeSet::new() };
    [
        table.select_statement(),
        table.any_row_statement(),
        table.insert_statement(),
        lock_statement(std::slice::from_ref(&table)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(name: &str, references: &[&str]) -> Table {
        let references = references.iter().map(ToString::to_string).collect();
        Table { name: name.to_owned(), columns: Vec::new(), references }
    }

    #[test]
    fn tables_come_after_the_tables_that_they_reference() {
        let tables = vec![table("a", &["b", "c"]), table("b", &["c"]), table("c", &["c"]), table("d", &[])];
        let names: Vec<_> = order_by_reference(tables).unwrap().into_iter().map(|table| table.name).collect();
        assert_eq!(names, ["c", "d", "b", "a"]);
        assert!(order_by_reference(vec![table("a", &["b"]), table("b", &["a"])]).is_err());
    }

    #[test]
    fn statements_quote_names() {
        let columns = [("id", false), ("a\"b", true)];
        let columns =
            columns.map(|(name, is_number)| Column { name: name.to_owned(), is_number, is_key: false }).into();
        let table = Table { columns, ..table("t", &[]) };
        assert_eq!(table.select_statement(), r#"SELECT "id", "a""b" FROM "t""#);
        assert_eq!(
            table.insert_statement(),
            r#"INSERT INTO "t" ("id", "a""b") SELECT * FROM UNNEST($1::text[], $2::bigint[])"#
        );
    }
}
