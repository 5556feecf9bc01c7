//! Statements with a list of rows of parameters, such as `VALUES ($1, $2), ($3, $4)`.
//!
//! A file declares the statement with one row, in braces. We make texts of the statement for only a few numbers of rows, so that
//! the databases prepare few statements. Superfluous rows contain empty texts and zeros, and the statement must ignore them.

use super::{
    Conn, StoreError,
    query::{AnyQuery, Parameter},
};
use sqlx::{AssertSqlSafe, any::AnyRow};
use std::fmt::Write as _;

/// The numbers of rows for which a statement has a text. The last one is the maximum.
const SIZES: [usize; 4] = [1, 4, 32, MAX_ROWS];

/// The maximum number of rows of a statement. Longer lists need several statements.
const MAX_ROWS: usize = 256;

/// A statement with one row in braces. The parameters of the row have the highest numbers of the statement.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowListStatement(pub &'static str);

/// Like `statements!`, for statements with a list of rows: declares each as a constant, and lists all for the conformance tests.
macro_rules! row_list_statements {
    ($list:ident: $($(#[$doc:meta])* $name:ident = $sql:expr;)+) => {
        $($(#[$doc])* const $name: $crate::store::row_lists::RowListStatement =
            $crate::store::row_lists::RowListStatement($sql);)+

        /// All statements of this list, for the conformance tests.
        #[cfg(test)]
        pub(in crate::store) const $list: &[$crate::store::row_lists::RowListStatement] = &[$($name),+];
    };
}
pub(super) use row_list_statements;

impl RowListStatement {
    /// Runs the statement with all rows, and returns the number of affected rows. `fixed` are the parameters before the rows.
    pub async fn execute<const COLUMNS: usize>(
        self,
        conn: &mut Conn,
        fixed: &[Parameter],
        rows: impl IntoIterator<Item = [Parameter; COLUMNS]>,
    ) -> Result<u64, StoreError> {
        let mut affected = 0;
        for query in self.queries(fixed, rows) {
            affected += conn.execute(query).await?.rows_affected();
        }
        Ok(affected)
    }

    /// Runs the statement with all rows, as [`Self::execute`] does, and lists the rows of its result.
    pub async fn list_rows<T, L: FromIterator<T>, const COLUMNS: usize>(
        self,
        conn: &mut Conn,
        fixed: &[Parameter],
        rows: impl IntoIterator<Item = [Parameter; COLUMNS]>,
        from_row: impl Fn(&AnyRow) -> Result<T, StoreError>,
    ) -> Result<L, StoreError> {
        let mut result = Vec::new();
        for query in self.queries(fixed, rows) {
            result.extend(conn.fetch_all(query).await?);
        }
        result.iter().map(from_row).collect()
    }

    /// Makes as few queries as possible for all rows. Without rows, makes none.
    fn queries<const COLUMNS: usize>(
        self,
        fixed: &[Parameter],
        rows: impl IntoIterator<Item = [Parameter; COLUMNS]>,
    ) -> Vec<AnyQuery> {
        let rows: Vec<_> = rows.into_iter().collect();
        let query = |rows: &[[Parameter; COLUMNS]]| {
            let size = SIZES.into_iter().find(|size| *size >= rows.len()).unwrap_or(MAX_ROWS);
            let unused = rows.first().map(|row| row.each_ref().map(Parameter::empty));
            let rows = rows.iter().chain(unused.iter().cycle()).take(size).flatten();
            let query = sqlx::query(AssertSqlSafe(self.text(size)));
            fixed.iter().chain(rows).cloned().fold(query, |query, parameter| parameter.bind(query))
        };
        rows.chunks(MAX_ROWS).map(query).collect()
    }

    /// The text of the statement for this number of rows.
    fn text(self, size: usize) -> String {
        let (before, rest) = self.0.split_once('{').unwrap_or((self.0, ""));
        let (row, after) = rest.split_once('}').unwrap_or_default();
        let width = row.matches('$').count();
        let rows: Vec<_> = (0..size).map(|place| renumbered(row, place * width)).collect();
        format!("{before}{}{after}", rows.join(", "))
    }

    /// The texts with all numbers of rows, for the conformance tests.
    #[cfg(test)]
    pub fn texts(self) -> Vec<String> {
        SIZES.map(|size| self.text(size)).to_vec()
    }
}

/// Adds `added` to the numbers of the parameters in a row.
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
        let statement = RowListStatement("DELETE FROM t WHERE s = $1 AND (a, b) IN (VALUES {($2, $3)})");
        assert_eq!(
            statement.text(4),
            "DELETE FROM t WHERE s = $1 AND (a, b) IN (VALUES ($2, $3), ($4, $5), ($6, $7), ($8, $9))"
        );
        assert_eq!(statement.text(1), "DELETE FROM t WHERE s = $1 AND (a, b) IN (VALUES ($2, $3))");
    }
}
