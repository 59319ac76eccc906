"""What importing a part of the project loads: searching and serving never need torch, training never faiss."""

import subprocess
import sys

import pytest

HEAVY = (
    *("torch", "torchvision", "safetensors", "onnx", "faiss", "onnxruntime", "gradio", "fastapi", "timm"),
    "open_clip",
)


def _loaded_by(*steps: str) -> dict[str, set[str]]:
    """The heavy packages in `sys.modules` after each step that a fresh interpreter runs."""
    program = "import sys\n" + "\n".join(
        f"{step}\nprint('LOADED', *[name for name in {HEAVY} if name in sys.modules], sep='|')" for step in steps
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.split("|")[1:] for line in done.stdout.splitlines() if line.startswith("LOADED")]
    return {step: set(names) for step, names in zip(steps, lines, strict=True)}


def test_options_and_listings_load_nothing_heavy() -> None:
    modules = (
        *("training.options.config", "training.commands", "training.data.datasets", "training.data.label_noise"),
        "export.commands",
    )
    loaded = _loaded_by(*(f"import {module}" for module in modules))
    assert {step: names for step, names in loaded.items() if names} == {}


def test_indexing_searching_and_insights_never_load_torch() -> None:  # of the server, its own test tells
    modules = (
        *("index.gallery.gallery", "index.writing.build", "index.model.embedder", "index.evaluation.evaluate"),
        *("index.evaluation.metrics", "index.commands.index_group", "retrieval_app.insights.label_issues"),
        *("retrieval_app.insights.map_layout", "retrieval_app.insights.quality", "retrieval_app.commands.cli"),
    )
    loaded = _loaded_by(*(f"import {module}" for module in modules))
    assert {step: names & {"torch", "torchvision", "safetensors", "onnx"} for step, names in loaded.items()} == {
        step: set() for step in loaded
    }


@pytest.mark.slow
def test_training_and_export_never_load_faiss_or_the_page() -> None:
    loaded = _loaded_by("import training.run.train", "import export.exports")
    for step, names in loaded.items():
        assert "torch" in names, step
        assert names.isdisjoint({"faiss", "gradio", "fastapi"}), step
