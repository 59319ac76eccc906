"""Every expected failure of the project.

RetrievalError                    anything a user can cause and fix; the command line prints it, exit 1
├── InputError                    a path, file or option that cannot be used as given
│   ├── UnknownImageError         an id that no member of a gallery has
│   └── ListChangedError          a page of a list after an image that is gone
├── ImageError                    one image that cannot be used; `reason` is a short stable code
├── ModelFileError                an ONNX file without a valid contract, or not the expected one
├── GalleryError                  a gallery folder that is missing, unfinished or locked
│   ├── GalleryDamagedError       a gallery whose files are not what they were when it was built
│   └── GalleryMismatchError      a gallery opened or continued with another model, folder or preprocessing
├── CancelledError                work that was cancelled; nothing of it is kept
├── RunError                      a training run folder that is missing, incomplete or in the way
├── ParityError                   an exported model that disagrees with the one it was made from
└── MissingDependencyError        an optional extra that is not installed
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from index.text import printable_path

EXTRAS = {
    "torch": "train",
    "torchvision": "train",
    "safetensors": "train",
    "onnx": "train",
    "onnxscript": "train",
    "scipy": "train",
    "faiss": "cpu",
    "onnxruntime": "cpu",
    "mcp": "agents",
    "anyio": "serve",
    "gradio": "ui",
    "fastapi": "serve",
    "pydantic": "serve",
    "starlette": "serve",
    "uvicorn": "serve",
    "obstore": "remote",
    "httpcore": "remote",
    "pyarrow": "parquet",
    "huggingface_hub": "hub",
    "tokenizers": "text",
    "ray": "cluster",
    "pymilvus": "cluster",
    "openvino": "fast",
    "rapidocr": "ocr",
    "watchfiles": "watch",
    "cv2": "ocr",
    "send2trash": "trash",
}
"""By the name that is imported."""

DAMAGE_ADVICE = (
    "; repair it with `retrieval index repair`, or go back a version with `retrieval index rollback`: images, uploads "
    "and decisions are kept"
)


class RetrievalError(Exception):
    """Base of every expected error; the message begins with the file or address `at`, and the line or row `where`."""

    def __init__(self, problem: str, *, at: object = None, where: str = "") -> None:
        place = "" if at is None else f"{printable_path(at)}{where and f', {where}'}: "
        super().__init__(f"{place}{problem}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without calling a subclass's constructor again: worker processes hand errors to their parent."""
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[RetrievalError], args: tuple[Any, ...], state: dict[str, Any]) -> RetrievalError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class InputError(RetrievalError):
    """A path, file or option that cannot be used as given."""


class UnknownImageError(InputError):
    """An id that no member of a gallery has."""

    def __init__(self, image_id: int, *, gallery: str) -> None:
        super().__init__(f"no image {image_id} in gallery {gallery}")


class ListChangedError(InputError):
    """A page of a list is asked for that follows an image which is gone."""


class ImageError(RetrievalError):
    """One image that cannot be used: its `reason`, of `index.images.image_files.REASONS`, and the `detail` seen."""

    def __init__(self, path: object, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}", at=path)
        self.path, self.reason, self.detail = printable_path(path), reason, detail

    def apart(self) -> "ImageError":
        """Copy of the error without its traceback, whose frames hold the file's bytes."""
        return ImageError(path=self.path, reason=self.reason, detail=self.detail)


class NoUsableImageError(InputError):
    """Sources without one image that can be used."""


class ModelFileError(RetrievalError):
    """An ONNX file without a contract, or whose contract cannot be honoured."""

    def __init__(self, path: object, problem: str) -> None:
        super().__init__(problem, at=path)
        self.path, self.problem = str(path), problem


class GalleryError(RetrievalError):
    """A gallery folder that is missing, unfinished or locked."""

    def __init__(self, path: object, problem: str) -> None:
        super().__init__(problem, at=path)
        self.path, self.problem = printable_path(path), problem


class GalleryDamagedError(GalleryError):
    """A gallery whose files are not what they were when it was built."""

    def __init__(self, path: object, problem: str) -> None:
        super().__init__(path, f"{problem}{DAMAGE_ADVICE}")


class GalleryMismatchError(GalleryError):
    """A gallery opened or continued with something other than what it was built from."""

    def __init__(self, path: object, *, what: str, expected: str, seen: str, advice: str) -> None:
        super().__init__(path, f"the gallery's {what} is {expected}, but {seen} was given; {advice}")


class CancelledError(RetrievalError):
    """Cancelled work: a progress callback raises it; nothing of the work is kept."""


class RunError(RetrievalError):
    """A training run folder that is missing, incomplete or in the way."""


class ParityError(RetrievalError):
    """An exported model whose embeddings are not those of the model it was made from."""

    def __init__(self, *, path: str, min_cosine: float, required: float) -> None:
        super().__init__(
            f"{path} was not written: ONNX Runtime and torch agree only to a cosine of {min_cosine:.7f} "
            f"on the check images, {required} is required"
        )
        self.min_cosine = min_cosine


@contextmanager
def reading(path: object) -> Iterator[None]:
    """Name the file in an InputError where the block cannot read it."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", at=path) from error


@contextmanager
def missing_imports_as_dependency_errors(purpose: str) -> Iterator[None]:
    """Name the extra to install where a library is missing that the block imports; `purpose` needs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise MissingDependencyError(package=package, extra=EXTRAS[package], purpose=purpose) from error


class MissingDependencyError(RetrievalError):
    """An optional extra that is not installed."""

    def __init__(self, *, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed; "
            f"install the extra: pip install 'retrieval-app[{extra}]', or in a clone of it pip install '.[{extra}]'"
        )
        self.extra = extra
