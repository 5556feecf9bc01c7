//! The shell blocks of a page in Markdown, with the output that the page shows.

use countersign_tests::tools;

/// How a block is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It runs.
    Run,
    /// It runs until the page ends.
    Background,
    /// It does not run.
    Ignored,
}

/// A shell block.
#[derive(Debug, Clone)]
pub struct Block {
    pub kind: Kind,
    /// Path and line, for messages.
    pub place: String,
    pub code: String,
    /// The `text` block that follows.
    pub expected: Option<String>,
    /// The comment `<!-- not run: … -->` before it.
    pub reason: Option<String>,
    pub line: usize,
}

/// A page.
pub struct Page {
    pub blocks: Vec<Block>,
    pub text: String,
}

impl Page {
    /// Reads a page, by its path in the checkout.
    pub fn read(path: &str) -> Self {
        let text = std::fs::read_to_string(tools::root().join(path)).unwrap();
        Self { blocks: blocks(path, &text), text }
    }

    /// The blocks above a heading, by the beginning of its line.
    pub fn blocks_before(self, heading: &str) -> Vec<Block> {
        let end = self.text.lines().position(|line| line.starts_with(heading)).unwrap();
        self.blocks.into_iter().filter(|block| block.line < end).collect()
    }
}

fn blocks(path: &str, text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut reason, mut follows) = (None, false);
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let Some(language) = line.strip_prefix("```") else {
            if let Some(comment) = line.strip_prefix("<!-- not run: ") {
                reason = comment.strip_suffix(" -->").map(str::to_owned);
            }
            follows &= line.is_empty();
            continue;
        };
        let place = format!("{path}:{}", number + 1);
        let body = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
        let code: String = body.flat_map(|line| [line, "\n"]).collect();
        let kind = kind(language, &place);
        if let Some(kind) = kind {
            blocks.push(Block { kind, place, code, expected: None, reason: reason.take(), line: number });
        } else if language == "text" && follows {
            blocks.last_mut().unwrap().expected = Some(code);
        }
        follows = kind.is_some();
    }
    blocks
}

fn kind(language: &str, place: &str) -> Option<Kind> {
    match language {
        "sh" => Some(Kind::Run),
        "sh,background" => Some(Kind::Background),
        "sh,ignore" => Some(Kind::Ignored),
        other => {
            let shell = ["sh", "bash", "shell", "console"].iter().any(|name| other.starts_with(name));
            assert!(!shell, "{place}: write `sh`, `sh,background` or `sh,ignore`");
            None
        }
    }
}
