//! Runs the shell blocks of README and of the *Use it* pages, and compares what they print with the pages.
//!
//! A block `sh` runs, and every command in it must succeed. A block `text` that follows is its output. A block
//! `sh,background` runs until the page ends. A block `sh,ignore` does not run; the comment before it says why. All blocks of
//! a page run in one `bash`, in a temporary checkout with free ports.

#![expect(clippy::unwrap_used, reason = "a test says what it expects")]

mod checkout;
mod output;
mod page;
mod script;

use checkout::Checkout;
use countersign_identity::Reason;
use page::{Block, Kind, Page};
use std::path::Path;

const QUICK_START: &str = "docs/use/quick-start.md";

/// The other pages start after this section: the control plane runs, and an agent is registered and has a role.
const STATE_OF_OTHER_PAGES: &str = "## 4. ";

const LAST_LINES: usize = 10;

const README_LINES: usize = 150;

fn pages() -> Vec<String> {
    let folder = countersign_tests::tools::root().join("docs/use");
    let mut pages: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    pages.sort();
    let pages = pages.into_iter().filter(|name| Path::new(name).extension().is_some_and(|kind| kind == "md"));
    let pages = pages.map(|name| format!("docs/use/{}", name.to_str().unwrap()));
    std::iter::once("README.md".to_owned()).chain(pages).collect()
}

fn run(path: &str) {
    let page = Page::read(path);
    let mut blocks = page.blocks.clone();
    if !blocks.iter().any(|block| block.code.contains("countersign-control-plane --dev")) {
        blocks.splice(0..0, Page::read(QUICK_START).blocks_before(STATE_OF_OTHER_PAGES));
    }
    let checkout = Checkout::new();
    let blocks: Vec<_> = blocks.into_iter().map(|block| checkout.with_free_ports(block)).collect();
    let outcome = script::run(&blocks, &checkout);
    let mut problems = Vec::new();
    for (block, printed) in blocks.iter().zip(&outcome.printed) {
        problems.extend(printed.as_deref().and_then(|printed| output::difference(block, printed)));
    }
    problems.extend(outcome.failure);
    let servers = blocks.iter().zip(&outcome.printed).filter(|(block, _)| block.kind == Kind::Background);
    let logs: String =
        servers.map(|(block, printed)| last_lines(block, printed.as_deref().unwrap_or_default())).collect();
    assert!(problems.is_empty(), "{}\n{logs}", problems.join("\n"));
}

/// The last lines that a server printed, for a failed test.
fn last_lines(Block { place, .. }: &Block, printed: &str) -> String {
    let lines: Vec<_> = printed.lines().collect();
    let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
    format!("---- the end of what {place} printed\n{}\n", last.join("\n"))
}

macro_rules! pages {
    ($($name:ident: $path:literal;)+) => {
        $(
            #[test]
            fn $name() {
                run($path);
            }
        )+

        const RUN: &[&str] = &[$($path,)+];
    };
}

pages! {
    readme: "README.md";
    agents: "docs/use/agents.md";
    command_line: "docs/use/command-line.md";
    errors: "docs/use/errors.md";
    quick_start: "docs/use/quick-start.md";
    services_and_roles: "docs/use/services-and-roles.md";
    trust: "docs/use/trust.md";
    verify_and_headers: "docs/use/verify-and-headers.md";
    webhooks: "docs/use/webhooks.md";
}

#[test]
fn every_page_with_shell_blocks_has_a_test() {
    let with_blocks: Vec<_> = pages().into_iter().filter(|path| !Page::read(path).blocks.is_empty()).collect();
    assert_eq!(with_blocks, RUN);
}

#[test]
fn errors_page_lists_every_reason_and_code() {
    let page = Page::read("docs/use/errors.md").text;
    let routes = Page::read("docs/use/api.md").text;
    let errors = routes.lines().filter_map(|line| line.strip_suffix(" |")?.rsplit(" | ").next());
    let codes = errors.flat_map(|errors| errors.split(", ")).filter(|code| code.bytes().all(is_code_character));
    let reasons = Reason::ALL.iter().map(|reason| reason.as_str());
    let missing: Vec<_> = codes.chain(reasons).filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

fn is_code_character(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte == b'_'
}

#[test]
fn readme_has_at_most_150_lines() {
    assert!(Page::read("README.md").text.lines().count() <= README_LINES);
}

#[test]
fn every_block_that_does_not_run_states_a_reason() {
    for path in pages() {
        for block in Page::read(&path).blocks {
            let reason = block.reason.as_deref().unwrap_or_default();
            assert!(block.kind != Kind::Ignored || reason.len() > 10, "{}: say why it is not run", block.place);
        }
    }
}
