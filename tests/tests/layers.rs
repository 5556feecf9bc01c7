//! Checks the dependency rules for crates and modules.
//!
//! ARCHITECTURE.md gives the reasons for the rules. Change a rule in both places in the same commit.

#![expect(clippy::unwrap_used, reason = "tests panic if the sources cannot be read")]

use countersign_tests::tools;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Crates of the workspace that each crate may depend on.
const WORKSPACE_DEPENDENCIES: [(&str, &[&str]); 9] = [
    ("identity", &[]),
    ("proto", &[]),
    ("process", &["identity"]),
    ("control-plane", &["identity", "proto", "process"]),
    ("ext-authz", &["identity", "proto", "process"]),
    ("client", &["identity"]),
    ("mangle", &[]),
    ("test-engines", &["identity", "process"]),
    ("tests", &["identity", "proto", "process", "control-plane", "ext-authz", "client", "mangle", "test-engines"]),
];

/// External crates that a crate must not depend on.
const FORBIDDEN_DEPENDENCIES: [(&str, &[&str]); 4] = [
    ("identity", &["tokio", "sqlx", "tonic", "axum", "reqwest", "redis", "jiff", "uuid"]),
    ("proto", &["tokio", "sqlx", "axum"]),
    ("ext-authz", &["sqlx", "redis"]),
    ("client", &["sqlx", "redis", "tonic", "axum"]),
];

/// A module, and the modules that it may import.
type ModuleRule = (&'static str, &'static [&'static str]);

/// Modules that each module may import. `app`, `lib` and `main` may import every module of their crate. `fixtures` exists for
/// tests only.
const MODULES: [(&str, &[ModuleRule]); 2] = [
    (
        "control-plane",
        &[
            ("address_guard", &["domain"]),
            ("files", &[]),
            ("config", &[]),
            ("metrics", &[]),
            ("domain", &[]),
            ("store", &["domain", "metrics"]),
            ("ephemeral", &["domain", "metrics"]),
            ("humans", &["domain", "files", "metrics"]),
            ("keyring", &["domain", "store", "files"]),
            ("sidecars", &["domain", "store"]),
            ("sync", &["domain", "store", "sidecars", "ephemeral", "metrics"]),
            ("webhooks", &["domain", "store", "keyring", "metrics", "address_guard"]),
            ("operations", &["domain", "store", "keyring", "sidecars", "address_guard"]),
            ("http", &["operations", "domain", "ephemeral", "humans", "metrics"]),
            ("certificates", &["files"]),
        ],
    ),
    (
        "ext-authz",
        &[
            ("config", &[]),
            ("metrics", &[]),
            ("view", &["fixtures"]),
            ("policy", &[]),
            ("rules", &["policy"]),
            ("decide", &["view", "policy", "fixtures"]),
            ("sync", &["view", "metrics", "fixtures"]),
            ("copy", &["view", "sync", "metrics"]),
            ("response", &["view", "decide", "fixtures"]),
            ("check", &["view", "policy", "rules", "decide", "response", "metrics", "fixtures"]),
            ("commands", &["config", "rules", "check", "app"]),
            ("fixtures", &["view", "policy", "decide", "response"]),
        ],
    ),
];

/// Modules whose parts must not import each other in a circle.
const MODULES_WITHOUT_CIRCLES: [(&str, &str); 2] = [("control-plane", "operations"), ("client", "cli")];

/// Modules without I/O and without async code.
const PURE_MODULES: [(&str, &[&str]); 2] =
    [("control-plane", &["domain"]), ("ext-authz", &["view", "policy", "rules", "decide"])];

/// Path prefixes that a pure module must not contain.
const IMPURE_PATHS: [&str; 8] =
    ["tokio::", "sqlx::", "axum::", "tonic::", "reqwest::", "std::fs", "std::net", "std::env"];

/// External crates that a pure module may import: data formats, cryptography, collections and counters. `utoipa` is
/// allowed because the types of webhook event data derive their schema.
const PURE_DEPENDENCIES: [&str; 22] = [
    "arc_swap",
    "aws_lc_rs",
    "base64",
    "countersign_identity",
    "countersign_mangle",
    "imbl",
    "ipnet",
    "jsonwebtoken",
    "moka",
    "p256",
    "percent_encoding",
    "prometheus",
    "proptest",
    "secrecy",
    "serde",
    "serde_json",
    "sha2",
    "subtle",
    "toml",
    "url",
    "utoipa",
    "zeroize",
];

#[test]
fn no_dependency_rule_is_violated() {
    assert_eq!(violations(&tools::root()), BTreeSet::new());
}

/// Violations: a file, the first text in it that is replaced, what replaces it, and how the violation is described.
const VIOLATIONS: [(&str, &str, &str, &str); 16] = [
    ("ext-authz/Cargo.toml", "[dependencies]", "[dependencies]\nsqlx = { workspace = true }", "ext-authz links sqlx"),
    (
        "identity/Cargo.toml",
        "[dependencies]",
        "[dependencies]\ncountersign-proto = { workspace = true }",
        "identity depends on proto",
    ),
    (
        "client/Cargo.toml",
        "[dependencies]",
        "[dependencies]\nwhatever = { package = \"countersign-process\", path = \"../process\" }",
        "client depends on process",
    ),
    ("control-plane/src/domain/mod.rs", "//!", "use crate::store::Store;\n//!", "control-plane: domain imports store"),
    (
        "control-plane/src/store/roles.rs",
        "//!",
        "use crate::{domain::role, operations::{self, verify}};\n//!",
        "control-plane: store imports operations",
    ),
    (
        "control-plane/src/http/api/roles.rs",
        "//!",
        "fn f() { crate::store::f() }\n//!",
        "control-plane: http imports store",
    ),
    ("ext-authz/src/decide.rs", "//!", "use crate::sync;\n//!", "ext-authz: decide imports sync"),
    ("ext-authz/src/view/tests.rs", "use", "use super::super::check;\nuse", "ext-authz: view imports check"),
    (
        "ext-authz/Cargo.toml",
        "[dependencies]",
        "[dependencies.sqlx]\nversion = \"1\"\n[dependencies]",
        "ext-authz links sqlx",
    ),
    ("ext-authz/src/decide.rs", "//!", "use tokio::time::sleep;\n//!", "ext-authz: decide names tokio::"),
    ("control-plane/src/domain/role.rs", "//!", "use std::fs;\n//!", "control-plane: domain names std::fs"),
    ("control-plane/src/domain/role.rs", "//!", "use hyper::Request;\n//!", "control-plane: domain uses hyper"),
    (
        "control-plane/src/operations/context.rs",
        "//!",
        "use crate::operations::roles::x;\n//!",
        "control-plane: operations has a circle of authorize, context, roles",
    ),
    ("client/src/cli/error.rs", "//!", "use super::hints;\n//!", "client: cli has a circle of error, hints"),
    (
        "client/src/cli/role/find.rs",
        "//!",
        "use super::super::{ids, commands::run};\n//!",
        "client: cli has a circle of commands, role",
    ),
    ("ext-authz/src/unlisted.rs", "", "use crate::app;", "ext-authz: unlisted is not in the table"),
];

#[test]
fn violation_of_each_rule_is_detected() {
    for (file, anchor, replacement, expected) in VIOLATIONS {
        let copy = tempfile::tempdir().unwrap();
        for (folder, _) in WORKSPACE_DEPENDENCIES {
            copy_sources(&tools::root().join(folder), &copy.path().join(folder));
        }
        replace_in_file(&copy.path().join(file), anchor, replacement);
        assert_eq!(violations(copy.path()), BTreeSet::from([expected.to_owned()]), "{file}");
    }
}

/// Replaces the first occurrence of `anchor`. With an empty anchor, creates the file with this content.
fn replace_in_file(path: &Path, anchor: &str, replacement: &str) {
    let text = fs::read_to_string(path).unwrap_or_default();
    let text = if anchor.is_empty() { replacement.to_owned() } else { text.replacen(anchor, replacement, 1) };
    fs::write(path, text).unwrap();
}

/// All violations of the rules.
fn violations(root: &Path) -> BTreeSet<String> {
    let crates =
        WORKSPACE_DEPENDENCIES.iter().flat_map(|(folder, allowed)| dependency_violations(root, folder, allowed));
    let modules = MODULES.iter().flat_map(|(folder, table)| import_violations(root, folder, table));
    let circles = MODULES_WITHOUT_CIRCLES.iter().filter_map(|(folder, module)| circle(root, folder, module));
    crates.chain(modules).chain(circles).collect()
}

/// The parts of a module that import each other in a circle.
fn circle(root: &Path, folder: &str, module: &str) -> Option<String> {
    let sources = root.join(folder).join("src").join(module);
    let part = |file: &Path| module_path(&sources, file).swap_remove(0);
    let exports = exported_names(&fs::read_to_string(sources.join("mod.rs")).unwrap());
    let files: Vec<_> = files(&sources).into_iter().filter(|file| part(file) != "mod").collect();
    let parts: BTreeSet<String> = files.iter().map(|file| part(file)).collect();
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in &files {
        let code = without_comments_and_tests(&fs::read_to_string(file).unwrap());
        let names = names_imported_from(module, &code, &module_path(&sources, file));
        let imported = names.into_iter().map(|name| exports.get(&name).cloned().unwrap_or(name));
        let others = imported.filter(|other| parts.contains(other) && *other != part(file));
        imports.entry(part(file)).or_default().extend(others);
    }
    // A part that imports no remaining part, or that no remaining part imports, is in no circle, so remove it.
    while let Some(outside) = imports.iter().find_map(|(name, imported)| {
        let is_imported = imports.values().any(|others| others.contains(name));
        (imported.is_empty() || !is_imported).then(|| name.clone())
    }) {
        imports.remove(&outside);
        for imported in imports.values_mut() {
            imported.remove(&outside);
        }
    }
    let names: Vec<_> = imports.into_keys().collect();
    (!names.is_empty()).then(|| format!("{folder}: {module} has a circle of {}", names.join(", ")))
}

/// The names that a module exports from its parts, each with the part.
fn exported_names(module: &str) -> BTreeMap<String, String> {
    let uses = module.split("pub use ").skip(1).filter_map(|rest| rest.split_once("::"));
    uses.flat_map(|(part, names)| first_segments(names).into_iter().map(move |name| (name, part.to_owned()))).collect()
}

fn dependency_violations(root: &Path, folder: &str, allowed: &[&str]) -> Vec<String> {
    let manifest = fs::read_to_string(root.join(folder).join("Cargo.toml")).unwrap();
    let forbidden =
        FORBIDDEN_DEPENDENCIES.iter().find(|(name, _)| *name == folder).map_or(&[][..], |(_, crates)| crates);
    let violation = |dependency: String| match dependency.strip_prefix("countersign-") {
        Some(workspace_crate) => {
            (!allowed.contains(&workspace_crate)).then(|| format!("{folder} depends on {workspace_crate}"))
        }
        None => forbidden.contains(&dependency.as_str()).then(|| format!("{folder} links {dependency}")),
    };
    dependencies(&manifest).into_iter().filter_map(violation).collect()
}

fn import_violations(root: &Path, folder: &str, table: &[ModuleRule]) -> Vec<String> {
    let sources = root.join(folder).join("src");
    let mut violations_found = Vec::new();
    for file in files(&sources) {
        let path = module_path(&sources, &file);
        let name = path[0].as_str();
        if ["app", "lib", "main"].contains(&name) {
            continue;
        }
        let Some((_, allowed)) = table.iter().find(|(module, _)| *module == name) else {
            violations_found.push(format!("{folder}: {name} is not in the table"));
            continue;
        };
        let source = fs::read_to_string(&file).unwrap();
        let pure = PURE_MODULES.iter().any(|(crate_name, modules)| *crate_name == folder && modules.contains(&name));
        let impure_paths =
            IMPURE_PATHS.iter().filter(|impure| pure && without_comments_and_tests(&source).contains(*impure));
        violations_found.extend(impure_paths.map(|impure| format!("{folder}: {name} names {impure}")));
        let is_listed = |used: &String| {
            PURE_DEPENDENCIES.contains(&used.as_str()) || IMPURE_PATHS.contains(&format!("{used}::").as_str())
        };
        let external = external_crates(&source).into_iter().filter(|used| pure && !is_listed(used));
        violations_found.extend(external.map(|used| format!("{folder}: {name} uses {used}")));
        let imported = imported_modules(&source, &path);
        let others = imported.into_iter().filter(|other| other != name && !allowed.contains(&other.as_str()));
        violations_found.extend(others.map(|other| format!("{folder}: {name} imports {other}")));
    }
    violations_found
}

/// The package names of all dependencies except dev-dependencies, including renamed ones.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut packages = BTreeSet::new();
    let mut in_dependencies = false;
    for line in manifest.lines().map(str::trim) {
        if let Some((_, name)) = line.split_once("dependencies.").filter(|_| line.starts_with('[')) {
            packages.insert(name.trim_end_matches(']').to_owned());
            in_dependencies = false;
        } else if line.starts_with('[') {
            in_dependencies = line.ends_with("dependencies]") && !line.contains("dev-dependencies");
        } else if let Some((name, rest)) = line.split_once('=').filter(|_| in_dependencies) {
            let renamed = rest.split_once("package = \"").and_then(|(_, rest)| rest.split('"').next());
            packages.insert(renamed.unwrap_or(name.trim().trim_end_matches(".workspace")).to_owned());
        }
    }
    packages
}

/// The external crates that `use` declarations at the start of a line import. Imports of a module that the same file
/// declares are local, not external.
fn external_crates(source: &str) -> BTreeSet<String> {
    let code = without_comments_and_tests(source);
    let first_segment = |line: &str| {
        let path = line.strip_prefix("pub ").unwrap_or(line).strip_prefix("use ")?;
        path.split([':', ';', ' ']).next().map(str::to_owned)
    };
    let is_local = |name: &str| {
        ["crate", "super", "self", "std", "core"].contains(&name)
            || code.contains(&format!("mod {name};"))
            || name.starts_with(char::is_uppercase)
    };
    code.lines().filter_map(first_segment).filter(|name| !is_local(name)).collect()
}

/// A source file without comments and without its inline tests, whose `super` is the file itself.
fn without_comments_and_tests(source: &str) -> String {
    let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or(source);
    source.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Modules of the crate that a source file imports or uses, as `crate::module`, `crate::{module::…, module}` or `super::…`.
fn imported_modules(source: &str, path: &[String]) -> BTreeSet<String> {
    let names = names_imported_from("crate", &without_comments_and_tests(source), path);
    names.into_iter().filter(|name| !name.starts_with(char::is_uppercase)).collect()
}

/// The path of a file below a folder, without its extension.
fn module_path(folder: &Path, file: &Path) -> Vec<String> {
    let relative = file.strip_prefix(folder).unwrap().with_extension("");
    relative.iter().map(|part| part.to_string_lossy().into_owned()).collect()
}

/// The names that a file at `path` below a module imports from the module: through the name of the module, or through `super`,
/// repeated as often as the file is deep.
fn names_imported_from(module: &str, code: &str, path: &[String]) -> Vec<String> {
    let depth = if path.last().is_some_and(|name| name == "mod") { path.len() - 1 } else { path.len() };
    let prefixes = [format!("{module}::"), "super::".repeat(depth)];
    let names = |prefix: &String| {
        let places = code.match_indices(prefix.as_str());
        places.flat_map(|(at, _)| first_segments(&code[at + prefix.len()..])).collect::<Vec<_>>()
    };
    prefixes.iter().flat_map(names).collect()
}

/// The first segment of a path, or of each path in a group: `a::{b}` gives `a`, `{a::b, c::{d, e}}` gives `a` and `c`.
fn first_segments(path: &str) -> Vec<String> {
    let name = |text: &str| -> String {
        text.trim_start().chars().take_while(|character| character.is_alphanumeric() || *character == '_').collect()
    };
    let Some(group) = path.strip_prefix('{') else { return vec![name(path)] };
    let (mut names, mut depth) = (vec![name(group)], 0_usize);
    for (position, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => names.push(name(&group[position + 1..])),
            _ => {}
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let nested = folders.iter().flat_map(|folder| self::files(folder));
    files.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs")).chain(nested).collect()
}

fn copy_sources(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    fs::copy(from.join("Cargo.toml"), to.join("Cargo.toml")).unwrap();
    for file in files(&from.join("src")) {
        let target = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(&file, target).unwrap();
    }
}

/// Maximum number of settings of both servers together.
const MAX_SETTINGS: usize = 62;

/// A setting stays if somebody who runs the programs would change it. Other values are constants, or follow from another setting.
#[test]
fn servers_have_few_settings() {
    let keys = |file: &str| {
        let text = fs::read_to_string(tools::root().join(file)).unwrap();
        text.lines().filter(|line| line.contains(" = ") && !line.starts_with('#')).count()
    };
    let count = keys("control-plane/config.default.toml") + keys("ext-authz/config.default.toml");
    assert!((1..=MAX_SETTINGS).contains(&count), "{count} settings");
}
