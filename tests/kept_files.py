"""The archive of a release's files that `test_kept_formats.py` reads: `python -m tests.kept_files` on its commit.

The photos are those of the archive before it. The paths in the run are below `MADE_IN`.
"""

import json
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from index.gallery.gallery import Gallery
from index.labels.decisions import DuplicateDecision, Mark
from index.labels.steps import SavedSearch
from index.model.embedder import Embedder
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.review.subjects import read_all_subjects
from tests.models import read_pixels, write_three_output_model

MADE_IN = Path("/tmp/kept-files")
CHANGED = "dress/dress-001.jpg"  # its label is changed to `hat`, and it gets the tag `kept`


def main() -> None:
    folder = Path(__file__).parent
    shutil.rmtree(MADE_IN, ignore_errors=True)
    with tarfile.open(max(folder.glob("kept-*.tar.xz"))) as before:
        before.extractall(MADE_IN, [one for one in before if one.name.startswith("photos")], filter="data")
    photos, model, gallery, run = (MADE_IN / name for name in ("photos", "model.onnx", "gallery", "run"))
    write_three_output_model(model)
    _run("index", "build", model, photos, "--out", gallery, "--no-cache")
    _run("labels", "set", gallery, "--where", f"path = '{CHANGED}'", "--label", "hat")
    _run("tags", "add", gallery, "kept", "--where", f"path = '{CHANGED}'")
    _decide(gallery)
    _run("backup", gallery, "--out", MADE_IN / "backup.zip")
    _run("train", photos, "--out", run, "--backbone", model, "--resize", "40", "--crop", "32", "--frozen")
    _run("export", run, "--out", exported := MADE_IN / "exported.onnx")
    answers = {"vector": embed_file(model, photos / CHANGED), "vector of run": embed_file(exported, photos / CHANGED)}
    for by in ("semantic", "copy"):
        hits = _run("search", gallery, photos / CHANGED, "-k", "5", "--by", by)["results"]
        answers[by] = [[hit["path"], hit["label"], hit["score"]] for hit in hits]
    exported.unlink()
    (MADE_IN / "answers.json").write_text(json.dumps(answers), encoding="utf-8")
    with tarfile.open(folder / f"kept-{version('retrieval-app')}.tar.xz", "w:xz") as archive:
        for path in sorted(MADE_IN.iterdir()):
            archive.add(path, path.name)
    shutil.rmtree(MADE_IN)  # readers find the photos beside the gallery


def _decide(gallery: Path) -> None:
    """One decision of each kind by a person, and one that is taken back."""
    images = {f"{one.label}-{Path(one.path).stem[-1]}": one for one in read_all_subjects(Gallery.open(gallery))}
    store = ReviewStore.of_gallery(gallery)
    store.decide([images["lime-5"].decide("set_aside")], by="anna")
    store.decide(
        [DuplicateDecision((images["shoes-4"], images["shoes-5"]), "duplicates", (images["shoes-4"].image_id,))]
    )
    store.decide([Mark(images["shoes-0"].sha256, "split", "test")])
    store.decide([SavedSearch("limes", "text=lime")])
    store.decide([images["lime-4"].decide("drop")])
    store.undo()
    store.close()


def embed_file(model: Path, photo: Path) -> list[float]:
    embedder = Embedder(model)
    return [float(number) for number in embedder.embed_batch(read_pixels(embedder, photo)[np.newaxis])[0]]


def _run(*words: str | Path) -> Any:
    command = [sys.executable, "-m", "retrieval_app", *map(str, words), "--json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


if __name__ == "__main__":
    main()
