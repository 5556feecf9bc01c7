//! Which tables there are, with which columns, and which must come first: asked of the database, not written down here.

use super::TransferError;
use crate::store::{schema::STEPS, sqlite_file::Flaw};
use sqlx::{PgConnection, Row, SqliteConnection, postgres::PgRow, sqlite::SqliteRow};
use std::collections::BTreeSet;

/// A table.
#[derive(Debug, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// All of its columns, by name.
    pub columns: Vec<Column>,
    /// The tables that its rows refer to.
    refers_to: BTreeSet<String>,
}

/// A column: there are two types.
#[derive(Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// `BIGINT`, or else `TEXT`.
    pub is_number: bool,
    /// Whether it is of the primary key.
    is_key: bool,
}

impl Table {
    /// Its name, in a statement.
    pub fn quoted(&self) -> String {
        quoted(&self.name)
    }

    /// Reads all rows.
    pub fn select(&self) -> String {
        format!("SELECT {} FROM {}", self.names(), self.quoted())
    }

    /// Writes rows, a list for each column.
    pub fn insert(&self) -> String {
        let list = |(position, column): (usize, &Column)| {
            format!("${}::{}[]", position + 1, if column.is_number { "bigint" } else { "text" })
        };
        let lists: Vec<_> = self.columns.iter().enumerate().map(list).collect();
        format!("INSERT INTO {} ({}) SELECT * FROM UNNEST({})", self.quoted(), self.names(), lists.join(", "))
    }

    /// Refuses a row with a character that is no character of a text in PostgreSQL.
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

    fn names(&self) -> String {
        self.columns.iter().map(|column| quoted(&column.name)).collect::<Vec<_>>().join(", ")
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// All tables of the embedded database, those that others refer to first.
pub async fn of_source(from: &mut SqliteConnection) -> Result<Vec<Table>, TransferError> {
    let sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND substr(name, 1, 7) <> 'sqlite_' AND name <> $1 ORDER BY name";
    let rows = sqlx::query(sql).bind(STEPS).fetch_all(&mut *from).await.map_err(Flaw::from)?;
    let mut tables = Vec::new();
    for row in &rows {
        let name: String = row.try_get("name").map_err(Flaw::from)?;
        tables.push(of_name(from, name).await?);
    }
    in_order(tables)
}

async fn of_name(from: &mut SqliteConnection, name: String) -> Result<Table, Flaw> {
    let columns =
        sqlx::query("SELECT name, upper(type) AS type, pk FROM pragma_table_info($1) ORDER BY name").bind(&name);
    let columns = columns.fetch_all(&mut *from).await?;
    let column = |row: &SqliteRow| {
        let is_number = row.try_get::<String, _>("type")? == "BIGINT";
        Ok(Column { name: row.try_get("name")?, is_number, is_key: row.try_get::<i64, _>("pk")? > 0 })
    };
    let columns = columns.iter().map(column).collect::<Result<_, sqlx::Error>>()?;
    let others = sqlx::query_scalar("SELECT DISTINCT \"table\" FROM pragma_foreign_key_list($1)").bind(&name);
    let refers_to = others.fetch_all(from).await?.into_iter().collect();
    Ok(Table { name, columns, refers_to })
}

/// Each after those that it refers to.
fn in_order(mut left: Vec<Table>) -> Result<Vec<Table>, TransferError> {
    let mut ordered: Vec<Table> = Vec::new();
    while !left.is_empty() {
        let names: BTreeSet<String> = left.iter().map(|table| table.name.clone()).collect();
        let ready = |table: &Table| table.refers_to.iter().all(|other| *other == table.name || !names.contains(other));
        let (next, rest): (Vec<_>, Vec<_>) = left.into_iter().partition(ready);
        if next.is_empty() {
            return Err(TransferError::Unfit(format!("would need rows of {names:?} before each other")));
        }
        ordered.extend(next);
        left = rest;
    }
    Ok(ordered)
}

/// Refuses a target where somebody else has tables.
pub async fn refuse_others(to: &mut PgConnection, tables: &[Table]) -> Result<(), TransferError> {
    let sql = "SELECT CAST(table_name AS TEXT) FROM information_schema.tables WHERE table_schema = current_schema() ORDER BY 1";
    let found: Vec<String> = sqlx::query_scalar(sql).fetch_all(to).await?;
    let ours = |name: &String| name == STEPS || tables.iter().any(|table| table.name == *name);
    match found.iter().find(|name| !ours(name)) {
        Some(other) => Err(TransferError::Unfit(format!(
            "is not empty: the table `{other}` there is none of ours. Name an empty database"
        ))),
        None => Ok(()),
    }
}

/// Refuses a target where a table has other columns than here.
pub async fn compare(to: &mut PgConnection, table: &Table) -> Result<(), TransferError> {
    let sql = "SELECT CAST(column_name AS TEXT) AS name, CAST(data_type AS TEXT) AS type FROM information_schema.columns \
               WHERE table_schema = current_schema() AND table_name = $1";
    let rows = sqlx::query(sql).bind(&table.name).fetch_all(to).await?;
    let column = |row: &PgRow| Ok((row.try_get("name")?, row.try_get::<String, _>("type")? == "bigint"));
    let there = rows.iter().map(column).collect::<Result<BTreeSet<(String, bool)>, sqlx::Error>>()?;
    let here = table.columns.iter().map(|column| (column.name.clone(), column.is_number)).collect();
    if there == here {
        return Ok(());
    }
    Err(TransferError::Unfit(format!(
        "has other columns in `{}` than the embedded database: name an empty one",
        table.name
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(name: &str, refers_to: &[&str]) -> Table {
        let refers_to = refers_to.iter().map(ToString::to_string).collect();
        Table { name: name.to_owned(), columns: Vec::new(), refers_to }
    }

    #[test]
    fn what_is_referred_to_comes_first() {
        let tables = vec![table("a", &["b", "c"]), table("b", &["c"]), table("c", &["c"]), table("d", &[])];
        let names: Vec<_> = in_order(tables).unwrap().into_iter().map(|table| table.name).collect();
        assert_eq!(names, ["c", "d", "b", "a"]);
        assert!(in_order(vec![table("a", &["b"]), table("b", &["a"])]).is_err());
    }

    #[test]
    fn names_are_quoted() {
        let columns = [("id", false), ("a\"b", true)];
        let columns =
            columns.map(|(name, is_number)| Column { name: name.to_owned(), is_number, is_key: false }).into();
        let table = Table { columns, ..table("t", &[]) };
        assert_eq!(table.select(), r#"SELECT "id", "a""b" FROM "t""#);
        assert_eq!(table.insert(), r#"INSERT INTO "t" ("id", "a""b") SELECT * FROM UNNEST($1::text[], $2::bigint[])"#);
    }
}
