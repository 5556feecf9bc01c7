//! Tables that fit the terminal.
//!
//! Invariant: an id is never cut. In a pipe, no cell is shortened, and times are in the form of RFC 3339.

use super::time::relative;
use comfy_table::{ColumnConstraint, ContentArrangement, Row, Width, presets::NOTHING};
use countersign_client::api::replace_unprintable;
use std::io::IsTerminal;

/// The width to which a text column may shrink.
const NARROWEST: u16 = 12;

/// The number of spaces between columns.
const GAP: u16 = 2;

/// How the cells of a column may be shortened to fit the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    Fixed,
    Text,
    Time,
}

/// Rows below a header.
#[derive(Debug)]
pub struct Table {
    header: Vec<(&'static str, Fit)>,
    shows_header: bool,
    rows: Vec<Vec<String>>,
}

/// A table with a row for each item, to which columns are added.
pub struct Rows<'a, T> {
    pub items: &'a [T],
    pub table: Table,
}

impl<'a, T> Rows<'a, T> {
    /// A table without columns.
    pub fn of(items: &'a [T]) -> Self {
        let rows = items.iter().map(|_| Vec::new()).collect();
        Self { items, table: Table { header: Vec::new(), shows_header: true, rows } }
    }

    /// Adds a column whose cells are never changed.
    pub fn fixed(self, title: &'static str, cell: impl Fn(&T) -> String) -> Self {
        self.column(title, Fit::Fixed, cell)
    }

    /// Adds a column whose long cells are cut to fit the terminal.
    pub fn text(self, title: &'static str, cell: impl Fn(&T) -> String) -> Self {
        self.column(title, Fit::Text, cell)
    }

    /// Adds a column of times in RFC 3339, which are shown relative to now to fit the terminal.
    pub fn time(self, title: &'static str, cell: impl Fn(&T) -> String) -> Self {
        self.column(title, Fit::Time, cell)
    }

    fn column(mut self, title: &'static str, fit: Fit, cell: impl Fn(&T) -> String) -> Self {
        self.table.header.push((title, fit));
        for (row, item) in self.table.rows.iter_mut().zip(self.items) {
            row.push(replace_unprintable(&cell(item)));
        }
        self
    }
}

impl Table {
    /// A table without titles above its columns.
    pub fn without_header(self) -> Self {
        Self { shows_header: false, ..self }
    }

    /// The table for standard output: fitted to the width of a terminal, or complete in a pipe or file.
    pub fn for_terminal(&self) -> String {
        let out = std::io::stdout();
        if !out.is_terminal() {
            return layout(self.lines()).trim_fmt();
        }
        let width = rustix::termios::tcgetwinsize(&out).ok().map(|size| size.ws_col);
        self.fitted(width.filter(|width| *width > 0).unwrap_or(80))
    }

    /// Fits the table to a width: makes times relative, then shortens texts. A table that is still too wide gets one line per cell.
    fn fitted(&self, width: u16) -> String {
        let mut lines = self.lines();
        for (cell, (_, fit)) in lines.iter_mut().flat_map(|line| line.iter_mut().zip(&self.header)) {
            if *fit == Fit::Time {
                *cell = relative(cell);
            }
        }
        let mut table = layout(lines);
        let width = width.saturating_add(GAP);
        let mut smallest_width: u16 = 0;
        let contents = table.column_max_content_widths();
        for ((column, (_, fit)), content) in table.column_iter_mut().zip(&self.header).zip(contents) {
            let smallest = if *fit == Fit::Text { content.min(NARROWEST) } else { content }.saturating_add(GAP);
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(smallest)));
            smallest_width = smallest_width.saturating_add(smallest);
        }
        if smallest_width > width {
            return self.as_blocks();
        }
        table.set_width(width).set_content_arrangement(ContentArrangement::Dynamic).trim_fmt()
    }

    /// The titles, if they are shown, and the rows.
    fn lines(&self) -> Vec<Vec<String>> {
        let titles = self.header.iter().map(|(title, _)| (*title).to_owned()).collect();
        self.shows_header.then_some(titles).into_iter().chain(self.rows.iter().cloned()).collect()
    }

    /// Formats the table with one line per cell, without empty (`-`) cells, for a terminal that is too narrow for the rows.
    fn as_blocks(&self) -> String {
        let record = |row: &Vec<String>| {
            let cells = row.iter().zip(&self.header).filter(|(cell, _)| *cell != "-");
            details(cells.map(|(cell, (title, _))| (title.to_lowercase(), cell.clone())))
        };
        self.rows.iter().map(record).collect::<Vec<_>>().join("\n\n")
    }
}

/// Columns without borders. In a table that is fitted to a width, long cells are cut.
fn layout(lines: impl IntoIterator<Item = Vec<String>>) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_style(NOTHING).set_truncation_indicator("…");
    for line in lines {
        let mut row = Row::from(line);
        row.max_height(1);
        table.add_row(row);
    }
    table.column_iter_mut().for_each(|column| _ = column.set_padding((0, GAP)));
    table
}

/// Names and values in two columns.
pub fn details<N: AsRef<str>>(rows: impl IntoIterator<Item = (N, String)>) -> String {
    let line = |(name, value): (N, String)| vec![name.as_ref().to_owned(), replace_unprintable(&value)];
    layout(rows.into_iter().map(line)).trim_fmt()
}

/// A value in a cell; `-` for none.
pub fn or_dash(value: Option<&String>) -> String {
    value.cloned().unwrap_or_else(|| "-".to_owned())
}

/// An id, followed by the name of its object in parentheses if the name is available.
pub fn id_with_name(id: &str, name: Option<&str>) -> String {
    name.map_or_else(|| id.to_owned(), |name| format!("{id} ({name})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let items = [["role_0000000001", "a long name of a role", "2020-01-01T00:00:00Z"]];
        let rows = Rows::of(&items).fixed("ID", |item| item[0].to_owned()).text("NAME", |item| item[1].to_owned());
        rows.time("CREATED", |item| item[2].to_owned()).table
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
    fn wide_characters_count_as_two_columns() {
        let items = [["日本語", "role_1"], ["abcdef", "role_2"]];
        let rows = Rows::of(&items).text("NAME", |item| item[0].to_owned()).fixed("ID", |item| item[1].to_owned());
        let table = rows.table;
        assert_eq!(table.fitted(80), "NAME    ID\n日本語  role_1\nabcdef  role_2");
    }

    #[test]
    fn table_that_cannot_fit_becomes_one_line_per_cell() {
        let records = table().fitted(20);
        assert!(records.starts_with("id       role_0000000001\nname     a long name"), "{records}");
    }

    #[test]
    fn table_in_a_pipe_is_complete() {
        let table = table();
        assert!(layout(table.lines()).trim_fmt().contains("2020-01-01T00:00:00Z"));
    }
}
