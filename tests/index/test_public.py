import shutil
from pathlib import Path

import pytest

from index.errors import GalleryDamagedError, InputError
from index.public import build, evaluate, open_gallery
from tests.conftest import draw_folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    folder = tmp_path_factory.mktemp("public")
    report = build(str(tiny_model), str(draw_folder(folder / "images")), str(folder / "gallery"), batch_size=4)
    assert report.indexed == 15
    return folder / "gallery"


def test_a_gallery_is_built_opened_searched_and_scored(built: Path) -> None:
    opened = open_gallery(str(built))
    assert opened.search(built.parent / "images/red/1.png", k=2)[0].score == pytest.approx(1)
    by_path, by_object = evaluate(built, k=[1, 3]), evaluate(opened, k=(1, 3))
    assert by_path.to_json() == by_object.to_json()
    assert list(by_path.scores.recall) == [1, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bacth_size": 4}, "bacth_size: no such option; did you mean batch_size"),
        ({"batch_size": -1}, r"--batch-size must be in 0..4096, got -1"),
        ({"dedup": "some"}, "dedup: expected one of off, exact, near, got 'some'"),
        ({"max_hash_distance": 2}, "max_hash_distance: needs dedup='near', and would do nothing with 'off'"),
        ({"labels": 3}, "labels: expected a path as str or Path, got 3"),
    ],
)
def test_wrong_options(tiny_model: Path, tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(tiny_model, "photos", tmp_path / "gallery", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "gallery").exists()


@pytest.mark.parametrize("given", [{"query": "elsewhere"}, {"gallery": None, "model": "m.onnx", "data": "d"}])
def test_a_filter_says_which_images_of_a_gallery_ask(built: Path, given: dict[str, str | None]) -> None:
    assert evaluate(built, where="label = 'red'").scores.queries == 5
    with pytest.raises(InputError, match="where selects images of a gallery as queries"):
        evaluate(**{"gallery": built, "where": "label = 'red'", **given})


def test_a_gallery_is_scored_without_its_model(built: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(built, tmp_path / "gallery")
    model = next(copied.glob("versions/*/model.onnx"))
    model.write_bytes(bytes(model.stat().st_size))
    assert evaluate(copied).to_json() == evaluate(built).to_json()
    with pytest.raises(GalleryDamagedError, match=r"model\.onnx"):
        evaluate(copied, query=copied)
