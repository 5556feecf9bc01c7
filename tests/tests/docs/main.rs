//! Runs the shell blocks of README, of the *Use it* pages and of *Declared state*, and compares their output with the page.
//!
//! A block `sh` runs, and every command in the block must succeed. A `text` block after a shell block contains the expected output
//! of the shell block. A block `sh,background` runs until the page ends. A block `sh,ignore` does not run, for the reason in the
//! comment before the block. All blocks of a page run in one `bash`, in a temporary checkout with free ports.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

mod checkout;
mod output;
mod page;
mod script;

use checkout::Checkout;
use countersign_identity::Reason;
use page::{Block, BlockKind, Page};
use std::path::Path;

const QUICK_START: &str = "docs/use/quick-start.md";

/// The blocks of the quick start before the heading `## 4. …` also prepare the other pages: the control plane runs, and
/// an agent is registered and has a role.
const SETUP_END: &str = "## 4. ";

const LAST_LINES: usize = 10;

const README_LINES: usize = 150;

fn pages() -> Vec<String> {
    let folder = countersign_tests::tools::root().join("docs/use");
    let mut pages: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    pages.sort();
    let pages = pages.into_iter().filter(|name| Path::new(name).extension().is_some_and(|extension| extension == "md"));
    let pages = pages.map(|name| format!("docs/use/{}", name.to_str().unwrap()));
    ["README.md", "docs/run/declared-state.md"].map(str::to_owned).into_iter().chain(pages).collect()
}

fn run_page(path: &str) {
    let page = Page::read(path);
    let mut blocks = page.blocks.clone();
    if !blocks.iter().any(|block| block.code.contains("countersign-control-plane --dev")) {
        blocks.splice(0..0, Page::read(QUICK_START).blocks_before(SETUP_END));
    }
    let checkout = Checkout::new();
    let blocks: Vec<_> = blocks.into_iter().map(|block| checkout.with_free_ports(block)).collect();
    let outcome = script::run(&blocks, &checkout);
    let mut problems = Vec::new();
    for (block, printed) in blocks.iter().zip(&outcome.outputs) {
        problems.extend(printed.as_deref().and_then(|printed| output::difference(block, printed)));
    }
    problems.extend(outcome.failure);
    let servers = blocks.iter().zip(&outcome.outputs).filter(|(block, _)| block.kind == BlockKind::Background);
    let logs: String =
        servers.map(|(block, printed)| last_lines(block, printed.as_deref().unwrap_or_default())).collect();
    assert!(problems.is_empty(), "{}\n{logs}", problems.join("\n"));
}

/// The last lines of a server's output, for the message of a failed test.
fn last_lines(Block { location, .. }: &Block, printed: &str) -> String {
    let lines: Vec<_> = printed.lines().collect();
    let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
    format!("---- last lines of the output of {location}\n{}\n", last.join("\n"))
}

macro_rules! pages {
    ($($name:ident: $path:literal;)+) => {
        $(
            #[test]
            fn $name() {
                run_page($path);
            }
        )+

        const TESTED_PAGES: &[&str] = &[$($path,)+];
    };
}

pages! {
    readme_runs: "README.md";
    declared_state_page_runs: "docs/run/declared-state.md";
    agents_page_runs: "docs/use/agents.md";
    command_line_page_runs: "docs/use/command-line.md";
    errors_page_runs: "docs/use/errors.md";
    mcp_page_runs: "docs/use/mcp.md";
    oauth_page_runs: "docs/use/oauth.md";
    quick_start_runs: "docs/use/quick-start.md";
    services_and_roles_page_runs: "docs/use/services-and-roles.md";
    trust_page_runs: "docs/use/trust.md";
    verify_and_headers_page_runs: "docs/use/verify-and-headers.md";
    webhooks_page_runs: "docs/use/webhooks.md";
    why_refused_page_runs: "docs/use/why-refused.md";
}

#[test]
fn every_page_with_shell_blocks_has_a_test() {
    let with_blocks: Vec<_> = pages().into_iter().filter(|path| !Page::read(path).blocks.is_empty()).collect();
    assert_eq!(with_blocks, TESTED_PAGES);
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
fn oauth_page_has_the_rust_code_of_the_tests() {
    let file = countersign_tests::tools::root().join("tests/tests/edge/oauth_clients/huskarl/agent_grant.rs");
    let code = std::fs::read_to_string(file).unwrap();
    let (_, code) = code.split_once("\n\n").unwrap();
    assert!(
        Page::read("docs/use/oauth.md").text.contains(&format!("```rust\n{code}```\n")),
        "the page must have\n{code}"
    );
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
            assert!(
                block.kind != BlockKind::Ignored || reason.len() > 10,
                "{}: the block needs a reason why it does not run",
                block.location
            );
        }
    }
}
