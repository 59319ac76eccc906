"""What `from retrieval_app import …` gives, used as a program would."""

import subprocess
import sys
from pathlib import Path

import pytest

from index.errors import InputError, RetrievalError
from retrieval_app import audit, build, evaluate, export, open_gallery, train


def test_importing_the_api_loads_nothing_heavy() -> None:
    code = (
        "import sys, retrieval_app\n"
        "print({'torch', 'faiss', 'onnxruntime', 'numpy', 'PIL', 'gradio', 'fastapi', 'rich'} & set(sys.modules))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == "set()\n"


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
