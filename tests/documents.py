"""The README and the pages under docs/: their commands, links, headings and code."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
# In the order in which they are read, and their commands run; those of every other page of docs/ come after them.
_FIRST = ("README.md", *(f"docs/{name}.md" for name in ("train", "labels", "index-search", "serve", "api", "python")))
PAGES = tuple(dict.fromkeys([*(ROOT / name for name in _FIRST), *sorted(ROOT.glob("docs/**/*.md"))]))
_BLOCK = re.compile(r"(?ms)^(<!-- not run by the tests: .*? -->\n)?```(console|python)\n(.*?)^```")
_RESULTS = re.compile(r"\]\(([^)#\s]*results/[^)#\s]+\.md)#?([^)\s]*)\)")
_NUMBER = re.compile(r"(?<![\w.,])\d*(?:[.,]?\d)+")
_FIGURE = re.compile(r"(?<![\w.,])(?:\d*(?:[.,]\d+)+|\d+(?= ?%| (?:points|images/s|ms|s|MB|GB)\b))")
_FILE = re.compile(r"(?:#|//) ([\w-]+\.\w+)\n")  # at the head of a block that its reader saves as a file


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a page tells its reader to run: `console`, a command line, or `python`, a block of code."""

    page: str
    language: str
    text: str


def documents() -> list[Path]:
    """Every Markdown file that a reader may open."""
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/**/*.md"))]


def steps_of(page: Path) -> list[Step]:
    """What the page's blocks run, in order, but for benchmarks, files, and blocks below a comment that says why."""
    steps = []
    for not_run, language, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if not_run or _FILE.match(text):
            continue
        commands = [text] if language == "python" else commands_in(text)
        steps += [Step(page.name, language, command) for command in commands]
    return steps


def files_of(page: Path) -> dict[str, str]:
    """The blocks that name themselves as files in their first lines, by name."""
    blocks = re.findall(r"^```\w+\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return {found[1]: block for block in blocks if (found := _FILE.match(block))}


def commands_in(block: str) -> list[str]:
    """The lines after `$ `, joined where a backslash goes on, without the benchmarks."""
    lines = [line[2:] for line in block.replace("\\\n", " ").splitlines() if line.startswith("$ ")]
    return [line for line in lines if not line.startswith("python -m benchmarks")]


def broken_links(page: Path) -> list[str]:
    """Links to files and headings of this repository that are not there."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    return broken


def missing_figures(page: Path) -> list[str]:
    """Figures of rows and sentences that link a results page, or a section of one, but do not stand there."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    missing = []
    for part in re.split(r"\n\n|\n(?=[|-])|(?<=[.!?])\s+(?=[A-Z*])", text):
        linked = [section(page.parent / name, at) for name, at in _RESULTS.findall(part)]
        known = set(_NUMBER.findall("\n".join(linked)))
        figures = _FIGURE.findall(re.sub(r"`[^`]*`|\]\([^)]*\)", "", part)) if linked else []
        missing += [f"{figure} in {' '.join(part.split())[:90]}" for figure in figures if figure not in known]
    return missing


def section(page: Path, anchor: str) -> str:
    """The section of a page below the heading of this name; without one the whole page."""
    text = page.read_text(encoding="utf-8")
    for heading in re.finditer(r"(?m)^(#+) (.+)$", text):
        if slug(heading[2]) == anchor:
            return re.split(rf"(?m)^#{{1,{len(heading[1])}}} ", text[heading.end() :])[0]
    return text


def anchors(page: Path) -> set[str]:
    """The names by which GitHub and the site link to a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {slug(heading) for heading in headings}


def slug(heading: str) -> str:
    """The name of a heading in links."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
