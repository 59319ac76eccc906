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
from index.text import printable_path

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

_WEIGHTS = (
    ".safetensors",
    ".pt",
    ".pth",
    ".bin",
    ".ckpt",
    ".h5",
    ".keras",
    ".msgpack",
    ".npz",
    ".pb",
    ".pkl",
    ".tflite",
)
_MODEL = ".onnx"


def find_source(text: str) -> ImageSource:
    """The source that a path, pattern or address names; an existing path is never a pattern."""
    shown = printable_path(text)
    if not text:
        raise InputError("the source is an empty text: give a folder, archive, list, table, pattern or address")
    refuse_models(text)
    if os.path.isdir(text) and read_mark(Path(text)) is not None:
        raise InputError(
            f"{shown}: a gallery, not images; name the images themselves. To add images to the gallery: "
            f"`retrieval index add {shown} IMAGES`; to search it: `retrieval search {shown} QUERY`"
        )
    for kind in SOURCES:
        if (source := kind.find(text)) is not None:
            return source.at(source.location)
    if os.path.exists(text):
        raise InputError(f"{shown}: expected an image, folder, archive, list or table, found a device")
    raise InputError(f"{shown}: no such file or folder; patterns have one of * ? [")


def refuse_models(text: str) -> None:
    """Refuse weights, ONNX models and folders of a training, where images are expected.

    Weights and models among the photos of a folder are skipped instead, like every file that is no image.
    """
    shown, name = printable_path(text), text.lower()
    is_file = os.path.isfile(text) or is_address(text)
    folder = Path(text).parent if is_file else Path(text)
    then = "then `retrieval index build model.onnx IMAGES`"
    if is_file and name.endswith(_MODEL):
        raise InputError(
            f"{shown}: an ONNX model, not images. A gallery gets its model when it is built: `retrieval index build "
            f"{shown} IMAGES --out GALLERY`. To measure it: `retrieval evaluate --model {shown} --data IMAGES`"
        )
    if is_file and name.endswith(_WEIGHTS):
        if is_training_folder(folder):
            raise InputError(
                f"{shown}: weights of a training run, not images. Export the run: `retrieval export "
                f"{printable_path(str(folder))} --out model.onnx`, {then}"
            )
        raise InputError(
            f"{shown}: weights of a network, not images. To train from them: `retrieval train IMAGES --backbone NAME "
            f"--weights {shown}`. To use them as they are: `retrieval export --backbone NAME --weights {shown} --out "
            f"model.onnx`, {then}"
        )
    if os.path.isdir(text) and is_training_folder(folder):
        raise InputError(
            f"{shown}: a training run, not images. Export it: `retrieval export {shown} --out model.onnx`, {then}"
        )


def make_source(kind: str, location: str) -> ImageSource:
    """The source that a catalogue recorded."""
    for source in SOURCES:
        if source.kind == kind:
            return source(location)
    raise InputError(f"{printable_path(location)}: a source of an unknown kind, {kind!r}; use a newer program")
