//! The table of docs/use/api.md: who may use a route, what limits it, and how it may refuse.

use super::routes::Door;
use countersign_tests::tools;
use std::{collections::BTreeSet, sync::LazyLock};

/// What every route may answer.
const EVERYWHERE: [&str; 5] =
    ["HTTPS_REQUIRED", "METHOD_NOT_ALLOWED", "PAYLOAD_TOO_LARGE", "INTERNAL", "SERVICE_UNAVAILABLE"];

/// A line of the table.
#[derive(Debug)]
pub struct Line {
    pub method: String,
    pub path: String,
    pub door: Door,
    /// The category that limits it; nothing if it is free.
    pub category: Option<String>,
    pub good: u16,
    pub errors: BTreeSet<String>,
}

/// All lines, in their order.
pub static LINES: LazyLock<Vec<Line>> = LazyLock::new(|| {
    let text = std::fs::read_to_string(tools::root().join("docs/use/api.md")).unwrap();
    let routes = text.split("\n## Routes\n").nth(1).expect("a chapter of routes");
    routes.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| Method ")).map(read).collect()
});

fn read(line: &str) -> Line {
    let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
    let [method, path, who, category, good, errors] = cells[..] else { panic!("six cells: {line}") };
    Line {
        method: method.to_owned(),
        path: path.to_owned(),
        door: door(who),
        category: Some(category.to_owned()).filter(|category| category != "free"),
        good: good.parse().expect(line),
        errors: errors.split(',').map(str::trim).filter(|code| !code.is_empty()).map(str::to_owned).collect(),
    }
}

fn door(who: &str) -> Door {
    match who {
        "none" => Door::Open,
        "none or human" => Door::Registrant,
        "human" => Door::Person,
        "admin" => Door::Admin,
        "owner, admin" => Door::Owner,
        "full key, owner, admin" => Door::Manager,
        "full key, sync key" => Door::Verifier,
        "full key" => Door::AnyFullKey,
        other => panic!("docs/use/api.md knows no `{other}`"),
    }
}

/// The line of a route.
pub fn line(method: &str, path: &str) -> &'static Line {
    let found = LINES.iter().find(|line| (line.method.as_str(), line.path.as_str()) == (method, path));
    found.unwrap_or_else(|| panic!("docs/use/api.md has no line for {method} {path}"))
}

impl Line {
    /// Whether the table allows this code of an error.
    pub fn allows(&self, code: &str) -> bool {
        self.errors.contains(code)
            || EVERYWHERE.contains(&code)
            || (code == "RATE_LIMIT_EXCEEDED" && self.category.is_some())
    }
}
