"""Terms that the project gave up for those of the field (docs/glossary.md) stand in no text that users read."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
RETIRED = re.compile(
    r"\b(doubt(s|ed|ful|fully)?|suspects?|suspicion|judge[sd]?|judgements?|beliefs?|believe[sd]?|planted|"
    r"witness(es)?|looks? twice|ships|shipped|the hall|the house|seal(s|ed)?|in the box|repetitions|"
    r"class-whitened|--(hold|trial|unfreeze|copies|network-[a-z-]+))(?![\w-])",
    re.IGNORECASE,
)
FIRST_WORDS = re.compile(r"(As|The same|Of|Those|These|With|From)\b")
"""Beginnings of a docstring that do not name its subject."""
PACKAGES = ("index", "training", "export", "retrieval_app")
PAGES = ("page/static", "reports/templates")
_SENTENCE = re.compile(r"\w \w")


def _read_texts() -> Iterator[tuple[Path, int, str]]:
    """Documentation, texts of pages, and the strings of Python code that are sentences."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        yield path, 1, path.read_text()
    for folder in PAGES:
        for path in sorted((ROOT / "retrieval_app" / folder).rglob("*.*")):
            if path.suffix in (".js", ".html", ".css"):
                yield path, 1, path.read_text()
    for path, node in _walk_code():
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _SENTENCE.search(node.value):
            yield path, node.lineno, node.value


def _walk_code() -> Iterator[tuple[Path, ast.AST]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield from ((path, node) for node in ast.walk(ast.parse(path.read_text())))


def test_no_text_that_users_read_has_a_retired_term() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line + text[: match.start()].count(chr(10))}: {match[0]}"
        for path, line, text in _read_texts()
        for match in RETIRED.finditer(text)
    ]
    assert not found, "use the words of docs/glossary.md:\n" + "\n".join(found)


def test_docstrings_begin_with_the_noun_or_the_verb() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value.value[:60]}"
        for path, node in _walk_code()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if FIRST_WORDS.match(str(node.value.value))
    ]
    assert not found, "name what it is, then say more:\n" + "\n".join(found)
