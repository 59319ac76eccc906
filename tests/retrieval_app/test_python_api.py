"""What `from retrieval_app import …` gives, used as a program would."""

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from index.errors import InputError, RetrievalError
from retrieval_app import audit, build, evaluate, export, open_gallery, train
from tests.photos import KINDS, write_photos

QUICK = {
    "backbone": "squeezenet1_1",
    "weights": "none",
    "resize": 40,
    "crop": 32,
    "view": "crop",
    "pooling": "own",
    "frozen": True,
    "embedding_dim": 8,
    "head_steps": 8,
}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four kinds of twelve images, a run by the default recipe, its model, its gallery, and its audit."""
    work = tmp_path_factory.mktemp("python")
    write_photos(work / "photos", kinds=KINDS[:4], pictures_per_kind=12, seed=0, size=48)
    cache = str(work / "cache")
    report = train(str(work / "photos"), str(work / "run"), cache=cache, workers=1, **QUICK)
    assert (report["images"], report["classes"]) == (48, 4)
    assert export(str(work / "run"), str(work / "model.onnx")).embedding_dim == 8
    assert build(work / "model.onnx", [work / "photos"], work / "gallery").indexed == 48
    assert len(audit(work / "run", work / "audit", cache=cache).audited.items) == 48
    return work


def test_importing_the_api_loads_nothing_heavy() -> None:
    code = (
        "import sys, retrieval_app\n"
        "print({'torch', 'faiss', 'onnxruntime', 'numpy', 'PIL', 'gradio', 'fastapi', 'rich'} & set(sys.modules))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == "set()\n"


@pytest.mark.slow
def test_a_gallery_answers_a_photo_under_a_filter(work: Path) -> None:
    photo = next((work / "photos" / KINDS[0]).iterdir())
    gallery = open_gallery(str(work / "gallery"))
    assert gallery.search(str(photo), k=1)[0].score == pytest.approx(1)
    hits = gallery.search(Image.open(photo), k=5, where=f"label != '{KINDS[0]}'")
    assert len(hits) == 5
    assert KINDS[0] not in {hit.label for hit in hits}
    assert evaluate(gallery, k=[1]).scores.recall == evaluate(work / "gallery", k=[1]).scores.recall


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embeding_dim": 8}, "embeding_dim"),
        ({"embedding_dim": "8"}, "embedding.dim"),
        ({"device": "tpu"}, "--device must be one of auto, cpu, cuda, got 'tpu'"),
        ({"cache": 3}, "--cache must be a path as str or Path, got 3"),
        ({"workers": -1}, "--workers must be at least 1, got -1"),
    ],
)
def test_training_refuses_wrong_options_before_anything_is_made(
    image_folder: Path, tmp_path: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        train(image_folder, tmp_path / "run", **{"weights": "none", **options})  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_every_function_refuses_what_it_cannot_use(small_gallery: Path, tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give either a RUN folder, or --backbone"):
        export()
    with pytest.raises(InputError, match="--backbone needs --weights"):
        export(backbone="resnet50", out=tmp_path / "model.onnx")
    with pytest.raises(InputError, match="--crop goes with --backbone"):
        export(tmp_path / "run", tmp_path / "model.onnx", crop=5)
    with pytest.raises(InputError, match="--embedding-dim must be a whole number, got '8'"):
        export(backbone="resnet50", weights="none", embedding_dim="8")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="limit must be a whole number of at least 1, got '3'"):
        audit(tmp_path / "run", tmp_path / "audit", limit="3")  # type: ignore[arg-type]
    with pytest.raises(RetrievalError, match=str(tmp_path)):
        audit(tmp_path)
    with pytest.raises(InputError, match="threads must be a whole number of at least 0, got -1"):
        open_gallery(small_gallery, threads=-1)
    with pytest.raises(InputError, match="k must be whole numbers of at least 1, got"):
        evaluate(small_gallery, k="12")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="sources: expected one or several as str or Path, got 3"):
        build(tiny_model, 3, tmp_path / "gallery")  # type: ignore[arg-type]
