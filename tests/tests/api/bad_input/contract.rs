//! Reads the table in docs/use/api.md, which lists callers, rate limit and errors of each route.

use super::routes::Access;
use countersign_tests::tools;
use std::{collections::BTreeSet, sync::LazyLock};

/// Errors that every route may return.
const COMMON_ERRORS: [&str; 5] =
    ["HTTPS_REQUIRED", "METHOD_NOT_ALLOWED", "PAYLOAD_TOO_LARGE", "INTERNAL", "SERVICE_UNAVAILABLE"];

/// A row of the table of routes in docs/use/api.md.
#[derive(Debug)]
pub struct RouteRow {
    pub method: String,
    pub path: String,
    pub access: Access,
    /// The rate limit category; `None` if the route is not limited.
    pub category: Option<String>,
    pub success_status: u16,
    pub errors: BTreeSet<String>,
}

/// All rows of the table of routes in docs/use/api.md, in order.
pub static ROUTE_ROWS: LazyLock<Vec<RouteRow>> = LazyLock::new(|| {
    let text = std::fs::read_to_string(tools::root().join("docs/use/api.md")).unwrap();
    let routes = text.split("\n## Routes\n").nth(1).expect("the page has a section on routes");
    routes.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| Method ")).map(parse_row).collect()
});

fn parse_row(line: &str) -> RouteRow {
    let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
    let [method, path, caller, category, success_status, errors] = cells[..] else {
        panic!("expected six cells: {line}")
    };
    RouteRow {
        method: method.to_owned(),
        path: path.to_owned(),
        access: access(caller),
        category: Some(category.to_owned()).filter(|category| category != "free"),
        success_status: success_status.parse().expect(line),
        errors: errors.split(',').map(str::trim).filter(|code| !code.is_empty()).map(str::to_owned).collect(),
    }
}

fn access(caller: &str) -> Access {
    match caller {
        "none" => Access::Public,
        "none or human" => Access::PublicOrHuman,
        "human" => Access::HumanUser,
        "admin" => Access::Admin,
        "receiver" => Access::Receiver,
        "owner, admin" => Access::Owner,
        "full key, owner, admin" => Access::Manager,
        "full key, sync key" => Access::Verifier,
        "full key" => Access::AnyFullKey,
        other => panic!("unknown caller `{other}` in docs/use/api.md"),
    }
}

/// The row of a route. Panics if the table has no row for the route.
pub fn route_row(method: &str, path: &str) -> &'static RouteRow {
    let row = ROUTE_ROWS.iter().find(|row| (row.method.as_str(), row.path.as_str()) == (method, path));
    row.unwrap_or_else(|| panic!("docs/use/api.md has no row for {method} {path}"))
}

impl RouteRow {
    /// Whether the table lists this error code for the route.
    pub fn allows(&self, code: &str) -> bool {
        self.errors.contains(code)
            || COMMON_ERRORS.contains(&code)
            || (code == "RATE_LIMIT_EXCEEDED" && self.category.is_some())
    }
}
