import fnmatch
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.catalog.reader import read_catalog
from index.errors import InputError
from index.filters.parser import parse_filter
from index.gallery.selection import Selection
from index.versions.versions import find_version
from index.writing.build import build_gallery, remove_from_gallery
from tests.conftest import draw_folder, tries
from tests.index.galleries import SMALL

UNDECODABLE = os.fsdecode(b"caf\xe9")
LISTED = "path,label,shop,price\nelsewhere/0.jpg,hat,a.example,5\nelsewhere/1.png,hat,caf\u00e9,5.5\n"


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """Sources `one` and `two`, which share paths, and a table with metadata; one image was taken out before."""
    folder = tmp_path_factory.mktemp("selection")
    draw_folder(folder / "one", per_class=2)
    draw_folder(folder / "two", per_class=3)
    shutil.copytree(folder / "one" / "red", folder / "elsewhere")
    shutil.copytree(folder / "one" / "red", folder / "two" / UNDECODABLE)
    shutil.copy(folder / "one" / "red" / "0.jpg", folder / "one" / "a[01].jpg")
    (folder / "table.csv").write_text(LISTED, encoding="utf-8")
    sources = [folder / "one", folder / "two", folder / "table.csv"]
    build_gallery(model_path=tiny_model, sources=sources, out=folder / "g", config=SMALL)
    gone = Selection(patterns=(f"{folder}/two/green/0.jpg",))
    remove_from_gallery(folder / "g", selection=gone, config=SMALL)
    return folder / "g"


def select(gallery: Path, *patterns: str, **conditions: object) -> set[str]:
    """The locations below the sources' common folder."""
    with read_catalog(find_version(gallery).folder / "catalog.sqlite") as catalog:
        roots = {number: Path(source.root) for number, source in catalog.sources().items()}
        rows = Selection(patterns, **conditions).select(catalog)  # type: ignore[arg-type]
        assert [row.id for row in rows] == sorted({row.id for row in rows})
        return {os.path.relpath(roots[row.source] / row.path, gallery.parent) for row in rows}


def refusal(gallery: Path, *patterns: str, **conditions: object) -> str:
    with pytest.raises(InputError) as caught:
        select(gallery, *patterns, **conditions)
    return str(caught.value)


def below(gallery: Path, *folders: str, but: Iterable[str] = ("two/green/0.jpg",)) -> set[str]:
    root = gallery.parent
    files = (path for folder in folders for path in (root / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(root)) for path in files}.difference(but)


def test_nothing_and_an_empty_path_select_nothing() -> None:
    with pytest.raises(InputError, match="nothing is selected"):
        Selection()
    with pytest.raises(InputError, match="a path is an empty text"):
        Selection(patterns=("red/0.jpg", ""))


def test_a_path_is_relative_to_a_source_or_to_here(gallery: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(gallery.parent / "two")
    assert select(gallery, "elsewhere/0.jpg") == {"elsewhere/0.jpg"}
    assert select(gallery, f"{gallery.parent}/one/red/0.jpg") == {"one/red/0.jpg"}
    assert select(gallery, "../one/red/0.jpg") == {"one/red/0.jpg"}
    assert select(gallery, "./red/2.jpg") == {"two/red/2.jpg"}
    assert select(gallery, ".") == below(gallery, "two")
    for end in ("", "/", "//"):
        assert select(gallery, f"{gallery.parent}/one/red{end}") == below(gallery, "one/red")
        assert select(gallery, UNDECODABLE + end) == below(gallery, f"two/{UNDECODABLE}")
    assert select(gallery, "/") == below(gallery, "one", "two", "elsewhere")


def test_a_path_of_several_sources_is_refused(gallery: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = gallery.parent
    places = f"{root}/one/red/0.jpg, {root}/two/red/0.jpg"
    assert f"red/0.jpg: there are several; say which one: {places}; nothing" in refusal(gallery, "red/0.jpg")
    assert f"{root}/one/red, {root}/two/red;" in refusal(gallery, "red/")
    monkeypatch.chdir(root / "one")  # here it is the one, as `search` prints it the other too
    assert places in refusal(gallery, "red/0.jpg")
    assert places in refusal(gallery, "red/0.jpg", f"{root}/one/red/0.jpg")
    assert select(gallery, f"{root}/one/red/0.jpg", f"{root}/two/red/0.jpg") == {"one/red/0.jpg", "two/red/0.jpg"}
    assert f"{root}/one/green/0.jpg, {root}/two/green/0.jpg" in refusal(gallery, "green/0.jpg")  # one is out


def test_every_pattern_must_mean_something(gallery: Path) -> None:
    message = refusal(gallery, "g*", "x*", "gre*", "red/2.jpg", "none", "also\x1b")
    assert message == "no item of the gallery is meant by: also\\x1b, none, x*; nothing was removed"


def test_ids_are_found_and_unknown_ones_named(gallery: Path) -> None:
    with read_catalog(find_version(gallery).folder / "catalog.sqlite") as catalog:
        numbers = {row.path: row.id for row in catalog.rows()}
    first, last = numbers["red/2.jpg"], numbers["elsewhere/0.jpg"]
    assert select(gallery, ids=(last, first, last)) == {"two/red/2.jpg", "elsewhere/0.jpg"}
    assert select(gallery, "elsewhere", ids=(last, first)) == {"elsewhere/0.jpg"}
    assert "is meant by: -1, 0, 100000000000000000000; " in refusal(gallery, ids=(first, 10**20, 0, -1))
    assert "fulfils all that was asked" in refusal(gallery, "elsewhere", ids=(first,))


def test_a_filter_must_hold_with_all_else(gallery: Path) -> None:
    cheap = parse_filter("price < 5.2 or label = 'green'")
    assert select(gallery, where=cheap) == below(gallery, "one/green", "two/green") | {"elsewhere/0.jpg"}
    assert select(gallery, f"{gallery.parent}/two", where=cheap) == below(gallery, "two/green")
    assert select(gallery, "elsewhere", where=parse_filter("shop LIKE 'CAF%'")) == {"elsewhere/1.png"}
    for refused in (refusal(gallery, "red/2.jpg", where=cheap), refusal(gallery, where=parse_filter("price > 9"))):
        assert "fulfils all that was asked" in refused
    assert "metadata pirce; there are " in refusal(gallery, where=parse_filter("pirce < 5"))
    assert select(gallery, where=parse_filter("path = 'green/0.jpg'")) == {"one/green/0.jpg"}  # the other is out


@settings(max_examples=tries(20, deep=60))
@given(st.lists(st.text("redgn0.jp/*?[]", min_size=1, max_size=9), min_size=1, max_size=3))
def test_any_patterns_select_what_each_alone_does(gallery: Path, patterns: list[str]) -> None:
    """Against the plain definition: a path equal to the pattern, below it, or matched by it."""
    texts = {pattern: {pattern.rstrip("/"), os.path.abspath(pattern).rstrip("/")} for pattern in patterns}
    root = str(gallery.parent)
    relative = {f"{root}/{path}": path.partition("/")[2] for path in below(gallery, "one", "two", but=())}
    relative |= {f"{root}/{path}": path for path in below(gallery, "elsewhere")}
    matched = {
        pattern: {
            place
            for place, path in relative.items()
            for text in wanted
            for name in (path, place)
            if name == text or name.startswith(f"{text}/") or fnmatch.fnmatchcase(name, text)
        }
        for pattern, wanted in texts.items()
    }
    if not all(matched.values()):
        assert "is meant by" in refusal(gallery, *patterns)
        return
    try:
        found = select(gallery, *patterns)
    except InputError:
        assert any(len(places) > 1 and not set("*?[") & set(text) for text, places in matched.items())
    else:
        out = f"{root}/two/green/0.jpg"
        assert {f"{root}/{path}" for path in found} == set().union(*matched.values()) - {out}
