"""The site that `make docs` builds of docs/: it builds without a warning, and asks no other host for anything."""

from __future__ import annotations

import importlib.util
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import ROOT

DOCS = ROOT / "docs"


def test_every_page_is_in_the_sites_table_of_contents() -> None:
    listed = set(
        re.findall(r"^(?:.* <)?([\w/-]+)>?$", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in (*DOCS.rglob("*.md"), *DOCS.rglob("*.rst"))}
    assert pages - listed == {"index"}


def test_the_reference_names_modules_that_exist() -> None:
    named = [
        name
        for page in (DOCS / "reference").glob("*.rst")
        for name in re.findall(r"automodule:: (\S+)", page.read_text(encoding="utf-8"))
    ]
    assert [name for name in named if importlib.util.find_spec(name) is None] == []


@pytest.mark.parametrize(
    "html",
    ['<script src="https://cdn.example/x.js">', "<link rel='stylesheet' href='//fonts.example/a.css'>"],
)
def test_what_loads_from_another_host_is_told_from_a_link(html: str) -> None:
    loads = pytest.importorskip("sphinx") and runpy.run_path(str(DOCS / "conf.py"))["LOADS"]
    assert loads.search(html)
    assert not loads.search('<a href="https://example.org">a page</a><script src="_static/x.js">')


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_can_be_searched(tmp_path: Path) -> None:
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", tmp_path / "trees", DOCS, site],
        cwd=ROOT, check=True, timeout=280,
    )  # fmt: skip
    assert "Smooth Proxy-Anchor" in (site / "train.html").read_text(encoding="utf-8")
    assert "duplicates" in (site / "searchindex.js").read_text(encoding="utf-8")
