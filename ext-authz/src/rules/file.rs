//! Parses the rules file. All errors of a file are reported together, with their lines.

mod mcp;

use super::{DEFAULT_NAME, EncodedSlash, HostPattern, McpRules, Methods, PathPattern, Rule, RuleSet};
use crate::policy::{POLICY_KEYS, Policy, PolicyValue};
use mcp::PlacedEntry;
use std::{collections::HashMap, fmt, ops::Range, sync::Arc};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// The maximum size of a rules file in bytes.
pub const MAX_FILE_BYTES: usize = 1 << 20;

const MAX_RULES: usize = 1000;

/// The maximum length of the name of a rule.
const MAX_NAME: usize = 64;

const MAX_ERRORS: usize = 50;

/// The keys of a rule, except those of its policy ([`POLICY_KEYS`], such as `require_roles`).
const RULE_KEYS: [&str; 9] =
    ["name", "host", "path", "path_prefix", "path_template", "allow_encoded_slash", "methods", "mcp", "dry_run"];

/// The errors of a rules file, in the order of their lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleFileErrors(Vec<LineError>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct LineError {
    line: usize,
    message: String,
}

impl fmt::Display for RuleFileErrors {
    /// One line for each error.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, LineError { line, message }) in self.0.iter().take(MAX_ERRORS).enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}line {line}: {message}")?;
        }
        match self.0.len().checked_sub(MAX_ERRORS) {
            Some(more @ 1..) => write!(f, "\nand {more} more errors"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for RuleFileErrors {}

impl RuleFileErrors {
    /// An error of the file as a whole.
    fn of_file(message: String) -> Self {
        Self(vec![LineError { line: 1, message }])
    }
}

/// Parses one file and collects its errors.
struct Parser<'t> {
    text: &'t str,
    /// The byte positions of the line ends, from which the parser finds the line of an error.
    line_ends: Vec<usize>,
    /// The number of entries in `mcp` tables so far.
    mcp_entries: usize,
    errors: Vec<LineError>,
}

/// A rule whose keys are being read.
#[derive(Default)]
struct Draft {
    name: Option<String>,
    host: Option<HostPattern>,
    path: Option<PathPattern>,
    encoded_slash: EncodedSlash,
    methods: Methods,
    policy: Policy,
    mcp: Option<Vec<PlacedEntry>>,
    dry_run: bool,
}

impl RuleSet {
    pub fn parse(content: &[u8]) -> Result<Self, RuleFileErrors> {
        if content.len() > MAX_FILE_BYTES {
            return Err(RuleFileErrors::of_file(format!("the file is larger than {MAX_FILE_BYTES} bytes")));
        }
        let text = str::from_utf8(content).map_err(|_| RuleFileErrors::of_file("the file is not UTF-8".to_owned()))?;
        let line_ends = text.match_indices('\n').map(|(position, _)| position).collect();
        let mut parser = Parser { text, line_ends, mcp_entries: 0, errors: Vec::new() };
        let (rules, default) = parser.parse_file();
        if parser.errors.is_empty() {
            Ok(Self::new(rules, default))
        } else {
            parser.errors.sort_by_key(|error| error.line);
            Err(RuleFileErrors(parser.errors))
        }
    }
}

impl Parser<'_> {
    fn error(&mut self, span: &Range<usize>, message: impl Into<String>) {
        let line = self.line(span);
        self.errors.push(LineError { line, message: message.into() });
    }

    fn line(&self, span: &Range<usize>) -> usize {
        self.line_ends.partition_point(|end| *end < span.start) + 1
    }

    fn parse_file(&mut self) -> (Vec<Rule>, Option<Rule>) {
        let (mut rules, mut default) = (Vec::new(), None);
        let file = match DeTable::parse(self.text) {
            Ok(file) => file.into_inner(),
            Err(error) => {
                self.error(&error.span().unwrap_or_default(), format!("invalid TOML: {}", error.message()));
                return (rules, default);
            }
        };
        for (key, value) in &file {
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("rules", DeValue::Array(items)) if items.len() > MAX_RULES => {
                    self.error(
                        &key.span(),
                        format!("the file has {} rules: at most {MAX_RULES} are allowed", items.len()),
                    );
                }
                ("rules", DeValue::Array(items)) => {
                    rules = items.iter().filter_map(|item| self.parse_rule(item, None)).collect();
                }
                ("default", DeValue::Table(_)) => default = self.parse_rule(value, Some(DEFAULT_NAME)),
                ("rules", _) => self.error(&key.span(), "`rules` must be tables: write `[[rules]]`"),
                ("default", _) => self.error(&key.span(), "`default` must be a table: write `[default]`"),
                (other, _) => self.error(
                    &key.span(),
                    format!("unknown key `{}`: a rules file has `[[rules]]` and `[default]`", other.escape_debug()),
                ),
            }
        }
        self.check_names(&rules);
        self.check_conflicts(&rules);
        (rules, default)
    }

    /// Parses a rule. `given_name` is `default` for the table `[default]`; others have a key `name`. `None` if the rule has errors.
    fn parse_rule(&mut self, item: &Spanned<DeValue<'_>>, given_name: Option<&str>) -> Option<Rule> {
        let span = item.span();
        let DeValue::Table(table) = item.get_ref() else {
            self.error(&span, "a rule must be a table: write `[[rules]]`");
            return None;
        };
        let errors_before = self.errors.len();
        // What the paths of the rule mean depends on this key, wherever it is in the table.
        let allows_encoded_slash = table.get("allow_encoded_slash").and_then(|value| value.get_ref().as_bool());
        let encoded_slash = EncodedSlash::kept_if(allows_encoded_slash.unwrap_or_default());
        let mut draft = Draft { name: given_name.map(str::to_owned), encoded_slash, ..Draft::default() };
        for (key, value) in table {
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("mcp", value) if given_name.is_none() => draft.mcp = Some(self.parse_mcp(&key.span(), value)),
                (other, value) => {
                    if let Err(message) = draft.set(other, value, given_name.is_some()) {
                        self.error(&key.span(), message);
                    }
                }
            }
        }
        if let Err(error) = draft.policy.check_contradiction() {
            self.error(&span, error.to_string());
        } else if draft.policy.allow_anonymous {
            self.refuse_mcp_permissions(draft.mcp.as_deref().unwrap_or_default());
        }
        let Draft { name, host, path, encoded_slash, methods, policy, mcp, dry_run } = draft;
        if encoded_slash == EncodedSlash::Kept && path.as_ref().is_some_and(|path| !path.matches_encoded_slash()) {
            self.error(&span, "`allow_encoded_slash` changes nothing, because `path` contains no `%2F`: remove it");
        }
        // If the name is invalid, there is an error about it already.
        if name.is_none() && !table.contains_key("name") {
            self.error(&span, "the rule has no `name`");
        }
        for error in self.errors.iter_mut().skip(errors_before) {
            let subject = match &name {
                Some(_) if given_name.is_some() => "[default]".to_owned(),
                Some(name) => format!("rule `{name}`"),
                None => continue,
            };
            error.message = format!("{subject}: {}", error.message);
        }
        // A rule with errors is left out: it would be checked for conflicts with conditions that the operator did not mean.
        if self.errors.len() > errors_before {
            return None;
        }
        let line = self.line(&span);
        let (host, path) = (host.unwrap_or(HostPattern::Any), path.unwrap_or(PathPattern::Any));
        let policy = Arc::new(policy);
        let mcp = mcp.map(|entries| McpRules::new(&policy, entries.into_iter().map(|it| it.entry).collect()));
        Some(Rule { name: name?.into(), line, policy, mcp, dry_run, host, path, encoded_slash, methods })
    }

    fn check_names(&mut self, rules: &[Rule]) {
        let mut first_lines: HashMap<&str, usize> = HashMap::new();
        for Rule { name, line, .. } in rules {
            if let Some(first) = first_lines.insert(name, *line) {
                let message = format!("rule `{name}`: another rule has this name, at line {first}");
                self.errors.push(LineError { line: *line, message });
            }
        }
    }

    fn check_conflicts(&mut self, rules: &[Rule]) {
        for (index, rule) in rules.iter().enumerate() {
            let Some(other) = rules.iter().take(index).find(|other| rule.conflicts_with(other)) else { continue };
            let message = format!(
                "rule `{}` and rule `{}` at line {} can both match a request, and neither is more specific: change the \
                 host, path or methods of one of them",
                rule.name, other.name, other.line
            );
            self.errors.push(LineError { line: rule.line, message });
        }
    }
}

impl Draft {
    fn set(&mut self, key: &str, value: &DeValue<'_>, is_default: bool) -> Result<(), String> {
        if is_default && RULE_KEYS.contains(&key) && key != "dry_run" {
            return Err(format!("`{key}` is not allowed: `[default]` applies to all requests that no rule matches"));
        }
        match key {
            "name" => self.name = Some(parse_name(text(key, value)?)?),
            "host" => self.host = Some(HostPattern::parse(text(key, value)?)?),
            "path" => self.set_path(PathPattern::parse_exact(text(key, value)?, self.encoded_slash)?)?,
            "path_prefix" => self.set_path(PathPattern::parse_prefix(text(key, value)?, self.encoded_slash)?)?,
            "path_template" => self.set_path(PathPattern::parse_template(text(key, value)?, self.encoded_slash)?)?,
            "allow_encoded_slash" => self.encoded_slash = EncodedSlash::kept_if(boolean(key, value)?),
            "methods" => self.methods = Methods::parse(&texts(key, value)?)?,
            "dry_run" => self.dry_run = boolean(key, value)?,
            key if POLICY_KEYS.contains(&key) => self.set_policy_key(key, value)?,
            unknown => {
                let known = if is_default { vec!["dry_run"] } else { RULE_KEYS.to_vec() };
                let known = [known.as_slice(), &POLICY_KEYS].concat().join("`, `");
                return Err(format!("unknown key `{}`: the keys are `{known}`", unknown.escape_debug()));
            }
        }
        Ok(())
    }

    fn set_path(&mut self, path: PathPattern) -> Result<(), String> {
        match self.path.replace(path) {
            None => Ok(()),
            Some(_) => Err("a rule has at most one of `path`, `path_prefix` and `path_template`".to_owned()),
        }
    }

    /// Sets a key of the policy. The parser is the one of context extensions, so a value means the same in a rule and in a route.
    fn set_policy_key(&mut self, key: &str, value: &DeValue<'_>) -> Result<(), String> {
        let (items, digits);
        let value = match value {
            DeValue::Array(_) => {
                items = texts(key, value)?;
                PolicyValue::Items(&items)
            }
            DeValue::String(text) => PolicyValue::Text(text),
            DeValue::Boolean(value) => PolicyValue::Text(if *value { "true" } else { "false" }),
            DeValue::Integer(number) => {
                digits = number.to_string();
                PolicyValue::Text(&digits)
            }
            DeValue::Float(number) => {
                digits = number.to_string();
                PolicyValue::Text(&digits)
            }
            DeValue::Datetime(_) | DeValue::Table(_) => return Err(format!("`{key}` has a value of the wrong type")),
        };
        self.policy.set(key, value).map_err(|error| error.to_string())
    }
}

fn parse_name(name: &str) -> Result<String, String> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if name == DEFAULT_NAME {
        Err("`name`: `default` is the name of the table `[default]`".to_owned())
    } else if (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_allowed) {
        Ok(name.to_owned())
    } else {
        Err(format!(
            "`name`: `{}` must be 1 to {MAX_NAME} letters, digits, dashes, underscores and dots",
            name.chars().take(MAX_NAME).collect::<String>().escape_debug()
        ))
    }
}

fn boolean(key: &str, value: &DeValue<'_>) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| format!("`{key}` must be `true` or `false`"))
}

fn text<'v>(key: &str, value: &'v DeValue<'_>) -> Result<&'v str, String> {
    value.as_str().ok_or_else(|| format!("`{key}` must be a text"))
}

fn texts<'v>(key: &str, value: &'v DeValue<'_>) -> Result<Vec<&'v str>, String> {
    let items = value.as_array().and_then(|items| items.iter().map(|item| item.get_ref().as_str()).collect());
    items.ok_or_else(|| format!("`{key}` must be a list of texts"))
}

#[cfg(test)]
mod tests;
