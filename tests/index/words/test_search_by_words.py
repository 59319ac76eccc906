"""Search by words in a gallery of red, green and blue images, most of which have a title."""

import csv
import gc
import shutil
import sqlite3
import weakref
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.errors import InputError
from index.gallery.gallery import Gallery
from index.gallery.ranking import Hit
from index.labels.decisions import PRESENT, LabelDecision, Mark
from index.versions.manifest import CATALOG_NAME
from index.versions.versions import find_version
from retrieval_app.review.review_store import ReviewStore
from tests.conftest import draw_image
from tests.index.galleries import build, change_manifest

COLOURS = {"crimson tulip": (220, 40, 40), "emerald fern": (40, 200, 60), "azure lake": (50, 60, 220)}


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Gallery:
    """Images 00 to 23 of each colour; two of three have its name as title."""
    folder = tmp_path_factory.mktemp("words")
    images = folder / "images"
    images.mkdir()
    rows = [("path", "title", "split")]
    for start, (title, colour) in enumerate(COLOURS.items()):
        for number in range(24):
            name = f"{start}{number:02d}.png"
            draw_image(colour, seed=100 * start + number).save(images / name)
            rows.append((name, title if number % 3 else "", "train"))
    with (images / "list.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    build(images / "list.csv", folder / "gallery", tiny_model)
    return Gallery.open(folder / "gallery")


def colours(hits: list[Hit]) -> str:
    return "".join(hit.path[0] for hit in hits)


def test_images_that_look_so_are_found_and_those_with_the_words_have_a_bonus(gallery: Gallery) -> None:
    hits, query = gallery.search("Tulip", k=24), gallery.ask_words("tulip")
    assert colours(hits) == "0" * 24
    assert query.written_bonus > 0
    has_title = [bool(hit.metadata.get("title")) for hit in hits]
    ranked_by = [hit.score + query.written_bonus * one for hit, one in zip(hits, has_title, strict=True)]
    assert ranked_by == sorted(ranked_by, reverse=True)
    for hit, one in zip(hits, has_title, strict=True):
        assert hit.words == (("tulip",) if one else ())
        looks_so = hit.score >= query.least_score
        assert hit.found_by == ("looks" if not one else "words and looks" if looks_so else "words")
    untitled = [hit for hit, one in zip(hits, has_title, strict=True) if not one]
    assert gallery.search("tulip", k=5, where="title IS NULL") == [
        replace(hit, rank=rank) for rank, hit in enumerate(untitled[:5], 1)
    ]
    pages = [
        gallery.search_many(query.vector[None] / np.linalg.norm(query.vector), words=query, k=6, offset=offset)[0]
        for offset in (0, 6, 12)
    ]
    assert [hit.id for page in pages for hit in page] == [hit.id for hit in hits[:18]]
    first = hits[0]
    assert [hit.id for hit in gallery.search("tulip", k=3, exclude_id=first.id)] == [hit.id for hit in hits[1:4]]


@pytest.mark.parametrize(
    ("text", "colour", "read_as"),
    [
        *(("fer", "1", ("fer*",)), ("emreald", "1", ("emerald",)), ("crimsons", "0", ("crimson",))),
        *(("tulip -fern", "0", ("tulip",)), ("ÁZURE lake xyzzy", "2", ("azure",))),
    ],
)
def test_words_are_understood(gallery: Gallery, text: str, colour: str, read_as: tuple[str, ...]) -> None:
    query = gallery.ask_words(text)
    assert next(iter(query.understood.values())) == read_as
    assert query.is_known
    assert colours(gallery.search(text, k=20)) == colour * 20


def test_unknown_words_are_refused_with_the_nearest(gallery: Gallery) -> None:
    with pytest.raises(InputError, match="written or taught about 'tulxxxx'; nearest words: tulip"):
        gallery.search("tulxxxx")
    with pytest.raises(InputError, match=r"about 'qqq'; words here: azure"):
        gallery.search("qqq")


@settings(max_examples=100)
@given(text=st.text(alphabet=st.sampled_from("ab\"'*()-^:{}+ \0;%_tulipORNEAR"), min_size=1))
def test_no_text_is_syntax(gallery: Gallery, text: str) -> None:
    try:
        query = gallery.ask_words(text)
    except InputError:
        return
    assert np.isin(query.written, gallery.ids).all()
    assert np.isfinite(query.vector).all()


def test_what_finds_no_more_than_chance_is_not_known(gallery: Gallery) -> None:
    """The serial numbers' digits and the split are no words; a word of images at random is written, not taught."""
    assert [word for word, _ in gallery.words.list_known()] == sorted(" ".join(COLOURS).split())
    random = np.random.default_rng(0)
    for _ in range(20):
        some = np.sort(random.choice(gallery.ids, size=12, replace=False))
        assert not gallery.words._learn_beyond_chance(some, np.ones(12)).source


def test_leaving_an_image_out_is_a_regression_without_it(gallery: Gallery) -> None:
    words, x = gallery.words, gallery.vectors(gallery.ids).astype(np.float64)
    targets = np.isin(gallery.ids, words.written.find_some(["tulip"])).astype(np.float64)
    direction = words._learn(gallery.ids[targets > 0], targets[targets > 0]).vector
    found = words._leave_out(gallery.ids, targets - targets.mean(), direction)
    count, width = x.shape
    ridge = np.linalg.inv(words._inverse) - np.cov(x.T, bias=True)
    for row in range(0, count, 7):
        others = np.arange(count) != row
        design = np.hstack([x[others], np.ones((count - 1, 1))])
        penalty = np.zeros((width + 1, width + 1))
        penalty[:width, :width] = count * ridge
        weights = np.linalg.solve(design.T @ design + penalty, design.T @ targets[others])
        assert found[row] == pytest.approx(x[row] @ weights[:-1] + weights[-1] - targets.mean(), abs=1e-6)


def test_decided_labels_and_tags_are_found_and_former_ones_are_not(gallery: Gallery, tmp_path: Path) -> None:
    copy = tmp_path / "gallery"
    shutil.copytree(gallery.path, copy)
    red, green, blue = (
        next(row for row in gallery.rows(gallery.ids.tolist()) if row.path == f"{n}03.png") for n in "012"
    )
    with closing(ReviewStore.of_gallery(copy)) as store:
        store.decide([LabelDecision(row.sha256 or "", None, "change", "heron") for row in (red, green)])
        store.decide([Mark(blue.sha256 or "", "tag:wader", PRESENT)])
        opened = Gallery.open(copy)
        assert opened.ask_words("heron").written.tolist() == [red.id, green.id]
        assert opened.ask_words("wader").written.tolist() == [blue.id]
        store.decide([LabelDecision(red.sha256 or "", None, "drop")])
        store.decide([LabelDecision(green.sha256 or "", None, "change", "stork")])
        opened = opened.read_decisions()
    assert opened.ask_words("stork").written.tolist() == [green.id]
    with pytest.raises(InputError, match="about 'heron'"):
        opened.search("heron")


def test_of_words_that_no_image_has_together_each_counts_not_the_rarest_alone(gallery: Gallery, tmp_path: Path) -> None:
    copy = tmp_path / "gallery"
    shutil.copytree(gallery.path, copy)
    green = [row for row in gallery.rows(gallery.ids.tolist()) if row.path.startswith("1")][:6]
    with closing(ReviewStore.of_gallery(copy)) as store:
        store.decide([Mark(row.sha256 or "", "tag:rare", PRESENT) for row in green])
    opened = Gallery.open(copy)
    both, crimson, rare = (opened.ask_words(text).vector for text in ("crimson rare", "crimson", "rare"))
    assert len(opened.ask_words("crimson rare").written) == 0
    assert min(both @ crimson / np.linalg.norm(crimson), both @ rare / np.linalg.norm(rare)) > 0.2 * np.linalg.norm(
        both
    )


def test_a_catalogue_without_the_index_is_searched_all_the_same(gallery: Gallery, tmp_path: Path) -> None:
    copy = tmp_path / "gallery"
    shutil.copytree(gallery.path, copy)
    with closing(sqlite3.connect(find_version(copy).folder / CATALOG_NAME)) as connection:
        connection.execute("DROP TABLE words")
        connection.execute("VACUUM")
    change_manifest(copy)
    found = Gallery.open(copy).search("azure lake", k=30)
    assert [(hit.id, hit.found_by) for hit in found] == [
        (hit.id, hit.found_by) for hit in gallery.search("azure lake", k=30)
    ]


def test_a_text_tower_answers_where_it_is_better(gallery: Gallery) -> None:
    blue = np.array([row.id for row in gallery.rows(gallery.ids.tolist()) if row.path[0] == "2"])
    towards_blue = gallery.vectors(blue).mean(axis=0) - gallery.vectors(gallery.ids).mean(axis=0)

    def embed(text: str) -> np.ndarray:
        assert text == "xyzzy" or "-" not in text
        return towards_blue / np.linalg.norm(towards_blue)

    assert gallery.words.ask("tulip -lake", embed=embed).looks == "taught"  # the tower takes it for blue
    unknown = gallery.words.ask("xyzzy", embed=embed)
    assert unknown.looks == "text tower"
    assert "unknown" not in unknown.explain()
    nearest = gallery.ids[np.argsort(-(gallery.vectors(gallery.ids) @ unknown.vector))[:20]]
    assert np.isin(nearest, blue).all()


def make_gallery(folder: Path, model: Path, titles: list[str], *, absolute: bool = False) -> Gallery:
    """One image of another grey for each title."""
    (folder / "secret").mkdir()
    table = folder / ("lists" if absolute else "") / "list.csv"
    table.parent.mkdir(exist_ok=True)
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "title"))
        for number, title in enumerate(titles):
            path = folder / "secret" / f"{number}.png"
            draw_image((5 * number, 5 * number, 5 * number), seed=number).save(path)
            writer.writerow((path if absolute else path.relative_to(folder), title))
    build(table, folder / "gallery", model)
    return Gallery.open(folder / "gallery")


def test_few_images_are_found_by_their_words_alone(tmp_path: Path, tiny_model: Path) -> None:
    gallery = make_gallery(tmp_path, tiny_model, ["lemon", "lemon"] + ["melon 25"] * 20 + ["a b c d e f g".upper()])
    assert gallery.ask_words("lemon").understood == {"lemon": ("lemon",)}
    assert [hit.metadata["title"] for hit in gallery.search("lemon", k=9)] == ["lemon", "lemon"]
    assert gallery.ask_words("mleon").understood == {"mleon": ("melon",)}
    assert len(gallery.search("25", k=50)) == 20
    assert len(gallery.search("lemon -lemon", k=9)) == 0
    assert gallery.search("melon lemon", k=9, min_score=-1) == []
    with pytest.raises(InputError, match="16 words, got 17"):
        gallery.search(" ".join("abcdefghijklmnopq"))
    lonely = tmp_path / "lonely"
    lonely.mkdir()
    (hit,) = make_gallery(lonely, tiny_model, ["shoe"]).search("shoe")
    assert hit.found_by == "words"


def test_folders_of_the_machine_are_no_words(tmp_path: Path, tiny_model: Path) -> None:
    gallery = make_gallery(tmp_path, tiny_model, ["/home/customer/x", "shoe"], absolute=True)
    assert set(gallery.words.written.counts) == {"shoe"}


def test_images_are_counted_once_however_often_people_change_them(gallery: Gallery, tmp_path: Path) -> None:
    copy = tmp_path / "gallery"
    shutil.copytree(gallery.path, copy)
    rows = gallery.rows(gallery.ids.tolist())
    with closing(ReviewStore.of_gallery(copy)) as store:
        store.decide([Mark(row.sha256 or "", "tag:seen", PRESENT) for row in rows])
    counts = Gallery.open(copy).words.written.counts
    assert counts == {**gallery.words.written.counts, "seen": len(rows)}


def test_a_gallery_is_let_go_of(gallery: Gallery) -> None:
    opened = Gallery.open(gallery.path)
    opened.search("tulip")
    gone = weakref.ref(opened)
    gc.disable()
    try:
        del opened
        assert gone() is None
    finally:
        gc.enable()
