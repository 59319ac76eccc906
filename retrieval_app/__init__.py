"""Image retrieval that survives wrong labels: train, export, build, search, evaluate, compare and audit from Python.

from retrieval_app import train, export, build, open_gallery

train("photos", "run", weights="imagenet")
export("run", "model.onnx")
build("model.onnx", "photos", "gallery")
for hit in open_gallery("gallery").search("query.jpg", k=5, where="label = 'shoes'"):
    print(hit.score, hit.label, hit.location)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from export.public import export
    from index.public import build, evaluate, open_gallery
    from retrieval_app.comparing.public import compare
    from retrieval_app.dataset_export.public import export_dataset
    from retrieval_app.reports.public import audit
    from retrieval_app.review.bulk import set_labels
    from training.public import train

__all__ = ["audit", "build", "compare", "evaluate", "export", "export_dataset", "open_gallery", "set_labels", "train"]
_MODULES = {
    "audit": "retrieval_app.reports.public",
    "build": "index.public",
    "compare": "retrieval_app.comparing.public",
    "evaluate": "index.public",
    "export": "export.public",
    "export_dataset": "retrieval_app.dataset_export.public",
    "open_gallery": "index.public",
    "set_labels": "retrieval_app.review.bulk",
    "train": "training.public",
}


def __getattr__(name: str) -> Any:
    """A function of the API, whose module is loaded now: the command line passes here, and most commands want none."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
