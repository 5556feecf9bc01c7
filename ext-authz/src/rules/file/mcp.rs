//! Parses the table `mcp` of a rule.

use super::{Parser, texts};
use crate::rules::mcp::{ANY_NAME, McpEntry, McpTable, NamingMethod, is_name};
use countersign_identity::Permission;
use std::ops::Range;
use toml::de::{DeTable, DeValue};

/// The maximum number of entries in all `mcp` tables of a file.
const MAX_ENTRIES: usize = 1000;

/// The maximum length of the name of an entry in bytes.
const MAX_ENTRY_NAME: usize = 256;

pub struct PlacedEntry {
    pub entry: McpEntry,
    /// Where the name of the entry is in the file.
    pub span: Range<usize>,
}

impl Parser<'_> {
    /// Parses the value of the key `mcp`. Entries with errors are left out.
    pub fn parse_mcp(&mut self, span: &Range<usize>, value: &DeValue<'_>) -> Vec<PlacedEntry> {
        let mut entries = Vec::new();
        let DeValue::Table(tables) = value else {
            self.error(span, "`mcp` must be a table: write `[rules.mcp]`");
            return entries;
        };
        for (key, value) in tables {
            let (span, key) = (key.span(), key.get_ref());
            match (McpTable::ALL.into_iter().find(|table| table.key() == key), value.get_ref()) {
                (Some(table), DeValue::Table(names)) => self.parse_entries(table, names, &mut entries),
                (Some(table), _) => {
                    let key = table.key();
                    self.error(&span, format!("`mcp.{key}` must be a table: write `[rules.mcp.{key}]`"));
                }
                (None, _) => {
                    let known = McpTable::ALL.map(McpTable::key).join("`, `");
                    self.error(&span, format!("`mcp`: unknown key `{}`: the keys are `{known}`", key.escape_debug()));
                }
            }
        }
        entries
    }

    fn parse_entries(&mut self, table: McpTable, names: &DeTable<'_>, entries: &mut Vec<PlacedEntry>) {
        for (name, permissions) in names {
            let span = name.span();
            self.mcp_entries += 1;
            if self.mcp_entries == MAX_ENTRIES + 1 {
                self.error(&span, format!("the `mcp` tables of the file have more than {MAX_ENTRIES} entries"));
            }
            match parse_entry(table, name.get_ref(), permissions.get_ref()) {
                Ok(entry) => entries.push(PlacedEntry { entry, span }),
                Err(problem) => {
                    let name: String = name.get_ref().chars().take(MAX_ENTRY_NAME).collect();
                    self.error(&span, format!("`mcp.{}`: `{}`: {problem}", table.key(), name.escape_debug()));
                }
            }
        }
    }

    /// For a rule that allows anonymous requests: refuses entries that require permissions, because such requests have none.
    pub fn refuse_mcp_permissions(&mut self, entries: &[PlacedEntry]) {
        for PlacedEntry { entry: McpEntry { table, name, permissions }, span } in entries {
            if !permissions.is_empty() {
                let message = format!(
                    "`mcp.{}`: `{}`: `allow_anonymous` contradicts the permissions: remove one of them",
                    table.key(),
                    name.escape_debug()
                );
                self.error(span, message);
            }
        }
    }
}

fn parse_entry(table: McpTable, name: &str, permissions: &DeValue<'_>) -> Result<McpEntry, String> {
    if !is_name(name) || name.len() > MAX_ENTRY_NAME {
        return Err(format!("must be 1 to {MAX_ENTRY_NAME} bytes without control characters"));
    }
    if table == McpTable::Methods {
        check_method(name)?;
    }
    let invalid = || "must be a list of permissions, such as `[\"weather:read\"]`, or `[]`".to_owned();
    let permissions = texts(name, permissions).map_err(|_| invalid())?;
    let permissions = permissions.into_iter().map(Permission::try_from).collect::<Result<_, _>>();
    Ok(McpEntry { table, name: name.to_owned(), permissions: permissions.map_err(|_| invalid())? })
}

/// Refuses `*`, so that a new method of the protocol is denied until a rule names it, and methods with a table of their own.
fn check_method(method: &str) -> Result<(), String> {
    if method == ANY_NAME {
        return Err("methods have no entry for all others: name each method".to_owned());
    }
    match NamingMethod::find(method) {
        Some(naming) => Err(format!("has a table of its own: write the {0} into `mcp.{0}`", naming.table.key())),
        None => Ok(()),
    }
}
