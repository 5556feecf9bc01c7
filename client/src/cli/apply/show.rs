//! Shows a plan: as text with one line for each change, and as JSON.

use countersign_client::declared::{Change, Plan, plan::ServicePlan};
use serde_json::{Value, json};

/// A change as a line: its sign, its kind, its name, and what changes.
struct Line {
    action: &'static str,
    kind: &'static str,
    name: String,
    fields: Vec<(&'static str, Option<String>, String)>,
}

/// The plan as text.
pub fn text(plan: &Plan) -> String {
    let changed = plan.services.iter().filter(|service| !service.changes.is_empty());
    let services: String = changed.map(service_text).collect();
    let count = |action: &str| lines(plan).filter(|(_, line)| line.action == action).count();
    format!("{services}Plan: {} to create, {} to change.", count("create"), count("change"))
}

fn service_text(service: &ServicePlan) -> String {
    let ServicePlan { name, id, role_ids: _, changes } = service;
    let id = id.as_deref().map_or_else(|| "new".to_owned(), ToOwned::to_owned);
    let lines: String = changes.iter().map(|change| line_text(&line(change))).collect();
    format!("service {name} ({id})\n{lines}")
}

fn line_text(line: &Line) -> String {
    let Line { action, kind, name, fields } = line;
    let sign = if *action == "create" { '+' } else { '~' };
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

/// The kind and the name of what a change concerns.
pub fn subject(change: &Change) -> String {
    let Line { kind, name, .. } = line(change);
    label(kind, &name)
}

fn label(kind: &str, name: &str) -> String {
    if name.is_empty() { kind.to_owned() } else { format!("{kind} {name}") }
}

fn lines(plan: &Plan) -> impl Iterator<Item = (&ServicePlan, Line)> {
    plan.services.iter().flat_map(|service| service.changes.iter().map(move |change| (service, line(change))))
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
                "service": service.name, "action": line.action, "kind": line.kind, "name": line.name, "fields": fields,
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

/// A change of fields, of which those are left out that stay the same.
fn changed(kind: &'static str, name: &str, fields: Vec<(&'static str, String, String)>) -> Line {
    let fields = fields.into_iter().filter(|(_, from, to)| from != to);
    let fields = fields.map(|(field, from, to)| (field, Some(from), to)).collect();
    Line { action: "change", kind, name: name.to_owned(), fields }
}

/// A secret that was lost, in place of which another is made.
fn replaced_secret(kind: &'static str, name: &str) -> Line {
    changed(kind, name, vec![("secret", "lost".to_owned(), "another".to_owned())])
}

fn line(change: &Change) -> Line {
    match change {
        Change::CreateService { accepts_unbound } => {
            let accepts = accepts_unbound.map(|it| ("acceptsUnboundTokens", it.to_string()));
            new("service", "", accepts.into_iter().collect())
        }
        Change::RenameService { from } => {
            changed("service", "", vec![("name", from.clone(), "the name above".to_owned())])
        }
        Change::ChangeService { accepts_unbound } => {
            let field = ("acceptsUnboundTokens", (!accepts_unbound).to_string(), accepts_unbound.to_string());
            changed("service", "", vec![field])
        }
        Change::CreateRole(role) => new("role", &role.name, vec![("permissions", list(&role.permissions))]),
        Change::ChangeRole { id: _, from, to } => {
            let permissions = ("permissions", list(&from.permissions), list(&to.permissions));
            changed(
                "role",
                &to.name,
                vec![description(from.description.as_deref(), to.description.as_deref()), permissions],
            )
        }
        Change::Assign { role, agent, name, expires_at, from } => {
            let shown = if name.is_empty() { agent.clone() } else { format!("{agent} ({name})") };
            let (name, to) = (format!("{role} of {shown}"), end(expires_at.as_deref()));
            match from {
                None => new("assignment", &name, vec![("expires", to)]),
                Some(from) => changed("assignment", &name, vec![("expires", end(from.as_deref()), to)]),
            }
        }
        Change::CreateWebhook(webhook) => new("webhook", &webhook.url, vec![("events", list(&webhook.events))]),
        Change::ChangeWebhook { id: _, from, to } => {
            let events = ("events", list(&from.events), list(&to.events));
            changed(
                "webhook",
                &to.url,
                vec![events, description(from.description.as_deref(), to.description.as_deref())],
            )
        }
        Change::ReplaceWebhookSecret { id: _, url, file: _ } => replaced_secret("webhook", url),
        Change::CreateKey { key, replaces: None } => {
            new("key", &key.name, vec![("scope", key.scope.as_str().to_owned())])
        }
        Change::CreateKey { key, replaces: Some(_) } => replaced_secret("key", &key.name),
    }
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
