import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from index.arrays import NO_ID
from index.errors import ImageError, InputError
from index.filters.parser import parse_filter
from index.gallery import queries
from index.gallery.gallery import Gallery
from index.gallery.queries import Query, answer_queries, is_single, read_queries
from index.gallery.ranking import SearchOptions
from tests.conftest import draw_folder, draw_image
from tests.index.galleries import build
from tests.models import EMBEDDING_DIM


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Gallery:
    folder = tmp_path_factory.mktemp("queries")
    build(draw_folder(folder / "images"), folder / "gallery", tiny_model)
    return Gallery.open(folder / "gallery")


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder `photos` in the working directory: two images, and between them a file that is none."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for number in (1, 3):
        draw_image((220, 40, 40), seed=number).save(tmp_path / "photos" / f"{number}.png")
    (tmp_path / "photos" / "2.png").write_text("<html>")
    return tmp_path / "photos"


def read(gallery: Gallery, *arguments: object, ids: tuple[int, ...] = ()) -> list[Query]:
    return list(read_queries([str(argument) for argument in arguments], ids=ids, gallery=gallery))


def outcomes(found: list[Query]) -> list[tuple[str, str | None]]:
    """Names, each with the reason of an image that cannot be used."""
    return [(query.name, query.problem.reason if isinstance(query.problem, ImageError) else None) for query in found]


@pytest.mark.usefixtures("photos")
def test_images_of_every_kind_of_source_ask_by_their_given_names(gallery: Gallery, tmp_path: Path) -> None:
    with tarfile.open("p.tar", "w") as tar, zipfile.ZipFile("p.zip", "w") as packed:
        for number in (1, 2, 3):
            tar.add(f"photos/{number}.png", f"in/{number}.png")
            packed.write(f"photos/{number}.png", f"{number}.png")
    Path("list.txt").write_text("photos/3.png\nphotos/1.png\nphotos/gone.png\n")
    Path("table.csv").write_text("path,price\nphotos/3.png,4\n")
    for arguments, expected in (
        (["photos"], [("photos/1.png", None), ("photos/2.png", "not-an-image"), ("photos/3.png", None)]),
        (["photos/1.png", "photos/2.png"], [("photos/1.png", None), ("photos/2.png", "not-an-image")]),
        (["*os/3.png"], [("photos/3.png", None)]),
        (["p.tar"], [("p.tar/in/1.png", None), ("p.tar/in/2.png", "not-an-image"), ("p.tar/in/3.png", None)]),
        (["./p.zip"], [("./p.zip/1.png", None), ("./p.zip/2.png", "not-an-image"), ("./p.zip/3.png", None)]),
        (["list.txt"], [("photos/3.png", None), ("photos/1.png", None), ("photos/gone.png", "unreadable")]),
        (["table.csv", "photos/1.png"], [("photos/3.png", None), ("photos/1.png", None)]),
    ):
        found = read(gallery, *arguments)
        assert outcomes(found) == expected
        for query in found:
            assert (query.vector is None) == (query.problem is not None)
            if query.vector is not None:
                image = gallery.embedder.preprocess((tmp_path / "photos" / query.name[-5:]).read_bytes(), name="image")
                assert query.vector == pytest.approx(gallery.embedder.embed_batch(image[None])[0], abs=1e-6)
            else:
                assert str(query.problem).startswith(f"{query.name}: ")


@pytest.mark.usefixtures("photos")
def test_order_is_that_of_the_arguments_with_ids_at_the_end(gallery: Gallery) -> None:
    np.save("v.npy", np.eye(3, EMBEDDING_DIM))
    member = int(gallery.ids[4])
    found = read(gallery, "v.npy", "photos", "none.jpg", "v.npy", ids=(member, 999, member))
    assert [query.name for query in found] == [
        *("v.npy[0]", "v.npy[1]", "v.npy[2]", "photos/1.png", "photos/2.png", "photos/3.png", "none.jpg"),
        *("v.npy[0]", "v.npy[1]", "v.npy[2]", f"id:{member}", "id:999", f"id:{member}"),
    ]
    assert [query.exclude_id for query in found] == [NO_ID] * 10 + [member, NO_ID, member]
    assert found[-1].vector is not None
    assert np.array_equal(found[-1].vector, gallery.vector(member))
    assert "no such file" in str(found[6].problem)
    assert "no image 999 in gallery" in str(found[-2].problem)


@pytest.mark.parametrize(("dtype", "order"), [("<f4", "C"), ("<f8", "F"), (">f8", "C")])
def test_vectors_are_brought_to_unit_length(gallery: Gallery, tmp_path: Path, dtype: str, order: str) -> None:
    random = np.random.default_rng(0).normal(size=(4, EMBEDDING_DIM))
    sizes = np.array([[1], [1e-30], [1e30], [-7]])
    np.save(tmp_path / "v.npy", np.asarray(random * sizes, dtype=dtype, order=order))  # type: ignore[call-overload]
    found = read(gallery, tmp_path / "v.npy")
    assert [query.name for query in found] == [f"{tmp_path}/v.npy[{number}]" for number in range(4)]
    expected = random * np.sign(sizes) / np.linalg.norm(random, axis=1, keepdims=True)
    for query, vector in zip(found, expected, strict=True):
        assert query.vector.dtype == np.float32
        assert query.vector == pytest.approx(vector, abs=1e-6)
    limits = np.zeros((3, EMBEDDING_DIM))
    limits[:, 2:4] = [[1e308, 1e308], [1e-320, 1e-320], [1e308, 1e-308]]
    np.save(tmp_path / "v.npy", limits)
    for query, expected in zip(read(gallery, tmp_path / "v.npy"), [(0.707, 0.707)] * 2 + [(1, 0)], strict=True):
        assert query.vector[2:4] == pytest.approx(expected, abs=1e-3)


def test_rows_without_a_direction_are_problems_of_their_own(gallery: Gallery, tmp_path: Path) -> None:
    vectors = np.ones((4, EMBEDDING_DIM), np.float32)
    vectors[1], vectors[2, 5], vectors[3, 0] = 0, np.nan, -np.inf
    np.save(tmp_path / "v.npy", vectors)
    found = read(gallery, tmp_path / "v.npy")
    assert [query.vector is not None for query in found] == [True, False, False, False]
    for number, problem in ((1, "the vector is zero"), (2, "not finite"), (3, "not finite")):
        assert f"v.npy[{number}]: " in str(found[number].problem)
        assert problem in str(found[number].problem)


def test_a_file_that_holds_no_vectors_of_this_width_is_one_problem(gallery: Gallery, tmp_path: Path) -> None:
    path = tmp_path / "v.npy"
    header = b"\x93NUMPY\x01\x00"
    for content, problem in (
        (np.ones((3, EMBEDDING_DIM + 1), np.float32), f"have {EMBEDDING_DIM + 1} numbers, this gallery's have 16"),
        (np.ones((3, EMBEDDING_DIM), np.float16), "found float16 of shape"),
        (np.ones((2, 3, EMBEDDING_DIM)), "of shape (2, 3, 16)"),
        (np.array([{"a": 1}] * EMBEDDING_DIM, dtype=object), "expected a .npy file"),
        (b"<html>", "expected a .npy file"),
        (header + b"\xff\x20" + b"-" * 8446 + b"\n", "expected a .npy file"),
        (header + b"\x4f\x00{'descr': '<f4', 'fortran_order': False, 'shape': (%d, 4), }\n" % 10**22, "expected a"),
    ):
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            np.save(path, content, allow_pickle=True)
        (query,) = read(gallery, path)
        assert isinstance(query.problem, InputError)
        assert str(query.problem).startswith(f"{path}: ")
        assert problem in str(query.problem)
    whole = np.ones((3, EMBEDDING_DIM), np.float32)
    np.save(path, whole)
    path.write_bytes(path.read_bytes()[:-4])
    assert "expected a .npy file" in str(read(gallery, path)[0].problem)
    path.unlink()
    assert "v.npy: cannot be read: No such file" in str(read(gallery, path)[0].problem)


@pytest.mark.usefixtures("photos")
def test_sources_that_cannot_be_used_are_problems_among_the_others(gallery: Gallery) -> None:
    Path("broken.csv").write_text("name\nphotos/1.png\n")
    found = read(gallery, "broken.csv", "*.none", "photos/1.png", "")
    assert [query.vector is not None for query in found] == [False, False, True, False]
    for number, problem in ((0, "expected a column path"), (1, "matches no file"), (3, "empty text")):
        assert problem in str(found[number].problem)


def test_one_file_one_vector_or_one_member_is_single(photos: Path, tmp_path: Path) -> None:
    np.save("one.npy", np.ones(EMBEDDING_DIM))
    np.save("block.npy", np.ones((1, EMBEDDING_DIM)))
    for arguments, ids, single in (
        *((["photos/1.png"], (), True), (["one.npy"], (), True), ([], (3,), True), (["none.jpg"], (), True)),
        *((["block.npy"], (), False), (["photos"], (), False), (["photos/1*"], (), False)),
        *((["photos/1.png"], (3,), False), ([], (3, 4), False)),
    ):
        assert is_single(arguments, ids=ids) is single, arguments


def test_answers_are_those_of_search_in_order(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "_BLOCK_QUERIES", 4)
    asked = [
        Query(f"id:{key}", gallery.vector(int(key)), exclude_id=int(key) if key % 2 else None) for key in gallery.ids
    ]
    asked[5] = Query("broken", problem=InputError("broken"))
    for k, min_score in ((3, None), (None, 0.99), (2, 0.99)):
        answers = [
            answer
            for block in answer_queries(asked, gallery, options=SearchOptions(k=k, min_score=min_score))
            for answer in block
        ]
        assert [query for query, _ in answers] == asked
        for query, hits in answers:
            asked_alone = {"k": k, "min_score": min_score, "exclude_id": query.exclude_id}
            assert hits == ([] if query.vector is None else gallery.search(query.vector, **asked_alone))
    where = parse_filter("label = 'blue'")
    blocks = list(answer_queries(asked, gallery, options=SearchOptions(k=9), where=where))
    assert {hit.label for block in blocks for _, hits in block for hit in hits} == {"blue"}


def test_blocks_are_small_where_queries_find_much(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "_BLOCK_HITS", 30)
    asked = [Query(f"{number}", gallery.vector(int(gallery.ids[0]))) for number in range(40)]
    asked[10:] = [Query("far", np.roll(gallery.vector(int(gallery.ids[0])), 1))] * 30

    def sizes(**options: float | None) -> list[int]:
        searching = SearchOptions(**options)  # type: ignore[arg-type]
        return [len(block) for block in answer_queries(asked, gallery, options=searching)]

    assert sizes(k=10) == [3] * 13 + [1]
    assert sizes(k=100) == [1] * 40
    assert sizes(k=None, min_score=-1) == [2] * 20  # the gallery holds 15
    assert sizes(k=None, min_score=0.9999) == [2, 30, 8]  # each finds itself alone, or nothing
