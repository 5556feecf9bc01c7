//! Tables that fit the terminal.
//!
//! Invariant: an id is never cut. In a pipe all cells are complete, and times are RFC 3339.

use super::time::relative;
use countersign_client::api::without_control_characters;
use std::io::IsTerminal;

/// The minimum width of a text column.
const NARROWEST: usize = 12;

/// The number of spaces between columns.
const GAP: usize = 2;

/// How a column may change to fit the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// The cells of the column are never changed.
    Fixed,
    /// Long cells of the column are cut.
    Text,
    /// The times in the column are shown relative to now.
    Time,
}

/// Rows below a header.
#[derive(Debug)]
pub struct Table {
    header: Vec<(&'static str, Column)>,
    shows_header: bool,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub fn new<const N: usize>(header: [(&'static str, Column); N], rows: impl Iterator<Item = [String; N]>) -> Self {
        let rows = rows.map(|row| row.iter().map(|cell| without_control_characters(cell)).collect());
        Self { header: header.to_vec(), shows_header: true, rows: rows.collect() }
    }

    /// A table without titles above its columns.
    pub fn without_header<const N: usize>(
        columns: [(&'static str, Column); N],
        rows: impl Iterator<Item = [String; N]>,
    ) -> Self {
        Self { shows_header: false, ..Self::new(columns, rows) }
    }

    /// The table for standard output. On a terminal the table is fitted to the width, otherwise the table is complete.
    pub fn for_terminal(&self) -> String {
        let out = std::io::stdout();
        if !out.is_terminal() {
            return self.lines(&self.rows);
        }
        let width = rustix::termios::tcgetwinsize(&out).ok().map(|size| usize::from(size.ws_col));
        self.fitted(width.filter(|width| *width > 0).unwrap_or(80))
    }

    /// Fits the table to a width: with relative times first, then with shorter texts, then with one line per cell.
    fn fitted(&self, width: usize) -> String {
        let relative_times = |row: &Vec<String>| {
            let cells = row.iter().zip(&self.header);
            cells
                .map(|(cell, (_, column))| if *column == Column::Time { relative(cell) } else { cell.clone() })
                .collect()
        };
        let mut rows: Vec<Vec<String>> = self.rows.iter().map(relative_times).collect();
        let mut widths = self.widths(&rows);
        let total = |widths: &[usize]| widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
        while total(&widths) > width {
            let texts = widths.iter().enumerate().filter(|(position, _)| self.header[*position].1 == Column::Text);
            match texts.max_by_key(|(_, width)| **width) {
                Some((position, longest)) if *longest > NARROWEST => widths[position] -= 1,
                _ => return self.as_blocks(),
            }
        }
        for row in &mut rows {
            for (cell, width) in row.iter_mut().zip(&widths) {
                *cell = cut(cell, *width);
            }
        }
        self.lines(&rows)
    }

    fn widths(&self, rows: &[Vec<String>]) -> Vec<usize> {
        let width = |column: usize| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            let title = if self.shows_header { self.header[column].0.len() } else { 0 };
            cells.chain([title]).max().unwrap_or(0)
        };
        (0..self.header.len()).map(width).collect()
    }

    fn lines(&self, rows: &[Vec<String>]) -> String {
        let widths = self.widths(rows);
        let header: Vec<String> = self.header.iter().map(|(title, _)| (*title).to_owned()).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        self.shows_header.then_some(&header).into_iter().chain(rows).map(line).collect::<Vec<_>>().join("\n")
    }

    /// Formats the table with one line per cell, for a terminal that is too narrow for its rows.
    fn as_blocks(&self) -> String {
        let record = |row: &Vec<String>| {
            let cells = row.iter().zip(&self.header).filter(|(cell, _)| *cell != "-");
            details(cells.map(|(cell, (title, _))| (title.to_lowercase(), cell.clone())))
        };
        self.rows.iter().map(record).collect::<Vec<_>>().join("\n\n")
    }
}

/// Names and values in two columns.
pub fn details<N: AsRef<str>>(rows: impl IntoIterator<Item = (N, String)>) -> String {
    let rows: Vec<_> = rows.into_iter().collect();
    let width = rows.iter().map(|(name, _)| name.as_ref().chars().count()).max().unwrap_or(0);
    let line = |(name, value): &(N, String)| {
        let line = format!("{:width$}  {}", name.as_ref(), without_control_characters(value));
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// An id, followed by the name of its object in parentheses if the name is available.
pub fn id_with_name(id: &str, name: Option<&str>) -> String {
    name.map_or_else(|| id.to_owned(), |name| format!("{id} ({name})"))
}

fn cut(cell: &str, width: usize) -> String {
    if cell.chars().count() <= width {
        return cell.to_owned();
    }
    cell.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let header = [("ID", Column::Fixed), ("NAME", Column::Text), ("CREATED", Column::Time)];
        let created = "2020-01-01T00:00:00Z".to_owned();
        Table::new(header, [["role_0000000001".into(), "a long name of a role".into(), created]].into_iter())
    }

    #[test]
    fn fitted_table_shortens_times_then_texts_and_never_ids() {
        let wide = table().fitted(200);
        assert!(wide.contains("a long name of a role") && wide.contains("d ago") && !wide.contains("2020"), "{wide}");
        let narrow = table().fitted(45);
        assert!(narrow.contains("role_0000000001") && narrow.contains('…'), "{narrow}");
        assert!(narrow.lines().all(|line| line.chars().count() <= 45), "{narrow}");
    }

    #[test]
    fn table_that_cannot_fit_becomes_one_line_per_cell() {
        let records = table().fitted(20);
        assert!(records.starts_with("id       role_0000000001\nname     a long name"), "{records}");
    }

    #[test]
    fn table_in_a_pipe_is_complete() {
        let table = table();
        assert!(table.lines(&table.rows).contains("2020-01-01T00:00:00Z"));
    }
}
