"""How Sphinx makes the site of these pages; `make docs` runs it. Nothing that a page loads comes from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
from click.testing import CliRunner
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator

from retrieval_app.commands.cli import root

project = "Retrieval"
html_title = "Retrieval"
html_theme = "furo"
html_copy_source = False
html_show_sphinx = False
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["pictures"]

myst_enable_extensions = ["dollarmath"]  # as on GitHub
myst_heading_anchors = 3  # links to headings, as on GitHub
html_math_renderer = "mathml"  # browsers draw it without a script
suppress_warnings = ["misc.highlighting_failure"]

default_role = "code"  # docstrings set names in single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_default_options = {"members": True, "exclude-members": "model_config"}

# A script, style, font or image of another host; links that a reader follows are none.
LOADS = re.compile(r"""<(?:script|img|iframe)[^>]*\ssrc=["']?(?:https?:)?//|<link[^>]*\shref=["']?(?:https?:)?//""")
STYLE_LOADS = re.compile(r"""(?:url\(|@import\s)["']?(?:https?:)?//""")


# What stands outside docs/, and the page that includes it.
INCLUDED = {"](../README.md": "](index.md"}


def link_to_included_pages(_: Sphinx, __: str, source: list[str]) -> None:
    """On GitHub these links lead to the files themselves, on the site to the pages that include them."""
    for file, page in INCLUDED.items():
        source[0] = source[0].replace(file, page)


def write_inline_math(translator: HTML5Translator, node: nodes.Element) -> None:
    """A formula in a line, as MathML."""
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def write_math_block(translator: HTML5Translator, node: nodes.Element) -> None:
    """A formula of its own lines, which scrolls where it is wider than the page."""
    translator.body.append(
        f'<div style="overflow: auto hidden; padding: .4em 0">{tex2mathml(node.astext(), as_block=True)}</div>'
    )
    raise nodes.SkipNode


class CommandReference(SphinxDirective):
    """A section for each command of `retrieval`, with the help of all its options."""

    def run(self) -> list[nodes.Node]:
        return [self._section(words, command) for words, command in walk_commands(root, ())]

    def _section(self, words: tuple[str, ...], command: click.Command) -> nodes.Node:
        has_more = any("--help-all" in parameter.opts for parameter in command.params)
        asked = [*words, "--help-all" if has_more else "--help"]
        shown = CliRunner().invoke(root, asked, prog_name="retrieval", terminal_width=100, max_content_width=100)
        name = " ".join(("retrieval", *words))
        section = nodes.section("", nodes.title(text=name), ids=[nodes.make_id(name)], names=[name])
        section += nodes.literal_block(text=shown.output, language="text")
        return section


def walk_commands(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """The command and those below it, with the words that name each."""
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from walk_commands(below, (*words, name))


def keep_returns_whole(*event: object) -> None:
    """napoleon takes what stands before a colon under `Returns:` for a type; ours are sentences."""
    lines = event[-1]
    assert isinstance(lines, list)
    inside = False
    for number, line in enumerate(lines):
        inside = line == "Returns:" or (inside and (not line or line.startswith(" ")))
        if inside and line.startswith(" "):
            lines[number] = line.replace(": ", " – ")


def refuse_loads_from_elsewhere(app: Sphinx, exception: Exception | None) -> None:
    """Fail the build where a page or a style would ask another host for anything."""
    if exception is not None:
        return
    folder = Path(app.outdir)
    pages = dict.fromkeys(folder.rglob("*.html"), LOADS) | dict.fromkeys(folder.rglob("*.css"), STYLE_LOADS)
    for path, pattern in pages.items():
        found = pattern.search(path.read_text(encoding="utf-8"))
        if found:
            raise ExtensionError(f"{path.relative_to(folder)} loads from elsewhere: {found.group()}")


def setup(app: Sphinx) -> None:
    """Called by Sphinx when it has read this file."""
    app.add_directive("commands", CommandReference)
    app.add_html_math_renderer("mathml", (write_inline_math, None), (write_math_block, None))
    app.connect("autodoc-process-docstring", keep_returns_whole, priority=100)  # before napoleon
    app.connect("source-read", link_to_included_pages)
    app.connect("build-finished", refuse_loads_from_elsewhere)
