//! Which permissions an MCP message needs.
//!
//! `rules/file/mcp.rs` creates [`McpRules`] from the table `mcp` of a rule, and `message.rs` reads the body of a request. Invariants: a
//! message without an entry is refused, unless its method only sets up a session or lists what exists. Names are compared exactly.

mod message;

use crate::policy::Policy;
use countersign_identity::Permission;
use std::{collections::HashMap, fmt, sync::Arc};

pub use message::ReceivedMessage;

/// The name of an entry for all tools, prompts or resources that have no entry of their own.
pub const ANY_NAME: &str = "*";

/// The methods that need no entry, of all versions of the protocol from 2024-11-05 to 2026-07-28. They set up a session, report what
/// happens in it, or list what exists.
const METHODS_WITHOUT_ENTRY: [&str; 11] = [
    "initialize",
    "ping",
    "server/discover",
    "notifications/initialized",
    "notifications/cancelled",
    "notifications/progress",
    "notifications/roots/list_changed",
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
];

/// A table of entries in the table `mcp` of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum McpTable {
    /// Tools, by name.
    Tools,
    /// Prompts, by name.
    Prompts,
    /// Resources, by URI.
    Resources,
    /// All other methods.
    Methods,
}

/// A method of MCP that uses something with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamingMethod {
    pub method: &'static str,
    /// The parameter that contains the name.
    pub parameter: &'static str,
    /// The table that contains the names.
    pub table: McpTable,
}

const NAMING_METHODS: [NamingMethod; 3] = [
    NamingMethod { method: "tools/call", parameter: "name", table: McpTable::Tools },
    NamingMethod { method: "prompts/get", parameter: "name", table: McpTable::Prompts },
    NamingMethod { method: "resources/read", parameter: "uri", table: McpTable::Resources },
];

/// A message, as a client has sent it or a command describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum McpMessage<'a> {
    /// A request or a notification. `name` is the value of the parameter that [`NamingMethod::find`] returns for the method.
    Call { method: &'a str, name: Option<&'a str> },
    /// A response to a request of the server.
    Response,
}

/// A request to an MCP server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum McpRequest<'a> {
    /// A request without a message: it listens to the server, or ends the session.
    Session,
    /// Uses the tool, prompt or resource with this name or URI.
    Named(&'static NamingMethod, &'a str),
    /// Any other method.
    Method(&'a str),
    /// Responds to a request of the server.
    Response,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpEntry {
    /// The table that contains the entry.
    pub table: McpTable,
    /// The name, the URI or the method, or [`ANY_NAME`].
    pub name: String,
    /// The permissions that the entry requires in addition to those of the rule.
    pub permissions: Vec<Permission>,
}

/// The policy for each MCP request that a rule allows.
#[derive(Debug, Clone)]
pub struct McpRules {
    /// The policy of the rule itself.
    own: Arc<Policy>,
    /// For each [`McpTable`], in their order, the policies of its entries by name.
    tables: [HashMap<Box<str>, Arc<Policy>>; 4],
}

impl McpTable {
    pub const ALL: [Self; 4] = [Self::Tools, Self::Prompts, Self::Resources, Self::Methods];

    /// The key of the table in the rules file.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Methods => "methods",
        }
    }
}

impl NamingMethod {
    /// `None` for a method that uses nothing with a name.
    pub fn find(method: &str) -> Option<&'static Self> {
        NAMING_METHODS.iter().find(|naming| naming.method == method)
    }
}

impl<'a> McpRequest<'a> {
    /// Parses a request. The error says what is wrong.
    pub fn new(http_method: &str, message: Option<McpMessage<'a>>) -> Result<Self, &'static str> {
        let Some(message) = message else {
            let has_no_message = ["GET", "DELETE"].contains(&http_method);
            return if has_no_message { Ok(Self::Session) } else { Err("there is no MCP message") };
        };
        if http_method != "POST" {
            return Err("an MCP message must be sent with POST");
        }
        let McpMessage::Call { method, name } = message else { return Ok(Self::Response) };
        if !is_name(method) {
            return Err("the method of the MCP message is empty, or contains control characters");
        }
        let Some(naming) = NamingMethod::find(method) else { return Ok(Self::Method(method)) };
        let name = name.filter(|name| is_name(name));
        let name = name.ok_or("the name or URI is not a text, is empty, or contains control characters")?;
        Ok(Self::Named(naming, name))
    }
}

/// Whether a text can be a name. A service could read a name with control characters differently, such as only up to a zero byte.
pub fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.chars().any(char::is_control)
}

impl fmt::Display for McpRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session => f.write_str("no message"),
            Self::Response => f.write_str("a response"),
            Self::Method(method) => write!(f, "{}", method.escape_debug()),
            Self::Named(naming, name) => write!(f, "{} {}", naming.method, name.escape_debug()),
        }
    }
}

impl McpRules {
    /// The entries of a rule with this policy.
    pub fn new(own: &Arc<Policy>, entries: Vec<McpEntry>) -> Self {
        let mut rules = Self { own: Arc::clone(own), tables: Default::default() };
        for McpEntry { table, name, permissions } in entries {
            rules.tables[table as usize].insert(name.into(), with_permissions(own, permissions));
        }
        rules
    }

    /// The policy for a request; `None` if there is no entry for it and it needs one.
    pub fn policy(&self, request: McpRequest<'_>) -> Option<&Arc<Policy>> {
        match request {
            McpRequest::Session | McpRequest::Response => Some(&self.own),
            McpRequest::Named(naming, name) => {
                let policies = &self.tables[naming.table as usize];
                policies.get(name).or_else(|| policies.get(ANY_NAME))
            }
            McpRequest::Method(method) => {
                let needs_no_entry = METHODS_WITHOUT_ENTRY.contains(&method);
                self.tables[McpTable::Methods as usize].get(method).or_else(|| needs_no_entry.then_some(&self.own))
            }
        }
    }
}

/// The policy with further required permissions. It is built when the file is loaded, so that a check merges nothing.
fn with_permissions(own: &Arc<Policy>, permissions: Vec<Permission>) -> Arc<Policy> {
    if permissions.is_empty() {
        return Arc::clone(own);
    }
    let mut policy = Policy::clone(own);
    for permission in permissions {
        if !policy.require_permissions.contains(&permission) {
            policy.require_permissions.push(permission);
        }
    }
    policy.into()
}

#[cfg(test)]
mod tests;
