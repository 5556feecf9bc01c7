//! Replaces placeholders in hints with ids: in `countersign agent reactivate AGENT`, `AGENT` becomes the agent of the command.

use std::sync::{Arc, Mutex, PoisonError};

pub const AGENT: &str = "AGENT";
pub const SERVICE: &str = "SERVICE";
pub const WEBHOOK: &str = "WEBHOOK";

/// The ids that the command has resolved. Clones of the placeholders share the ids.
#[derive(Debug, Clone, Default)]
pub struct Placeholders(Arc<Mutex<Vec<(&'static str, String)>>>);

impl Placeholders {
    /// Sets the id for a placeholder, in place of an earlier one. Users paste hints into a shell, so it ignores ids with other characters
    /// than letters, digits and `_`.
    pub fn set(&self, placeholder: &'static str, id: &str) {
        self.set_with_option(placeholder, "", id);
    }

    /// Sets the id together with an option that the command needs before it, such as `--deployment`.
    pub fn set_with_option(&self, placeholder: &'static str, option: &'static str, id: &str) {
        if !id.chars().all(|character| character.is_ascii_alphanumeric() || character == '_') {
            return;
        }
        let mut ids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ids.retain(|(existing, _)| *existing != placeholder);
        ids.push((placeholder, format!("{option} {id}").trim_start().to_owned()));
    }

    /// The text with ids in place of the placeholders. A placeholder without an id remains in the text.
    pub fn fill(&self, text: &str) -> String {
        let ids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ids.iter().fold(text.to_owned(), |text, (placeholder, id)| replace_word(&text, placeholder, id))
    }
}

/// Replaces a word. Longer words that contain the replaced word, such as `AGENT_NOT_FOUND`, remain unchanged.
fn replace_word(text: &str, word: &str, replacement: &str) -> String {
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    replace_if(text, word, replacement, |before, after| !before.ends_with(is_part) && !after.starts_with(is_part))
}

/// Replaces each `part` for which `is_replaced` returns true, given the text since the previous `part` and all text after this one.
pub fn replace_if(text: &str, part: &str, replacement: &str, is_replaced: impl Fn(&str, &str) -> bool) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(part) {
        result.push_str(before);
        result.push_str(if is_replaced(before, after) { replacement } else { part });
        rest = after;
    }
    result + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fill_replaces_whole_words_with_the_last_id() {
        let placeholders = Placeholders::default();
        let text = "countersign role assign ROLE AGENT, `AGENT` and AGENT_NOT_FOUND";
        assert_eq!(placeholders.fill(text), text);
        placeholders.set(AGENT, "agent_1");
        placeholders.set(AGENT, "agent_2");
        placeholders.set(AGENT, "agent_3; true");
        let expected = "countersign role assign ROLE agent_2, `agent_2` and AGENT_NOT_FOUND";
        assert_eq!(placeholders.clone().fill(text), expected);
    }
}
