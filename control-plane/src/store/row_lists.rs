//! Statements with a list of rows of parameters, such as `VALUES ($1, $2), ($3, $4)`.
//!
//! A file declares the statement with one row. There is a text of it for each of a few numbers of rows, so that the databases prepare
//! few statements. Rows that are not needed contain empty texts and zeros, and the statement must ignore them.

use super::{Conn, StoreError};
use sqlx::{
    Any, AssertSqlSafe,
    any::{AnyArguments, AnyRow},
    query::Query,
};
use std::fmt::Write as _;

/// The numbers of rows for which a statement has a text. The last one is the maximum.
const SIZES: [usize; 4] = [1, 4, 32, MAX_ROWS];

/// The maximum number of rows of a statement. Longer lists need several statements.
const MAX_ROWS: usize = 256;

/// A value of a parameter. `None` is NULL.
#[derive(Debug, Clone)]
pub(super) enum Parameter {
    Text(Option<String>),
    Number(Option<i64>),
}

impl Parameter {
    /// What a row contains that is not needed.
    const fn unused(&self) -> Self {
        match self {
            Self::Text(_) => Self::Text(Some(String::new())),
            Self::Number(_) => Self::Number(Some(0)),
        }
    }

    fn bind(self, query: Query<'_, Any, AnyArguments>) -> Query<'_, Any, AnyArguments> {
        match self {
            Self::Text(text) => query.bind(text),
            Self::Number(number) => query.bind(number),
        }
    }
}

impl From<String> for Parameter {
    fn from(text: String) -> Self {
        Self::Text(Some(text))
    }
}

impl From<&str> for Parameter {
    fn from(text: &str) -> Self {
        Self::Text(Some(text.to_owned()))
    }
}

impl From<Option<String>> for Parameter {
    fn from(text: Option<String>) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Parameter {
    fn from(number: i64) -> Self {
        Self::Number(Some(number))
    }
}

impl From<Option<i64>> for Parameter {
    fn from(number: Option<i64>) -> Self {
        Self::Number(number)
    }
}

/// A statement with one row.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowListStatement {
    /// The text, in which the row stands once.
    pub sql: &'static str,
    /// The row. Its parameters have the highest numbers of the statement.
    pub row: &'static str,
}

impl RowListStatement {
    /// Runs the statement with all rows, and returns the number of affected rows. `fixed` are the parameters before those of the rows.
    pub async fn execute<const COLUMNS: usize>(
        self,
        conn: &mut Conn,
        fixed: &[Parameter],
        rows: impl IntoIterator<Item = [Parameter; COLUMNS]>,
    ) -> Result<u64, StoreError> {
        let mut affected = 0;
        for query in self.queries(fixed, rows) {
            affected += query.execute(&mut *conn).await?.rows_affected();
        }
        Ok(affected)
    }

    /// Runs the statement with all rows, as [`Self::execute`] does, and returns the rows of its result.
    pub async fn fetch_all<const COLUMNS: usize>(
        self,
        conn: &mut Conn,
        fixed: &[Parameter],
        rows: impl IntoIterator<Item = [Parameter; COLUMNS]>,
    ) -> Result<Vec<AnyRow>, StoreError> {
        let mut result = Vec::new();
        for query in self.queries(fixed, rows) {
            result.extend(query.fetch_all(&mut *conn).await?);
        }
        Ok(result)
    }

    /// As few queries as possible for all rows; none without rows.
    fn queries<const COLUMNS: usize>(
        self,
        fixed: &[Parameter],
        rows: impl IntoIterator<Item = [Parameter; COLUMNS]>,
    ) -> Vec<Query<'static, Any, AnyArguments>> {
        let rows: Vec<_> = rows.into_iter().collect();
        let query = |rows: &[[Parameter; COLUMNS]]| {
            let size = SIZES.into_iter().find(|size| *size >= rows.len()).unwrap_or(MAX_ROWS);
            let unused = rows.first().map(|row| row.each_ref().map(Parameter::unused));
            let rows = rows.iter().chain(unused.iter().cycle()).take(size).flatten();
            let query = sqlx::query(AssertSqlSafe(self.text(size)));
            fixed.iter().chain(rows).cloned().fold(query, |query, parameter| parameter.bind(query))
        };
        rows.chunks(MAX_ROWS).map(query).collect()
    }

    /// The text with this number of rows.
    fn text(self, size: usize) -> String {
        let width = self.row.matches('$').count();
        let rows: Vec<_> = (0..size).map(|place| renumbered(self.row, place * width)).collect();
        self.sql.replacen(self.row, &rows.join(", "), 1)
    }

    /// The texts with all numbers of rows, for the conformance tests.
    #[cfg(test)]
    pub fn texts(self) -> Vec<String> {
        SIZES.map(|size| self.text(size)).to_vec()
    }
}

/// The row with higher numbers of its parameters.
fn renumbered(row: &str, added: usize) -> String {
    let mut parts = row.split('$');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|character: char| !character.is_ascii_digit()).unwrap_or(part.len());
        let (number, rest) = part.split_at(end);
        let number = number.parse::<usize>().unwrap_or(0) + added;
        // Writing to a string cannot fail.
        let _infallible = write!(text, "${number}{rest}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_parameters_of_its_own() {
        let statement =
            RowListStatement { sql: "DELETE FROM t WHERE s = $1 AND (a, b) IN (VALUES ($2, $3))", row: "($2, $3)" };
        assert_eq!(
            statement.text(4),
            "DELETE FROM t WHERE s = $1 AND (a, b) IN (VALUES ($2, $3), ($4, $5), ($6, $7), ($8, $9))"
        );
        assert_eq!(statement.text(1), statement.sql);
    }
}
