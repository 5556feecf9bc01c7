//! Checks the source code for statements that are not in the lists that [`super::statements`] prepares.

use super::statements::{ROW_LISTS, statement_lists};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// A string literal that starts with one of these words is a statement.
const SQL_WORDS: [&str; 17] = [
    "SELECT",
    "INSERT",
    "UPDATE",
    "DELETE",
    "PRAGMA",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SET",
    "LOCK",
    "VACUUM",
    "WITH",
    "ALTER",
    "CREATE",
    "DROP",
    "SAVEPOINT",
    "RELEASE",
];

/// Literals from which statements are built at run time. The tests in [`super::statements`] prepare the built statements.
const STATEMENT_TEMPLATES: [(&str, &str); 7] = [
    ("pools.rs", "\"SET statement_timeout = {statement}\""),
    ("pools.rs", "\"SET idle_in_transaction_session_timeout = {idle}\""),
    ("pools.rs", "\"SET application_name = '{APPLICATION_NAME}'\""),
    ("transfer/tables.rs", "\"SELECT {} FROM {}\""),
    ("transfer/tables.rs", "\"SELECT 1 FROM {} LIMIT 1\""),
    ("transfer/tables.rs", "\"INSERT INTO {} ({}) SELECT * FROM UNNEST({})\""),
    ("transfer/tables.rs", "\"LOCK TABLE {} IN EXCLUSIVE MODE\""),
];

/// Files that run statements built at run time.
const FILES_WITH_DYNAMIC_STATEMENTS: [&str; 4] = ["pools.rs", "row_lists.rs", "transfer.rs", "transfer/batch.rs"];

/// A source file without tests. `name` is the path of the file below `src/store`, or below `src` with a leading `/`.
struct Source {
    name: String,
    lists: Vec<String>,
    code: String,
}

fn read_sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    collect_paths(&root, &mut paths);
    let name = |path: &Path| match path.strip_prefix(root.join("store")) {
        Ok(relative) => relative.display().to_string(),
        Err(_) => format!("/{}", path.strip_prefix(&root).unwrap().display()),
    };
    let sources = paths.iter().map(|path| Source::parse(name(path), &fs::read_to_string(path).unwrap()));
    sources.filter(|source| !source.name.starts_with("conformance")).collect()
}

fn collect_paths(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect_paths(&path, paths);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            paths.push(path);
        }
    }
}

impl Source {
    /// Removes comments, tests, and the declarations of statements and of macros.
    fn parse(name: String, text: &str) -> Self {
        let (mut lists, mut code, mut in_declaration) = (Vec::new(), String::new(), false);
        for line in text.lines().take_while(|line| *line != "mod tests {") {
            let rest = line.strip_prefix("row_list_statements! { ").or(line.strip_prefix("statements! { "));
            let declared = rest.and_then(|rest| rest.strip_suffix(':'));
            lists.extend(declared.map(ToOwned::to_owned));
            in_declaration = in_declaration || declared.is_some() || line.starts_with("macro_rules! ");
            if !in_declaration && !line.trim_start().starts_with("//") {
                code += line;
                code.push('\n');
            }
            in_declaration = in_declaration && line != "}";
        }
        Self { name, lists, code }
    }
}

#[test]
fn every_statement_list_is_prepared_by_the_tests() {
    let declared: BTreeSet<_> = read_sources()
        .into_iter()
        .flat_map(|source| source.lists.into_iter().map(move |list| (source.name.clone(), list)))
        .collect();
    let row_lists = ROW_LISTS.map(|(file, _)| (file, "ROW_LISTS"));
    let registered = statement_lists().map(|(file, list, _)| (file, list)).chain(row_lists);
    let registered = registered.map(|(file, list)| (file.to_owned(), list.to_owned())).collect();
    assert_eq!(declared, registered);
}

#[test]
fn string_literals_outside_statement_lists_contain_no_sql() {
    for source in read_sources().iter().filter(|source| !source.name.starts_with('/')) {
        for (start, _) in source.code.match_indices('"') {
            let literal = &source.code[start..];
            let is_sql = SQL_WORDS.iter().any(|sql_word| {
                literal[1..].strip_prefix(sql_word).is_some_and(|rest| rest.starts_with([' ', '"', ';', '\n']))
            });
            let is_template =
                STATEMENT_TEMPLATES.iter().any(|(file, text)| *file == source.name && literal.starts_with(text));
            assert!(!is_sql || is_template, "{}: {}", source.name, literal.lines().next().unwrap_or_default());
        }
    }
}

/// All other files run only constant statements, and the test above shows that these are in the lists.
#[test]
fn only_some_files_build_statements_at_run_time() {
    for source in read_sources() {
        assert!(!source.name.starts_with('/') || !source.code.contains("sqlx::"), "{} uses sqlx", source.name);
        let may_be_dynamic = FILES_WITH_DYNAMIC_STATEMENTS.contains(&source.name.as_str());
        assert!(may_be_dynamic || !source.code.contains("AssertSqlSafe"), "{} builds statements", source.name);
    }
}

/// If a plan depends on the value of a parameter, SQLite plans the statement again at each execution, which takes time.
#[test]
fn no_plan_depends_on_the_value_of_a_parameter() {
    for (file, _, statements) in statement_lists() {
        for sql in statements {
            let after = |keyword: &str| {
                sql.match_indices(keyword).map(|(start, text)| &sql[start + text.len()..]).collect::<Vec<_>>()
            };
            let is_whole_limit =
                |rest: &&str| !rest.trim_start_matches(|digit: char| digit.is_ascii_digit()).starts_with(" + 0");
            assert!(!after("LIMIT $").iter().any(is_whole_limit) && after("LIKE $").is_empty(), "{file}: {sql}");
        }
    }
}
