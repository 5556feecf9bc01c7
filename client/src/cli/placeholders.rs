//! Replaces placeholders in hints with ids: in `countersign agent reactivate AGENT`, `AGENT` becomes the agent of the command.

use std::sync::{Arc, Mutex, PoisonError};

/// A word in a hint that stands for an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placeholder {
    /// `AGENT`
    Agent,
    /// `SERVICE`
    Service,
    /// `WEBHOOK`
    Webhook,
}

/// The ids that the command has resolved. Clones of the placeholders share the ids.
#[derive(Debug, Clone, Default)]
pub struct Placeholders(Arc<Mutex<Vec<(Placeholder, String)>>>);

impl Placeholder {
    const fn word(self) -> &'static str {
        match self {
            Self::Agent => "AGENT",
            Self::Service => "SERVICE",
            Self::Webhook => "WEBHOOK",
        }
    }
}

impl Placeholders {
    /// Sets the id for a placeholder. It replaces an earlier one. An id with another character than letters, digits and `_`
    /// is ignored, because hints are commands for a shell.
    pub fn set(&self, placeholder: Placeholder, id: &str) {
        self.set_with_option(placeholder, "", id);
    }

    /// Sets the id and the option that a command needs before the id, such as `--deployment`.
    pub fn set_with_option(&self, placeholder: Placeholder, option: &'static str, id: &str) {
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
        ids.iter().fold(text.to_owned(), |text, (placeholder, id)| replace_word(&text, placeholder.word(), id))
    }
}

/// Replaces a word. Longer words that contain the replaced word, such as `AGENT_NOT_FOUND`, remain unchanged.
fn replace_word(text: &str, word: &str, replacement: &str) -> String {
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    let mut result = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(word) {
        let whole = !before.ends_with(is_part) && !after.starts_with(is_part);
        result.push_str(before);
        result.push_str(if whole { replacement } else { word });
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
        placeholders.set(Placeholder::Agent, "agent_1");
        placeholders.set(Placeholder::Agent, "agent_2");
        placeholders.set(Placeholder::Agent, "agent_3; true");
        let expected = "countersign role assign ROLE agent_2, `agent_2` and AGENT_NOT_FOUND";
        assert_eq!(placeholders.clone().fill(text), expected);
    }
}
