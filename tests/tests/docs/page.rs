//! The shell blocks of a page in Markdown, with the output that the page shows.

use countersign_tests::tools;

/// Whether and how a block runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// The block runs to its end and must succeed.
    Run,
    /// The block runs in the background until the page ends.
    Background,
    /// The block does not run.
    Ignored,
}

/// A shell block.
#[derive(Debug, Clone)]
pub struct Block {
    pub kind: BlockKind,
    /// Path and line, for messages.
    pub location: String,
    pub code: String,
    /// Expected output, from the `text` block that follows.
    pub expected: Option<String>,
    /// The comment `<!-- not run: … -->` before the block.
    pub reason: Option<String>,
    pub line: usize,
}

/// A Markdown page with its shell blocks.
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

    /// The blocks above the first line that starts with `heading`.
    pub fn blocks_before(self, heading: &str) -> Vec<Block> {
        let end = self.text.lines().position(|line| line.starts_with(heading)).unwrap();
        self.blocks.into_iter().filter(|block| block.line < end).collect()
    }
}

fn blocks(path: &str, text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut reason, mut follows_block) = (None, false);
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let Some(language) = line.strip_prefix("```") else {
            if let Some(comment) = line.strip_prefix("<!-- not run: ") {
                reason = comment.strip_suffix(" -->").map(str::to_owned);
            }
            follows_block &= line.is_empty();
            continue;
        };
        let location = format!("{path}:{}", number + 1);
        let body = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
        let code: String = body.flat_map(|line| [line, "\n"]).collect();
        let kind = block_kind(language, &location);
        if let Some(kind) = kind {
            blocks.push(Block { kind, location, code, expected: None, reason: reason.take(), line: number });
        } else if language == "text" && follows_block {
            blocks.last_mut().unwrap().expected = Some(code);
        }
        follows_block = kind.is_some();
    }
    blocks
}

fn block_kind(language: &str, location: &str) -> Option<BlockKind> {
    match language {
        "sh" => Some(BlockKind::Run),
        "sh,background" => Some(BlockKind::Background),
        "sh,ignore" => Some(BlockKind::Ignored),
        other => {
            let shell = ["sh", "bash", "shell", "console"].iter().any(|name| other.starts_with(name));
            assert!(!shell, "{location}: write `sh`, `sh,background` or `sh,ignore`");
            None
        }
    }
}
