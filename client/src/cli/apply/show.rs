//! Shows a plan: as text with one line for each change, and as JSON.

use super::plan::{Change, Plan, ServicePlan};
use serde_json::{Value, json};

/// A change as a line: what is done to which object. A field has a name, a current value (`None` if it is new) and a new value.
struct Line {
    action: &'static str,
    kind: &'static str,
    name: String,
    fields: Vec<(&'static str, Option<String>, String)>,
}

pub fn text(plan: &Plan) -> String {
    let services = plan.services.iter().filter(|service| !service.changes.is_empty());
    let services: String = services.map(service_text).collect();
    let count = |action: &str| lines(plan).filter(|(_, line)| line.action == action).count();
    let created = count("create");
    let changed = count("change");
    let deleted = count("delete");
    let deletions = if deleted > 0 { format!(", {deleted} to delete") } else { String::new() };
    format!("{services}Plan: {created} to create, {changed} to change{deletions}.")
}

fn service_text(service: &ServicePlan) -> String {
    let ServicePlan { name, id, managed_by, role_ids: _, key_ids: _, changes } = service;
    let id = id.as_deref().unwrap_or("new");
    let lines: String = changes.iter().map(|change| line_text(&line(change, managed_by.as_deref()))).collect();
    format!("service {name} ({id})\n{lines}")
}

fn line_text(line: &Line) -> String {
    let Line { action, kind, name, fields } = line;
    let sign = match *action {
        "create" => '+',
        "delete" => '-',
        _ => '~',
    };
    let fields: Vec<_> = fields
        .iter()
        .map(|(field, from, to)| match from {
            None => format!("{field} {to}"),
            Some(from) => format!("{field} {from} -> {to}"),
        })
        .collect();
    let label = label(kind, name);
    let separator = if fields.is_empty() { "" } else { ": " };
    format!("  {sign} {label}{separator}{}\n", fields.join("; "))
}

/// The kind and the name of the object that a change is about.
pub fn subject(change: &Change) -> String {
    let Line { kind, name, .. } = line(change, None);
    label(kind, &name)
}

fn label(kind: &str, name: &str) -> String {
    if name.is_empty() { kind.to_owned() } else { format!("{kind} {name}") }
}

fn lines(plan: &Plan) -> impl Iterator<Item = (&ServicePlan, Line)> {
    plan.services.iter().flat_map(|service| {
        let managed_by = service.managed_by.as_deref();
        service.changes.iter().map(move |change| (service, line(change, managed_by)))
    })
}

/// The plan as JSON, with the result of each change that was tried.
pub fn json(plan: &Plan, results: &[Result<(), String>]) -> Value {
    let changes: Vec<_> = lines(plan)
        .enumerate()
        .map(|(number, (service, line))| {
            let fields: serde_json::Map<_, _> = line
                .fields
                .into_iter()
                .map(|(field, from, to)| (field.to_owned(), json!({ "from": from, "to": to })))
                .collect();
            let mut change = json!({
                "service": service.name, "serviceId": service.id, "action": line.action, "kind": line.kind, "name": line.name, "fields": fields,
            });
            match results.get(number) {
                None => {}
                Some(Ok(())) => change["result"] = json!("done"),
                Some(Err(error)) => {
                    change["result"] = json!("failed");
                    change["error"] = json!(error);
                }
            }
            change
        })
        .collect();
    json!({ "changes": changes, "warnings": plan.warnings })
}

fn new(kind: &'static str, name: &str, fields: Vec<(&'static str, String)>) -> Line {
    let fields = fields.into_iter().map(|(field, value)| (field, None, value)).collect();
    Line { action: "create", kind, name: name.to_owned(), fields }
}

/// The line of a change of fields, without the fields that stay the same.
fn changed(kind: &'static str, name: &str, fields: Vec<(&'static str, String, String)>) -> Line {
    let fields = fields.into_iter().filter(|(_, from, to)| from != to);
    let fields = fields.map(|(field, from, to)| (field, Some(from), to)).collect();
    Line { action: "change", kind, name: name.to_owned(), fields }
}

fn deleted(kind: &'static str, name: &str) -> Line {
    Line { action: "delete", kind, name: name.to_owned(), fields: Vec::new() }
}

/// The line of a change that replaces a lost secret.
fn replaced_secret(kind: &'static str, name: &str) -> Line {
    changed(kind, name, vec![("secret", "lost".to_owned(), "another".to_owned())])
}

/// The line of a change. `new_managed_by` is the `managedBy` of the service's file; `old_managed_by` is the object's current one.
fn line(change: &Change, new_managed_by: Option<&str>) -> Line {
    match change {
        Change::CreateService { accepts_unbound } => {
            let accepts = accepts_unbound.map(|it| ("acceptsUnboundTokens", it.to_string()));
            let managed_by = new_managed_by.map(|name| ("managedBy", name.to_owned()));
            new("service", "", accepts.into_iter().chain(managed_by).collect())
        }
        Change::ManageService { from, to } => changed("service", "", vec![managed_by(from.as_deref(), Some(to))]),
        Change::DeleteService => deleted("service", ""),
        Change::RenameService { from, to } => changed("service", "", vec![("name", from.clone(), to.clone())]),
        Change::ChangeService { accepts_unbound } => {
            let field = ("acceptsUnboundTokens", (!accepts_unbound).to_string(), accepts_unbound.to_string());
            changed("service", "", vec![field])
        }
        Change::ChangeResourceUris { from, to } => changed("service", "", vec![("resourceUris", list(from), list(to))]),
        Change::CreateRole(role) => new("role", &role.name, vec![("permissions", list(&role.permissions))]),
        Change::ChangeRole { id: _, managed_by: old_managed_by, from, to } => {
            let permissions = ("permissions", list(&from.permissions), list(&to.permissions));
            let description = description(from.description.as_deref(), to.description.as_deref());
            let managed_by = managed_by(old_managed_by.as_deref(), new_managed_by);
            changed("role", &to.name, vec![description, permissions, managed_by])
        }
        Change::Assign { role, agent, name, expires_at, from } => {
            let name = assignment(role, agent, name);
            let to = end(expires_at.as_deref());
            match from {
                None => new("assignment", &name, vec![("expires", to)]),
                Some(from) => {
                    let managed_by = managed_by(from.managed_by.as_deref(), new_managed_by);
                    changed("assignment", &name, vec![("expires", end(from.expires_at.as_deref()), to), managed_by])
                }
            }
        }
        Change::Revoke { role_id: _, role, agent, name } => deleted("assignment", &assignment(role, agent, name)),
        Change::DeleteRole { id: _, name, holders } => {
            let holders = vec![("agents that lose it", None, holders.to_string())];
            Line { fields: holders, ..deleted("role", name) }
        }
        Change::DeleteWebhook { id: _, url } => deleted("webhook", url),
        Change::RevokeKey { id: _, name, secrets: _ } => deleted("key", name),
        Change::CreateWebhook(webhook) => new("webhook", &webhook.url, vec![("events", list(&webhook.events))]),
        Change::ChangeWebhook { id: _, managed_by: old_managed_by, from, to } => {
            let events = ("events", list(&from.events), list(&to.events));
            let description = description(from.description.as_deref(), to.description.as_deref());
            let managed_by = managed_by(old_managed_by.as_deref(), new_managed_by);
            changed("webhook", &to.url, vec![events, description, managed_by])
        }
        Change::ReplaceWebhookSecret { id: _, url, file: _ } => replaced_secret("webhook", url),
        Change::CreateKey { key, replaces: None } => {
            new("key", &key.name, vec![("scope", key.scope.as_str().to_owned())])
        }
        Change::CreateKey { key, replaces: Some(_) } => replaced_secret("key", &key.name),
    }
}

/// The role and the agent of an assignment, as text. `name` is the agent's; it is empty if unknown.
fn assignment(role: &str, agent: &str, name: &str) -> String {
    if name.is_empty() { format!("{role} of {agent}") } else { format!("{role} of {agent} ({name})") }
}

/// If the file has no `managedBy`, the object keeps its current value.
fn managed_by(from: Option<&str>, to: Option<&str>) -> (&'static str, String, String) {
    let shown = |name: Option<&str>| name.unwrap_or("none").to_owned();
    ("managedBy", shown(from), shown(to.or(from)))
}

fn description(from: Option<&str>, to: Option<&str>) -> (&'static str, String, String) {
    let shown = |text: Option<&str>| text.map_or_else(|| "none".to_owned(), |text| format!("\"{text}\""));
    ("description", shown(from), shown(to))
}

fn end(end: Option<&str>) -> String {
    end.unwrap_or("never").to_owned()
}

fn list(items: &[String]) -> String {
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}
