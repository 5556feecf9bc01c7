//! Hostile paths from the word lists of web scanners.
//!
//! Nobody of this project wrote these lists. `scripts/tools.sh tests` extracts them from three Debian packages:
//! `wfuzz` (GPL-2), `dirb` (GPL-2+) and `dirsearch` (GPL-2+). The tests only read them, and the repository contains no
//! copy. Invariant: a missing or short list fails the test.

use super::spellings::SPELLINGS;
use countersign_tests::tools;
use std::{collections::BTreeSet, fs};

/// Path traversals: 2,609 different lines. Most of them repeat a unit up to eight times before a file name.
const TRAVERSALS: &[&str] = &[
    "usr/share/wfuzz/wordlist/vulns/dirTraversal.txt",
    "usr/share/wfuzz/wordlist/vulns/dirTraversal-nix.txt",
    "usr/share/wfuzz/wordlist/vulns/dirTraversal-win.txt",
    "usr/share/wfuzz/wordlist/Injections/Traversal.txt",
];

/// Single characters, plain, encoded and encoded twice: about 700 different lines.
const CHARACTERS: &[&str] = &[
    "usr/share/wfuzz/wordlist/Injections/bad_chars.txt",
    "usr/share/dirb/wordlists/stress/alphanum_case_extra.txt",
    "usr/share/dirb/wordlists/stress/uri_hex.txt",
    "usr/share/dirb/wordlists/stress/doble_uri_hex.txt",
];

/// Paths of products. Only the paths with traversals and path parameters are used.
const PRODUCTS: &str = "usr/lib/python3/dist-packages/dirsearch/db/dicc.txt";

/// The files that the traversals name. A test replaces them by a protected path.
const FILES: &[&str] = &["{FILE}", "etc/passwd", "etc/shadow", "etc/hosts", "etc\\passwd", "etc\\shadow", "boot.ini"];

/// Protected paths without the first slash: of a rule with a prefix, and of a rule with a template.
const PROTECTED: [&str; 2] = ["admin/secret", "users/7/keys"];

/// The entries of the lists.
#[derive(Debug)]
pub struct WordLists {
    /// Traversals and paths of products, with `{FILE}` in place of each file name.
    traversals: BTreeSet<Vec<u8>>,
    /// Single characters.
    characters: BTreeSet<Vec<u8>>,
}

impl WordLists {
    /// Reads the lists. Panics if a list is missing.
    pub fn read() -> Self {
        let products = lines(PRODUCTS).into_iter().filter(|line| {
            !contains(line, b"%EXT%") && [b"..".as_slice(), b";", b"\\", b"//"].iter().any(|it| contains(line, it))
        });
        let traversals = TRAVERSALS.iter().flat_map(|list| lines(list)).filter(|line| !line.starts_with(b"#"));
        Self {
            traversals: traversals.chain(products).map(|line| with_placeholder(&line)).collect(),
            characters: CHARACTERS.iter().flat_map(|list| lines(list)).collect(),
        }
    }

    /// The number of different entries.
    pub fn len(&self) -> usize {
        self.traversals.len() + self.characters.len()
    }

    /// All request targets of the corpus.
    pub fn targets(&self) -> Vec<Vec<u8>> {
        let spellings = SPELLINGS.into_iter().flat_map(str::split_whitespace);
        let mut targets: BTreeSet<Vec<u8>> = spellings.map(|it| it.as_bytes().to_vec()).collect();
        for traversal in &self.traversals {
            targets.extend(traversals(traversal));
        }
        for character in &self.characters {
            targets.extend(characters(character));
        }
        targets.into_iter().collect()
    }
}

fn lines(list: &str) -> Vec<Vec<u8>> {
    let path = tools::root().join(".tools/path-lists").join(list);
    let text = fs::read(&path);
    let text = text.unwrap_or_else(|error| panic!("{}: {error}: run `scripts/tools.sh tests`", path.display()));
    let lines = text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line).to_vec());
    let lines: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
    assert!(lines.len() > 20, "{} has {} lines", path.display(), lines.len());
    lines
}

/// The targets of a traversal, with a protected path in place of the file: below an open path and, if the traversal is short,
/// alone.
fn traversals(traversal: &[u8]) -> Vec<Vec<u8>> {
    let prefix = open_prefix(traversal);
    let depth = depth(traversal);
    let mut targets = Vec::new();
    for protected in PROTECTED {
        let spelled = replaced(traversal, b"{FILE}", protected.as_bytes());
        targets.push([&prefix, &*spelled].concat());
        if depth > 3 {
            // A deep traversal repeats the unit of a short one, so one target suffices for it.
            break;
        }
        targets.push(if spelled.starts_with(b"/") { spelled.clone() } else { [b"/", &*spelled].concat() });
        let below = |path: &[u8]| [&prefix, path].concat();
        targets.push(below(&replaced(traversal, b"{FILE}", protected.to_uppercase().as_bytes())));
        targets.push(below(&replaced(&replaced(&spelled, b"..", b"..;x=y"), b"%2e%2e", b"%2e%2e;x=y")));
        targets.push(below(&replaced(&spelled, protected.as_bytes(), &replaced(protected.as_bytes(), b"/", b";x=y/"))));
        targets.push(below(&replaced(&spelled, b"%", b"%25")));
        targets.push(below(&replaced(&replaced(&spelled, b".", b"%2e"), b"/", b"%2F")));
        targets.push(below(&replaced(&replaced(&spelled, b".", b"%252E"), b"/", b"%252f")));
        targets.push(below(&replaced(&replaced(traversal, b"/", b"\\"), b"{FILE}", protected.as_bytes())));
    }
    targets
}

/// Request targets that contain this character: at the start or end of a segment of a protected path, or in place of a letter.
fn characters(character: &[u8]) -> Vec<Vec<u8>> {
    let around = ["/@admin/secret", "/admin@/secret", "/admin/@", "/public/@/../admin", "/public/..@/admin/secret"];
    let mut targets: Vec<_> = around.iter().map(|shape| replaced(shape.as_bytes(), b"@", character)).collect();
    let text = String::from_utf8_lossy(character).to_lowercase();
    for path in ["/admin/secret", "/users/7/keys"] {
        // A character can replace a letter of the path only if it decodes to this letter.
        let same = path.bytes().find(|byte| text.ends_with(&format!("{byte:02x}")) || *byte == text.as_bytes()[0]);
        targets.extend(same.map(|byte| replaced(path.as_bytes(), &[byte], character)));
    }
    targets
}

/// An open path that is as deep as the traversal is long, so that the traversal ends at the root.
fn open_prefix(traversal: &[u8]) -> Vec<u8> {
    let deeper = "/d".repeat(depth(traversal).saturating_sub(1));
    let end = if traversal.starts_with(b"/") { "" } else { "/" };
    format!("/public{deeper}{end}").into_bytes()
}

/// The number of segments `..` in any encoding, including encodings that only some services decode.
fn depth(traversal: &[u8]) -> usize {
    let text = String::from_utf8_lossy(traversal).to_lowercase();
    let dots = ["%25c0%25ae", "%c0%ae", "%c0%2e", "%uff0e", "%%32%65", "%252e", "%2e", "0x2e"];
    let plain = dots.iter().fold(text, |text, dot| text.replace(dot, "."));
    plain.matches("..").count()
}

fn with_placeholder(line: &[u8]) -> Vec<u8> {
    let named = FILES.iter().find(|file| contains(line, file.as_bytes()));
    named.map_or_else(|| [line, b"{FILE}"].concat(), |file| replaced(line, file.as_bytes(), b"{FILE}"))
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

fn replaced(text: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let (mut result, mut rest) = (Vec::new(), text);
    while let Some(first) = rest.first() {
        if let Some(after) = rest.strip_prefix(from) {
            result.extend_from_slice(to);
            rest = after;
        } else {
            result.push(*first);
            rest = &rest[1..];
        }
    }
    result
}
