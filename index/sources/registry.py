"""The registry of source kinds, and the choice of one by a path, pattern or catalogue."""

import os
from pathlib import Path

from index.errors import InputError
from index.markers import is_training_folder, read_mark
from index.network.remote_store import is_address
from index.sources.coco import CocoSource
from index.sources.local_source import CellSource, FileSource, FolderSource, GlobSource, ListSource, TableSource
from index.sources.remote import RemoteFileSource, RemoteSource
from index.sources.source import ImageSource
from index.sources.url_list import UrlListSource

SOURCES: tuple[type[ImageSource], ...] = (
    FolderSource,
    CellSource,
    UrlListSource,
    RemoteFileSource,
    RemoteSource,
    GlobSource,
    TableSource,
    CocoSource,
    ListSource,
    FileSource,
)
"""`find_source` tries them in this order."""

_WEIGHTS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".h5", ".npz", ".pb", ".pkl", ".tflite")


def find_source(text: str) -> ImageSource:
    """The source that a path, pattern or address names; an existing path is never a pattern."""
    if not text:
        raise InputError("the source is an empty text: give a folder, archive, list, table, pattern or address")
    refuse_models(text)
    if os.path.isdir(text) and read_mark(Path(text)) is not None:
        problem = (
            "a gallery, not images; name the images themselves. `retrieval index add GALLERY IMAGES` adds images to "
            "it, `retrieval search GALLERY QUERY` searches it"
        )
        raise InputError(problem, at=text)
    for kind in SOURCES:
        if (source := kind.find(text)) is not None:
            return source.at(source.location)
    if os.path.exists(text):
        raise InputError("expected an image, folder, archive, list or table, found a device", at=text)
    raise InputError("no such file or folder; patterns have one of * ? [", at=text)


def refuse_models(text: str) -> None:
    """Refuse weights, ONNX models and folders of a training as sources; among photos of a folder they are skipped."""
    is_file = os.path.isfile(text) or is_address(text)
    suffix = os.path.splitext(text)[1].lower() if is_file else ""
    if suffix == ".onnx":
        problem = "an ONNX model, not images. `retrieval index build MODEL IMAGES --out GALLERY` builds with it"
    elif suffix not in _WEIGHTS and not os.path.isdir(text):
        return
    elif is_training_folder(Path(text).parent if is_file else Path(text)):
        problem = "a training run, not images. `retrieval export RUN --out model.onnx` exports it"
    elif is_file:
        problem = (
            "weights of a network, not images. `retrieval export --backbone NAME --weights FILE --out model.onnx` "
            "exports them, `retrieval train IMAGES --backbone NAME --weights FILE` trains from them"
        )
    else:
        return
    raise InputError(problem, at=text)


def make_source(kind: str, location: str) -> ImageSource:
    """The source that a catalogue recorded."""
    for source in SOURCES:
        if source.kind == kind:
            return source(location)
    raise InputError(f"a source of an unknown kind, {kind!r}; use a newer program", at=location)
