//! Reads the tables of `docs/understand/tenants.md`.

use countersign_tests::tools;
use std::{collections::BTreeSet, fs};

/// A cell of a table: the information, the party, and what the party learns.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    pub row: String,
    pub column: String,
    pub word: String,
}

pub struct Page {
    /// All cells of the tables whose first header begins with `About`.
    pub cells: Vec<Cell>,
    /// The words that the page explains, in lines that begin with the word in backticks.
    pub words: BTreeSet<String>,
}

impl Page {
    pub fn read() -> Self {
        let file = tools::root().join("docs/understand/tenants.md");
        Self::parse(&fs::read_to_string(file).expect("the page exists"))
    }

    pub fn parse(text: &str) -> Self {
        let explained = text.lines().filter_map(|line| line.strip_prefix("- `")?.split_once('`'));
        let words = explained.map(|(word, _)| word.to_owned()).collect();
        let (mut cells, mut columns) = (Vec::new(), None::<Vec<String>>);
        for line in text.lines() {
            let Some(values) = row(line) else {
                columns = None;
                continue;
            };
            match &columns {
                None => columns = Some(values),
                Some(_) if values.iter().all(|value| value.chars().all(|char| char == '-')) => {}
                Some(columns) if !columns[0].starts_with("About") => {}
                Some(columns) => {
                    assert_eq!(values.len(), columns.len(), "{line}");
                    let (row, values) = (&values[0], &values[1..]);
                    cells.extend(columns[1..].iter().zip(values).map(|(column, word)| Cell {
                        row: row.clone(),
                        column: column.clone(),
                        word: word.clone(),
                    }));
                }
            }
        }
        Self { cells, words }
    }
}

/// The values of a line of a table.
fn row(line: &str) -> Option<Vec<String>> {
    let line = line.strip_prefix('|')?.trim_end().strip_suffix('|')?;
    Some(line.split('|').map(|value| value.trim().to_owned()).collect())
}
