#!/usr/bin/env python3
"""Checks the documentation. Every link and anchor must resolve, every page must be in the table of contents, the cells of
tables must be short, and the paths and names in pages for contributors must exist.

    check-docs.py [SITE]    SITE: the folder with the built site, whose links are checked too
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SUMMARY = DOCS / "SUMMARY.md"
ROOT_PAGES = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
CHART_PAGES = sorted((ROOT / "charts").glob("*/README.md"))
# Pages in which the paths in backticks must exist, and the folders to which these paths are relative.
PATHS_CHECKED = {
    "ARCHITECTURE.md": ["", "control-plane/src", "ext-authz/src"],
    "CONTRIBUTING.md": ["", "control-plane/src"],
    "docs/work/contributing.md": ["", "control-plane/src"],
    "docs/work/testing.md": [""],
    "docs/understand/decisions.md": [""],
}
# Pages in which the identifiers in backticks must occur in the sources.
NAMES_CHECKED = ["ARCHITECTURE.md", "docs/work/contributing.md", "docs/understand/decisions.md", "docs/glossary.md"]
# Pages whose tables name tests: `SUITE`, `SUITE module` or `SUITE module::test`. `…` stands for any part of a name.
TESTS_CHECKED = ["docs/security.md", "docs/reliability.md"]
TEST = re.compile(r"^(?P<suite>\w+)(?: (?P<path>[\w…]+(?:::[\w…]+)*))?$")
# Matches text that looks like a path, but is not a path in the repository.
NOT_IN_REPOSITORY = re.compile(r"^(/|~|target/|\.tools/|https?://)|[<>*{}$ ]")
PATH = re.compile(r"^[\w.-]+(/[\w.-]+)*/?$")
EXTENSIONS = {"rs", "toml", "sh", "py", "md", "sql", "proto", "yaml", "lua", "json", "lock"}

SOURCES = {".rs", ".proto", ".sql", ".lua", ".toml"}

FENCE = re.compile(r"^( *)(```|~~~).*?^\1?\2 *$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^()\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
HEADING = re.compile(r"^(#{1,6}) +(.+?) *#*$", re.MULTILINE)


def main() -> int:
    pages = sorted(DOCS.rglob("*.md"))
    root_pages = [ROOT / name for name in ROOT_PAGES if (ROOT / name).exists()]
    problems = [
        *(problem for page in [*root_pages, *pages] for problem in broken_links(page)),
        *pages_without_link(pages),
        *(problem for page in [*root_pages, *CHART_PAGES, *pages] for problem in long_cells(page)),
        *(problem for page, bases in PATHS_CHECKED.items() for problem in missing_paths(ROOT / page, bases)),
        *unknown_names(),
        *unknown_settings(),
        *(problem for page in TESTS_CHECKED for problem in missing_tests(ROOT / page)),
        *differing_dependency_rules(),
    ]
    if len(sys.argv) > 1:
        problems += broken_links_of_site(Path(sys.argv[1]))
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print(f"documentation: {len(pages) - 1} pages, all links and paths resolve")
    return 1 if problems else 0


def broken_links(page: Path) -> list[str]:
    problems = []
    for target in LINK.findall(CODE.sub("", prose(page))):
        parts = urlsplit(target)
        if parts.scheme or parts.netloc:
            continue
        file = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        if not file.exists():
            problems.append(f"{name(page)}: {target} does not exist")
        elif DOCS in page.parents and DOCS not in file.parents:
            problems.append(f"{name(page)}: {target} is outside docs/ and not on the site")
        elif parts.fragment and file.suffix == ".md" and parts.fragment not in anchors(file):
            problems.append(f"{name(page)}: {target}: the page has no such heading")
    return problems


def pages_without_link(pages: list[Path]) -> list[str]:
    listed = {(DOCS / target).resolve() for target in LINK.findall(prose(SUMMARY))}
    return [f"{name(page)}: is not in docs/SUMMARY.md" for page in pages if page != SUMMARY and page not in listed]


def long_cells(page: Path) -> list[str]:
    """Returns the cells of tables that have more than two sentences, each by its beginning."""
    rows = [CODE.sub("`code`", line) for line in prose(page).splitlines() if line.startswith("|")]
    cells = (cell.strip() for row in rows for cell in row.split("|"))
    return [f"{name(page)}: a table cell has more than two sentences: {cell[:60]}" for cell in cells if cell.count(". ") > 1]


def missing_paths(page: Path, bases: list[str]) -> list[str]:
    named = {span for span in CODE.findall(prose(page)) if is_path(span)}
    exists = lambda path: any((ROOT / base / path).exists() for base in bases)
    return [f"{name(page)}: `{path}` does not exist" for path in sorted(named) if not exists(path)]


def is_path(span: str) -> bool:
    if NOT_IN_REPOSITORY.search(span) or not PATH.match(span):
        return False
    file = span.rsplit("/", 1)[-1]
    return "/" in span or file.rsplit(".", 1)[-1] in EXTENSIONS and "." in file


def unknown_names() -> list[str]:
    """Returns identifiers, such as `View::apply`, that do not occur in the sources."""
    folders = ["identity", "proto", "process", "control-plane", "ext-authz", "client", "mangle", "tests", "examples"]
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in SOURCES]
    words = set(re.findall(r"\w+", "\n".join(path.read_text() for path in files)))
    words |= {*folders, *(part for path in files for part in path.relative_to(ROOT).with_suffix("").parts)}
    problems = []
    for page in NAMES_CHECKED:
        spans = {span for span in CODE.findall(prose(ROOT / page)) if re.fullmatch(r"[A-Za-z_]\w*(::\w+)*", span)}
        missing = (span for span in sorted(spans) if not words.issuperset(span.split("::")))
        problems += [f"{page}: `{span}` does not occur in the sources" for span in missing]
    return problems


def unknown_settings() -> list[str]:
    """Returns settings on the configuration page that do not exist, and existing settings that the page does not list."""
    page = DOCS / "run/configuration.md"
    text, problems = page.read_text(), []
    for server, part in (("control-plane", "## Control plane"), ("ext-authz", "## Sidecar")):
        section = text.split(part, 1)[1].split("\n## ", 1)[0]
        rows = "\n".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| `"))
        named = {span.strip("[]") for span in CODE.findall(rows)}
        known = toml_keys((ROOT / server / "config.default.toml").read_text())
        tables = {key.split(".")[0] for key in known}
        problems += [f"{name(page)}: {server} has no setting `{key}`" for key in sorted(named - known - tables)]
        missing = (key for key in sorted(known) if key not in named and key.split(".")[0] not in named)
        problems += [f"{name(page)}: the setting `{key}` of {server} is missing" for key in missing]
    return problems


def missing_tests(page: Path) -> list[str]:
    """The tests that do not exist, in the last column of the tables of a page whose last column is `Test`."""
    tables = re.findall(r"^\|.*\| Test \|\n((?:\|.*\n)*)", prose(page), re.M)
    rows = [line.rsplit("|", 2)[1] for table in tables for line in table.splitlines()]
    tests = [span for cell in rows for span in CODE.findall(cell)]
    return [f"{name(page)}: the test `{test}` does not exist" for test in tests if not test_exists(test)]


def test_exists(test: str) -> bool:
    if not (match := TEST.match(test)):
        return False
    folder = ROOT / "tests/tests" / match["suite"]
    parts = (match["path"] or "main").split("::")
    # The last part is a module or a test in the module of the parts before it.
    module = folder.joinpath(*parts)
    if module.is_dir() or module.with_suffix(".rs").is_file():
        return True
    module = folder.joinpath(*parts[:-1])
    files = [module.with_suffix(".rs"), *module.glob("**/*.rs")]
    pattern = "[\\w]*".join(re.escape(part) for part in parts[-1].split("…"))
    return any(re.search(rf"^(async )?fn {pattern}\(", file.read_text(), re.M) for file in files if file.is_file())


def differing_dependency_rules() -> list[str]:
    """Returns modules whose dependencies in ARCHITECTURE.md differ from those that tests/tests/layers.rs enforces."""
    test = (ROOT / "tests/tests/layers.rs").read_text()
    rules = test[test.index("; 2] = [\n") : test.index("#[test]")].split('"ext-authz",')
    page, problems = (ROOT / "ARCHITECTURE.md").read_text(), []
    for server, text in zip(("control-plane", "ext-authz"), rules):
        enforced = {module: set(re.findall(r"\w+", uses)) for module, uses in re.findall(r'\("(\w+)", &\[([^]]*)', text)}
        enforced.pop("fixtures", None)
        enforced = {module: uses - {"fixtures"} for module, uses in enforced.items()}
        # The rows of a server follow its row, up to the row of the next server. A row names one module or several.
        table = re.split(r"\| \*\*|\n\n", page.split(f"| **`{server}/src`** |", 1)[1])[0].splitlines()[1:]
        cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in table]
        stated = {name: set(re.findall(r"\w+", row[-1])) for row in cells for name in re.findall(r"\w+", row[0])}
        for module in sorted(enforced.keys() | stated.keys()):
            if enforced.get(module) != stated.get(module):
                problems.append(f"ARCHITECTURE.md: {server}: the dependencies of `{module}` differ from tests/tests/layers.rs")
    return problems


def toml_keys(toml: str) -> set[str]:
    """Returns the keys of a TOML file that has one key per line. Python 3.10 has no TOML parser."""
    keys, table = set(), ""
    for line in toml.splitlines():
        if header := re.match(r"\[(.+)\]$", line):
            table = header[1] + "."
        elif key := re.match(r"(\w+) = ", line):
            keys.add(table + key[1])
    return keys


def prose(page: Path) -> str:
    """Returns the text of a page without code blocks."""
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Returns the ids that mdBook and GitHub generate for headings."""
    counts: dict[str, int] = {}
    ids = set()
    for _, heading in HEADING.findall(prose(page)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = "".join(c for c in text.lower().replace(" ", "-") if c.isalnum() or c in "-_")
        count = counts.get(slug, 0)
        counts[slug] = count + 1
        ids.add(f"{slug}-{count}" if count else slug)
    return ids


class HtmlPage(HTMLParser):
    """The ids, the links and the loaded resources of an HTML page."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if values.get("id"):
            self.ids.add(values["id"])
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag in ("script", "img", "iframe") and values.get("src"):
            self.loaded.append(values["src"])
        if tag == "link" and values.get("href"):
            self.loaded.append(values["href"])


def broken_links_of_site(site: Path) -> list[str]:
    pages = {path.resolve(): HtmlPage(path.read_text()) for path in site.rglob("*.html")}
    problems = []
    for path, page in pages.items():
        if path.name in ("404.html", "print.html", "toc.html"):
            continue
        for target in page.loaded + page.links:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                if target in page.loaded:
                    problems.append(f"{path}: loads {target} from another host")
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target_page = pages.get(file)
            if not file.exists() or target_page and parts.fragment and unquote(parts.fragment) not in target_page.ids:
                problems.append(f"{path}: {target} does not exist")
    return problems


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


if __name__ == "__main__":
    sys.exit(main())
