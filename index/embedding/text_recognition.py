"""Text recognition (OCR): the text in images, read in threads by RapidOCR with the models of its wheel, and cached."""

import hashlib
import json
import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from index.embedding.cached import ContentCache
from index.embedding.engine import holding_bytes
from index.errors import ImageError, ModelFileError, missing_imports_as_dependency_errors
from index.images.image_files import decode_image
from index.items import ImageText, Place
from index.model.backends.onnxruntime import import_onnxruntime
from index.sources.reading import CHANGED, read_place
from index.text import clean_line
from index.threads import map_ahead, usable_cores

_VERSION = 1  # of everything below that changes a text
_MOST_SIDE, _LEAST_SIDE = 1280, 736  # pixels of the longer and the shorter side; the first limit wins
_MOST_LINES = 200
_LEAST_CONFIDENCE = 0.5
_MOST_CHARACTERS = 4000
_ASKED_AT_ONCE = 1024
_LIBRARY_PATH = "LD_LIBRARY_PATH"


def require_ocr() -> Any:
    """The class RapidOCR."""
    import_onnxruntime()
    searched = os.environ.get(_LIBRARY_PATH)
    try:
        with missing_imports_as_dependency_errors("reading the text in images"):
            import cv2
            from rapidocr import RapidOCR
    finally:  # OpenCV adds its folder, which the processes that this one starts would search
        os.environ.pop(_LIBRARY_PATH, None)
        if searched is not None:
            os.environ[_LIBRARY_PATH] = searched
    cv2.setNumThreads(1)
    return RapidOCR


class TextReader:
    """Reads the text in images with `workers` threads, 0 for one a usable core, that share one engine.

    `failed` images have no text because of a problem; `first_problem` is that of the first.
    """

    def __init__(self, *, cache: Path | None, workers: int = 0) -> None:
        self._engine, self._workers = _open_engine(), workers or usable_cores()
        described = {"text": _VERSION, "rapidocr": version("rapidocr")}
        self._cache = None if cache is None else _TextCache(cache, description=described)
        self.failed, self.first_problem = 0, ""

    def __enter__(self) -> "TextReader":
        return self

    def __exit__(self, *_: object) -> None:
        if self._cache is not None:
            self._cache.close()

    def read(self, places: Iterable[Place]) -> Generator[list[ImageText], None, None]:
        """The texts, in any order, of places with an expected SHA-256."""
        left = iter(places)
        while some := list(islice(left, _ASKED_AT_ONCE)):
            known = {} if self._cache is None else self._cache.find(str(place.sha256) for place in some)
            yield list(known.values())
            missing = [place for place in some if place.sha256 not in known]
            with closing(map_ahead(self._read, missing, workers=self._workers, ahead=2 * self._workers)) as done:
                for found, problem in done:
                    if problem is not None:
                        self.failed += 1
                        self.first_problem = self.first_problem or problem
                    elif self._cache is not None:
                        self._cache.add([found])
                    yield [found]

    def _read(self, place: Place) -> tuple[ImageText, str | None]:
        """The text of one image, and the problem, if any."""
        sha256, is_read = str(place.sha256), False
        try:
            with holding_bytes(place):
                data = read_place(place)
                if hashlib.sha256(data).hexdigest() != sha256:
                    raise ImageError(place.name, CHANGED, "the file changed since it was indexed")
                is_read = True
                image = decode_image(data, name=place.name, target_side=_MOST_SIDE // 2)
                del data
            return ImageText(sha256, *join_lines(self._find_lines(image, name=place.name))), None
        except ImageError as error:
            return ImageText(sha256, "" if is_read else None), str(error)

    def _find_lines(self, image: Image.Image, *, name: str) -> list[tuple[str, float]]:
        """Lines of text and their confidences, in reading order."""
        scale = min(_MOST_SIDE / max(image.size), max(1.0, _LEAST_SIDE / min(image.size)))
        image = image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))
        try:
            found = self._engine(np.ascontiguousarray(np.asarray(image)[:, :, ::-1]))  # BGR
        except Exception as error:  # of OpenCV, ONNX Runtime and others: one image never stops a build
            raise ImageError(name, "too-costly", f"text recognition failed: {error}"[:300]) from error
        texts, scores = getattr(found, "txts", None) or (), getattr(found, "scores", None) or ()
        return list(zip(texts, map(float, scores), strict=True))


def join_lines(lines: Sequence[tuple[str, float]]) -> tuple[str, float]:
    """The text of an image, and its confidence: the mean of the lines that are kept, weighted by their lengths.

    >>> join_lines([("Havre\\tmjolk ", 0.9), ("x#", 0.3), ("1 l", 0.7)])
    ('Havre mjolk 1 l', 0.857)
    """
    kept = [(clean_line(line), score) for line, score in lines if score >= _LEAST_CONFIDENCE]
    text = " ".join(line for line, _ in kept if line)[:_MOST_CHARACTERS].rstrip()
    characters = sum(len(line) for line, _ in kept)
    return text, round(sum(len(line) * score for line, score in kept) / characters, 3) if characters else 0.0


def _open_engine() -> Any:
    """RapidOCR with the models of its wheel, one thread a call; it is safe among threads, and downloads nothing."""
    engine = require_ocr()
    import rapidocr

    folder, models = Path(rapidocr.__file__).parent / "models", dict[str, str]()
    for part in ("Det", "Cls", "Rec"):
        found = sorted(folder.glob(f"*_{part.lower()}_*.onnx"))
        if not found:
            raise ModelFileError(folder, "a model of RapidOCR is missing; install the extra `ocr` again")
        models[f"{part}.model_path"] = str(found[-1])
    return engine(
        params={
            **models,
            "Global.log_level": "critical",
            "Global.use_preprocess_img": False,  # resizing: `_find_lines` does it
            "Det.limit_type": "max",
            "Det.limit_side_len": _MOST_SIDE,
            "Det.max_candidates": _MOST_LINES,
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
    )


class _TextCache(ContentCache[ImageText]):
    """The cached texts."""

    def _pack(self, item: ImageText) -> tuple[str, bytes]:
        return item.sha256, json.dumps([item.text, item.confidence]).encode()

    def _unpack(self, sha256: str, entry: bytes) -> ImageText | None:
        text, confidence = json.loads(entry)
        return ImageText(sha256, text, confidence)
