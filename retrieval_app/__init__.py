"""Image retrieval that survives wrong labels: train, export, build, search, evaluate, compare and audit from Python.

from retrieval_app import train, export, build, open_gallery

train("photos", "run", weights="imagenet")
export("run", "model.onnx")
build("model.onnx", "photos", "gallery")
for hit in open_gallery("gallery").search("query.jpg", k=5, where="label = 'shoes'"):
    print(hit.score, hit.label, hit.location)
"""

from export.public import export
from index.public import build, evaluate, open_gallery
from retrieval_app.comparing.public import compare
from retrieval_app.reports.public import audit
from training.public import train

__all__ = ["audit", "build", "compare", "evaluate", "export", "open_gallery", "train"]
