//! Compares the output of a block with the output on its page.
//!
//! A line `...` stands for any lines, and `...` within a line for any text. Ids of the same kind compare as equal,
//! and so do times. Several spaces compare as one space, because the width of a column depends on its values.

use crate::page::{Block, BlockKind};

const ANYTHING: &str = "...";

/// Number of characters in an id after its prefix.
const ID_DIGITS: usize = 26;

/// Describes how the output of a block differs from its page; `None` if it matches.
pub fn difference(block: &Block, printed: &str) -> Option<String> {
    let expected = block.expected.as_deref()?;
    let mut pattern: Vec<_> = expected.lines().map(normalize_line).collect();
    if block.kind == BlockKind::Background {
        // A background block may print more lines than its page shows.
        pattern.push(ANYTHING.to_owned());
    }
    let lines: Vec<_> = printed.lines().map(normalize_line).collect();
    let location = &block.location;
    (!matches(&pattern, &lines))
        .then(|| format!("{location}: the output differs\n---- the page shows\n{expected}\n---- it printed\n{printed}"))
}

fn matches(pattern: &[String], lines: &[String]) -> bool {
    let Some((first, rest)) = pattern.split_first() else { return lines.is_empty() };
    if first == ANYTHING {
        return (0..=lines.len()).any(|skipped| matches(rest, &lines[skipped..]));
    }
    lines.split_first().is_some_and(|(line, after)| line_matches(first, line) && matches(rest, after))
}

fn line_matches(pattern: &str, line: &str) -> bool {
    let Some((literal, rest)) = pattern.split_once(ANYTHING) else { return pattern == line };
    let Some(after) = line.strip_prefix(literal) else { return false };
    let starts = after.char_indices().map(|(start, _)| start).chain([after.len()]);
    starts.into_iter().any(|start| line_matches(rest, &after[start..]))
}

/// The longest literal text in the last line of the expected output.
pub fn last_literal(expected: &str) -> Option<&str> {
    let line = expected.lines().rfind(|line| *line != ANYTHING)?;
    line.split(ANYTHING).max_by_key(|literal| literal.len())
}

fn normalize_line(line: &str) -> String {
    let mut rest = line.trim_end();
    let mut normalized = String::new();
    while let Some(character) = rest.chars().next() {
        let (replacement, length) = match (time_length(rest), id_length(rest), character) {
            (Some(length), ..) => ("TIME".to_owned(), length),
            (_, Some(length), _) => ("_ID".to_owned(), length),
            (.., ' ') => (" ".to_owned(), rest.len() - rest.trim_start_matches(' ').len()),
            _ => (character.to_string(), character.len_utf8()),
        };
        normalized.push_str(&replacement);
        rest = &rest[length..];
    }
    normalized
}

/// The length of a time in RFC 3339, in UTC, at the beginning of the text.
fn time_length(text: &str) -> Option<usize> {
    let time_format = "0000-00-00T00:00:00";
    let mut digit_matches = time_format.bytes().zip(text.bytes()).map(|(expected, byte)| match expected {
        b'0' => byte.is_ascii_digit(),
        other => byte == other,
    });
    if text.len() <= time_format.len() || !digit_matches.all(|digit_matches| digit_matches) {
        return None;
    }
    let fraction =
        text[time_format.len()..].trim_start_matches(|character: char| character == '.' || character.is_ascii_digit());
    fraction.starts_with('Z').then(|| text.len() - fraction.len() + 1)
}

/// The length of `_` and the digits of an id at the beginning of the text. The prefix before `_` is compared literally.
fn id_length(text: &str) -> Option<usize> {
    let digits = text.strip_prefix('_')?;
    let length = digits.bytes().take_while(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase()).count();
    (length == ID_DIGITS).then_some(1 + ID_DIGITS)
}

#[test]
fn ids_times_and_spaces_are_normalized() {
    let shown = "agent_01m7xt1d9yfjk9pv2t3jtw2n8c  2026-11-21T10:15:39.651684Z  ok";
    let printed = "agent_01m7xt1d9yfjk9pv2t3jtw2n8d 2027-01-01T00:00:00Z ok";
    assert_eq!(normalize_line(shown), normalize_line(printed));
    for other in ["role_01m7xt1d9yfjk9pv2t3jtw2n8d 2027-01-01T00:00:00Z ok", "agent_01 2027-01-01T00:00:00Z ok"] {
        assert_ne!(normalize_line(shown), normalize_line(other));
    }
}

#[test]
fn three_dots_match_any_lines_or_text() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    for (pattern, printed, expected) in [
        ("a\nb", "a\nb", true),
        ("a", "a\nb", false),
        ("a\n...", "a", true),
        ("...\nb", "a\na\nb", true),
        ("...\nc", "a\nb", false),
        ("x...z", "x y z", true),
        ("x...z", "x y", false),
        ("...y...", "x y z", true),
    ] {
        assert_eq!(matches(&lines(pattern), &lines(printed)), expected, "{pattern} {printed}");
    }
}
