//! Tests every cell of the tables in `docs/understand/tenants.md`, which say who learns what about whom.
//!
//! The test plays each party of the tables against a deployment with several owners: it reads everything that the party can read,
//! first with the ids that the party has, then with ids of others. It looks for each piece of information in what the party
//! received, and compares the result with the cell. The paths come from the API description, so a new route is read, too.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests panic on unexpected values")]

mod crawl;
mod facts;
mod observation;
mod page;
mod scenario;

use self::{
    crawl::{Ids, crawl},
    facts::facts,
    observation::{PARTIES, observe},
    page::{Cell, Page},
    scenario::Scenario,
};
use std::collections::BTreeSet;

/// What each party learns in reality, in the order of the tables.
async fn learned(scenario: &Scenario) -> Vec<Cell> {
    let all = Ids::from_text(&crawl(scenario, &[Some(scenario.control.human())], Ids::default()).await);
    let facts = facts(scenario).await;
    let mut cells = Vec::new();
    for party in PARTIES {
        let seen = observe(scenario, party, &all).await;
        cells.extend(facts.iter().map(|fact| Cell {
            row: fact.row.to_owned(),
            column: party.to_owned(),
            word: fact.word(&seen).to_owned(),
        }));
    }
    cells
}

/// The cells of one list that are not in the other.
fn difference<'a>(cells: &'a [Cell], other: &[Cell]) -> Vec<&'a Cell> {
    cells.iter().filter(|cell| !other.contains(cell)).collect()
}

#[tokio::test]
async fn every_cell_of_the_page_is_true() {
    let page = Page::read();
    let learned = learned(&Scenario::new().await).await;
    let (wrong, missing) = (difference(&page.cells, &learned), difference(&learned, &page.cells));
    assert!(wrong.is_empty() && missing.is_empty(), "the page says {wrong:#?}, the server says {missing:#?}");
    assert_eq!(page.cells.len(), learned.len(), "each row is in one table");
    let used: BTreeSet<_> = page.cells.iter().map(|cell| cell.word.clone()).collect();
    assert_eq!(page.words, used, "the page explains exactly the words that it uses");
}

#[test]
fn parser_reads_each_table_about_something() {
    let text = "| Other | x |\n|---|---|\n| a | b |\n\n| About x | p | q |\n|---|---|---|\n| r | yes | no |\n\n- `yes`: text\n";
    let page = Page::parse(text);
    let cell =
        |column: &str, word: &str| Cell { row: "r".to_owned(), column: column.to_owned(), word: word.to_owned() };
    assert_eq!(page.cells, [cell("p", "yes"), cell("q", "no")]);
    assert_eq!(page.words, BTreeSet::from(["yes".to_owned()]));
}
